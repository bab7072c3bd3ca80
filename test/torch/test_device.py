"""Choosing devices: every way to spell one, one per thread, and errors that name what was asked for."""

import os
import threading
import time

import pytest
import torch

COUNT = torch.npu.device_count()

SPELLINGS = {
    "to(0)": lambda x: x.to(0),
    "to('npu')": lambda x: x.to("npu"),
    "to('npu:0')": lambda x: x.to("npu:0"),
    "to(device)": lambda x: x.to(torch.device("npu", 0)),
    "to(device=0)": lambda x: x.to(device=0, dtype=torch.float64),
    "npu()": lambda x: x.npu(),
    "npu(0)": lambda x: x.npu(0),
    "ones(device=0)": lambda x: torch.ones(2, device=0),
    "ones_like(device=0)": lambda x: torch.ones_like(x, device=0),
    "tensor(device)": lambda x: torch.tensor([1.0, 1.0], device="npu"),
    "new_ones(device)": lambda x: x.new_ones(2, device="npu:0"),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_is_the_same_device(spelling):
    moved = SPELLINGS[spelling](torch.ones(2))
    assert moved.device == torch.device("npu:0") and moved.device.index == 0
    assert moved.is_npu and not moved.is_cuda and moved.get_device() == 0
    assert moved.tolist() == [1, 1]


def test_modules_and_defaults():
    for module in (
        torch.nn.Linear(2, 2).to(0),
        torch.nn.Linear(2, 2).npu(),
        torch.nn.Linear(2, 2, device="npu"),
    ):
        assert {parameter.device for parameter in module.parameters()} == {torch.device("npu:0")}
    with torch.device("npu"):
        assert torch.arange(3).device == torch.device("npu:0")
    torch.set_default_device("npu:1")
    try:
        assert torch.zeros(1).device == torch.device("npu:1")
    finally:
        torch.set_default_device(None)
    assert torch.zeros(1).device.type == "cpu"


def test_accelerator_is_npu():
    assert torch.accelerator.current_accelerator() == torch.device("npu")
    assert torch.accelerator.is_available() and torch.accelerator.device_count() == COUNT
    assert torch.get_device_module("npu") is torch.npu
    with torch.accelerator.device_index(1):
        assert torch.npu.current_device() == torch.accelerator.current_device_index() == 1
    assert torch.npu.current_device() == 0
    assert torch.bfloat16 in torch.accelerator.get_device_capability()["supported_dtypes"]


@pytest.mark.parametrize("bad", [f"npu:{COUNT}", "npu:99", COUNT, 99, torch.device("npu", COUNT)])
@pytest.mark.parametrize(
    "use",
    [
        lambda bad: torch.ones(2).to(bad),
        lambda bad: torch.empty(2, device=bad),
        lambda bad: torch.zeros(0, device=bad),
        lambda bad: torch.npu.set_device(bad),
        lambda bad: torch.npu.Stream(bad).synchronize(),
        lambda bad: torch.npu.current_stream(bad),
        lambda bad: torch.npu.default_stream(bad),
        lambda bad: torch.npu.get_device_name(bad),
        lambda bad: torch.npu.memory_allocated(bad),
        lambda bad: torch.npu.mem_get_info(bad),
        lambda bad: torch.npu.synchronize(bad),
        lambda bad: torch.Generator(torch.device("npu", bad) if isinstance(bad, int) else bad),
    ],
)
def test_missing_device_is_named(use, bad):
    index = bad if isinstance(bad, int) else torch.device(bad).index
    with pytest.raises(RuntimeError, match=rf"ordinal {index}\b"):
        use(bad)


@pytest.mark.parametrize("bad", [1.5, [0], b"npu"], ids=repr)
@pytest.mark.parametrize("name", ["set_device", "Stream", "default_stream", "memory_allocated", "device"])
def test_what_names_no_device_is_refused(name, bad):
    with pytest.raises(ValueError, match="Expected an npu device or its index"):
        getattr(torch.npu, name)(bad)


@pytest.mark.parametrize("bad", ["npux", "npu:-1", "npu:x"])
def test_what_is_no_device_is_named(bad):
    with pytest.raises(RuntimeError, match=bad):
        torch.ones(2).to(bad)


def test_other_devices_are_refused():
    for call in (torch.npu.set_device, torch.npu.synchronize, torch.npu.memory_stats):
        with pytest.raises(ValueError, match="npu device, but got: cpu"):
            call(torch.device("cpu"))
    with pytest.raises(ValueError, match="specified index"):
        torch.npu.set_device("npu")


def test_contexts_restore_the_device():
    for inside in (1, "npu:1", torch.device("npu:1"), torch.npu.device(1)):
        with torch.npu.device(inside):
            assert torch.npu.current_device() == 1
            assert torch.empty(1, device="npu").get_device() == 1
        assert torch.npu.current_device() == 0
    with torch.npu.device(None), torch.npu.device(-1):
        assert torch.npu.current_device() == 0
    with torch.npu.device_of(torch.empty(1, device="npu:1")):
        assert torch.npu.current_device() == 1
    with torch.npu.device_of(torch.empty(1)):
        assert torch.npu.current_device() == 0
    with pytest.raises(KeyError), torch.npu.device(1):
        raise KeyError
    torch.npu.set_device(-1)
    assert torch.npu.current_device() == 0


def test_each_thread_has_its_device():
    torch.npu.set_device(1)
    seen = {}

    def work(number):
        first = torch.npu.current_device()
        a = torch.full((16, 16), float(number), device="npu")
        seen[number] = first, a.get_device(), (a @ a).sum().item()
        torch.npu.set_device(number % COUNT)
        seen[number] += (torch.npu.current_device(),)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {n: (0, 0, 16.0**3 * n * n, n % COUNT) for n in range(1, 7)}
    assert torch.npu.current_device() == 1


def test_backward_runs_on_the_device_of_its_tensors():
    seen = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            seen.append((torch.npu.current_device(), gradient.get_device()))
            return gradient * 2

    x = torch.ones(3, device="npu:1", requires_grad=True)
    Double.apply(x).sum().backward()
    assert seen == [(1, 1)] and torch.npu.current_device() == 0
    assert x.grad.get_device() == 1 and x.grad.tolist() == [2, 2, 2]


def test_properties():
    properties = torch.npu.get_device_properties("npu:1")
    assert properties.name == torch.npu.get_device_name() == "Ascend910B2 (anynpu)"
    assert properties.total_memory == torch.npu.mem_get_info()[1]
    assert properties.multi_processor_count == len(os.sched_getaffinity(0))
    assert properties.cube_core_num == properties.vector_core_num == properties.multi_processor_count
    assert torch.npu.is_bf16_supported() and not torch.npu.is_tf32_supported() and torch.npu.has_half
    assert torch.npu.can_device_access_peer(0, 1) and torch.npu.can_device_access_peer("npu:1", None)
    with pytest.raises(RuntimeError, match=f"ordinal {COUNT}"):
        torch.npu.can_device_access_peer(0, COUNT)


def test_the_processor_and_its_capability_are_options(python):
    code = "import torch; print(torch.npu.get_device_name(), torch.npu.get_device_capability())"
    assert python(code).stdout == "Ascend910B2 (anynpu) None\n"
    env = {"ANYNPU_SOC": "Ascend310P3", "TORCH_NPU_DEVICE_CAPABILITY": "8.0"}
    assert python(code, env=env).stdout == "Ascend310P3 (anynpu) (8, 0)\n"
    done = python(code, env={"TORCH_NPU_DEVICE_CAPABILITY": "eight"}, exit_code=1)
    assert "TORCH_NPU_DEVICE_CAPABILITY is 'eight'" in done.stderr


def test_utilization_is_that_of_the_process():
    torch.npu.utilization()
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    busy = torch.npu.utilization()
    assert 0 < busy <= 100 and isinstance(busy, int)
    assert torch.npu.device_memory_used() == torch.npu.mem_get_info()[1] - torch.npu.mem_get_info()[0]


def test_a_thread_that_chose_no_device_has_one_for_c_libraries_too(python):
    """They ask AscendCL, which knows no implicit device."""
    code = """
import ctypes, threading, torch
from pathlib import Path
import anynpu

acl = ctypes.CDLL(str(Path(anynpu.__file__).parent / "lib64" / "libascendcl.so"))
def work():
    device = ctypes.c_int32(-1)
    before = acl.aclrtGetDevice(ctypes.byref(device))
    torch.ones(2, device="npu")
    print(before, acl.aclrtGetDevice(ctypes.byref(device)), device.value)
for _ in range(2):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
"""
    assert python(code).stdout == "107002 0 0\n" * 2


TENSOR_TYPES = {
    "BFloat16Tensor": torch.bfloat16,
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "ShortTensor": torch.int16,
}


@pytest.mark.parametrize("name", TENSOR_TYPES)
def test_types_of_tensors(name):
    kind, dtype = getattr(torch.npu, name), TENSOR_TYPES[name]
    made = kind(2, 3)
    assert made.shape == (2, 3) and made.dtype == kind.dtype == dtype and made.is_npu
    assert kind().shape == (0,) and kind(torch.Size([2])).shape == (2,)
    values = kind([1, 0, 1])
    assert values.tolist() == [1, 0, 1] and isinstance(values, kind) and values.type() == f"torch.npu.{name}"
    for other in (values.cpu(), values.to(torch.complex64), [1, 0, 1]):
        assert not isinstance(other, kind)
    source = torch.tensor([0.0, 1.0])
    for moved in (source.type(kind), source.type(f"torch.npu.{name}")):
        assert isinstance(moved, kind) and moved.tolist() == [0, 1]
    assert values.type(kind) is values


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_types_of_storages():
    for name, dtype in (("FloatStorage", torch.float32), ("ComplexDoubleStorage", torch.complex128)):
        storage = getattr(torch.npu, name)(3)
        assert storage.dtype == dtype and storage.device == torch.device("npu:0") and len(storage) == 3
        assert storage.nbytes() == 3 * dtype.itemsize


def test_permissions_are_kept_and_wrong_ones_named():
    torch.npu.conv.allow_hf32 = False
    torch.npu.matmul.allow_hf32 = True
    torch.npu.config.allow_internal_format = True
    torch.npu.set_compile_mode(jit_compile=True)
    try:
        assert (torch.npu.conv.allow_hf32, torch.npu.matmul.allow_hf32) == (False, True)
        assert torch.npu.config.allow_internal_format and not torch.npu.is_jit_compile_false()
        x = torch.rand(64, 64) + 1
        assert torch.equal((x.npu() @ x.npu()).cpu(), x @ x)
    finally:
        torch.npu.conv.allow_hf32, torch.npu.matmul.allow_hf32 = True, False
        torch.npu.config.allow_internal_format = False
        torch.npu.set_compile_mode()
    with pytest.raises(TypeError, match="allow_hf32 must be a bool, got int"):
        torch.npu.conv.allow_hf32 = 1
    with pytest.raises(AttributeError, match=r"allow_tf32.*accepted are allow_hf32"):
        torch.npu.matmul.allow_tf32 = True


def test_autocast_by_name():
    assert not torch.npu.is_autocast_enabled()
    with torch.autocast("npu", dtype=torch.bfloat16):
        assert torch.npu.is_autocast_enabled() and torch.npu.get_autocast_dtype() == torch.bfloat16
    before = torch.npu.get_autocast_dtype()
    torch.npu.set_autocast_enabled(True)
    torch.npu.set_autocast_dtype(torch.bfloat16)
    try:
        assert torch.is_autocast_enabled("npu")
        assert (torch.ones(2, 2, device="npu") @ torch.ones(2, 2, device="npu")).dtype == torch.bfloat16
    finally:
        torch.npu.set_autocast_enabled(False)
        torch.npu.set_autocast_dtype(before)
    assert torch.float32 in torch.npu.get_amp_supported_dtype()


def test_programs_written_for_cuda(python):
    code = """
import torch
from torch_npu.contrib import transfer_to_npu

assert torch.cuda.is_available() and torch.cuda.device_count() == torch.npu.device_count() == 2
x = torch.ones(2)
for moved in (torch.zeros(2, device="cuda:0"), torch.zeros(2, device=torch.device("cuda")), x.cuda(),
              x.to("cuda"), x.to(device=torch.device("cuda", 0)), torch.tensor([1.0], device="cuda"),
              torch.zeros_like(x, device="cuda"), x.new_zeros(3, device="cuda"),
              torch.nn.Linear(2, 2).cuda().weight, torch.nn.Linear(2, 2, device="cuda").to("cuda:0").weight):
    assert moved.device == torch.device("npu:0") and moved.is_cuda, moved.device
assert isinstance(moved.device, torch.device)
torch.cuda.set_device("cuda:1")
assert torch.cuda.current_device() == torch.npu.current_device() == 1
with torch.cuda.stream(torch.cuda.Stream()), torch.device("cuda"):
    y = torch.arange(4.0) @ torch.arange(4.0)
torch.cuda.synchronize()
assert y.item() == 14 and y.get_device() == 1
generator = torch.Generator(device="cuda").manual_seed(3)
assert generator.device.type == "npu" and isinstance(generator, torch.Generator)
torch.cuda.manual_seed_all(5)
first = torch.randn(3, device="cuda")
torch.cuda.manual_seed_all(5)
assert torch.equal(first, torch.randn(3, device="cuda"))
with torch.autocast("cuda", dtype=torch.bfloat16):
    assert (torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")).dtype == torch.bfloat16
scaler = torch.amp.GradScaler("cuda")
assert scaler.scale(torch.ones(1, device="cuda")).item() == 65536
assert torch.cuda.memory_allocated() == torch.npu.memory_allocated() > 0
torch.save(torch.arange(3.0, device="cuda:1"), "t.pt")
for place in ("cuda:0", {"npu:1": "cuda:0"}):
    assert torch.load("t.pt", map_location=place).device == torch.device("npu:0")
"""
    python(code)
