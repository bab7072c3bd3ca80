"""How many threads run PyTorch's kernels on device npu."""

import ctypes
from pathlib import Path

import pytest
import torch

import anynpu

VECTOR_CORE = 1
LARGE, SMALL = 1 << 21, 8


@pytest.fixture(scope="module")
def acl():
    return ctypes.CDLL(str(Path(anynpu.__file__).parent / "lib64" / "libascendcl.so"))


@pytest.fixture(scope="module")
def threads_of():
    """The number of threads that an operator may use, seen from inside of its kernel."""
    seen = []

    def look(x):
        seen.append(torch.get_num_threads())
        return x[:1].clone()

    def threads_of(size, device):
        torch.ops.test_threads.look(torch.zeros(size, device=device))
        return seen.pop()

    library = torch.library.Library("test_threads", "DEF")
    library.define("look(Tensor x) -> Tensor")
    library.impl("look", look, "CPU")

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield threads_of
    torch.set_num_threads(before)


def test_kernels_use_as_many_cores_as_their_device_is_limited_to(acl, threads_of):
    def counts():
        return [threads_of(LARGE, "npu:0"), threads_of(LARGE, "npu:1"), threads_of(SMALL, "npu:0")]

    assert counts() == [2, 2, 1]
    assert acl.aclrtSetDeviceResLimit(0, VECTOR_CORE, 1) == 0
    try:
        assert counts() == [1, 2, 1]
    finally:
        assert acl.aclrtResetDeviceResLimit(0) == 0
    assert counts() == [2, 2, 1]

    stream = ctypes.c_void_p(torch.npu.current_stream().npu_stream)
    torch.npu.set_device(0)
    assert acl.aclrtSetStreamResLimit(stream, VECTOR_CORE, 1) == 0
    assert counts() == [2, 2, 1], "the thread does not use the stream's limits"
    assert acl.aclrtUseStreamResInCurrentThread(stream) == 0
    try:
        assert counts() == [1, 1, 1]
    finally:
        assert acl.aclrtUnuseStreamResInCurrentThread(stream) == 0
        assert acl.aclrtResetStreamResLimit(stream) == 0
    assert counts() == [2, 2, 1]


def test_set_num_threads_holds_for_kernels_on_the_compute_thread(python):
    output = python(
        """
import os
import torch

x = torch.randn(1 << 20, device="npu")

def threads_after_a_large_kernel(count):
    torch.set_num_threads(count)
    x.erfinv()
    return len(os.listdir("/proc/self/task"))

few = threads_after_a_large_kernel(1)
print(threads_after_a_large_kernel(7) - few)
"""
    ).stdout
    assert int(output) == 6


def test_small_kernels_and_backward_threads_make_no_second_pool(python):
    output = python(
        """
import os
import time
import torch

torch.set_num_threads(4)
large = torch.randn(1 << 20, device="npu", requires_grad=True)
small = torch.randn(64, device="npu", requires_grad=True)
large.exp().sum().backward()
before = len(os.listdir("/proc/self/task"))
for _ in range(3):
    (large * 2).exp().sum().backward()  # in autograd's thread
    (small.exp() @ small).backward()
end = time.monotonic() + 10  # a compute thread that slept too long, and its pool, are gone by then
while (more := len(os.listdir("/proc/self/task")) - before) > 0 and time.monotonic() < end:
    time.sleep(0.1)
print(more)
"""
    ).stdout
    assert int(output) == 0


def test_a_thread_that_hands_work_over_gives_up_its_own_pool(python):
    output = python(
        """
import os
import time
import torch

torch.set_num_threads(4)
host = torch.randn(1 << 20)
device = host.npu()
device.erfinv()  # makes the compute thread and its pool
before = len(os.listdir("/proc/self/task"))
host.exp()
with_both = len(os.listdir("/proc/self/task"))
device.erfinv()
limit = time.monotonic() + 60
while len(os.listdir("/proc/self/task")) > before and time.monotonic() < limit:
    time.sleep(0.01)  # the threads are ending
print(with_both - before, len(os.listdir("/proc/self/task")) - before)
"""
    ).stdout
    assert output.split() == ["3", "0"]
