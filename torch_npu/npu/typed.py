"""Types that name a dtype on npu, as torch.cuda.FloatTensor does: types of tensors, and typed storages."""

import torch
from torch._utils import classproperty
from torch.storage import _LegacyStorage, _warn_typed_storage_removal

_DTYPES = {
    "BFloat16": torch.bfloat16,
    "Bool": torch.bool,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Short": torch.int16,
}


class _TensorType(type):
    """Makes and recognises dense npu tensors of one dtype, which are torch.Tensor objects."""

    def __call__(cls, *args):
        """An uninitialised tensor of a size, or one with the values of a sequence."""
        if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
            return torch.tensor(args[0], dtype=cls.dtype, device="npu")
        return torch.empty(*(args or (0,)), dtype=cls.dtype, device="npu")

    def __instancecheck__(cls, instance):
        return (
            isinstance(instance, torch.Tensor)
            and instance.is_npu
            and instance.dtype == cls.dtype
            and instance.layout == torch.strided
        )

    def __repr__(cls):
        return f"<class '{cls.__name__}'>"


def _tensor_type(name, dtype):
    # Tensor.type() takes a type by its name, which holds the module for torch's own types too.
    members = {"dtype": dtype, "is_npu": True, "is_cuda": False, "is_sparse": False, "layout": torch.strided}
    return _TensorType(f"torch.npu.{name}Tensor", (), members)


def _storage_type(name, dtype):
    def warned(cls):
        _warn_typed_storage_removal()
        return dtype

    members = {"dtype": classproperty(warned), "_dtype": classproperty(lambda cls: dtype)}
    # PyTorch takes the device of a typed storage from its module's name.
    return type(f"{name}Storage", (_LegacyStorage,), members | {"__module__": "torch_npu.npu"})


__all__ = []
for _name, _dtype in {**_DTYPES, "ComplexFloat": torch.complex64, "ComplexDouble": torch.complex128}.items():
    globals()[f"{_name}Storage"] = _storage_type(_name, _dtype)
    __all__.append(f"{_name}Storage")
for _name, _dtype in _DTYPES.items():
    globals()[f"{_name}Tensor"] = _tensor_type(_name, _dtype)
    __all__.append(f"{_name}Tensor")
