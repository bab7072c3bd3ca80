"""Permissions and choices that programs for Ascend make.

Each is kept and can be read back. None changes a result: matrices and convolutions of float32 are computed in
float32 whatever is permitted, and no operator is compiled in another way. With config.allow_internal_format
convolutions of plain images give results in NC1HWC0 (see npu_format_cast), of the same values.
"""

import types

from torch_npu import _C


class _Permissions(types.SimpleNamespace):
    """Settings that are there from the start; another name is an error, not a new setting."""

    def __setattr__(self, name, value):
        if name not in vars(self):
            raise AttributeError(
                f"torch.npu has no setting {name!r} here; accepted are {', '.join(vars(self))}"
            )
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be a bool, got {type(value).__name__}")
        super().__setattr__(name, value)


class _Config(_Permissions):
    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        _C.allow_formats(self.allow_internal_format)


config = _Config(allow_internal_format=False)
matmul = _Permissions(allow_hf32=False)
conv = _Permissions(allow_hf32=True)

_jit_compile = False


def set_compile_mode(jit_compile=False):
    """Whether operators would be compiled when they are called; all are built already."""
    global _jit_compile
    if not isinstance(jit_compile, bool):
        raise TypeError(f"set_compile_mode: jit_compile must be a bool, got {type(jit_compile).__name__}")
    _jit_compile = jit_compile


def is_jit_compile_false():
    return not _jit_compile
