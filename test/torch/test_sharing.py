"""Tensors in other processes: one memory for all that have them, for as long as one of them has."""

import signal
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
import torch.multiprocessing as mp

HANGS_AFTER = 120
MEGABYTE = 1 << 20


# What the other process runs: it imports this module, and keeps what it is told to in here.
kept = {}


def work(requests, replies, first):
    kept["first"] = first
    for function, arguments in iter(requests.get, None):
        try:
            answer = ForkingPickler.dumps(function(*arguments))
        except Exception as error:
            answer = ForkingPickler.dumps(f"{type(error).__name__}: {error}")
        del function, arguments
        replies.send_bytes(answer)


def keep(name, value):
    kept[name] = value


def drop(name):
    del kept[name]


def describe(*names):
    return [(str(kept[name].device), kept[name].dtype, kept[name].tolist()) for name in names]


def add_one(*names):
    for name in names:
        kept[name].add_(1)
    torch.npu.synchronize()


def addresses(*names):
    return [kept[name].untyped_storage().data_ptr() for name in names]


def layout(tensor):
    return tensor.storage_offset(), tensor.size(), tensor.stride(), tensor.requires_grad, type(tensor)


def layouts(*names):
    return [layout(kept[name]) for name in names]


def total(tensor):
    return tensor.sum().item()


def same_storages(module):
    return module.tied is module.weight, [parameter.is_npu for parameter in module.parameters()]


def state_of(module):
    with torch.no_grad():
        module.weight.zero_()
    torch.npu.synchronize()
    return module.weight.is_leaf, module.weight.requires_grad, type(module.weight) is torch.nn.Parameter


def send_back(name):
    return kept[name]


def make(name, value):
    kept[name] = torch.full((MEGABYTE,), value, device="npu")
    return kept[name]


def open_event(name, handle):
    kept[name] = torch.npu.Event.from_ipc_handle(torch.device("npu:1"), handle)
    return kept[name].query(), str(kept[name].device)


def record(name):
    """Records the event behind copies that take a while, and adds one to what it is recorded after."""
    slow, target = torch.ones(16 * MEGABYTE).pin_memory(), torch.empty(16 * MEGABYTE, device="npu")
    with torch.npu.stream(torch.npu.Stream()):
        for _ in range(8):
            target.copy_(slow, non_blocking=True)
        kept["x"].add_(1)
        kept[name].record()


def synchronize(name):
    kept[name].synchronize()
    return kept[name].query()


def export(name):
    return kept[name].ipc_handle()


def resize(name):
    kept[name].resize_(1 << 24)


def clone(name):
    kept["clone"] = kept[name].clone()
    return kept["clone"]


class Peer:
    """Another process; it gets requests through a queue, and answers through a pipe."""

    def __init__(self, context, first):
        self.requests = context.Queue()
        self.answers, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=work, args=(self.requests, theirs, first))
        self.process.start()
        theirs.close()

    def run(self, function, *arguments):
        self.requests.put((function, arguments))
        assert self.answers.poll(HANGS_AFTER)
        return self.answers.recv()

    def kill(self):
        self.process.kill()
        self.process.join()


@pytest.fixture(scope="module")
def peer():
    peer = Peer(mp.get_context("spawn"), torch.arange(6.0, device="npu:1"))
    yield peer
    peer.kill()


def active_bytes(peer=None):
    """Of this process, once it and `peer` have given back what they dropped."""
    if peer is not None:
        peer.run(torch.npu.ipc_collect)
    torch.npu.ipc_collect()
    return torch.npu.memory_stats(0)["active_bytes.all.current"]


def test_a_tensor_is_the_same_memory_in_both_processes(peer):
    x = torch.arange(6.0, device="npu")
    peer.run(keep, "x", x)
    assert peer.run(describe, "x", "first") == [
        ("npu:0", torch.float32, [0, 1, 2, 3, 4, 5]),
        ("npu:1", torch.float32, [0, 1, 2, 3, 4, 5]),
    ]
    peer.run(add_one, "x")
    assert x.tolist() == [1, 2, 3, 4, 5, 6]
    x.mul_(2)
    torch.npu.synchronize()
    assert peer.run(describe, "x")[0][2] == [2, 4, 6, 8, 10, 12]
    peer.run(drop, "x")


