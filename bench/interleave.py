"""Two devices take turns, each in a process of its own.

One process for both would not measure what a user of either sees: its second OpenMP pool makes every parallel
region of both slower, fourfold for a small model on two cores. Here the side whose turn it is not sleeps.
"""

import multiprocessing
import multiprocessing.connection
import os
import sys
import threading
import time
import traceback

SETTLE = 0.005  # seconds after which the other side's threads have stopped spinning


class SideFailed(Exception):
    """A side's job raised an exception, or its process ended."""


class Side:
    """A process that runs one generator at a time on ``device``; "cpu" is PyTorch without torch_npu."""

    def __init__(self, device):
        self.device = device
        self._process = self._pipe = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self, job, *arguments):
        """Makes the generator ``job(device, *arguments)`` the one that turn() asks; its process lives on."""
        if self._process is None or not self._process.is_alive():
            self._launch()
        self._exchange(job, arguments)

    def turn(self):
        """The generator's next value; where there is none, SideFailed with the process's own traceback."""
        return self._exchange(None, ())

    def stop(self):
        if self._process is None:
            return
        self._pipe.close()
        self._process.join(timeout=30)
        if self._process.is_alive():
            self._process.kill()

    def _launch(self):
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(
            target=_serve, args=(theirs, self.device), name=self.device, daemon=True
        )
        before = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD")
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = (
            "0"  # inherited: _serve loads torch_npu where it is wanted
        )
        try:
            self._process.start()
        finally:
            if before is None:
                del os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"]
            else:
                os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = before
        theirs.close()

    def _exchange(self, *request):
        try:
            self._pipe.send(request)
            failure, value = self._pipe.recv()
        except (EOFError, OSError) as gone:
            self._process.join(timeout=30)
            ended = f"its process ended with status {self._process.exitcode}"
            raise SideFailed(f"{self.device}: {ended}") from gone
        if failure:
            raise SideFailed(f"{self.device}: {failure}")
        return value


def take_turns(sides, rounds):
    """Yields for each round the list of the sides' values; who is first alternates."""
    for number in range(rounds):
        values = {}
        for side in sides if number % 2 == 0 else reversed(sides):
            time.sleep(SETTLE)
            values[side] = side.turn()
        yield [values[side] for side in sides]


def _end_with_the_parent():
    """A side in the middle of a turn does not read its pipe, and would work on when its parent was killed."""
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def _serve(pipe, device):
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    if device == "cpu":
        sys.modules["torch_npu"] = None  # libraries that look for it find none
    turns = None
    while True:
        try:
            job, arguments = pipe.recv()
        except EOFError:
            return
        try:
            if job is not None:
                if device != "cpu":
                    import torch_npu  # noqa: F401
                turns, value = job(device, *arguments), None
            else:
                value = next(turns)
            answer = (None, value)
        except Exception:
            answer = (traceback.format_exc(), None)
        pipe.send(answer)
