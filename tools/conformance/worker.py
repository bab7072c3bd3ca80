"""Checks units in a process that no crash of a kernel hurts.

The caller's process starts a keeper (spawned, as the caller may use npu already), which loads the database
once and forks workers from there. A worker that dies or hangs takes its unit with it and nothing else.
"""

import multiprocessing
import resource
import signal
from multiprocessing.connection import Connection

from .check import Outcome, check
from .units import Unit

LIMIT = 120  # seconds for one unit


class Checker:
    """The caller's end."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.keeper = context.Process(target=keep, args=(theirs,))
        self.keeper.start()
        theirs.close()

    def __call__(self, unit: Unit, alone: bool = False) -> Outcome:
        """`alone`: in a worker of its own, for what is known to leave one damaged."""
        self.connection.send((unit, alone))
        return self.connection.recv()

    def close(self) -> None:
        self.connection.close()
        self.keeper.join()


def keep(caller: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller closes the connection
    worker = None
    while request := receive(caller):
        unit, alone = request
        if worker is None or alone:
            if worker is not None:
                worker.stop()
            worker = Worker(caller)
        outcome = worker.check(unit)
        caller.send(outcome)
        if alone or not worker.usable:
            worker.stop()
            worker = None
    if worker is not None:
        worker.stop()


def receive(connection: Connection):
    try:
        return connection.recv()
    except EOFError:
        return None


class Worker:
    """The keeper's end of a worker process."""

    def __init__(self, caller: Connection) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, [caller, self.connection]), daemon=True)
        self.process.start()
        theirs.close()
        self.usable = True

    def check(self, unit: Unit) -> Outcome:
        self.connection.send(unit)
        reached_npu = False
        while self.connection.poll(LIMIT):
            answer = receive(self.connection)
            if answer == "on npu":
                reached_npu = True
            elif answer is None:
                return self.lost(f"died with {self.ending()}", reached_npu)
            else:
                # A kernel that writes wrong values on the CPU may have written elsewhere too.
                self.usable = not answer.detail.startswith("is wrong on the CPU")
                return answer
        return self.lost(f"did not end within {LIMIT} s", reached_npu)

    def lost(self, how: str, reached_npu: bool) -> Outcome:
        self.usable = False
        by_cpu = not reached_npu and self.process.exitcode != 1  # which is an exception of our own
        return Outcome("cpu", f"is wrong on the CPU: {how}") if by_cpu else Outcome("failed", how)

    def ending(self) -> str:
        self.process.join()
        code = self.process.exitcode
        return signal.Signals(-code).name if code < 0 else f"status {code}"

    def stop(self) -> None:
        self.process.kill()
        self.process.join()


def work(keeper: Connection, others: list[Connection]) -> None:
    for connection in others:  # of the keeper: they would hide its end
        connection.close()
    import torch

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is an outcome, not worth gigabytes
    torch.set_num_threads(1)
    while unit := receive(keeper):
        keeper.send(check(unit, on_npu=lambda: keeper.send("on npu")))
