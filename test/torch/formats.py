"""Tensors in formats, for the tests of them."""

import torch

import torch_npu
from torch_npu import Format
from torch_npu import npu_format_cast as cast

NC1HWC0, NZ = Format.NC1HWC0, Format.FRACTAL_NZ
SHAPES = {
    NC1HWC0: [(2, 32, 5, 7), (3, 5, 4, 6), (1, 35, 3, 3), (2, 16, 1, 1), (0, 3, 2, 2), (2, 0, 3, 3)],
    Format.FRACTAL_Z: [(32, 16, 3, 3), (5, 3, 2, 2), (33, 20, 1, 1)],
    NZ: [(32, 48), (5, 3), (2, 17, 33), (2, 3, 16, 40), (0, 4)],
    Format.NDC1HWC0: [(2, 32, 3, 4, 5), (2, 5, 2, 3, 4)],
    Format.FRACTAL_Z_3D: [(17, 5, 2, 3, 2)],
}
EACH = [(format, shape) for format, shapes in SHAPES.items() for shape in shapes]
DTYPES = (torch.float32, torch.float16, torch.float64, torch.int8, torch.bool, torch.complex128)


def random(shape, dtype=torch.float32, seed=0):
    make = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=make) * 4).to(dtype)


def formatted(x, format=NC1HWC0):
    """On npu, in that format, with NaN where it has padding."""
    blocks = cast(x.npu(), format)
    if x.dtype.is_floating_point:
        ones = cast(torch.ones_like(x).npu(), format)
        blocks = blocks * (ones / ones)  # 0 / 0 in padding
    assert torch_npu.get_npu_format(blocks) == format
    return blocks


def conversions(name=None):
    stats = torch_npu.fallback_stats()
    return (stats if name is None else stats["ops"].get(name, {})).get("format_conversions", 0)


def unasked():
    """Conversions that nobody asked for."""
    return conversions() - conversions("npu::npu_format_cast")
