"""The published torch_npu: what it needs of the C interface, by values."""

import importlib.metadata
import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

LIBRARIES = Path(__file__).parents[2] / "anynpu" / "lib64"
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def both(function, *tensors, grad=None):
    """What `function` and its gradients give on the CPU and on npu, which must be the same: of halves, to two
    units of the last place of the largest, because PyTorch CPU rounds some steps in between to halves."""
    results = []
    for device in ("cpu", "npu"):
        inputs = [tensor.clone().to(device) for tensor in tensors]
        if grad is not None:
            inputs = [tensor.detach().requires_grad_() for tensor in inputs]
        result = function(*inputs)
        if grad is not None:
            result.backward(grad.to(device))
            result = [result.detach(), *(tensor.grad for tensor in inputs)]
        results.append([tensor.cpu() for tensor in (result if isinstance(result, list) else [result])])
    cpu, npu = results
    for expected, actual in zip(cpu, npu, strict=True):
        assert actual.device.type == "cpu" and actual.dtype == expected.dtype
        if expected.dtype in (torch.float16, torch.bfloat16):
            unit = torch.finfo(expected.dtype).eps * expected.abs().max().item()
            torch.testing.assert_close(actual, expected, rtol=0, atol=2 * unit)
        else:
            torch.testing.assert_close(actual, expected, equal_nan=True)


def test_it_is_the_published_one_over_these_libraries():
    torch.zeros(1).npu()
    assert importlib.metadata.version("torch_npu") == "2.13.0"
    with open("/proc/self/maps") as maps:
        loaded = {line.split()[-1] for line in maps if line.rstrip().endswith(".so")}
    for name in ("libascendcl", "libopapi", "libacl_op_compiler", "libhccl", "libanynpu"):
        of_name = {path for path in loaded if os.path.basename(path) == f"{name}.so"}
        assert of_name == {str(LIBRARIES / f"{name}.so")}, name


def test_device():
    assert torch.npu.is_available()
    assert torch.npu.device_count() == 1
    assert torch.npu.get_device_name(0).startswith("Ascend910B")
    assert torch.npu.current_device() == 0
    properties = torch.npu.get_device_properties(0)
    assert properties.total_memory == torch.npu.mem_get_info()[1]
    assert properties.vector_core_num == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    "dtype",
    [*FLOATS, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool],
)
def test_tensors_move(dtype):
    values = torch.randint(0, 2 if dtype == torch.bool else 100, (3, 5, 7)).to(dtype)
    assert torch.equal(values.npu().cpu(), values)
    pinned = values.pin_memory()
    device = pinned.to("npu", non_blocking=True)
    assert torch.equal(device.to("cpu"), values)
    assert torch.empty(0, 4, dtype=dtype).npu().cpu().shape == (0, 4)


@pytest.mark.parametrize("dtype", FLOATS)
def test_copies_of_any_strides_and_types(dtype):
    values = torch.randn(6, 10).to(dtype)
    both(lambda x: x.t().contiguous(), values)
    both(lambda x: x[1::2, ::3].clone(), values)
    both(lambda x: x.expand(4, 6, 10).contiguous(), values)
    both(lambda x: x.to(torch.float32), values)
    both(lambda x: (x * 10).to(torch.int32), values)


@pytest.mark.parametrize("dtype", FLOATS)
def test_add(dtype):
    a, b, row = (torch.randn(*shape).to(dtype) for shape in ((4, 8), (4, 8), (8,)))
    both(lambda x, y: x + y, a, b)
    both(lambda x, y: torch.add(x, y, alpha=3), a, row)
    both(lambda x: x + 2.5, a)
    both(lambda x, y: x.add_(y), a, b)
    both(lambda x, y: x + y, a, b, grad=torch.randn(4, 8).to(dtype))


@pytest.mark.parametrize("function", [F.softmax, F.log_softmax])
@pytest.mark.parametrize("dim", [-1, 0, 1])
@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax_with_gradient(function, dim, dtype):
    x, grad = torch.randn(5, 6, 33).to(dtype), torch.randn(5, 6, 33).to(dtype)
    both(lambda x: function(x, dim), x, grad=grad)


@pytest.mark.parametrize("dtype", FLOATS)
def test_layer_norm_with_gradients(dtype):
    x, weight, bias, grad = (torch.randn(*shape).to(dtype) for shape in ((7, 48), (48,), (48,), (7, 48)))
    both(lambda x, w, b: F.layer_norm(x, (48,), w, b), x, weight, bias, grad=grad)


@pytest.mark.parametrize("function", [F.gelu, F.silu])
def test_activations_with_gradients(function):
    both(function, torch.randn(1000), grad=torch.randn(1000))


