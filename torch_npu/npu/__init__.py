"""Device ``npu``, with the habits of ``torch.cuda``. Registered as ``torch.npu``.

A device is started by the first use of its memory or streams; everything that only asks or chooses (counts,
names, the current device, seeds) starts none, so that a process that did only this may fork.
"""

# ruff: noqa: F401

import sys

import torch

from torch_npu.npu import _utils, amp, devices, memory, random, streams
from torch_npu.npu.devices import (
    _exchange_device,
    _is_in_bad_fork,
    _lazy_call,
    _lazy_init,
    _maybe_exchange_device,
    current_device,
    device,
    device_count,
    device_of,
    get_amp_supported_dtype,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_bf16_supported,
    is_initialized,
    set_device,
    synchronize,
)
from torch_npu.npu.memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from torch_npu.npu.random import (
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_npu.npu.streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
)

__all__ = [name for name in dir() if not name.startswith("_") and name not in ("sys", "torch")]


def __getattr__(name):
    if name == "_initialized":  # torch.utils.checkpoint saves random states only where it is true
        return is_initialized()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _register():
    """Makes this module torch.npu, and each of its parts importable under that name."""
    torch._register_device_module("npu", sys.modules[__name__])
    for part in (_utils, amp, devices, memory, random, streams):
        sys.modules[part.__name__.replace("torch_npu.npu", "torch.npu")] = part
