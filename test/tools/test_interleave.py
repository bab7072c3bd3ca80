"""bench.interleave: two processes take turns, and what goes wrong in one is told in the other."""

import os
import sys

import pytest

from bench.interleave import Side, SideFailed, take_turns


def count(device, start, step):
    while True:
        yield device, start
        start += step


def stop_early(device):
    yield os.getpid()
    raise ValueError("the third wheel is off")


def crash(device):
    yield "fine"
    os._exit(7)


def loaded_torch_npu(device):
    yield sys.modules.get("torch_npu") is not None


@pytest.fixture
def side():
    with Side("cpu") as side:
        yield side


def test_sides_take_turns_and_keep_their_own_state():
    with Side("cpu") as one, Side("cpu") as other:
        one.start(count, 0, 1)
        other.start(count, 10, 5)
        rounds = list(take_turns((one, other), 3))
    assert rounds == [[("cpu", 0), ("cpu", 10)], [("cpu", 1), ("cpu", 15)], [("cpu", 2), ("cpu", 20)]]


def test_an_exception_arrives_with_its_traceback_and_the_process_lives_on(side):
    side.start(stop_early)
    process = side.turn()
    with pytest.raises(
        SideFailed, match=r"(?s)cpu: Traceback.*stop_early.*ValueError: the third wheel is off"
    ):
        side.turn()
    side.start(stop_early)
    assert side.turn() == process


def test_the_end_of_a_generator_is_a_failure(side):
    side.start(loaded_torch_npu)
    side.turn()
    with pytest.raises(SideFailed, match="StopIteration"):
        side.turn()


def test_a_crash_is_told_and_the_next_start_has_a_new_process(side):
    side.start(crash)
    assert side.turn() == "fine"
    with pytest.raises(SideFailed, match="its process ended with status 7"):
        side.turn()
    side.start(crash)
    assert side.turn() == "fine"


def test_only_the_side_of_a_device_loads_torch_npu():
    with Side("cpu") as cpu, Side("npu") as npu:
        cpu.start(loaded_torch_npu)
        npu.start(loaded_torch_npu)
        assert [cpu.turn(), npu.turn()] == [False, True]
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD" not in os.environ
