"""Pinned host memory: how it is made and recognised, and asynchronous copies that use it."""

import pytest
import torch

PINNED = {
    "tensor": lambda: torch.tensor([1.0, 2.0], pin_memory=True),
    "empty": lambda: torch.empty(3, pin_memory=True),
    "zeros": lambda: torch.zeros(2, 2, pin_memory=True),
    "pin_memory": lambda: torch.arange(4).pin_memory(),
    "view": lambda: torch.arange(4).pin_memory()[2:],
    "empty_like": lambda: torch.empty_like(torch.ones(3), pin_memory=True),
    "module": lambda: torch.nn.utils.rnn.pack_sequence([torch.ones(2)]).pin_memory().data,
}


@pytest.mark.parametrize("way", PINNED)
def test_ways_to_pin(way):
    pinned = PINNED[way]()
    assert pinned.is_pinned() and pinned.device.type == "cpu"
    assert pinned.pin_memory().data_ptr() == pinned.data_ptr()


def test_pinning_keeps_values_and_leaves_the_rest_alone():
    x = torch.randn(5, 4)
    pinned = x.t().pin_memory()
    assert torch.equal(pinned, x.t()) and not x.is_pinned() and not torch.ones(2).is_pinned()
    assert not torch.ones(2, device="npu").is_pinned()
    assert torch.empty(0, pin_memory=True).numel() == 0


def test_only_cpu_tensors_are_pinned():
    with pytest.raises(RuntimeError, match=r"cannot pin .*only dense CPU tensors can be pinned"):
        torch.ones(2, device="npu").pin_memory()
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.empty(2, device="npu", pin_memory=True)


def test_freed_pinned_memory_is_used_again():
    address = torch.empty(1 << 20, pin_memory=True).data_ptr()
    assert torch.empty(1 << 20, pin_memory=True).data_ptr() == address
    torch.accelerator.empty_host_cache()
    assert torch.empty(1 << 20, pin_memory=True).is_pinned()


def test_memory_freed_while_a_copy_uses_it_is_kept():
    target = [torch.empty(1 << 24, dtype=torch.uint8, device="npu") for _ in range(4)]
    for value, device_side in enumerate(target):
        device_side.copy_(torch.full((1 << 24,), value, dtype=torch.uint8).pin_memory(), non_blocking=True)
    torch.empty(1 << 24, dtype=torch.uint8, pin_memory=True).fill_(99)
    for value, device_side in enumerate(target):
        assert device_side.min().item() == device_side.max().item() == value


def test_copies_to_pinned_memory_are_there_after_synchronize():
    host = torch.zeros(1 << 22, pin_memory=True)
    device_side = torch.arange(1 << 22, device="npu", dtype=torch.float32)
    host.copy_(device_side, non_blocking=True)
    torch.npu.synchronize()
    assert torch.equal(host, torch.arange(1 << 22, dtype=torch.float32))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataloader_pins(python, workers):
    code = f"""
import torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    data = TensorDataset(torch.arange(12.0).view(6, 2), torch.arange(6))
    torch.ones(1, device="npu:1")
    torch.npu.set_device(1)
    for x, y in DataLoader(data, batch_size=4, num_workers={workers}, pin_memory=True):
        assert x.is_pinned() and y.is_pinned()
        moved = x.to("npu", non_blocking=True)
        assert moved.get_device() == 1 and torch.equal(moved.cpu(), x)
        print(y.tolist())
"""
    done = python(code)
    assert done.stdout == "[0, 1, 2, 3]\n[4, 5]\n" and "Error" not in done.stderr


def test_pinning_starts_no_device(python):
    code = """
import torch
x = torch.arange(4.0).pin_memory()
print(x.is_pinned(), x.tolist(), torch.npu.is_initialized())
"""
    assert python(code).stdout == "True [0.0, 1.0, 2.0, 3.0] False\n"
