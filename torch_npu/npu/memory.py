"""What the caching allocator of a device holds. Sizes are in bytes."""

import torch

from torch_npu import _C
from torch_npu.npu._utils import _get_device_index


def _on_device(function, doc):
    def call(device=None):
        return function(_get_device_index(device, optional=True))

    call.__name__ = call.__qualname__ = function.__name__
    call.__doc__ = doc
    return call


memory_stats = _on_device(
    torch.accelerator.memory_stats,
    "All counters, by name: see torch.cuda.memory_stats. Empty before a device is started.",
)
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
reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats


def mem_get_info(device=None):
    """(free, total): what the devices of this process may still take of the budget they share; the budget."""
    return torch.accelerator.get_memory_info(_get_device_index(device, optional=True))


def empty_cache():
    """Gives memory that no tensor uses back to the system."""
    torch.accelerator.empty_cache()


def set_per_process_memory_fraction(fraction, device=None):
    """Lets a device reserve at most this part of the total; a request beyond it is out of memory."""
    if not isinstance(fraction, float):
        raise TypeError(f"fraction must be a float, got {type(fraction).__name__}")
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction must lie in [0, 1], got {fraction}")
    _C.set_memory_fraction(fraction, _get_device_index(device, optional=True))


def memory_snapshot():
    """Every segment of every device with its blocks, under the keys of torch.cuda.memory_snapshot."""
    return _C.memory_snapshot()


def memory_stats_as_nested_dict(device=None):
    """memory_stats() with the parts of each name as keys of nested dictionaries."""
    nested = {}
    for name, value in memory_stats(device).items():
        *parts, last = name.split(".")
        place = nested
        for part in parts:
            place = place.setdefault(part, {})
        place[last] = value
    return nested


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
