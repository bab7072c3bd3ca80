"""The units that are counted: (operator, variant, dtype)."""

import zlib
from dataclasses import dataclass
from functools import cache

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import (
    BinaryUfuncInfo,
    OpInfo,
    ReductionOpInfo,
    ShapeFuncInfo,
    UnaryUfuncInfo,
)

DTYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f64": torch.float64,
    "i64": torch.int64,
    "bool": torch.bool,
    "c64": torch.complex64,
}
# A variant, and for which dtypes an operator of the database claims to have it on the CPU.
VARIANTS = {
    "forward": lambda op: op.supported_dtypes("cpu"),
    "out": lambda op: op.supported_dtypes("cpu") if op.supports_out else (),
    "inplace": lambda op: op.supported_dtypes("cpu") if op.get_inplace() is not None else (),
    "autograd": lambda op: op.supported_backward_dtypes("cpu"),
}
# By the name's beginning, then by the kind of entry; the rest is of its own.
FAMILIES_BY_NAME = {
    "fft.": "Fourier transforms (fft)",
    "linalg.": "linear algebra (linalg)",
    "masked.": "masked reductions (masked)",
    "nn.functional.": "neural networks (nn.functional)",
    "signal.windows.": "windows (signal.windows)",
    "special.": "special functions (special)",
}
FAMILIES_BY_KIND = {
    UnaryUfuncInfo: "elementwise, one operand",
    BinaryUfuncInfo: "elementwise, two operands",
    ReductionOpInfo: "reductions",
    ShapeFuncInfo: "shapes, indexing and others",
    OpInfo: "shapes, indexing and others",
}


@dataclass(frozen=True)
class Unit:
    op: str
    variant: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.op}/{self.variant}/{self.dtype}"

    @property
    def info(self) -> OpInfo:
        return operators()[self.op]

    @property
    def family(self) -> str:
        for start, family in FAMILIES_BY_NAME.items():
            if self.op.startswith(start):
                return family
        return next(family for kind, family in FAMILIES_BY_KIND.items() if isinstance(self.info, kind))

    @property
    def is_first_dtype(self) -> bool:
        supported = self.info.supported_dtypes("cpu")
        return self.dtype == next(name for name, dtype in DTYPES.items() if dtype in supported)

    def is_one_of(self, n: int) -> bool:
        """True for every n-th unit by hash, the same ones in every run."""
        return zlib.crc32(str(self).encode()) % n == 0


@cache
def operators() -> dict[str, OpInfo]:
    named = {op.full_name: op for op in op_db}
    assert len(named) == len(op_db)
    return named


@cache
def all_units() -> tuple[Unit, ...]:
    return tuple(
        Unit(name, variant, dtype_name)
        for name, op in operators().items()
        for variant, supported in VARIANTS.items()
        for dtype_name, dtype in DTYPES.items()
        if dtype in supported(op)
    )
