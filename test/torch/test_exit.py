"""The end of a process: with work queued, with threads at work, with objects alive."""

import pytest

ENDINGS = {
    "work queued": """
import torch
host = torch.ones(1 << 26).pin_memory()
x = torch.empty(1 << 26, device="npu")
for _ in range(100):
    x.copy_(host, non_blocking=True)
""",
    "work queued on other streams and an event pending": """
import torch
host = torch.ones(1 << 26).pin_memory()
x = torch.empty(1 << 26, device="npu")
streams = [torch.npu.Stream() for _ in range(3)]
for stream in streams:
    with torch.npu.stream(stream):
        for _ in range(30):
            x.copy_(host, non_blocking=True)
    event = stream.record_event()
    torch.npu.current_stream().wait_event(event)
""",
    "daemon thread that waits": """
import threading, torch
host = torch.ones(1 << 26).pin_memory()
x = torch.empty(1 << 26, device="npu")
for _ in range(100):
    x.copy_(host, non_blocking=True)
started = threading.Event()
threading.Thread(target=lambda: (started.set(), torch.npu.synchronize()), daemon=True).start()
started.wait()
""",
    "daemon thread that computes": """
import threading, time, torch
def work():
    x = torch.ones(64, 64, device="npu")
    while True:
        x = x @ x
        x.sum().item()
        x.fill_(0.01)
threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
""",
    "tensors in globals and cycles": """
import torch
x = torch.ones(1000, device="npu", requires_grad=True)
cycle = [x.sum(), torch.empty(10, pin_memory=True), torch.npu.Stream(), torch.npu.Event()]
cycle.append(torch.Generator("npu"))
cycle.append(cycle)
cycle[0].backward()
module = torch.nn.Linear(3, 3).npu()
""",
    "tensors used in exit handlers": """
import atexit, torch
x = torch.ones(4, device="npu")
atexit.register(lambda: print(x.sum().item()))
""",
    "after an exception": """
import sys, torch
sys.excepthook = lambda *_: None
x = torch.ones(4, device="npu")
raise KeyError
""",
    "sys.exit in a thread, os-level pools alive": """
import concurrent.futures, torch
pool = concurrent.futures.ThreadPoolExecutor(4)
list(pool.map(lambda i: torch.full((8,), i, device="npu").sum().item(), range(8)))
""",
    "backward in a thread": """
import threading, torch
def work():
    x = torch.ones(100, device="npu", requires_grad=True)
    (x * x).sum().backward()
thread = threading.Thread(target=work); thread.start(); thread.join()
""",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_process_ends(python, ending):
    done = python(ENDINGS[ending], exit_code=None)
    assert done.returncode == (1 if "exception" in ending else 0), done.stderr
    assert done.stderr == ""


def test_use_after_the_end_is_an_error(python):
    code = """
import torch
x = torch.ones(2, device="npu")
torch.npu._utils._C.shutdown()
for use in (lambda: torch.npu.synchronize(), lambda: x + 1, lambda: torch.empty(3, device="npu")):
    try:
        use()
    except RuntimeError as error:
        print("shut down" in str(error))
"""
    assert python(code).stdout == "True\nTrue\nTrue\n"


def test_a_bad_option_is_reported_where_the_device_is_used_and_not_at_the_end(python):
    code = """
import os
os.environ["ANYNPU_PARALLEL_BYTES"] = "many"
import torch
for use in (lambda: torch.ones(3, device="npu"), lambda: torch.ones(3).npu()):
    try:
        use()
    except RuntimeError as error:
        print("option ANYNPU_PARALLEL_BYTES: 'many' is not an integer" in str(error))
"""
    done = python(code)
    assert (done.stdout, done.stderr) == ("True\nTrue\n", "")
