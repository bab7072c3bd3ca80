"""The caching allocator as torch.npu and torch.accelerator show it, resized storages, out of memory."""

import gc
import re
import threading

import pytest
import torch

MEGABYTE = 1 << 20
BIG = 64 * MEGABYTE


@pytest.fixture(autouse=True)
def nothing_cached():
    gc.collect()
    torch.npu.synchronize()
    torch.npu.empty_cache()
    torch.npu.reset_peak_memory_stats()
    yield
    torch.npu.set_per_process_memory_fraction(1.0)


def test_counters_follow_tensors():
    before, reserved_before = torch.npu.memory_allocated(), torch.npu.memory_reserved()
    x = torch.empty(BIG, dtype=torch.uint8, device="npu")
    view = x[10:]
    assert torch.npu.memory_allocated() == before + BIG
    assert torch.npu.memory_reserved() >= reserved_before + BIG
    del x
    assert torch.npu.memory_allocated() == before + BIG
    del view
    assert torch.npu.memory_allocated() == before
    assert torch.npu.max_memory_allocated() == before + BIG
    assert torch.npu.memory_reserved() >= reserved_before + BIG
    torch.npu.empty_cache()
    assert torch.npu.memory_reserved() == reserved_before
    assert torch.npu.max_memory_reserved() >= reserved_before + BIG
    torch.npu.reset_peak_memory_stats()
    assert torch.npu.max_memory_allocated() == torch.npu.memory_allocated() == before


def test_freed_memory_is_used_again():
    address = torch.empty(BIG, dtype=torch.uint8, device="npu").data_ptr()
    segments = torch.npu.memory_stats()["num_device_alloc"]
    for _ in range(5):
        assert torch.empty(BIG, dtype=torch.uint8, device="npu").data_ptr() == address
    assert torch.npu.memory_stats()["num_device_alloc"] == segments


def test_devices_count_apart():
    before = [torch.npu.memory_allocated(index) for index in range(2)]
    x = torch.empty(BIG, dtype=torch.uint8, device="npu:1")
    assert torch.npu.memory_allocated(0) == before[0]
    assert torch.npu.memory_allocated("npu:1") == before[1] + x.nbytes
    with torch.npu.device(1):
        assert torch.npu.memory_allocated() == before[1] + x.nbytes


def test_statistics_have_torchs_names():
    x = torch.empty(1000, device="npu")
    stats = torch.npu.memory_stats()
    for quantity in (
        "allocation",
        "segment",
        "active",
        "inactive_split",
        "allocated_bytes",
        "reserved_bytes",
        "active_bytes",
        "inactive_split_bytes",
        "requested_bytes",
    ):
        for kind in ("all", "small_pool", "large_pool"):
            for part in ("current", "peak", "allocated", "freed"):
                assert stats[f"{quantity}.{kind}.{part}"] >= 0
        assert stats[f"{quantity}.all.current"] == (
            stats[f"{quantity}.small_pool.current"] + stats[f"{quantity}.large_pool.current"]
        )
    assert stats["allocated_bytes.all.current"] == torch.npu.memory_allocated() >= x.nbytes
    assert stats["allocated_bytes.all.peak"] == torch.npu.max_memory_allocated()
    assert (
        torch.npu.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["current"]
        == torch.npu.memory_allocated()
    )
    assert torch.accelerator.memory_stats().items() <= stats.items()
    assert list(stats) == sorted(stats)
    documented = set(re.findall(r'``"(\w+)(?:\.{|"``: [^c])', torch.cuda.memory_stats.__doc__))
    documented.remove("allocated")  # torch.cuda gives it as "allocation"
    assert len(documented) > 12 and documented <= torch.npu.memory_stats_as_nested_dict().keys()
    torch.npu.reset_accumulated_memory_stats()
    assert torch.npu.memory_stats()["allocation.all.allocated"] == 0


def test_requested_bytes_are_those_asked_for():
    before = torch.npu.memory_stats()["requested_bytes.all.current"]
    x = torch.empty(1001, dtype=torch.uint8, device="npu")
    assert torch.npu.memory_stats()["requested_bytes.all.current"] - before == x.nbytes == 1001


def test_snapshot_holds_every_tensor():
    x = torch.empty(3 * MEGABYTE, dtype=torch.uint8, device="npu:1")
    segments = torch.npu.memory_snapshot()
    held = [
        (segment, block)
        for segment in segments
        for block in segment["blocks"]
        if block["address"] == x.data_ptr()
    ]
    ((segment, block),) = held
    assert block["state"] == "active_allocated" and block["size"] >= block["requested_size"] == x.nbytes
    assert segment["device"] == 1 and segment["segment_type"] == "large"
    for segment in segments:
        assert segment["total_size"] == sum(block["size"] for block in segment["blocks"])
    assert sum(s["allocated_size"] for s in segments if s["device"] == 1) == torch.npu.memory_allocated(1)


