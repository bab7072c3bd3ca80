"""Streams and events: order, waiting, the current stream, and what a caller may do meanwhile."""

import threading

import pytest
import torch

MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def slow_copy():
    """Enqueues copies that together take some hundredths of a second, without waiting."""
    source = torch.ones(64 * MEGABYTE, dtype=torch.uint8).pin_memory()
    target = torch.empty(64 * MEGABYTE, dtype=torch.uint8, device="npu")

    def enqueue(times=16):
        for _ in range(times):
            target.copy_(source, non_blocking=True)

    return enqueue


def events(count):
    return [torch.npu.Event(enable_timing=True) for _ in range(count)]


def test_the_current_stream_follows_contexts():
    default, side, other = torch.npu.current_stream(), torch.npu.Stream(), torch.npu.Stream("npu:1")
    assert default == torch.npu.default_stream() and default.stream_id == 0 and side != default
    with torch.npu.stream(side):
        assert torch.npu.current_stream() == side == torch.accelerator.current_stream()
        with torch.npu.stream(other):
            assert torch.npu.current_device() == 1 and torch.npu.current_stream() == other
            assert torch.npu.current_stream(0) == side
        assert torch.npu.current_device() == 0 and torch.npu.current_stream() == side
        assert torch.npu.current_stream(1) == torch.npu.default_stream(1)
        with torch.npu.stream(None):
            assert torch.npu.current_stream() == side
    assert torch.npu.current_stream() == default
    with side:
        assert torch.npu.current_stream() == side
    with pytest.raises(KeyError), torch.npu.stream(side):
        raise KeyError
    assert torch.npu.current_stream() == default
    torch.npu.set_stream(other)
    assert torch.npu.current_device() == 1 and torch.npu.current_stream() == other


def test_the_current_stream_is_per_thread():
    seen = []
    with torch.npu.stream(torch.npu.Stream()):
        thread = threading.Thread(target=lambda: seen.append(torch.npu.current_stream()))
        thread.start()
        thread.join()
    assert seen == [torch.npu.default_stream()]


def test_streams_come_from_a_pool():
    urgent = [torch.npu.Stream(priority=-1) for _ in range(32)]
    normal = [torch.npu.Stream() for _ in range(32)]
    assert len({stream.stream_id for stream in urgent + normal}) == 64
    assert {torch.npu.Stream() for _ in range(32)} == set(normal)
    same = torch.npu.Stream(stream_id=normal[3].stream_id, device_index=0, device_type=normal[3].device_type)
    assert same == normal[3] and same.npu_stream == normal[3].npu_stream != normal[4].npu_stream
    unknown = torch.npu.Stream(stream_id=1 << 40, device_index=0, device_type=same.device_type)
    with pytest.raises(RuntimeError, match="is not a stream"):
        unknown.synchronize()


def test_a_call_returns_before_its_work_is_done(slow_copy):
    torch.npu.synchronize()
    before, after = events(2)
    before.record()
    slow_copy()
    after.record()
    enqueued_first = not after.query()
    after.synchronize()
    torch.npu.current_stream().synchronize()
    assert enqueued_first and after.query() and torch.npu.current_stream().query()
    assert 0 < before.elapsed_time(after) < 60_000


