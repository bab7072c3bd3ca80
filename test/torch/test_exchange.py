"""npu tensors for other libraries and processes: DLPack, NumPy, torch.distributed."""

import numpy
import pytest
import torch
from torch.utils import dlpack

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("device", ["npu:0", "npu:1"])
@pytest.mark.parametrize(
    "share",
    [
        torch.from_dlpack,
        lambda x: dlpack.from_dlpack(dlpack.to_dlpack(x)),
        lambda x: dlpack.from_dlpack(x.__dlpack__()),
        lambda x: torch.from_dlpack(x, device=x.device),
    ],
)
def test_dlpack_shares_memory(share, device, dtype):
    x = torch.arange(24).view(2, 3, 4).to(device, dtype)
    for view in (x, x[:, 1:, ::2], x.transpose(0, 2), x[1, 2, 3], x[:, :0]):
        shared = share(view)
        assert (shared.device, shared.dtype, shared.shape) == (view.device, view.dtype, view.shape)
        assert torch.equal(shared.cpu(), view.cpu())
        if view.numel() != 0:
            assert shared.data_ptr() == view.data_ptr() and shared.stride() == view.stride()
    share(x)[1, 2, 3] = 1
    assert x[1, 2, 3].item() == 1


def test_dlpack_names_the_device_and_keeps_memory_alive():
    x = torch.arange(4.0, device="npu:1")
    assert x.__dlpack_device__() == (dlpack.DLDeviceType.kDLExtDev, 1)
    assert torch.ones(1).__dlpack_device__() == (dlpack.DLDeviceType.kDLCPU, 0)
    capsule = dlpack.to_dlpack(x)
    allocated = torch.npu.memory_allocated(1)
    del x
    assert torch.npu.memory_allocated(1) == allocated
    shared = dlpack.from_dlpack(capsule)
    assert shared.tolist() == [0, 1, 2, 3]
    del capsule, shared
    assert torch.npu.memory_allocated(1) < allocated


def test_dlpack_copies_between_devices_and_refuses_what_it_cannot_say():
    x = torch.arange(4.0, device="npu")
    assert torch.from_dlpack(x, device="cpu").tolist() == [0, 1, 2, 3]
    moved = torch.from_dlpack(numpy.arange(4.0), device="npu:0")
    assert moved.is_npu and moved.tolist() == [0, 1, 2, 3]
    copied = torch.from_dlpack(x, copy=True)
    assert copied.is_npu and copied.data_ptr() != x.data_ptr() and torch.equal(copied, x)
    for refused in (x.clone().requires_grad_(), torch.ones(2, dtype=torch.complex64, device="npu").conj()):
        with pytest.raises(BufferError):
            torch.from_dlpack(refused)
    with pytest.raises(RuntimeError, match="Unsupported device"):
        numpy.from_dlpack(x)


@pytest.mark.parametrize("convert", [lambda x: x.numpy(), numpy.asarray, lambda x: numpy.add(x, 1)])
def test_numpy_is_refused_as_on_cuda(convert):
    with pytest.raises(
        TypeError, match=r"can't convert npu:0 device type tensor to numpy. Use Tensor.cpu\(\)"
    ):
        convert(torch.ones(3, device="npu"))


def test_numpy_after_cpu():
    x = torch.arange(6.0, device="npu").view(2, 3)
    assert (x.cpu().numpy() == numpy.arange(6.0).reshape(2, 3)).all()
    assert x.numpy(force=True).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert torch.tensor(numpy.float32(2), device="npu").item() == 2
    assert numpy.float64(torch.tensor(2.5, device="npu").item()) == 2.5


def test_the_backend_hccl_says_that_it_is_not_built(python):
    code = """
import torch, torch.distributed as d
assert not d.is_backend_available("hccl") and "npu" not in d.Backend.default_device_backend_map
for backend in ("hccl", "npu:hccl"):
    try:
        d.init_process_group(backend, init_method="file:///tmp/never_written", rank=0, world_size=1)
    except NotImplementedError as error:
        print(error)
"""
    done = python(code)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and all("'hccl' of device npu is not built yet" in line for line in lines)


def test_other_backends_still_work(python):
    code = """
import os, torch, torch.distributed as d
d.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=0, world_size=1)
x = torch.ones(3)
d.all_reduce(x)
print(x.tolist(), d.get_backend())
d.destroy_process_group()
"""
    assert python(code).stdout == "[1.0, 1.0, 1.0] gloo\n"
