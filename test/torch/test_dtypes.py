"""Types that devices often lack: no value is silently computed in another type."""

import pytest
import torch
from conformance.compare import Call, difference, disagreement, observe

BIG = torch.tensor([2**53 + 1, 2**53 + 3, -(2**62)])
INTEGERS = {
    "sum": lambda b: b.sum(),
    "cumsum": lambda b: b.cumsum(0),
    "max": lambda b: b.max(0),
    "difference": lambda b: b[1] - b[0],
    "floor division": lambda b: b // 2,
    "remainder": lambda b: torch.remainder(b, 1000003),
    "product": lambda b: (b % 1000) * 2**40,
    "comparison": lambda b: b > b.flip(0),
    "sort": lambda b: b.sort(),
    "unique": lambda b: torch.unique(b, return_inverse=True),
    "bits": lambda b: ((b >> 3) ^ (b << 1)) & ~b,
    "shift by a scalar on the device": lambda b: b >> (torch.tensor([1, 2], device=b.device)[0] * 4),
    "gather": lambda b: b.gather(0, torch.tensor([2, 0], device=b.device)),
    "matmul": lambda b: b.view(1, 3) @ b.view(3, 1),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_large_integers_keep_every_bit(name):
    assert not disagreement(INTEGERS[name], BIG)


DOUBLES = {
    "power": lambda h: 1e4**-h,
    "sine of a product": lambda h: torch.outer(h, h).sin(),
    "arange": lambda h: torch.arange(0, 64, 2, dtype=torch.float64, device=h.device) / 64 - h,
    "mean": lambda h: h.mean() + h.var(),
    "matmul": lambda h: h.view(4, 8) @ h.view(8, 4),
    "erfc": lambda h: torch.erfc(h + 5),
    "lgamma": lambda h: torch.lgamma(h + 0.1),
}


@pytest.mark.parametrize("name", DOUBLES)
def test_double_precision_is_not_lowered(name):
    x = torch.arange(0, 64, 2, dtype=torch.float64) / 64
    ours = DOUBLES[name](x.npu())
    assert ours.dtype == torch.float64
    torch.testing.assert_close(ours.cpu(), DOUBLES[name](x), rtol=1e-14, atol=1e-15)


def types(names):
    return [getattr(torch, name) for name in names.split()]


EVERY = [
    *types("float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 complex128 complex64 complex32 bool"),
    *types("int8 int16 int32 int64 uint8 uint16 uint32 uint64"),
]
PLAIN = {
    "repeat_interleave": lambda x: x.repeat_interleave(torch.tensor([1, 0, 2], device=x.device)),
    "sum": lambda x: x.sum(),
    "add": lambda x: x + 1,
    "equal": lambda x: x == x.flip(0),
    "index": lambda x: x[torch.tensor([2, 0], device=x.device)],
    "cat": lambda x: torch.cat([x, x[:1]]),
    "to float": lambda x: x.to(torch.float32),
    "where": lambda x: torch.where(torch.tensor([True, False, True], device=x.device), x, x.flip(0)),
    "sort": lambda x: x.sort(),
    "matmul": lambda x: x.view(1, 3) @ x.view(3, 1),
    "zeros": lambda x: torch.zeros_like(x) + torch.ones_like(x),
    "randint": lambda x: torch.randint(0, 2, (4,), dtype=x.dtype, device=x.device),
    "randn": lambda x: torch.randn(4, dtype=x.dtype, device=x.device),
    "in place": lambda x: x.mul_(x),
}


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", EVERY, ids=lambda dtype: str(dtype).partition(".")[2])
@pytest.mark.parametrize("name", PLAIN)
def test_every_type_gives_the_cpu_s_value_or_its_error(name, dtype):
    call = Call(PLAIN[name], (torch.tensor([1, 0, 1]).to(dtype),))
    assert not difference(observe(call, "npu"), observe(call, "cpu"))


def added(a, b, shape):
    """Two elements of type `a` and a tensor of type `b`."""
    return lambda device: torch.ones(2, dtype=a, device=device) + torch.ones(shape, dtype=b, device=device)


PROMOTIONS = {
    "half and a double scalar": added(torch.float16, torch.float64, ()),
    "half and float": added(torch.float16, torch.float32, 2),
    "half and bfloat": added(torch.float16, torch.bfloat16, 2),
    "bytes": added(torch.uint8, torch.int8, 2),
    "bool and bool": added(torch.bool, torch.bool, 2),
    "int and a half scalar": added(torch.int32, torch.float16, ()),
    "half and a scalar of the host": lambda device: (
        torch.ones(2, dtype=torch.float16, device=device) * torch.tensor(3.0, dtype=torch.float64)
    ),
    "int and a number": lambda device: torch.ones(2, dtype=torch.int32, device=device) / 2,
    "int and a float number": lambda device: torch.ones(2, dtype=torch.int32, device=device) * 0.5,
    "float and complex": lambda device: torch.ones(2, device=device) * 1j,
}


@pytest.mark.parametrize("name", PROMOTIONS)
def test_mixed_types_are_promoted_as_on_the_cpu(name):
    ours, expected = PROMOTIONS[name]("npu"), PROMOTIONS[name]("cpu")
    assert ours.dtype == expected.dtype and torch.equal(ours.cpu(), expected)


def test_reductions_in_bfloat16_are_accumulated_in_float32():
    x = torch.randn(4, 800, generator=torch.Generator().manual_seed(0)).bfloat16()
    for function in (lambda x: x.logsumexp(-1), lambda x: x.sum(-1), lambda x: x.softmax(-1)):
        exact = function(x.double())
        torch.testing.assert_close(function(x.npu()).cpu().double(), exact, rtol=2**-8, atol=2**-8)