def test_a_stream_waits_for_an_event_of_another(slow_copy):
    side = torch.npu.Stream()
    x = torch.zeros(64 * MEGABYTE // 4, device="npu")
    host = torch.ones(64 * MEGABYTE // 4).pin_memory()
    torch.npu.synchronize()
    with torch.npu.stream(side):
        slow_copy()
        x.copy_(host, non_blocking=True)
        copied = side.record_event()
    torch.npu.current_stream().wait_event(copied)
    assert x.sum().item() == x.numel() and copied.query()

    x.zero_()
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        slow_copy()
        x.copy_(host, non_blocking=True)
    torch.npu.current_stream().wait_stream(side)
    assert x.sum().item() == x.numel()


def test_corner_rules_of_events():
    stream = torch.npu.current_stream()
    never, first, second = torch.npu.Event(), *events(2)
    assert never.query()
    never.synchronize()
    stream.wait_event(never)
    first.record(stream)
    stream.wait_event(first)  # its own
    (torch.ones(64, 64, device="npu") @ torch.ones(64, 64, device="npu")).sum().item()
    second.record()
    torch.npu.synchronize()
    assert first.elapsed_time(second) > 0 > second.elapsed_time(first)
    first.record()
    first.synchronize()
    assert second.elapsed_time(first) > 0  # recording again moves the point
    for start, end in ((first, never), (never, first)):
        with pytest.raises(RuntimeError, match=r"never recorded|without timing"):
            start.elapsed_time(end)
    untimed = torch.npu.Event()
    untimed.record()
    with pytest.raises(RuntimeError, match="without timing"):
        first.elapsed_time(untimed)
    with pytest.raises(RuntimeError, match="device index"):
        first.record(torch.npu.Stream("npu:1"))
    for wait in (stream.wait_event, stream.wait_stream):
        with pytest.raises(AttributeError, match="NoneType"):  # as torch.cuda's
            wait(None)


def test_priorities():
    assert torch.npu.Stream.priority_range() == (0, -1)
    for asked, given in ((0, 0), (-1, -1), (-5, -1), (3, 0)):
        stream = torch.npu.Stream(priority=asked)
        assert stream.priority == given
        assert torch.npu.ExternalStream(stream.npu_stream).priority == given
    assert torch.npu.default_stream().priority == torch.npu.current_stream().priority == 0


def test_external_streams_are_the_streams_of_their_handles(slow_copy):
    for stream in (torch.npu.Stream(), torch.npu.Stream("npu:1"), torch.npu.default_stream()):
        same = torch.npu.ExternalStream(stream.npu_stream)
        assert same == stream and same.device == stream.device and isinstance(same, torch.npu.Stream)
        assert torch.npu.get_stream_from_external(stream.npu_stream, stream.device) == stream
    side = torch.npu.Stream()
    external = torch.npu.ExternalStream(side.npu_stream, device=0)
    with torch.npu.stream(external):
        assert torch.npu.current_stream() == side
        slow_copy()
        x = torch.full((4,), 3.0, device="npu")
    copied = side.record_event()
    assert external.query() == copied.query() or external.query()
    torch.npu.current_stream().wait_stream(external)
    assert x.sum().item() == 12
    external.synchronize()
    assert external.query() and copied.query()
    with pytest.raises(RuntimeError, match="is not a stream that this library made"):
        torch.npu.ExternalStream(12345)
    with pytest.raises(ValueError, match="of device npu:0, not npu:1"):
        torch.npu.ExternalStream(side.npu_stream, "npu:1")
    assert isinstance(torch.npu.SyncLaunchStream(), torch.npu.Stream)
    assert torch.npu.is_current_stream_capturing() is False


def test_generic_streams_and_events(slow_copy):
    stream, event = torch.Stream("npu"), torch.Event("npu", enable_timing=True)
    assert stream.query() and event.query()
    with stream:
        slow_copy(1)
    event.record(stream)
    torch.npu.current_stream().wait_event(event)
    event.synchronize()
    stream.synchronize()
    assert event.query() and stream.query()
    timed = torch.npu.Event(enable_timing=True)
    timed.record()
    timed.synchronize()
    assert event.elapsed_time(event) == 0 and timed.elapsed_time(event) < 0


@pytest.mark.parametrize(
    "wait",
    [
        "torch.npu.synchronize()",
        "torch.npu.current_stream().synchronize()",
        "event.synchronize()",
        "torch.accelerator.synchronize()",
        "last.item()",
        "last.cpu()",
        "last.sum().tolist()",
    ],
)
def test_other_threads_run_while_one_waits(slow_copy, wait):
    torch.npu.synchronize()
    last, event = torch.ones((), device="npu"), torch.npu.Event()
    slow_copy()
    event.record()
    assert not event.query()
    steps, waiting = [], threading.Event()

    def step_until_done():
        waiting.wait()
        while not event.query():
            steps.append(1)
            threading.Event().wait(0.0005)

    thread = threading.Thread(target=step_until_done)
    thread.start()
    waiting.set()
    exec(wait, {"torch": torch, "event": event, "last": last})
    thread.join()
    assert len(steps) > 2


@pytest.mark.parametrize(
    "wait",
    [
        "torch.npu.synchronize()",
        "stream.synchronize()",
        "event.synchronize()",
        "x[0].item()",
        "x.cpu()",
        "x.erfinv()",  # a fallback
    ],
)
def test_an_interrupt_ends_a_wait(python, wait):
    code = f"""
import os, signal, threading, torch

stream, event = torch.npu.current_stream(), torch.npu.Event()
host = torch.ones(1 << 28, dtype=torch.uint8).pin_memory()
x = torch.empty(1 << 28, dtype=torch.uint8, device="npu")
for _ in range(200):
    x.copy_(host, non_blocking=True)
event.record()
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    {wait}
except KeyboardInterrupt:
    print("interrupted", "with work left" if not event.query() else "too late")
"""
    assert python(code).stdout == "interrupted with work left\n"


def test_work_of_a_second_stream_overlaps(slow_copy):
    side, done = torch.npu.Stream(), torch.npu.Event()
    torch.npu.synchronize()
    slow_copy()
    end = torch.npu.current_stream().record_event()
    with torch.npu.stream(side):
        small = torch.full((4,), 3.0, device="npu")
        done.record()
    done.synchronize()
    assert not end.query() and small.device.type == "npu"
    end.synchronize()
    assert small.tolist() == [3, 3, 3, 3]