@pytest.mark.parametrize("dtype", FLOATS)
def test_joins_and_embeddings_with_gradients(dtype):
    a, b = torch.randn(3, 4).to(dtype), torch.randn(3, 2).to(dtype)
    both(lambda x, y: torch.cat([x, y], 1), a, b)
    both(lambda x, y: torch.cat([x, y.t()[:, :1].expand(2, 4)]), a, b)
    words = torch.tensor([[1, 3], [1, 0]])
    both(
        lambda w: F.embedding(words.to(w.device), w, padding_idx=0),
        torch.randn(5, 4).to(dtype),
        grad=torch.randn(2, 2, 4).to(dtype),
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_products_with_gradients(dtype):
    def of(*shape):
        return torch.randn(*shape).to(dtype)

    both(F.linear, of(6, 8), of(5, 8), of(5), grad=of(6, 5))
    both(F.linear, of(2, 3, 8), of(5, 8), grad=of(2, 3, 5))
    both(torch.bmm, of(3, 4, 5), of(3, 5, 2), grad=of(3, 4, 2))
    both(torch.matmul, of(2, 1, 4, 5), of(3, 5, 2))
    both(torch.mv, of(4, 5), of(5))
    both(lambda a, b, c: torch.addmm(a, b, c, beta=0.5, alpha=2), of(3), of(4, 5), of(5, 3))
    both(lambda a, b, c: torch.baddbmm(a, b, c, beta=0.5), of(2, 4, 3), of(2, 4, 5), of(2, 5, 3))


@pytest.mark.parametrize("dtype", FLOATS)
def test_dropout_in_training(dtype):
    x = torch.ones(100, 101, dtype=dtype).npu().requires_grad_()
    y = F.dropout(x, 0.25)
    y.backward(torch.full_like(y, 3))
    kept = y.detach().cpu() != 0
    scaled = torch.tensor(1 / 0.75).to(dtype)
    assert torch.equal(y.detach().cpu(), kept * scaled)
    assert torch.equal(x.grad.cpu(), kept * torch.tensor(3 / 0.75).to(dtype))
    assert 0.73 < kept.double().mean() < 0.77
    again = F.dropout(x, 0.25).detach().cpu() != 0
    assert 0.2 < (again != kept).double().mean() < 0.5


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.bool])
def test_what_is_as_long_as_values_say(dtype):
    values = torch.randint(0, 2, (30, 41)).to(dtype)
    both(torch.nonzero, values)
    both(lambda x: torch.masked_select(x, x == 0), values.t())
    both(lambda x, y: torch.stack([x, y], 1), values, values.roll(1))


@pytest.mark.parametrize("shape", [(), (3, 4), (200, 100)])
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32])
def test_tensors_are_printed(dtype, shape):
    values = (torch.randn(shape) * 100).to(dtype)
    device = ", device='npu:0'"
    assert repr(values.npu()).replace(device, "").split() == repr(values).split()


def test_what_elements_are():
    x, y = torch.tensor([-1.5, 0.0, float("inf"), float("nan")]), torch.tensor([0.0, 0.0, 1.0, 2.0])
    for function in (torch.abs, torch.ceil, torch.floor, torch.isfinite, torch.logical_not):
        both(function, x)
    for function in (torch.logical_and, torch.logical_or, torch.logical_xor):
        both(function, x, y)
    both(lambda x, y: (x > 0) & (y > 1), x, y)
    both(lambda x, y: x.int() | 3 ^ y.int(), y, y)


def test_streams_and_events():
    side = torch.npu.Stream()
    x = torch.ones(1 << 20).npu()
    event = torch.npu.Event(enable_timing=True)
    with torch.npu.stream(side):
        side.wait_stream(torch.npu.default_stream())
        y = x + x
        event.record()
    torch.npu.current_stream().wait_event(event)
    z = y + x
    torch.npu.synchronize()
    assert event.query() and torch.equal(z.cpu(), torch.full((1 << 20,), 3.0))


def test_memory_is_returned():
    torch.npu.empty_cache()
    before = torch.npu.memory_allocated()
    x = torch.empty(1 << 20).npu()
    assert torch.npu.memory_allocated() - before >= 4 << 20
    del x
    torch.npu.empty_cache()
    assert torch.npu.memory_allocated() == before
    with pytest.raises(RuntimeError, match="out of memory"):
        torch.empty(1 << 50, dtype=torch.int8, device="npu")
    assert torch.equal(torch.ones(3).npu().cpu(), torch.ones(3))


def test_what_is_not_built_says_so():
    with pytest.raises(RuntimeError, match="Erfinv"):
        torch.erfinv(torch.ones(3).npu()).cpu()
    # Operators by name fail when they run, not when they are prepared: the device goes on.
    for operator, call in {
        "StatelessRandomNormalV2": lambda: torch.randn(3, device="npu"),
        "Range": lambda: torch.arange(3, device="npu"),
        "Sort": lambda: torch.ones(3).npu().sort(),
    }.items():
        with pytest.raises(RuntimeError, match=rf"'{operator}'.*\(aclop\) are not built"):
            call()
        x = torch.rand(5)
        assert torch.equal((x.npu() + x.npu()).cpu(), x + x)
