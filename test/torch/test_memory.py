"""The caching allocator as torch.npu and torch.accelerator show it, resized storages, out of memory."""

import gc

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
    assert stats == torch.accelerator.memory_stats()
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
