"""Streams and events: torch.Stream and torch.Event of device npu, with the names of torch.cuda."""

import ctypes

import torch

from torch_npu import _C
from torch_npu.npu._utils import _get_device_index
from torch_npu.npu.devices import _checked_index
from torch_npu.npu.devices import device as _device_context

_DEVICE_TYPE = torch._C._autograd.DeviceType.PrivateUse1.value


class Event(torch.Event):
    """A point in a stream's order, to wait for, to ask about and, with ``enable_timing``, to measure from.

    Waiting for an event that was never recorded returns at once. ``blocking`` is accepted for programs that
    pass it: a wait never spins.
    """

    def __new__(cls, enable_timing=False, blocking=False, interprocess=False):
        if interprocess and enable_timing:
            raise RuntimeError("torch.npu.Event: interprocess=True needs enable_timing=False")
        event = super().__new__(cls, "npu", enable_timing=enable_timing, blocking=blocking)
        if interprocess:
            _C.share_event(event)
        return event

    def record(self, stream=None):
        """Marks the point after all work enqueued so far on ``stream`` (None: the current one)."""
        super().record(torch.accelerator.current_stream() if stream is None else stream)

    def wait(self, stream=None):
        """Makes later work of ``stream`` (None: the current one) start after the point."""
        super().wait(torch.accelerator.current_stream() if stream is None else stream)

    def ipc_handle(self):
        """64 bytes by which other processes of the user can open the event while it lives here."""
        return _C.event_ipc_handle(self)

    @classmethod
    def from_ipc_handle(cls, device, handle):
        """The event of another process, on ``device``: each may record it, and wait for what any recorded."""
        event = super().__new__(cls, "npu")
        with _device_context(device):
            _C.open_event(event, handle)
        return event

    @property
    def npu_event(self):
        """The event's handle (aclrtEvent), as a number."""
        return _C.event_handle(self)

    def elapsed_time(self, end_event):
        """Milliseconds from this point to that of ``end_event``: both reached, and made with timing."""
        return _C.elapsed_ms(self.event_id, end_event.event_id)


class Stream(torch.Stream):
    """An ordered queue of work of one device, from a pool. Negative priorities are the urgent ones."""

    @staticmethod
    def priority_range():
        """(least urgent, most urgent)."""
        return (0, -1)

    def __new__(cls, device=None, priority=0, **kwargs):
        if "stream_id" in kwargs:
            return super().__new__(cls, priority=priority, **kwargs)
        index = _get_device_index(device, optional=True)
        return super().__new__(cls, torch.device("npu", index), priority=priority, **kwargs)

    @property
    def priority(self):
        return _C.stream_priority(self.stream_id, self.device_index)

    def wait_event(self, event):
        """Makes later work of this stream start after the point that ``event`` marks."""
        event.wait(self)

    def wait_stream(self, stream):
        """Makes later work of this stream start after the work that ``stream`` has now."""
        self.wait_event(stream.record_event())

    def record_event(self, event=None):
        """Records ``event`` (None: a new one) on this stream and gives it back."""
        event = Event() if event is None else event
        event.record(self)
        return event

    @property
    def npu_stream(self):
        """The stream's handle (aclrtStream), as a number."""
        return self.native_handle

    @property
    def _as_parameter_(self):
        return ctypes.c_void_p(self.npu_stream)

    def __repr__(self):
        return f"<torch.npu.Stream device={self.device} stream_id={self.stream_id}>"


class ExternalStream(Stream):
    """The stream of a handle: of AscendCL (aclrtCreateStream), or another Stream's npu_stream.

    Another library's object keeps it alive, not this one. ``device``, where it is given, must be its own.
    """

    def __new__(cls, stream_ptr, device=None):
        stream_id, index = _C.stream_of_handle(stream_ptr)
        if device is not None and _get_device_index(device, optional=True) != index:
            raise ValueError(f"torch.npu.ExternalStream: the stream is of device npu:{index}, not {device}")
        return super().__new__(cls, stream_id=stream_id, device_index=index, device_type=_DEVICE_TYPE)


class SyncLaunchStream(Stream):
    """A Stream: there is no queue between a call and its stream that it would have to leave out."""


def get_stream_from_external(data_ptr, device=None):
    """The stream of a handle: see ExternalStream."""
    return ExternalStream(data_ptr, device)


def is_current_stream_capturing():
    """False: no stream can be captured into a graph."""
    return False


def _from_torch(stream):
    return Stream(
        stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
    )


def current_stream(device=None):
    """The stream on which the calling thread enqueues work for ``device``."""
    return _from_torch(torch.accelerator.current_stream(_get_device_index(device, optional=True)))


def default_stream(device=None):
    return Stream(stream_id=0, device_index=_checked_index(device), device_type=_DEVICE_TYPE)


def set_stream(stream):
    """Makes ``stream`` current for its device, and that device the current one; None changes nothing."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


class StreamContext:
    """A context in which ``stream`` and its device are current; None changes nothing."""

    def __init__(self, stream):
        self.stream = stream

    def __enter__(self):
        if self.stream is None:
            return
        self._device = _device_context(self.stream.device)
        self._device.__enter__()
        self._previous = torch.accelerator.current_stream()
        set_stream(self.stream)

    def __exit__(self, *_):
        if self.stream is None:
            return
        set_stream(self._previous)
        self._device.__exit__()


stream = StreamContext