def test_memory_summary_shows_the_counters():
    x = torch.empty(5 * MEGABYTE, dtype=torch.uint8, device="npu:1")
    full, short = torch.npu.memory_summary(1), torch.npu.memory_summary(1, abbreviated=True)
    allocated = f"{torch.npu.memory_allocated(1) / MEGABYTE:.1f} MiB"
    (row,) = (line for line in short.splitlines() if line.startswith("Allocated memory"))
    assert allocated in row and x.nbytes <= torch.npu.memory_allocated(1)
    assert "npu:1" in short and full.count("large") > short.count("large") == 0


def test_free_and_total():
    free, total = torch.npu.mem_get_info()
    assert 0 < free <= total
    x = torch.empty(BIG, dtype=torch.uint8, device="npu:1")
    assert torch.npu.mem_get_info() == torch.npu.mem_get_info(1) == (free - x.nbytes, total)
    assert torch.accelerator.get_memory_info() == torch.npu.mem_get_info()


def test_out_of_memory_says_what_there_is():
    total = torch.npu.mem_get_info()[1]
    ooms = torch.npu.memory_stats(1)["num_ooms"]
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError) as error:
            torch.empty(total * 2, dtype=torch.uint8, device="npu:1")
        text = str(error.value)
        assert text.startswith(f"NPU out of memory. Tried to allocate {total * 2 / 2**30:.2f} GiB. Device 1")
        for part in ("total capacity", "free", "allocated", "reserved"):
            assert part in text
        assert isinstance(error.value, RuntimeError)
    assert torch.npu.memory_stats(1)["num_ooms"] == ooms + 2
    assert torch.ones(4, device="npu:1").sum().item() == 4


def test_cached_memory_makes_room_before_a_request_fails(python):
    code = """
import torch
M = 1 << 20
x = torch.empty(40 * M, dtype=torch.uint8, device="npu:0")
del x
y = torch.empty(60 * M, dtype=torch.uint8, device="npu:0")
print(torch.npu.memory_stats()["num_alloc_retries"], torch.npu.memory_reserved() // M)
"""
    assert python(code, env={"ANYNPU_MEMORY": "64M"}).stdout == "1 60\n"


