"""Handles of AscendCL and of torch.npu are one kind: each interface takes those that the other made."""

import ctypes
import threading
from pathlib import Path

import pytest
import torch

import anynpu

INVALID_HANDLE, STREAM_CONTEXT = 107017, 107003


@pytest.fixture(scope="module")
def acl():
    library = ctypes.CDLL(str(Path(anynpu.__file__).parent / "lib64" / "libascendcl.so"))

    class Acl:
        def __getattr__(self, name):
            return getattr(library, name)

        def made(self, function, *arguments):
            handle = ctypes.c_void_p()
            assert getattr(library, function)(ctypes.byref(handle), *arguments) == 0
            return handle

    return Acl()


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def wait(address):
    ctypes.cast(address, ctypes.POINTER(ctypes.py_object)).contents.value.wait()


class Gate:
    """Holds a stream up, by its handle, until it is opened."""

    def __init__(self, acl, handle):
        self.event = threading.Event()
        self.reference = ctypes.py_object(self.event)
        assert acl.aclrtLaunchHostFunc(handle, wait, ctypes.byref(self.reference)) == 0

    def open(self):
        self.event.set()


def test_streams_and_events_of_torch_are_those_of_ascendcl(acl):
    stream, event = torch.npu.Stream(), torch.npu.Event()
    gate = Gate(acl, ctypes.c_void_p(stream.npu_stream))
    assert not stream.query()
    handle = ctypes.c_void_p(event.npu_event)
    assert event.npu_event == handle.value == event.event_id and event.query()
    assert acl.aclrtRecordEvent(handle, stream) == 0
    status = ctypes.c_int()
    assert acl.aclrtQueryEventStatus(handle, ctypes.byref(status)) == 0 and status.value == 0
    assert not event.query()
    default = ctypes.c_void_p(torch.npu.default_stream().npu_stream)
    assert acl.aclrtStreamWaitEvent(default, handle) == 0
    assert not torch.npu.default_stream().query()
    gate.open()
    assert acl.aclrtSynchronizeStream(default) == 0
    assert event.query() and stream.query()
    number = ctypes.c_int32()
    assert acl.aclrtStreamGetId(stream, ctypes.byref(number)) == 0 and number.value == stream.stream_id

    timed = [torch.npu.Event(enable_timing=True) for _ in range(2)]
    for each in timed:
        each.record(stream)
        each.synchronize()
    milliseconds = ctypes.c_float()
    start, end = (ctypes.c_void_p(each.npu_event) for each in timed)
    assert acl.aclrtEventElapsedTime(ctypes.byref(milliseconds), start, end) == 0
    assert milliseconds.value == pytest.approx(timed[0].elapsed_time(timed[1]), rel=1e-3)
    assert acl.aclrtEventElapsedTime(ctypes.byref(milliseconds), handle, end) != 0, "made without timing"


def test_streams_of_ascendcl_are_streams_of_torch(acl):
    torch.npu.set_device(0)
    handle = acl.made("aclrtCreateStream")
    external = torch.npu.ExternalStream(handle.value)
    assert external.npu_stream == handle.value and external.device == torch.device("npu:0")
    gate = Gate(acl, handle)
    assert not external.query()
    host = torch.full((5,), 3.0).pin_memory()
    with torch.npu.stream(external):
        x = torch.zeros(5, device="npu")
        x.copy_(host, non_blocking=True)
        event = external.record_event()
    status = ctypes.c_int(1)
    assert acl.aclrtStreamQuery(handle, ctypes.byref(status)) == 0 and not event.query()
    gate.open()
    torch.npu.current_stream().wait_stream(external)
    assert x.sum().item() == 15 and event.query()
    assert acl.aclrtDestroyStream(handle) == 0
    del event
    for use in (external.synchronize, lambda: external.npu_stream, lambda: external.record_event()):
        with pytest.raises(RuntimeError, match="is not a stream: it was destroyed"):
            use()
    with pytest.raises(RuntimeError, match="is not a stream: it was destroyed, or its context was"):
        torch.npu.ExternalStream(handle.value)


def test_handles_are_checked(acl):
    stream, event = torch.npu.Stream(), torch.npu.Event()
    event.record(stream)
    of_other_device = ctypes.c_void_p(torch.npu.Stream("npu:1").npu_stream)
    assert acl.aclrtSynchronizeStream(of_other_device) == STREAM_CONTEXT
    assert acl.aclrtSynchronizeStream(ctypes.c_void_p(event.npu_event)) == INVALID_HANDLE
    assert acl.aclrtSynchronizeEvent(ctypes.c_void_p(stream.npu_stream)) == INVALID_HANDLE
    for wrong, what in ((event.npu_event, "is an event, not a stream"), (12345, "is not a stream that")):
        with pytest.raises(RuntimeError, match=what):
            torch.npu.ExternalStream(wrong)

    dead = event.npu_event
    del event
    assert acl.aclrtSynchronizeEvent(ctypes.c_void_p(dead)) == INVALID_HANDLE
    event = torch.npu.Event()
    event.record()
    assert acl.aclrtDestroyEvent(ctypes.c_void_p(event.npu_event)) == 0
    for use in (event.query, event.synchronize, event.record, event.wait):
        with pytest.raises(RuntimeError, match="is not an event: it was destroyed"):
            use()
    del event
    assert acl.aclrtDestroyStream(stream) == 0  # its handle: the stream is torch's, and gets it again
    with torch.npu.stream(stream):
        assert (torch.ones(3, device="npu") + 1).sum().item() == 6
    assert acl.aclrtSynchronizeStream(stream) == 0
