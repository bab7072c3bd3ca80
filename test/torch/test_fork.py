"""Forks: free until a device is started, and a clear error in the child afterwards."""

import pytest

PARENT = """
import multiprocessing, os, torch

def use_npu(answers):
    try:
        answers.put(("ok", (torch.ones(3, device="npu") * 2).sum().item()))
    except RuntimeError as error:
        answers.put(("error", str(error)))

def ask(kind, function=use_npu):
    context = multiprocessing.get_context(kind)
    answers = context.Queue()
    child = context.Process(target=function, args=(answers,))
    child.start()
    answer = answers.get(timeout=100)
    child.join(100)
    assert child.exitcode == 0, child.exitcode
    return answer
"""

QUERIES = """
    torch.npu.is_available(); torch.npu.device_count(); torch.npu.get_device_name()
    torch.npu.current_device(); torch.npu.set_device(0); torch.npu.current_stream()
    torch.npu.get_device_properties(0); torch.npu.mem_get_info(); torch.npu.memory_allocated()
    torch.manual_seed(0); torch.npu.manual_seed(0); torch.npu.get_rng_state(); torch.npu.synchronize()
    torch.empty(3, pin_memory=True); torch.accelerator.current_accelerator(check_available=True)
    assert not torch.npu.is_initialized()
"""


def test_queries_start_nothing_and_the_child_may_use_npu(python):
    code = f"""{PARENT}
if __name__ == "__main__":
{QUERIES}
    print(ask("fork"))
    print((torch.ones(2, device="npu") + 1).tolist(), torch.npu.is_initialized())
"""
    assert python(code).stdout.splitlines() == ["('ok', 6.0)", "[2.0, 2.0] True"]


def test_fork_after_start_is_a_clear_error_and_spawn_works(python):
    code = f"""{PARENT}
if __name__ == "__main__":
    torch.ones(1, device="npu")
    kind, text = ask("fork")
    assert kind == "error", text
    print(text)
    print(ask("spawn"))
"""
    error, spawned = python(code).stdout.splitlines()
    assert error == (
        "Cannot re-initialize NPU in forked subprocess. To use NPU with multiprocessing, you must use the "
        "'spawn' start method"
    )
    assert spawned == "('ok', 6.0)"


def test_child_may_drop_inherited_tensors_and_use_the_cpu(python):
    code = f"""{PARENT}
import gc

def drop(answers):
    global inherited
    inherited.clear()
    gc.collect()
    assert torch.npu._is_in_bad_fork() and not torch.npu.is_initialized()
    torch.manual_seed(1)
    x = torch.ones(5, requires_grad=True)
    (x * 3).sum().backward()
    answers.put(x.grad.tolist())

if __name__ == "__main__":
    inherited = [torch.ones(1000, device="npu"), torch.ones(3, device="npu").storage(),
                 torch.empty(4, pin_memory=True)]
    print(ask("fork", drop))
    print(inherited[0].sum().item())
"""
    assert python(code).stdout.splitlines() == ["[3.0, 3.0, 3.0, 3.0, 3.0]", "1000.0"]


@pytest.mark.parametrize(
    "use",
    [
        "x.sum()",
        "x.cpu()",
        "x.tolist()",
        "repr(x)",
        "x.fill_(1)",
        "x.to('npu:0', copy=True)",
        "torch.empty(2, device='npu')",
        "torch.npu.Stream()",
        "torch.npu.init()",
        "torch.npu.empty_cache() or torch.npu.synchronize() or torch.npu.Stream()",
    ],
)
def test_no_use_of_the_device_in_a_child_crashes(python, use):
    code = f"""
import os, sys, torch
x = torch.ones(3, device="npu")
child = os.fork()
if child == 0:
    try:
        {use}
    except RuntimeError as error:
        assert "Cannot re-initialize NPU in forked subprocess" in str(error), error
        os._exit(7)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), x.tolist())
"""
    assert python(code).stdout == "7 [1.0, 1.0, 1.0]\n"


def test_cpu_workers_of_a_dataloader_after_start(python):
    code = """
import torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.ones(1, device="npu")
    batches = DataLoader(TensorDataset(torch.arange(6)), batch_size=2, num_workers=2)
    print([batch.tolist() for batch, in batches])
"""
    assert python(code).stdout == "[[0, 1], [2, 3], [4, 5]]\n"