def test_views_of_one_storage_share_it_there_too(peer):
    base = torch.arange(24, device="npu", dtype=torch.bfloat16)
    views = {
        "base": base,
        "part": base[3:9],
        "strided": base.view(4, 6).t()[1:, ::2],
        "leaf": base[:2].float(),
    }
    views["leaf"].requires_grad_()
    views["empty"], views["none"] = base[5:5], torch.empty(0, 3, device="npu:1")
    for name, view in views.items():
        peer.run(keep, name, view)
    assert peer.run(layouts, *views) == [layout(view) for view in views.values()]
    assert peer.run(describe, *views) == [
        (str(view.device), view.dtype, view.tolist()) for view in views.values()
    ]
    there = peer.run(addresses, *views)
    assert there[0] == there[1] == there[2] == there[4] and there[3] not in (0, there[0]) and there[5] == 0
    peer.run(add_one, "part")
    assert base.tolist() == [*range(3), *range(4, 10), *range(9, 24)]
    assert peer.run(describe, "strided")[0][2] == views["strided"].tolist()
    assert "not resizable" in peer.run(resize, "base")
    for name in views:
        peer.run(drop, name)


def test_modules_parameters_and_other_layouts(peer):
    module = torch.nn.Linear(3, 3).npu()
    module.tied = module.weight
    assert module.share_memory() is module and module.weight.share_memory_() is module.weight
    assert module.weight.is_shared() and module.weight.untyped_storage().is_shared()
    assert not torch.ones(1).is_shared() and torch.ones(1).share_memory_().is_shared()
    assert peer.run(same_storages, module) == (True, [True, True])
    assert peer.run(state_of, module) == (True, True, True)
    assert module.weight.tolist() == [[0] * 3] * 3
    sparse = torch.eye(3).to_sparse().npu()
    assert peer.run(total, sparse) == 3
    assert peer.run(total, torch.ones(2, dtype=torch.cdouble, device="npu")) == 2
    assert peer.run(len, torch.ones(2, device="npu").untyped_storage()) == 8


def test_what_cannot_be_sent(peer):
    x = torch.ones(3, device="npu", requires_grad=True)
    with pytest.raises(RuntimeError, match="non-leaf tensor"):
        ForkingPickler.dumps(x * 2)
    error = peer.run(send_back, "first")
    assert error.startswith("RuntimeError") and "send its clone()" in error
    assert peer.run(clone, "first").tolist() == [0, 1, 2, 3, 4, 5]


def test_memory_is_kept_from_the_sending_until_the_last_use(peer):
    before = active_bytes(peer)
    x = torch.full((MEGABYTE,), 3.0, device="npu")
    address = x.data_ptr()
    message = ForkingPickler.dumps(x)
    del x
    assert active_bytes(peer) == before + 4 * MEGABYTE, "nobody has received it"
    for _ in range(2):
        assert torch.zeros(MEGABYTE, device="npu").data_ptr() != address
    here = ForkingPickler.loads(message)
    again = ForkingPickler.loads(message)
    assert here.eq(3).all().item() and again.data_ptr() == here.data_ptr() != address
    del again
    assert active_bytes(peer) == before + 4 * MEGABYTE
    del here
    assert active_bytes(peer) == before
    with pytest.raises(RuntimeError, match="exports nothing of that kind under that key"):
        ForkingPickler.loads(message)

    x = torch.full((MEGABYTE,), 4.0, device="npu")
    peer.run(keep, "x", x)
    peer.run(keep, "same", x)
    x.untyped_storage().resize_(0)
    del x
    torch.zeros(MEGABYTE, device="npu")
    assert active_bytes(peer) == before + 4 * MEGABYTE
    peer.run(drop, "x")
    assert active_bytes(peer) == before + 4 * MEGABYTE
    assert peer.run(describe, "same")[0][2] == [4.0] * MEGABYTE
    peer.run(drop, "same")
    assert active_bytes(peer) == before


def test_the_receiver_sees_what_was_enqueued_before(peer):
    slow = torch.ones(16 * MEGABYTE).pin_memory()
    x = torch.zeros(16 * MEGABYTE, device="npu")
    torch.npu.synchronize()
    with torch.npu.stream(torch.npu.Stream()):
        for _ in range(8):
            x.copy_(slow, non_blocking=True)
        x.mul_(2)
    assert peer.run(total, x) == 32 * MEGABYTE


