"""Indices and masks, on npu and on the host: reading, writing, gradients and what does not fit."""

import pytest
import torch
from conformance.compare import disagreement

MASK = torch.tensor([[True, False, True, False, True]])


def assigned(x, mask, value):
    x[mask] = value
    return x


def numbers(*shape):
    return torch.arange(float(torch.Size(shape).numel())).view(shape)


READS = {
    "two dimensions": (numbers(1, 5, 3), MASK),
    "nothing": (numbers(1, 5, 3), torch.zeros(1, 5, dtype=torch.bool)),
    "of a transposed tensor": (numbers(4, 6).t(), torch.tensor([True, False] * 3)),
    "a scalar": (numbers(3, 4), torch.tensor(True)),
    "a false scalar": (numbers(3, 4), torch.tensor(False)),
    "indices": (numbers(4, 3), torch.tensor([[2, -1], [0, 0]])),
    "no indices": (numbers(4, 3), torch.tensor([], dtype=torch.int64)),
    "int32 indices": (numbers(4, 3), torch.tensor([1, 1, 3], dtype=torch.int32)),
}


@pytest.mark.parametrize("name", READS)
def test_selection(name):
    x, index = READS[name]
    assert not disagreement(lambda x, i: x[i], x, index)
    assert not disagreement(lambda x: x[index], x), "with an index on the host"
    assert not disagreement(lambda x, i: x[i], x.clone().requires_grad_(), index, differentiates=True)


@pytest.mark.parametrize("value", [7.0, torch.tensor(5.0)], ids=["a number", "a scalar on the host"])
@pytest.mark.parametrize("name", READS)
def test_assignment(name, value):
    x, index = READS[name]
    assert not disagreement(lambda x, i: assigned(x, i, value), x, index)
    assert not disagreement(lambda x: assigned(x, index, value), x)


MIXED = {
    "mask of columns": lambda x, m, i: x[:, m],
    "half slices": lambda x, m, i: x[..., 1::2][i],
    "index, slice, index": lambda x, m, i: x.view(3, 2, 2)[i, :, i % 2],
    "new axes and dots": lambda x, m, i: x[None, ..., i, None],
    "condition": lambda x, m, i: x[x > 5],
    "rows to a mask": lambda x, m, i: assigned(x, x > 5, -x[x > 5]),
    "sum at equal indices": lambda x, m, i: x.index_put_((i,), x.flip(0), accumulate=True),
    "sum at a mask": lambda x, m, i: x.index_put((x > 5,), torch.ones((), device=x.device), accumulate=True),
    "masked_scatter": lambda x, m, i: x.masked_scatter(x > 5, x.flip(0)),
    "take": lambda x, m, i: x.take(i),
    "take_along_dim": lambda x, m, i: x.take_along_dim(x.argsort(1), 1),
    "index_copy": lambda x, m, i: x.index_copy(0, i[1:], x[:2] * 2),
    "put": lambda x, m, i: x.put_(i, x[0, :3].clone(), accumulate=True),
    "nonzero": lambda x, m, i: (x > 5).nonzero(as_tuple=True),
}


@pytest.mark.parametrize("name", MIXED)
def test_other_ways_to_index(name):
    arguments = numbers(3, 4), torch.tensor([True, False, False, True]), torch.tensor([0, 2, 0])
    assert not disagreement(MIXED[name], *arguments)


WRONG = {
    "too few values": (lambda x, m: assigned(x, m, torch.ones(2, 3, device=x.device)), MASK),
    "a mask of another shape": (lambda x, m: x[m], torch.ones(1, 4, dtype=torch.bool)),
    "an index beyond the end": (lambda x, i: x[:, i], torch.tensor([0, 5])),
    "an index beyond the end, written": (lambda x, i: assigned(x, i, 1.0), torch.tensor([-2])),
    "an index that is no integer": (lambda x, i: x[i], torch.tensor([0.5])),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_raises_and_leaves_the_device_usable(name):
    function, index = WRONG[name]
    with pytest.raises((RuntimeError, IndexError)) as expected:
        function(torch.zeros(1, 5, 3), index)
    x = torch.zeros(1, 5, 3, device="npu")
    with pytest.raises((RuntimeError, IndexError)) as ours:
        function(x, index.npu())
    assert ours.type is expected.type and str(ours.value) == str(expected.value)
    assert torch.equal(x.cpu(), torch.zeros(1, 5, 3)) and (x + 1).sum().item() == 15


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: x.index_select(0, i),
        lambda x, i: torch.index_select(x, 0, i, out=x.new_empty(2, 0)),
        lambda x, i: torch.nn.functional.embedding(i, x),
    ],
    ids=["index_select", "out", "embedding"],
)
@pytest.mark.parametrize("rows", [0, 3])
def test_an_index_beyond_the_end_is_refused_where_nothing_is_selected(rows, function):
    index = torch.tensor([7, 1])
    with pytest.raises((RuntimeError, IndexError)) as expected:
        function(torch.zeros(rows, 0), index)
    with pytest.raises((RuntimeError, IndexError)) as ours:
        function(torch.zeros(rows, 0, device="npu"), index.npu())
    assert ours.type is expected.type and str(ours.value) == str(expected.value)
