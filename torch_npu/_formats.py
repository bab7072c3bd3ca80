"""Formats of tensors' memory: plain, or in blocks of 16 elements, as Ascend's Cube reads them.

A tensor in such a format has the sizes, strides and values of any other. Operators that know the format
compute with the blocks; for others, and for whoever asks for an address, they become plain memory first.
"""

import enum

import torch


class Format(enum.IntEnum):
    UNDEFINED = -1
    NCHW = 0
    NHWC = 1
    ND = 2
    NC1HWC0 = 3
    FRACTAL_Z = 4
    NC1HWC0_C04 = 12
    HWCN = 16
    NDHWC = 27
    FRACTAL_NZ = 29
    NCDHW = 30
    NDC1HWC0 = 32
    FRACTAL_Z_3D = 33


def get_npu_format(tensor):
    """The format of the tensor's storage."""
    return Format(torch.ops.npu.get_npu_format(tensor))


def get_storage_size(tensor):
    """How many elements the tensor's storage has, padding of its format included."""
    return torch.ops.npu.get_storage_size(tensor)


def npu_format_cast(tensor, acl_format):
    """The tensor in that format: itself where it has it, else a new one, through which gradients go."""
    if acl_format == get_npu_format(tensor):
        return tensor
    return torch.ops.npu.npu_format_cast(tensor, int(acl_format))


def npu_format_cast_(tensor, acl_format):
    """Puts the storage of a tensor that is all of it into that format; returns the tensor."""
    return torch.ops.npu.npu_format_cast_(tensor, int(acl_format))


def empty_with_format(
    size, dtype=None, layout=torch.strided, device="npu", pin_memory=False, acl_format=Format.ND
):
    """torch.empty, in that format."""
    return torch.ops.npu.empty_with_format(
        size,
        dtype=dtype,
        layout=layout,
        device=torch.device(device),
        pin_memory=pin_memory,
        acl_format=int(acl_format),
    )
