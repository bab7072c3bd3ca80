"""Choosing devices: every way to spell one, one per thread, and errors that name what was asked for."""

import threading

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
        torch.set_default_device("cpu")
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
    assert properties.name == torch.npu.get_device_name() and "Ascend910B" in properties.name
    assert properties.total_memory == torch.npu.mem_get_info()[1]
    assert properties.multi_processor_count >= 1
    assert torch.npu.is_bf16_supported() and torch.npu.get_device_capability() is None


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
