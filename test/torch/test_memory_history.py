"""What torch.npu.memory._record_memory_history keeps, and torch's own viewer of it."""

import pickle
import threading

import pytest
import torch
from torch.cuda import _memory_viz

memory = torch.npu.memory
MEGABYTE = 1 << 20
BIG = 64 * MEGABYTE


@pytest.fixture(autouse=True)
def recording_ends():
    torch.npu.empty_cache()
    memory._record_memory_history(clear_history=True)
    memory._record_memory_history(None)
    yield
    memory._set_memory_metadata("")
    memory._record_memory_history(None)


def events(device=0):
    return memory._snapshot()["device_traces"][device]


def functions(entry):
    return [frame["name"] for frame in entry["frames"]]


def block_of(tensor):
    (block,) = (
        block
        for segment in memory._snapshot()["segments"]
        for block in segment["blocks"]
        if block["address"] == tensor.data_ptr()
    )
    return block


def allocate_here(device="npu"):
    return torch.empty(BIG, dtype=torch.uint8, device=device)


def free_here(tensors):
    tensors.pop()


def test_events_are_recorded_in_order_with_python_frames():
    memory._record_memory_history(stacks="python")
    tensors = [allocate_here()]
    address = tensors[0].data_ptr()
    block = block_of(tensors[0])
    free_here(tensors)
    torch.npu.empty_cache()
    seen = [event for event in events() if event.get("addr") == address]
    assert [event["action"] for event in seen] == [
        *("segment_alloc", "alloc", "free_requested", "free_completed", "segment_free")
    ]
    assert {event["size"] for event in seen} == {BIG} and len({event["stream"] for event in seen}) == 1
    assert [event["time_us"] for event in seen] == sorted(event["time_us"] for event in seen)
    assert functions(seen[1])[:2] == ["allocate_here", "test_events_are_recorded_in_order_with_python_frames"]
    assert "free_here" in functions(seen[2])
    assert functions(block) == functions(seen[1])
    frame = seen[1]["frames"][0]
    assert frame["filename"] == __file__
    assert frame["line"] == allocate_here.__code__.co_firstlineno + 1


@pytest.mark.parametrize("size", [100, 4 * MEGABYTE])
def test_outputs_of_operators_carry_the_stack_of_their_call(size):
    """Also where the kernel runs in another thread."""
    x = torch.rand(size, device="npu")
    memory._record_memory_history(stacks="python")

    def operator_is_called_here():
        return torch.tanh(x)

    y = operator_is_called_here()
    assert functions(block_of(y))[0] == "operator_is_called_here"
    (event,) = (e for e in events() if e["action"] == "alloc" and e["addr"] == y.data_ptr())
    assert event["size"] == y.nbytes and functions(event)[0] == "operator_is_called_here"


def test_cpp_frames_are_there_when_asked_for():
    memory._record_memory_history(stacks="all")
    names = functions(block_of(allocate_here()))
    assert "allocate_here" in names and any("torch_npu" in name or "at::" in name for name in names)


def test_state_keeps_stacks_of_live_blocks_alone():
    memory._record_memory_history("state", stacks="python")
    x = allocate_here()
    assert functions(block_of(x))[0] == "allocate_here" and events() == []


def test_contexts():
    expected = {None: (0, 0, 0), "state": (1, 0, 0), "alloc": (1, 1, 0), "all": (1, 1, 1)}
    for context, (in_block, in_alloc, in_free) in expected.items():
        memory._record_memory_history(context=context, stacks="python", clear_history=True)
        tensors = [allocate_here()]
        block = block_of(tensors[0])
        free_here(tensors)
        alloc, free = (
            next(e for e in events() if e["action"] == a and e["size"] == BIG)
            for a in ("alloc", "free_requested")
        )
        assert [bool(each["frames"]) for each in (block, alloc, free)] == [in_block, in_alloc, in_free], (
            context
        )


