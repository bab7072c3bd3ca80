"""Importing this module lets a program that was written for device cuda run on device npu.

Afterwards a device that is named "cuda" is npu, wherever PyTorch takes a device, and the functions of
torch.cuda are those of torch.npu that have the same name. It is meant for programs; libraries ask
torch.accelerator.
"""

import functools

import torch
from torch.utils._device import _device_constructors

from torch_npu import npu

# What takes a device, beside the functions that torch itself lists because the default device concerns them.
_TAKES_DEVICE = {
    torch: (
        *("load", "set_default_device", "get_device_module", "is_autocast_enabled", "set_autocast_enabled"),
        *("get_autocast_dtype", "set_autocast_dtype", "zeros_like", "ones_like", "empty_like", "full_like"),
        *("rand_like", "randn_like", "randint_like"),
    ),
    torch.Tensor: (
        *("to", "new_tensor", "new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided"),
        *("pin_memory", "is_pinned"),
    ),
    torch.nn.Module: ("to", "to_empty"),
    torch.UntypedStorage: ("to",),
    torch.amp.autocast: ("__init__",),
    torch.amp.GradScaler: ("__init__",),
}
_SAME_METHODS = (torch.Tensor, torch.nn.Module, torch.UntypedStorage, torch.TypedStorage)
_SAME_MODULES = (
    (torch.cuda, npu),
    (torch.cuda.memory, npu.memory),
    (torch.cuda.random, npu.random),
    (torch.cuda.streams, npu.streams),
    (torch.cuda.amp, npu.amp),
)


def _to_npu(value):
    """``value`` with the device that it names, if any, renamed."""
    if isinstance(value, str) and value.partition(":")[0] == "cuda":
        return "npu" + value[len("cuda") :]
    if isinstance(value, _device) and value.type == "cuda":
        return _device("npu", value.index) if value.index is not None else _device("npu")
    if isinstance(value, dict):  # map_location
        return {_to_npu(key): _to_npu(place) for key, place in value.items()}
    return value


def _translated(function):
    """``function`` with the devices among its arguments renamed."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        return function(*map(_to_npu, args), **{name: _to_npu(value) for name, value in kwargs.items()})

    return call


class _TranslatedType(type):
    """Stands for a type that cannot be changed: makes and recognises its objects."""

    def __call__(cls, *args, **kwargs):
        return _translated(cls.original)(*args, **kwargs)

    def __instancecheck__(cls, instance):
        return isinstance(instance, cls.original)

    def __subclasscheck__(cls, subclass):
        return issubclass(subclass, cls.original)


def _translated_type(original):
    return _TranslatedType(original.__name__, (), {"original": original, "__module__": original.__module__})


def _transfer():
    constructors = _device_constructors()
    for name, function in list(vars(torch).items()):
        if callable(function) and not isinstance(function, type) and function in constructors:
            setattr(torch, name, _translated(function))
    for owner, names in _TAKES_DEVICE.items():
        for name in names:
            setattr(owner, name, _translated(getattr(owner, name)))
    for owner in _SAME_METHODS:
        owner.cuda = owner.npu
        if hasattr(owner, "is_npu"):
            owner.is_cuda = owner.is_npu
    for theirs, ours in _SAME_MODULES:
        for name, value in vars(ours).items():
            if hasattr(theirs, name) and getattr(value, "__module__", "").startswith("torch_npu"):
                setattr(theirs, name, value)
    torch.cuda.default_generators = npu.default_generators
    torch.device = _translated_type(torch.device)
    torch.Generator = _translated_type(torch.Generator)


_device = torch.device
_transfer()
