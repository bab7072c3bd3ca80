"""Permissions and choices that programs for Ascend make, and that leave nothing to choose here.

Each is kept and can be read back. None changes a result: matrices and convolutions of float32 are computed in
float32 and tensors keep their format, whatever is permitted; and no operator is compiled in another way.
"""

import types


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


config = _Permissions(allow_internal_format=False)
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
