"""What the caching allocator of a device holds. Sizes are in bytes."""

import collections
import contextlib
import pickle
import sys
import warnings
import weakref

import torch
from torch.cuda import _memory_viz

from torch_npu import _C
from torch_npu.npu._utils import _get_device_index


def _on_device(function, doc):
    def call(device=None):
        index = _get_device_index(device, optional=True)
        _C.check_device(index)
        return function(index)

    call.__name__ = call.__qualname__ = function.__name__
    call.__doc__ = doc
    return call


memory_allocated = _on_device(torch.accelerator.memory_allocated, "What live tensors hold.")
max_memory_allocated = _on_device(
    torch.accelerator.max_memory_allocated, "The most that live tensors held since the last reset."
)
memory_reserved = _on_device(
    torch.accelerator.memory_reserved, "What the allocator holds, cached memory included."
)
max_memory_reserved = _on_device(
    torch.accelerator.max_memory_reserved, "The most that the allocator held since the last reset."
)
reset_peak_memory_stats = _on_device(
    torch.accelerator.reset_peak_memory_stats, "Lowers the peak counters to their current values."
)
reset_accumulated_memory_stats = _on_device(
    torch.accelerator.reset_accumulated_memory_stats, "Sets the counters of all that was ever done to zero."
)


def _deprecated(name, replacement):
    def call(device=None):
        warnings.warn(
            f"torch.npu.{name} is deprecated: use torch.npu.{replacement.__name__}",
            FutureWarning,
            stacklevel=2,
        )
        return replacement(device)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"The former name of {replacement.__name__}."
    return call


reset_max_memory_allocated = _deprecated("reset_max_memory_allocated", reset_peak_memory_stats)
reset_max_memory_cached = _deprecated("reset_max_memory_cached", reset_peak_memory_stats)
memory_cached = _deprecated("memory_cached", memory_reserved)
max_memory_cached = _deprecated("max_memory_cached", max_memory_reserved)


def memory_stats_as_nested_dict(device=None):
    """All counters of a device's allocator: see torch.cuda.memory_stats. Empty before it is started."""
    index = _get_device_index(device, optional=True)
    _C.check_device(index)
    return _C.memory_stats(index) if _C.is_initialized() else {}


def memory_stats(device=None):
    """memory_stats_as_nested_dict() with the keys of nested dictionaries joined by points, in order."""
    return _flat(memory_stats_as_nested_dict(device))


def host_memory_stats_as_nested_dict():
    """All counters of pinned host memory: see torch.cuda.host_memory_stats."""
    return _C.host_memory_stats()


def host_memory_stats():
    """host_memory_stats_as_nested_dict() with the keys of nested dictionaries joined by points, in order."""
    return _flat(host_memory_stats_as_nested_dict())


def _flat(nested):
    def pairs(prefix, value):
        if not isinstance(value, dict):
            yield prefix, value
            return
        for key, part in value.items():
            name = "_".join(map(str, key)) if isinstance(key, tuple) else key
            yield from pairs(f"{prefix}.{name}" if prefix else name, part)

    return collections.OrderedDict(sorted(pairs("", nested)))


def reset_accumulated_host_memory_stats():
    """Sets the counters of all that was ever pinned to zero."""
    _C.reset_accumulated_host_memory_stats()


def reset_peak_host_memory_stats():
    """Lowers the peak counters of pinned host memory to their current values."""
    _C.reset_peak_host_memory_stats()


def mem_get_info(device=None):
    """(free, total): what the devices of this process may still take of the budget they share; the budget."""
    return torch.accelerator.get_memory_info(_get_device_index(device, optional=True))


def device_memory_used(device=None):
    """What all devices of this process hold of the budget they share."""
    free, total = mem_get_info(device)
    return total - free


def empty_cache():
    """Gives memory that no tensor uses back to the system."""
    torch.accelerator.empty_cache()


def ipc_collect():
    """Makes freed memory available that other processes had, as far as they have given it back by now. Gives
    back what this process dropped of theirs, which waits for the work that streams have."""
    _C.ipc_collect()


