"""How many threads run PyTorch's kernels on device npu."""


def test_set_num_threads_holds_for_kernels_on_the_compute_thread(python):
    output = python(
        """
import os
import torch

x = torch.randn(1 << 20, device="npu")

def threads_after_a_large_kernel(count):
    torch.set_num_threads(count)
    x.exp()
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
import torch

torch.set_num_threads(4)
large = torch.randn(1 << 20, device="npu", requires_grad=True)
small = torch.randn(64, device="npu", requires_grad=True)
large.exp().sum().backward()
before = len(os.listdir("/proc/self/task"))
for _ in range(3):
    (large * 2).exp().sum().backward()  # in autograd's thread
    (small.exp() @ small).backward()
print(len(os.listdir("/proc/self/task")) - before)
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
device.exp()  # makes the compute thread and its pool
before = len(os.listdir("/proc/self/task"))
host.exp()
with_both = len(os.listdir("/proc/self/task"))
device.exp()
limit = time.monotonic() + 60
while len(os.listdir("/proc/self/task")) > before and time.monotonic() < limit:
    time.sleep(0.01)  # the threads are ending
print(with_both - before, len(os.listdir("/proc/self/task")) - before)
"""
    ).stdout
    assert output.split() == ["3", "0"]
