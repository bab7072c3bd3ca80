"""The end of the process: the runtime stops before Python does."""

import atexit
import threading
import time

from torch_npu import _C

# What a thread needs at most from one use of the device to the next, where it finds the runtime shut down and
# rests. A thread that Python ends inside of PyTorch takes the process with it.
_UNTIL_THREADS_REST = 0.05


def _leave():
    try:
        if _C.is_initialized():
            _C.settle_autograd()
    finally:
        _C.shutdown()
    if threading.active_count() > 1:
        time.sleep(_UNTIL_THREADS_REST)


def leave_in_order():
    atexit.register(_leave)