def host_empty_cache():
    """Gives pinned host memory that no tensor uses back to the system."""
    torch.accelerator.empty_host_cache()


def set_per_process_memory_fraction(fraction, device=None):
    """Lets a device reserve at most this part of the total; a request beyond it is out of memory."""
    if not isinstance(fraction, float):
        raise TypeError(f"fraction must be a float, got {type(fraction).__name__}")
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction must lie in [0, 1], got {fraction}")
    _C.set_memory_fraction(fraction, _get_device_index(device, optional=True))


def get_per_process_memory_fraction(device=None):
    """The part of the total that a device may reserve."""
    return _C.memory_fraction(_get_device_index(device, optional=True))


def get_allocator_backend():
    """ "native": the caching allocator of device npu is the only one."""
    return "native"


def caching_allocator_alloc(size, device=None, stream=None):
    """The address of ``size`` bytes for work of ``stream`` (a Stream or its handle; None: the current one).

    They stay until caching_allocator_delete.
    """
    index = _get_device_index(device, optional=True)
    if stream is None:
        stream_id = torch.accelerator.current_stream(index).stream_id
    elif isinstance(stream, int):
        stream_id, index = _C.stream_of_handle(stream)
    elif isinstance(stream, torch.Stream):
        stream_id = stream.stream_id
    else:
        raise TypeError(
            "caching_allocator_alloc: stream must be a torch.npu.Stream or the number of its handle, got "
            f"{type(stream).__name__}"
        )
    return _C.allocate(size, index, stream_id)


def caching_allocator_delete(mem_ptr):
    """Frees what caching_allocator_alloc gave."""
    _C.free(mem_ptr)


def caching_allocator_enable(value=True):
    """Whether freed memory is kept for later allocations (as it is at the start) or goes back at once."""
    _C.enable_caching(value)
    if not value:
        empty_cache()


@contextlib.contextmanager
def caching_allocator_disabled():
    """A context in which freed memory goes back at once."""
    caching_allocator_enable(False)
    try:
        yield
    finally:
        caching_allocator_enable(True)


class MemPool:
    """Segments of their own, for the allocations made under use_mem_pool().

    What tensors give back stays in the pool, also when the caches are emptied, until the pool itself ends.
    """

    def __init__(self, allocator=None, use_on_oom=False, no_split=False):
        for name, value in (("allocator", allocator), ("use_on_oom", use_on_oom), ("no_split", no_split)):
            if value:
                raise NotImplementedError(f"torch.npu.MemPool: {name}={value!r} is not supported")
        self._group = _C.new_group()
        self._uses = 1
        weakref.finalize(self, _C.drop_group, self._group).atexit = False

    @property
    def id(self):
        """The pool as a pair of numbers: "segment_pool_id" in snapshots."""
        return (0, self._group)

    def use_count(self):
        """How many hold the pool: its owner, and each use_mem_pool() that is entered."""
        return self._uses

    def snapshot(self, include_traces=True):
        """The pool's segments, as memory_snapshot() gives them; none carries traces."""
        return memory_snapshot(self.id)


@contextlib.contextmanager
def use_mem_pool(pool, device=None):
    """A context in which the calling thread's allocations on ``device`` come from ``pool``."""
    index = _get_device_index(device, optional=True)
    previous = _C.exchange_group(index, pool.id[1])
    pool._uses += 1
    try:
        yield
    finally:
        pool._uses -= 1
        _C.exchange_group(index, previous)


def memory_snapshot(mempool_id=None):
    """Every segment of every device (or of one MemPool, by its id) with its blocks, under the keys of
    torch.cuda.memory_snapshot.
    """
    return _C.memory_snapshot(None if mempool_id is None else mempool_id[1])