def receive(message):
    return ForkingPickler.loads(message).tolist()


def receive_and_tell(message, replies):
    try:
        replies.send(receive(message))
    except RuntimeError as error:
        replies.send(str(error))


def test_an_event_is_recorded_by_one_process_and_waited_for_by_the_other(peer):
    event = torch.npu.Event(interprocess=True)
    handle = event.ipc_handle()
    assert isinstance(handle, bytes) and len(handle) == 64
    assert peer.run(open_event, "opened", handle) == (True, "npu:1")
    peer.run(keep, "sent", event)
    x = torch.zeros(3, device="npu")
    peer.run(keep, "x", x)
    for name in ("opened", "sent"):
        peer.run(record, name)
        torch.npu.current_stream().wait_event(event)
        y = x + 0
        assert y.tolist() == [1 + (name == "sent")] * 3 and event.query()
    peer.run(drop, "x")

    copied = torch.ones(16 * MEGABYTE).pin_memory()
    with torch.npu.stream(torch.npu.Stream("npu:1")):
        target = torch.empty(16 * MEGABYTE, device="npu:1").copy_(copied, non_blocking=True)
        event.record()
    assert peer.run(synchronize, "opened") and event.query() and target.sum().item() == 16 * MEGABYTE
    assert "the process that made it exports it" in peer.run(export, "opened")


def test_events_that_are_no_event_of_several_processes():
    for event in (torch.npu.Event(), torch.npu.Event(enable_timing=True)):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="made without interprocess=True"):
                event.ipc_handle()
            event.record()
    with pytest.raises(RuntimeError, match="needs enable_timing=False"):
        torch.npu.Event(enable_timing=True, interprocess=True)
    with pytest.raises(TypeError, match="handle has 3 bytes"):
        torch.npu.Event.from_ipc_handle(torch.device("npu:0"), b"abc")
    with pytest.raises(RuntimeError, match="hexadecimal digits"):
        torch.npu.Event.from_ipc_handle(torch.device("npu:0"), b"x" * 64)
    event = torch.npu.Event(interprocess=True)
    handle = event.ipc_handle()
    assert torch.npu.Event.from_ipc_handle(0, handle).query()
    with pytest.raises((RuntimeError, ValueError), match="timing"):
        event.elapsed_time(event)
    del event
    with pytest.raises(RuntimeError, match="exports nothing"):
        torch.npu.Event.from_ipc_handle(0, handle)


def test_a_fork_of_a_process_with_a_device_is_told():
    message = bytes(ForkingPickler.dumps(torch.arange(3.0, device="npu")))
    answers, theirs = mp.Pipe(duplex=False)
    child = mp.get_context("fork").Process(target=receive_and_tell, args=(message, theirs))
    child.start()
    assert answers.poll(HANGS_AFTER)
    assert "Cannot re-initialize NPU in forked subprocess" in answers.recv()
    child.join()
    assert receive(message) == [0, 1, 2]


def test_a_process_with_fewer_devices_is_told(monkeypatch):
    monkeypatch.setenv("ANYNPU_DEVICES", "1")
    before = active_bytes()
    peer = Peer(mp.get_context("forkserver"), torch.arange(3.0, device="npu"))
    assert peer.run(describe, "first") == [("npu:0", torch.float32, [0, 1, 2])]
    answer = peer.run(receive, bytes(ForkingPickler.dumps(torch.ones(3, device="npu:1"))))
    assert "invalid device ordinal 1: 0 to 0 exist" in answer
    peer.requests.put(None)
    peer.process.join()
    assert peer.process.exitcode == 0 and active_bytes() == before


def test_memory_outlives_its_process_and_no_killed_process_keeps_any(peer):
    before = active_bytes(peer)
    theirs = peer.run(make, "theirs", 5.0)
    ours = torch.full((MEGABYTE,), 6.0, device="npu")
    peer.run(keep, "ours", ours)
    del ours
    assert active_bytes(peer) == before + 4 * MEGABYTE
    peer.kill()
    assert peer.process.exitcode == -signal.SIGKILL and active_bytes() == before
    theirs.add_(1)
    assert theirs.eq(6).all().item() and theirs.clone().sum().item() == 6 * MEGABYTE
