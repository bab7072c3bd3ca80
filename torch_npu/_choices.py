"""What PyTorch's Python code chooses by the name of the device, and what is right for the host."""

import functools

import torch
from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions


def choose_as_on_the_cpu():
    LinearCrossEntropyOptions._adjust = _with_cpu_for_npu(LinearCrossEntropyOptions._adjust)


def _with_cpu_for_npu(adjust):
    """Of the loss in chunks: devices that it does not know accumulate half types in themselves."""

    @functools.wraps(adjust)
    def adjust_for_host(self, *args, device=None, **kwargs):
        on_npu = device is not None and device.type == "npu"
        return adjust(self, *args, device=torch.device("cpu") if on_npu else device, **kwargs)

    return adjust_for_host
