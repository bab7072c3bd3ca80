"""Counting, choosing, describing and waiting for devices."""

import dataclasses
import os

import torch

from torch_npu import _C
from torch_npu.npu._utils import _get_device_index

# Programs look for the model's name in it; "anynpu" says that no such card is there.
_NAME = "Ascend910B2 (anynpu)"


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


@dataclasses.dataclass(frozen=True)
class _NPUDeviceProperties:
    name: str
    total_memory: int  # bytes, of a budget that all devices of the process share
    multi_processor_count: int  # processors of the host that the process may use


def get_device_properties(device=None):
    """Name, total memory in bytes and number of processors of a device."""
    _, total = torch.accelerator.get_memory_info(_checked_index(device))
    return _NPUDeviceProperties(_NAME, total, len(os.sched_getaffinity(0)))


def get_device_name(device=None):
    _checked_index(device)
    return _NAME


def get_device_capability(device=None):
    """None: Ascend devices have no compute capability."""
    _checked_index(device)
    return None


def _checked_index(device):
    index = _get_device_index(device, optional=True)
    if not 0 <= index < device_count():
        raise RuntimeError(f"invalid device ordinal {index}: there are {device_count()} npu devices")
    return index


def is_bf16_supported(including_emulation=True):
    """True: every dtype of the host's CPU is supported."""
    return True


def get_amp_supported_dtype():
    return [torch.float16, torch.bfloat16]
