"""Ways to name a device."""

import torch

from torch_npu import _C


def _get_device_index(device, optional=False, allow_cpu=False):
    """The index that ``device`` (an int, string, torch.device or torch.npu.device) names.

    None, and a device without an index, name the current device where that is ``optional``. A CPU device
    gives -1 where it is allowed.
    """
    if isinstance(device, int):
        return device
    if isinstance(device, str):
        device = torch.device(device)
    index = None
    if isinstance(device, torch.device):
        if allow_cpu and device.type == "cpu":
            return -1
        if device.type != "npu":
            raise ValueError(f"Expected an npu device, but got: {device}")
        index = device.index
    elif device is not None:
        if not hasattr(device, "idx"):
            raise ValueError(f"Expected an npu device or its index, but got: {device!r}")
        index = device.idx
    if index is None and not optional:
        raise ValueError(f"Expected an npu device with a specified index or an integer, but got: {device}")
    return _C.current_device() if index is None else index