def test_fraction_limits_a_device():
    total = torch.npu.mem_get_info()[1]
    torch.npu.set_per_process_memory_fraction((BIG + torch.npu.memory_reserved()) / total)
    torch.empty(BIG // 2, dtype=torch.uint8, device="npu")
    with pytest.raises(torch.OutOfMemoryError, match="NPU out of memory"):
        torch.empty(BIG * 2, dtype=torch.uint8, device="npu")
    torch.npu.set_per_process_memory_fraction(1.0)
    torch.empty(BIG * 2, dtype=torch.uint8, device="npu")
    with pytest.raises(ValueError, match=r"1\.5"):
        torch.npu.set_per_process_memory_fraction(1.5)
    with pytest.raises(TypeError, match="int"):
        torch.npu.set_per_process_memory_fraction(1)


def test_record_stream_keeps_memory_until_that_stream_is_done():
    source = torch.full((BIG,), 7, dtype=torch.uint8).pin_memory()
    side = torch.npu.Stream()
    x = torch.empty(BIG, dtype=torch.uint8, device="npu")
    torch.npu.synchronize()
    with torch.npu.stream(side):
        for _ in range(8):
            x.copy_(source, non_blocking=True)
        busy = side.record_event()
    x.record_stream(side)
    address = x.data_ptr()
    del x
    y = torch.empty(BIG, dtype=torch.uint8, device="npu")
    assert busy.query() or y.data_ptr() != address
    assert busy.query() or torch.npu.memory_stats()["active_bytes.all.current"] >= 2 * BIG
    del y
    side.synchronize()
    assert torch.empty(BIG, dtype=torch.uint8, device="npu").data_ptr() in {
        block["address"] for segment in torch.npu.memory_snapshot() for block in segment["blocks"]
    }
    torch.npu.empty_cache()
    assert torch.npu.memory_stats()["active_bytes.all.current"] == torch.npu.memory_allocated()


def test_record_stream_accepts_views_and_empty_tensors():
    side = torch.npu.Stream()
    torch.ones(8, device="npu")[2:].record_stream(side)
    torch.empty(0, device="npu").record_stream(side)
    torch.ones(8, device="npu").record_stream(torch.Stream("npu"))


def test_storages_free_and_come_back():
    t = torch.arange(1 << 20, dtype=torch.float32, device="npu")
    storage, size = t.untyped_storage(), t.nbytes
    before = torch.npu.memory_allocated()
    storage.resize_(0)
    assert storage.nbytes() == 0 and storage.data_ptr() == 0 and t.shape == (1 << 20,)
    assert torch.npu.memory_allocated() == before - size
    storage.resize_(size)
    assert torch.npu.memory_allocated() == before
    t.copy_(torch.arange(1 << 20, dtype=torch.float32) * 2)
    assert t[-1].item() == 2 * ((1 << 20) - 1)


@pytest.mark.parametrize("device", ["npu:0", "npu:1"])
def test_storages_keep_what_fits(device):
    t = torch.arange(4.0, device=device)
    t.untyped_storage().resize_(32)
    whole = torch.empty(0, device=device).set_(t.untyped_storage(), 0, (8,))
    whole[7] = 5
    t.resize_(8)
    assert t.data_ptr() == whole.data_ptr() and t[:4].tolist() == [0, 1, 2, 3] and t[7].item() == 5
    t.untyped_storage().resize_(8)
    assert torch.empty(0, device=device).set_(t.untyped_storage(), 0, (2,)).tolist() == [0, 1]


def test_tensors_resize():
    e = torch.empty(2, 3, device="npu")
    e.resize_(4, 4)
    assert e.shape == (4, 4) and e.is_contiguous() and e.untyped_storage().nbytes() >= 64
    out = torch.empty(0, device="npu")
    torch.add(torch.ones(3, device="npu"), 1, out=out)
    assert out.tolist() == [2, 2, 2] and out.device == torch.device("npu:0")


def test_a_storage_of_foreign_memory_does_not_resize():
    with pytest.raises(RuntimeError, match="not resizable"):
        import numpy

        torch.from_numpy(numpy.zeros(4)).untyped_storage().resize_(100)
    t = torch.ones(4, device="npu")
    storage = t.untyped_storage()
    storage.resize_(8)
    assert storage.nbytes() == 8 and storage.device == torch.device("npu:0")


def test_a_size_that_no_storage_has_is_named():
    storage = torch.ones(4, device="npu").untyped_storage()
    with pytest.raises(RuntimeError, match="-1 is not a size") as error:
        storage.resize_(-1)
    assert not isinstance(error.value, torch.OutOfMemoryError)
    assert storage.nbytes() == 16 and storage.tolist()[3] == 63


def test_out_of_memory_names_the_largest_holders():
    held = [torch.empty(BIG, dtype=torch.uint8, device="npu:1") for _ in range(3)]
    with pytest.raises(torch.OutOfMemoryError, match=r"Most is held by 3 x 64\.00 MiB"):
        torch.empty(torch.npu.mem_get_info()[1], dtype=torch.uint8, device="npu:1")
    del held


def test_raw_memory_is_given_and_taken_back():
    before = torch.npu.memory_allocated(1)
    side = torch.npu.Stream("npu:1")
    addresses = [
        torch.npu.caching_allocator_alloc(BIG, device=1),
        torch.npu.caching_allocator_alloc(BIG, 1, side),
        torch.npu.caching_allocator_alloc(BIG, stream=side.npu_stream),
    ]
    assert len(set(addresses)) == 3 and torch.npu.memory_allocated(1) == before + 3 * BIG
    streams = {
        segment["stream"] for segment in torch.npu.memory_snapshot() if segment["address"] in addresses[1:]
    }
    assert streams == {side.stream_id}
    for address in addresses:
        torch.npu.caching_allocator_delete(address)
    assert torch.npu.memory_allocated(1) == before
    for wrong in (addresses[0], addresses[0] + 8, 12345):
        with pytest.raises(RuntimeError, match="not the start of a live allocation"):
            torch.npu.caching_allocator_delete(wrong)
    with pytest.raises(TypeError, match="str"):
        torch.npu.caching_allocator_alloc(8, stream="npu")
    assert torch.npu.get_allocator_backend() == "native"


def test_fractions_are_shown():
    assert torch.npu.get_per_process_memory_fraction(1) == 1.0
    torch.npu.set_per_process_memory_fraction(0.25, 1)
    try:
        assert torch.npu.get_per_process_memory_fraction("npu:1") == 0.25
        assert torch.npu.get_per_process_memory_fraction(0) == 1.0
    finally:
        torch.npu.set_per_process_memory_fraction(1.0, 1)


def test_host_memory_is_counted():
    torch.npu.host_empty_cache()
    torch.npu.reset_accumulated_host_memory_stats()
    torch.npu.reset_peak_host_memory_stats()
    before = torch.npu.host_memory_stats()
    x = torch.empty(5 * MEGABYTE, dtype=torch.uint8, pin_memory=True)
    during = torch.npu.host_memory_stats()
    assert during["active_requests.current"] == before["active_requests.current"] + 1
    assert during["active_bytes.current"] - before["active_bytes.current"] == 8 * MEGABYTE  # a power of two
    assert during["num_host_alloc"] == before["num_host_alloc"] + 1
    del x
    torch.npu.host_empty_cache()
    after = torch.npu.host_memory_stats()
    assert after["active_bytes.current"] == before["active_bytes.current"]
    assert after["allocated_bytes.current"] == before["allocated_bytes.current"]
    assert after["allocated_bytes.freed"] - before["allocated_bytes.freed"] >= 8 * MEGABYTE
    assert torch.npu.host_memory_stats_as_nested_dict()["allocations"].keys() == {
        "current",
        "peak",
        "allocated",
        "freed",
    }


def test_without_caching_memory_goes_back_at_once():
    reserved = torch.npu.memory_reserved()
    with torch.npu.caching_allocator_disabled():
        x = torch.empty(BIG, dtype=torch.uint8, device="npu")
        assert torch.npu.memory_reserved() == reserved + BIG
        del x
        assert torch.npu.memory_reserved() == reserved
    torch.empty(BIG, dtype=torch.uint8, device="npu")
    assert torch.npu.memory_reserved() == reserved + BIG


def segments_of(pool):
    return [s for s in torch.npu.memory_snapshot() if s["segment_pool_id"] == pool.id]


def test_a_pool_has_segments_of_its_own():
    pool, other = torch.npu.MemPool(), torch.npu.MemPool()
    assert pool.id != other.id and pool.use_count() == 1
    with torch.npu.use_mem_pool(pool):
        assert pool.use_count() == 2
        x = torch.ones(3 * MEGABYTE, device="npu")
        with torch.npu.use_mem_pool(other):
            y = torch.ones(8, device="npu") + 1  # an operator's output too
        z = torch.ones(8, device="npu:1")
    outside = torch.ones(8, device="npu")
    assert pool.use_count() == 1 and [s["total_size"] for s in pool.snapshot()] == [x.nbytes]
    owners = {
        block["address"]: segment["segment_pool_id"]
        for segment in torch.npu.memory_snapshot()
        for block in segment["blocks"]
    }
    assert owners[x.data_ptr()] == pool.id and owners[y.data_ptr()] == other.id
    assert owners[z.data_ptr()] == owners[outside.data_ptr()] == (0, 0)
    stats = torch.npu.memory_stats()
    assert stats[f"reserved_bytes_by_private_pools.0_{pool.id[1]}.all.current"] == x.nbytes
    address = x.data_ptr()
    del x
    torch.npu.empty_cache()
    assert torch.empty(3 * MEGABYTE, device="npu").data_ptr() != address
    with torch.npu.use_mem_pool(pool, "npu:0"):
        assert torch.empty(3 * MEGABYTE, device="npu").data_ptr() == address
    assert y.tolist() == [2] * 8


def test_what_a_pool_gave_outlives_it():
    pool = torch.npu.MemPool()
    with torch.npu.use_mem_pool(pool):
        x = torch.full((3 * MEGABYTE,), 7.0, device="npu")
        torch.empty(BIG, dtype=torch.uint8, device="npu")
    assert len(segments_of(pool)) == 2
    identity = pool.id
    del pool
    (left,) = (s for s in torch.npu.memory_snapshot() if s["segment_pool_id"] == identity)
    assert left["allocated_size"] == x.nbytes and x.min().item() == 7
    del x
    torch.npu.empty_cache()
    assert not any(s["segment_pool_id"] == identity for s in torch.npu.memory_snapshot())


def test_a_pool_is_of_the_thread_that_chose_it():
    pool, seen = torch.npu.MemPool(), []
    with pytest.raises(KeyError), torch.npu.use_mem_pool(pool):
        thread = threading.Thread(target=lambda: seen.append(torch.empty(BIG // 4, device="npu")))
        thread.start()
        thread.join()
        raise KeyError
    torch.empty(BIG // 4, device="npu")
    assert segments_of(pool) == [] and seen[0].nbytes == BIG
    for unsupported in ("use_on_oom", "no_split"):
        with pytest.raises(NotImplementedError, match=unsupported):
            torch.npu.MemPool(**{unsupported: True})


SETTINGS = """
import torch
M = 1 << 20
def reserved(*sizes):
    torch.npu.empty_cache()
    held = [torch.empty(size, dtype=torch.uint8, device="npu") for size in sizes]
    return torch.npu.memory_reserved() // M
"""


@pytest.mark.parametrize(
    ("settings", "code", "printed"),
    [
        ("", "print(reserved(3 * M), torch.npu.memory_stats()['max_split_size'])", "20 -1"),
        ("large_segment_size_mb:32", "print(reserved(3 * M))", "32"),
        (
            "roundup_power2_divisions:4",
            "x = torch.empty(5 * M, dtype=torch.uint8, device='npu')\n"
            "print(torch.npu.memory_allocated() // M)\n"
            "y = torch.empty(5 * M + 1, dtype=torch.uint8, device='npu')\n"
            "print(torch.npu.memory_allocated() // M)",
            "5\n11",
        ),
        (
            "max_split_size_mb:24,max_non_split_rounding_mb:24",
            "x = torch.empty(60 * M, dtype=torch.uint8, device='npu'); a = x.data_ptr(); del x\n"
            "y = torch.empty(5 * M, dtype=torch.uint8, device='npu')\n"
            "z = torch.empty(40 * M, dtype=torch.uint8, device='npu')\n"
            "stats = torch.npu.memory_stats()\n"
            "print(y.data_ptr() == a, z.data_ptr() == a, stats['oversize_allocations.current'], "
            "stats['max_split_size'] // M)",
            "False True 1 24",
        ),
        (
            "garbage_collection_threshold:0.5",
            "torch.empty(100 * M, dtype=torch.uint8, device='npu')\n"
            "x = torch.empty(110 * M, dtype=torch.uint8, device='npu')\n"
            "print(torch.npu.memory_reserved() // M, torch.npu.memory_stats()['num_alloc_retries'])",
            "110 0",
        ),
    ],
)
def test_settings_have_their_effect(python, settings, code, printed):
    env = {"PYTORCH_NPU_ALLOC_CONF": settings, "PYTORCH_ALLOC_CONF": None, "ANYNPU_MEMORY": "400M"}
    assert python(SETTINGS + code, env=env).stdout.strip() == printed


def test_settings_without_effect_say_so(python):
    done = python("import torch", env={"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True,page_size:1g"})
    for key in ("expandable_segments", "page_size"):
        assert f"allocator setting {key} has no effect on device npu" in done.stderr
    done = python("import torch", env={"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:False"})
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("variable", "settings", "reason"),
    [
        ("PYTORCH_NPU_ALLOC_CONF", "max_splt_size_mb:64", "Unrecognized key 'max_splt_size_mb'"),
        ("PYTORCH_ALLOC_CONF", "max_split_size_mb:many", "a value is missing or is not a number"),
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb", "a value is missing or is not a number"),
    ],
)
def test_settings_that_cannot_be_read_are_named(fresh_python, variable, settings, reason):
    names = ("PYTORCH_NPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    done = fresh_python("import torch", env=dict.fromkeys(names) | {variable: settings}, exit_code=1)
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("RuntimeError: torch_npu cannot"))
    assert f"{variable} is '{settings}', which cannot be read" in line and reason in line
    for key in ("max_split_size_mb", "garbage_collection_threshold", "expandable_segments", "page_size"):
        assert key in line.split("with the keys ")[1]
    assert "reinstall" not in done.stderr


def test_settings_change_at_run_time():
    before = torch.npu.memory._snapshot()["allocator_settings"]
    torch.npu.memory._set_allocator_settings("large_segment_size_mb:30")
    try:
        assert torch.npu.memory._snapshot()["allocator_settings"]["large_segment_size"] == 30 * MEGABYTE
    finally:
        torch.npu.memory._set_allocator_settings("large_segment_size_mb:20")
    assert (
        torch.npu.memory._snapshot()["allocator_settings"]["large_segment_size"]
        == before["large_segment_size"]
    )


@pytest.mark.parametrize("settings", ("", "ANYNPU_DEBUG_MEMORY=1", "ANYNPU_MEMORY=64M"))
def test_memory_stays_while_queued_work_uses_it(fresh_python, settings):
    """Also where nothing holds it any more: it goes back when its stream is done."""
    environment = dict([settings.split("=")]) if settings else {}
    program = """
import torch
for _ in range(20):
    x = torch.rand(4 << 20, device="npu")
    y = torch.tanh(x)
    del x, y
    torch.npu.empty_cache()
assert torch.npu.memory_reserved() == 0
print(torch.rand(4 << 20, device="npu").sum().isfinite().item())
"""
    assert fresh_python(program, env=environment).stdout == "True\n"
