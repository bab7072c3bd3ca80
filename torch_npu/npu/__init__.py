"""Device ``npu``, with the habits of ``torch.cuda``. Registered as ``torch.npu``.

A device is started by the first use of its memory or streams; everything that only asks or chooses (counts,
names, the current device, seeds) starts none, so that a process that did only this may fork.
"""

# ruff: noqa: F401

import sys

import torch

from torch_npu.npu import _utils, amp, devices, memory, npu_config, random, streams, typed
from torch_npu.npu.amp import (
    get_amp_supported_dtype,
    get_autocast_dtype,
    is_autocast_enabled,
    set_autocast_dtype,
    set_autocast_enabled,
)
from torch_npu.npu.devices import (
    _exchange_device,
    _is_in_bad_fork,
    _lazy_call,
    _lazy_init,
    _maybe_exchange_device,
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    get_device_capability,
    get_device_name,
    get_device_properties,
    get_sync_debug_mode,
    has_half,
    init,
    is_available,
    is_bf16_supported,
    is_initialized,
    is_tf32_supported,
    set_device,
    set_sync_debug_mode,
    synchronize,
    utilization,
)
from torch_npu.npu.memory import (
    MemPool,
    caching_allocator_alloc,
    caching_allocator_delete,
    caching_allocator_disabled,
    caching_allocator_enable,
    device_memory_used,
    empty_cache,
    get_allocator_backend,
    get_per_process_memory_fraction,
    host_empty_cache,
    host_memory_stats,
    host_memory_stats_as_nested_dict,
    ipc_collect,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_host_memory_stats,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_host_memory_stats,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
    use_mem_pool,
)
from torch_npu.npu.npu_config import config, conv, is_jit_compile_false, matmul, set_compile_mode
from torch_npu.npu.random import (
    _get_rng_state_offset,
    _set_rng_state_offset,
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
    ExternalStream,
    Stream,
    StreamContext,
    SyncLaunchStream,
    current_stream,
    default_stream,
    get_stream_from_external,
    is_current_stream_capturing,
    set_stream,
    stream,
)
from torch_npu.npu.typed import *  # noqa: F403

AcceleratorError = torch.AcceleratorError
OutOfMemoryError = torch.OutOfMemoryError

__all__ = [name for name in dir() if not name.startswith("_") and name not in ("sys", "torch")]


def __getattr__(name):
    if name == "_initialized":  # torch.utils.checkpoint saves random states only where it is true
        return is_initialized()
    if name in ("Scheduling", "PythonWrapperCodegen", "CppWrapperCodegen", "WrapperFxCodegen"):
        # Not before inductor, which takes these, is imported.
        from torch_npu.npu import _inductor

        return getattr(_inductor, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _register():
    """Makes this module torch.npu, and each of its parts importable under that name."""
    torch._register_device_module("npu", sys.modules[__name__])
    for part in (_utils, amp, devices, memory, npu_config, random, streams, typed):
        sys.modules[part.__name__.replace("torch_npu.npu", "torch.npu")] = part
