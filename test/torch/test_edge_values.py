"""NaN, ties, empty tensors and zero sizes."""

import pytest
import torch
from conformance.compare import disagreement

import torch_npu

NAN = float("nan")
X = torch.tensor([1.0, NAN, 3.0, -float("inf"), -0.0, NAN])
WITH_NAN = {
    "max": lambda x: x.max(),
    "argmax": lambda x: x.argmax(),
    "min with index": lambda x: x.min(0),
    "sort": lambda x: x.sort(stable=True),
    "descending sort": lambda x: x.sort(descending=True, stable=True),
    "topk": lambda x: x.topk(3),
    "cummax": lambda x: x.cummax(0),
    "nan_to_num": lambda x: x.nan_to_num(0.0),
    "median": lambda x: (x.median(0), x.nanmedian(0)),
    "kthvalue": lambda x: x.kthvalue(2),
    "comparison": lambda x: (x > 0, x != x, x.isinf(), x.signbit()),
    "clamp": lambda x: x.clamp(-1, 2),
    "maximum": lambda x: torch.maximum(x, x.flip(0)),
    "fmax": lambda x: torch.fmax(x, x.flip(0)),
    "unique": lambda x: torch.unique(x),
    "softmax": lambda x: x.softmax(0),
    "to int": lambda x: x.nan_to_num(1.0, 2.0, 3.0).to(torch.int32),
    "rows of NaN": lambda x: torch.full((600, 8), NAN, device=x.device).topk(3)[1],
    "nansum": lambda x: x.nansum(),
    "relu": lambda x: (x.relu(), x.sign(), x.abs()),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize("name", WITH_NAN)
def test_not_a_number_has_the_place_that_it_has_on_the_cpu(name, dtype):
    assert not disagreement(WITH_NAN[name], X.to(dtype))


TIES = torch.tensor([1, 0] * 600)
WITH_TIES = {
    "stable sort": lambda t: t.sort(stable=True),
    "stable argsort, descending": lambda t: t.argsort(stable=True, descending=True),
    "bool keys": lambda t: (t == 1).sort(stable=True),
    "unique with counts": lambda t: torch.unique(t, return_counts=True),
    "neighbours": lambda t: torch.unique_consecutive(t[::2], return_counts=True),
    "argmax": lambda t: (t.argmax(), t.argmin()),
    "mode": lambda t: t.mode(),
    "searchsorted": lambda t: torch.searchsorted(t.sort()[0], t[:4], right=True),
    "bincount": lambda t: t.bincount(),
    "batched order": lambda t: t.view(30, 40).argsort(dim=1, stable=True),
}


@pytest.mark.parametrize("name", WITH_TIES)
def test_ties_are_broken_as_on_the_cpu(name):
    assert not disagreement(WITH_TIES[name], TIES)


EMPTY = {
    "sum": lambda e: e.sum(),
    "prod": lambda e: e.prod(),
    "mean": lambda e: e.mean(),
    "sum of columns": lambda e: e.sum(0),
    "any and all": lambda e: (e.any(), e.all()),
    "matmul": lambda e: e @ e.new_ones(3, 2),
    "matmul over nothing": lambda e: e.t() @ e,
    "cat": lambda e: torch.cat([e, e.new_ones(1, 3)]),
    "sort": lambda e: e.sort(0),
    "linear": lambda e: torch.nn.functional.linear(e, e.new_ones(4, 3)),
    "conv": lambda e: torch.nn.functional.conv2d(e.view(0, 3, 1, 1), e.new_ones(2, 3, 1, 1)),
    "softmax": lambda e: e.softmax(1),
    "index": lambda e: e[torch.tensor([], dtype=torch.int64, device=e.device)],
    "nonzero": lambda e: e.nonzero(),
    "unique": lambda e: torch.unique(e),
    "topk of none": lambda e: e.t().topk(0),
    "cumsum": lambda e: e.cumsum(0),
    "argmax of columns that exist": lambda e: e.argmax(1),
    "embedding": lambda e: torch.nn.functional.embedding(e.long().flatten(), e.new_ones(5, 2)),
    "loss": lambda e: torch.nn.functional.cross_entropy(e, e.new_zeros(0).long()),
    "norms": lambda e: (torch.nn.functional.layer_norm(e, (3,)), e.norm()),
    "attention": lambda e: torch.nn.functional.scaled_dot_product_attention(*[e.view(1, 0, 3)] * 3),
    "linalg": lambda e: torch.linalg.det(e[:, :0]),
    "in place": lambda e: e.add_(1).mul_(e),
    "reshape": lambda e: e.reshape(3, 0, 2).permute(2, 1, 0).contiguous(),
    "scalar": lambda e: e.new_ones(()).expand(2, 0).sum(1),
}


@pytest.mark.parametrize("name", EMPTY)
def test_empty_tensors(name):
    assert not disagreement(EMPTY[name], torch.empty(0, 3))


@pytest.mark.parametrize("name", ["sum", "mean", "matmul", "cat", "linear", "softmax", "conv", "norms"])
def test_gradients_of_empty_tensors(name):
    assert not disagreement(EMPTY[name], torch.empty(0, 3, requires_grad=True), differentiates=True)


@pytest.mark.parametrize("function", [torch.Tensor.max, lambda e: e.argmax(0), lambda e: e.min(0)])
def test_a_reduction_that_has_no_value_raises_as_on_the_cpu(function):
    with pytest.raises((RuntimeError, IndexError)) as expected:
        function(torch.empty(0, 3))
    with pytest.raises((RuntimeError, IndexError)) as ours:
        function(torch.empty(0, 3, device="npu"))
    assert ours.type is expected.type and str(ours.value) == str(expected.value)


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor([1.5, float("nan"), -float("inf"), 0.0]),
        torch.arange(2000.0).view(2, 1000) / 7,
        torch.tensor([[1e-9, 1e9]], dtype=torch.bfloat16),
        torch.tensor(2.5, requires_grad=True),
        torch.arange(5),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j, -0.5j]),
        torch.tensor([1 + 2j, -0.5j]).conj(),
        torch.tensor([1 + 2j, -0.5j]).conj().imag,
    ],
    ids=lambda x: f"{x.dtype} {tuple(x.shape)}",
)
def test_tensors_are_printed_as_on_the_cpu_without_operators_that_npu_lacks(x):
    ours = x.npu()
    torch_npu.set_fallback_mode("error")
    try:
        text = repr(ours)
    finally:
        torch_npu.set_fallback_mode("allow")
    without_device = "".join(text.split()).replace(",device='npu:0'", "")
    assert without_device.replace("grad_fn=<ToCopyBackward0>", "requires_grad=True") == "".join(
        repr(x).split()
    )


def test_tensors_are_printed_with_their_device():
    assert repr(torch.empty(0, 3, device="npu")) == "tensor([], device='npu:0', size=(0, 3))"
    assert repr(X[:2].half().npu()) == "tensor([1., nan], device='npu:0', dtype=torch.float16)"
    assert repr(torch.tensor(True, device="npu")) == "tensor(True, device='npu:0')"
    long = torch.arange(2000.0).view(2, 1000)
    without_spaces = "".join(repr(long).split())
    assert "".join(repr(long.npu()).split()) == without_spaces[:-1] + ",device='npu:0')"
