"""Counting, choosing, describing and waiting for devices."""

import dataclasses
import os
import re
import time

import torch

from torch_npu import _C
from torch_npu.npu._utils import _get_device_index

# Programs look for the processor's name in it; "anynpu" says that no such card is there.
_NAME = f"{_C.soc_name()} (anynpu)"

has_half = True


def device_count():
    """How many devices there are."""
    return _C.device_count()


def is_available():
    """True when there is a device. Never raises and starts none."""
    return _C.is_available()


def current_device():
    """The index of the calling thread's device: 0 in a thread that has chosen none."""
    return _C.current_device()


def set_device(device):
    """Makes ``device`` the calling thread's; a negative index changes nothing."""
    index = _get_device_index(device)
    if index >= 0:
        _C.set_device(index)


def _exchange_device(index):
    """Chooses a device and gives the one before; a negative index changes nothing and gives -1."""
    if index < 0:
        return -1
    previous = current_device()
    _C.set_device(index)
    return previous


# Choosing a device starts none, so there is nothing that a cautious form would leave out.
_maybe_exchange_device = _exchange_device


class device:
    """A context in which ``device`` is the calling thread's; None, and a negative index, change nothing."""

    def __init__(self, device):
        self.idx = -1 if device is None else _get_device_index(device, optional=True)
        self.prev_idx = -1

    def __enter__(self):
        self.prev_idx = _exchange_device(self.idx)

    def __exit__(self, *_):
        _exchange_device(self.prev_idx)
        return False


class device_of(device):
    """A context in which the device of ``obj``, a tensor or storage, is the calling thread's."""

    def __init__(self, obj):
        super().__init__(obj.get_device() if obj.is_npu else -1)


def init():
    """Starts the current device. Nothing needs it: the first use does the same."""
    _C.init()


def _lazy_init():
    """What PyTorch calls before its first use of npu: raises where no device can be used, and starts none."""
    _C.require_usable()


def is_initialized():
    """True when this process has started a device."""
    return _C.is_initialized()


def _lazy_call(callable, **_):
    """Calls ``callable``: where torch.cuda would wait until the device is started, its use starts it."""
    callable()


def _is_in_bad_fork():
    """True in a fork of a process that had started a device: here, none can be used."""
    return _C.is_in_bad_fork()


def synchronize(device=None):
    """Waits for all work of all streams of a device; raises the first error of that work."""
    _C.synchronize(_get_device_index(device, optional=True))


_SYNC_DEBUG_MODES = ("default", "warn", "error")


def set_sync_debug_mode(debug_mode):
    """What a call does that makes the host wait for the device: nothing ("default" or 0), "warn" (1) or raise
    an "error" (2). Concerns copies that are not asynchronous, and operators that read values, such as item().
    """
    named = isinstance(debug_mode, str)
    if debug_mode not in (_SYNC_DEBUG_MODES if named else range(len(_SYNC_DEBUG_MODES))):
        raise RuntimeError(
            f"set_sync_debug_mode: debug_mode is {debug_mode!r}; accepted are 0, 1, 2 and "
            f"{', '.join(map(repr, _SYNC_DEBUG_MODES))}"
        )
    _C.set_sync_debug_mode(_SYNC_DEBUG_MODES.index(debug_mode) if named else debug_mode)


def get_sync_debug_mode():
    """0, 1 or 2: see set_sync_debug_mode."""
    return _C.sync_debug_mode()


@dataclasses.dataclass(frozen=True)
class _NPUDeviceProperties:
    name: str
    total_memory: int  # bytes, of a budget that all devices of the process share
    multi_processor_count: int  # processors of the host that the process may use
    cube_core_num: int  # the same: each computes both matrices and vectors
    vector_core_num: int


def get_device_properties(device=None):
    """Name, total memory in bytes and number of processors of a device."""
    _, total = torch.accelerator.get_memory_info(_checked_index(device))
    processors = len(os.sched_getaffinity(0))
    return _NPUDeviceProperties(_NAME, total, processors, processors, processors)


def get_device_name(device=None):
    _checked_index(device)
    return _NAME


def get_device_capability(device=None):
    """None: Ascend devices have no compute capability. For programs that cannot do without one,
    TORCH_NPU_DEVICE_CAPABILITY=major.minor in the environment makes it (major, minor).
    """
    _checked_index(device)
    text = _C.device_capability()
    if not text:
        return None
    match = re.fullmatch(r"(\d+)\.(\d+)", text)
    if match is None:
        raise ValueError(
            f"TORCH_NPU_DEVICE_CAPABILITY is {text!r}; two numbers with a point between them are accepted"
        )
    return int(match[1]), int(match[2])


def can_device_access_peer(device, peer_device):
    """True: all devices of a process can copy from each other's memory."""
    return _checked_index(device) >= 0 and _checked_index(peer_device) >= 0


class _Utilization:
    """How busy the process keeps its processors, from one question to the next."""

    def __init__(self):
        self.asked, self.busy = time.monotonic(), time.process_time()

    def percent(self):
        asked, busy = time.monotonic(), time.process_time()
        possible = (asked - self.asked) * len(os.sched_getaffinity(0))
        used, self.asked, self.busy = busy - self.busy, asked, busy
        return round(min(100, 100 * used / possible)) if possible > 0 else 0


_utilization = _Utilization()


def utilization(device=None):
    """How busy, in percent, this process kept its processors since it was last asked, or imported torch."""
    _checked_index(device)
    return _utilization.percent()


def _checked_index(device):
    index = _get_device_index(device, optional=True)
    if not 0 <= index < device_count():
        raise RuntimeError(
            f"invalid device ordinal {index}: 0 to {device_count() - 1} exist (option ANYNPU_DEVICES)"
        )
    return index


def is_bf16_supported(including_emulation=True):
    """True: every dtype of the host's CPU is supported."""
    return True


def is_tf32_supported():
    """False: float32 is computed as float32."""
    return False
