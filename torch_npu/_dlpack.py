"""DLPack: npu tensors are shared as those of an extension device, without a copy."""

import functools

import torch
from torch.utils.dlpack import DLDeviceType


def name_device():
    """PyTorch looks for the device by the name that it had before it was called npu."""
    torch.Tensor.__dlpack_device__ = _with_npu(torch.Tensor.__dlpack_device__)


def _with_npu(dlpack_device):
    @functools.wraps(dlpack_device)
    def dlpack_device_with_npu(tensor):
        if tensor.device.type == "npu":
            return (DLDeviceType.kDLExtDev, tensor.device.index)
        return dlpack_device(tensor)

    return dlpack_device_with_npu
