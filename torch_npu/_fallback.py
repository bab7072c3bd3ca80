"""Operators without a native kernel run PyTorch's CPU kernel on device memory: which did, and may they?"""

from torch_npu import _C


def fallback_stats():
    """What ran since the process began, or since the last reset.

    "ops" gives for each operator its calls that fell back and its native launches; "fallbacks" and
    "native_launches" are their sums, as is "format_conversions" of how often an operator had to convert
    memory in a format (see npu_format_cast); "data_ptr" stands there for whoever asked for an address.
    "fallback_copies" and "fallback_copied_bytes" tell what a fallback had to copy because a kernel's output
    lay outside device memory. "packed_weights" counts weights that were packed for products of matrices,
    "packed_weight_uses" the products that used one without packing it, and "packed_weight_bytes" is what
    packed weights take now.
    """
    return _C.counters()


def reset_fallback_stats():
    _C.reset_counters()


def get_fallback_mode():
    """ "allow", "warn" or "error"."""
    return _C.fallback_mode().name


def set_fallback_mode(mode):
    """What an operator without a native kernel does: "allow" (run the CPU kernel), "warn" (the same, with a
    warning at each operator's first time) or "error" (raise NotImplementedError).
    """
    modes = _C.FallbackMode.__members__
    if mode not in modes:
        raise ValueError(f"set_fallback_mode: mode is {mode!r}; accepted are {', '.join(map(repr, modes))}")
    _C.set_fallback_mode(modes[mode])