def _record_memory_history(
    enabled="all",
    context="all",
    stacks="all",
    max_entries=sys.maxsize,
    device=None,
    clear_history=False,
    compile_context=False,
    global_record_annotations=False,
    skip_actions=None,
):
    """Keeps the stacks of live blocks, and a history of what the allocators of all devices do.

    Arguments and their values are those of torch.cuda.memory._record_memory_history; enabled=None ends it.
    Starts all devices.
    """
    for name, value in (
        ("compile_context", compile_context),
        ("global_record_annotations", global_record_annotations),
    ):
        if value:
            raise NotImplementedError(f"_record_memory_history: {name}=True is not supported")
    if isinstance(enabled, bool):
        raise TypeError(
            f"_record_memory_history: enabled is {enabled}; 'state', 'all' and None are accepted (the form "
            "with a bool is torch.cuda's former one)"
        )
    _C.record_memory_history(enabled, context, stacks, max_entries, clear_history, skip_actions or [])


def _snapshot(device=None, augment_with_fx_traces=False):
    """What torch.cuda.memory._snapshot() holds, of all devices."""
    snapshot = _C.snapshot()
    if augment_with_fx_traces:
        snapshot = torch.cuda.memory._augment_memory_snapshot_stack_traces(snapshot)
    return snapshot


def _dump_snapshot(filename="dump_snapshot.pickle", augment_with_fx_traces=False):
    """Writes _snapshot() to a file that torch.cuda._memory_viz and pytorch.org/memory_viz show."""
    with open(filename, "wb") as file:
        pickle.dump(_snapshot(augment_with_fx_traces=augment_with_fx_traces), file)


def _save_segment_usage(filename="output.svg", snapshot=None):
    """Draws what each segment holds, as a flame graph."""
    with open(filename, "w") as file:
        file.write(_memory_viz.segments(_snapshot() if snapshot is None else snapshot))


def _save_memory_usage(filename="output.svg", snapshot=None):
    """Draws which lines of the program hold memory, as a flame graph."""
    with open(filename, "w") as file:
        file.write(_memory_viz.memory(_snapshot() if snapshot is None else snapshot))


def _set_memory_metadata(metadata):
    """A text for the events that the calling thread causes from now on, for _snapshot(); empty: none."""
    _C.set_memory_metadata(metadata)


def _get_memory_metadata():
    return _C.memory_metadata()


def _set_allocator_settings(settings):
    """Changes the allocator's settings, in the form of PYTORCH_NPU_ALLOC_CONF."""
    torch._C._accelerator_setAllocatorSettings(settings)


_ROWS = (
    ("Allocated memory", "allocated_bytes"),
    ("Active memory", "active_bytes"),
    ("Requested memory", "requested_bytes"),
    ("Reserved memory", "reserved_bytes"),
    ("Non-releasable memory", "inactive_split_bytes"),
    ("Allocations", "allocation"),
    ("Active blocks", "active"),
    ("Reserved segments", "segment"),
    ("Non-releasable blocks", "inactive_split"),
)
_COLUMNS = (("current", "now"), ("peak", "peak"), ("allocated", "taken"), ("freed", "given back"))


def memory_summary(device=None, abbreviated=False):
    """A table of the counters; ``abbreviated`` leaves out the parts for small and large blocks."""
    index = _get_device_index(device, optional=True)
    stats = memory_stats(index)
    kinds = (
        (("all", ""),) if abbreviated else (("all", ""), ("large_pool", "  large"), ("small_pool", "  small"))
    )
    rows = [f"{'':<22}" + "".join(f"{title:>14}" for _, title in _COLUMNS)]
    for title, quantity in _ROWS:
        for kind, indented in kinds:
            values = (stats.get(f"{quantity}.{kind}.{column}", 0) for column, _ in _COLUMNS)
            show = _size_text if quantity.endswith("bytes") else str
            rows.append(f"{indented or title:<22}" + "".join(f"{show(value):>14}" for value in values))
    width = max(map(len, rows))
    title = f"Memory of device npu:{index}"
    ends = f"out of memory {stats.get('num_ooms', 0)} times, {stats.get('num_alloc_retries', 0)} retries"
    return "\n".join([title, "=" * width, *rows, "=" * width, ends, ""])


def _size_text(size):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024 or unit == "GiB":
            return f"{size} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