def test_the_history_is_bounded_and_filtered():
    memory._record_memory_history(max_entries=3, skip_actions=["free_requested", "segment_alloc"])
    for size in range(1, 6):
        torch.empty(size * MEGABYTE, dtype=torch.uint8, device="npu")
    assert [(e["action"], e["size"] // MEGABYTE) for e in events()] == [
        ("free_completed", 4),
        ("alloc", 5),
        ("free_completed", 5),
    ]
    memory._record_memory_history(None)
    torch.empty(7 * MEGABYTE, dtype=torch.uint8, device="npu")
    assert len(events()) == 3


def test_out_of_memory_is_recorded():
    memory._record_memory_history(stacks="python")
    free, total = torch.npu.mem_get_info()
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(2 * total, dtype=torch.uint8, device="npu:1")
    (event,) = (e for e in events(1) if e["action"] == "oom")
    assert event["size"] == 2 * total and event["device_free"] == free and "addr" not in event
    assert functions(event)[0] == "test_out_of_memory_is_recorded"


def test_blocks_that_other_streams_use_wait_for_their_free():
    memory._record_memory_history()
    source = torch.full((BIG,), 7, dtype=torch.uint8).pin_memory()
    side, x = torch.npu.Stream(), allocate_here()
    with torch.npu.stream(side):
        for _ in range(8):
            x.copy_(source, non_blocking=True)
        busy = side.record_event()
    x.record_stream(side)
    address = x.data_ptr()
    del x
    states = {b["address"]: b["state"] for s in memory._snapshot()["segments"] for b in s["blocks"]}
    assert states[address] == "active_pending_free" or busy.query()
    side.synchronize()
    torch.npu.empty_cache()
    actions = [e["action"] for e in events() if e.get("addr") == address]
    assert actions[-3:] == ["free_requested", "free_completed", "segment_free"]


def test_threads_and_metadata():
    memory._record_memory_history(stacks="python")
    memory._set_memory_metadata("step 3")
    assert memory._get_memory_metadata() == "step 3"
    kept = [allocate_here()]
    thread = threading.Thread(target=lambda: kept.append(allocate_here()))
    thread.start()
    thread.join()
    metadata = {e["addr"]: e["user_metadata"] for e in events() if e["action"] == "alloc"}
    assert [metadata[x.data_ptr()] for x in kept] == ["step 3", ""]
    assert functions(block_of(kept[1]))[0] == "allocate_here"


def test_wrong_arguments_are_named():
    for arguments, name in (
        ({"enabled": "some"}, "enabled is 'some'"),
        ({"context": "some"}, "context is 'some'"),
        ({"stacks": "some"}, "stacks is 'some'"),
        ({"skip_actions": ["some"]}, "'some' is none of alloc"),
    ):
        with pytest.raises(ValueError, match=name):
            memory._record_memory_history(**arguments)
    with pytest.raises(TypeError, match="enabled is True"):
        memory._record_memory_history(True)


@pytest.fixture
def dump(tmp_path):
    memory._record_memory_history(stacks="python")
    kept = [allocate_here(), torch.ones(300, device="npu")]
    torch.empty(30 * MEGABYTE, dtype=torch.uint8, device="npu")
    memory._dump_snapshot(str(tmp_path / "dump.pickle"))
    with open(tmp_path / "dump.pickle", "rb") as file:
        snapshot = pickle.load(file)
    yield snapshot
    kept.clear()


def test_the_viewer_reads_a_dump(dump):
    summary = _memory_viz.segsum(dump)
    total = sum(segment["total_size"] for segment in dump["segments"])
    assert f"segments: {len(dump['segments'])}\n" in summary
    assert f"total_reserved: {_memory_viz.Bytes(total)}\n" in summary
    trace = _memory_viz.trace(dump)
    assert "Device 0" in trace and "64.0MiB" in trace and "30.0MiB" in trace
    graph = _memory_viz.memory(dump, lambda lines: lines)
    held = [line for line in graph.splitlines() if "allocate_here" in line]
    assert len(held) == 1 and held[0].endswith(f" {BIG}") and "active_allocated" in held[0]
    assert sum(int(line.rpartition(" ")[2]) for line in graph.splitlines()) == total
    assert "allocate_here" in _memory_viz.segments(dump, lambda lines: lines)


@pytest.mark.parametrize("plot", [_memory_viz.segment_plot, _memory_viz.trace_plot])
def test_the_viewer_plots_a_dump(dump, plot):
    page = plot(dump)
    assert "MemoryViz.js" in page and "snapshot.pickle" in page and len(page) > 1000


def test_the_profiler_sees_npu_memory():
    with torch.profiler.profile(profile_memory=True, record_shapes=True, with_stack=True) as profile:
        x = torch.ones(3 * MEGABYTE, dtype=torch.uint8, device="npu")
        del x
    changes = [
        event.device_memory_usage for event in profile.events() if getattr(event, "device_memory_usage", 0)
    ]
    assert 3 * MEGABYTE in changes
    assert "MemoryViz.js" in _memory_viz.profile_plot(profile)
