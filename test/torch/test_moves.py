"""Operators that move data by indices and join it, against the CPU: types, layouts, bad indices, threads."""

import itertools

import pytest
import torch
import torch.nn.functional as F

import torch_npu

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
DTYPES = (
    *FLOATS,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
)
SHAPES = [(7, 33), (40, 5, 9), (64,), (2, 4, 5, 6), (90, 70)]


def wide(dtype):
    """In which sums are exact enough to be rounded once."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def same(ours, expected):
    assert ours.dtype == expected.dtype and ours.stride() == expected.stride()
    torch.testing.assert_close(ours.cpu(), expected, rtol=0, atol=0, equal_nan=True)


OPERATORS = {
    "index_select": lambda x, dim, i, g, s, w: x.index_select(dim, i),
    "gather": lambda x, dim, i, g, s, w: x.gather(dim, g),
    "scatter_add": lambda x, dim, i, g, s, w: x.to(w).scatter_add(dim, g, s.to(w)).to(x.dtype),
    "index_add": lambda x, dim, i, g, s, w: (
        x.to(w).index_add(dim, i, s.index_select(dim, i).to(w)).to(x.dtype)
    ),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_every_layout_and_dimension(name, dtype):
    torch.manual_seed(0)
    function = OPERATORS[name]
    for shape, turned, index_type in itertools.product(SHAPES, (False, True), (torch.int64, torch.int32)):
        for dim in range(-len(shape), len(shape)):
            x = torch.randn(shape).mul(9).to(dtype)
            x = x.transpose(0, -1) if turned else x
            picked = torch.randint(0, x.size(dim), (41,)).to(index_type)
            sizes = [size - size % 2 or 1 for size in x.shape]
            index = torch.randint(0, x.size(dim), sizes).to(index_type)
            source = torch.randn(x.shape).mul(9).to(dtype)
            source = source[..., :1].expand(x.shape) if turned else source
            arguments = (x, dim, picked, index, source)
            expected = function(*arguments, wide(dtype))
            same(
                function(*(a.npu() if isinstance(a, torch.Tensor) else a for a in arguments), dtype), expected
            )


def test_special_values_empties_and_tensors_without_dimensions():
    x = torch.tensor([float("nan"), float("inf"), -0.0, 1e-40])
    index = torch.tensor([2, 0, 3, 1, 1])
    same(x.npu()[:0].index_select(0, index.npu()[:0]), x[:0])
    same(x.npu().index_select(0, index.npu()), x.index_select(0, index))
    same(x.npu().gather(0, index.npu()), x.gather(0, index))
    same(x.npu().scatter_add(0, index.npu(), torch.ones(5).npu()), x.scatter_add(0, index, torch.ones(5)))
    same(x.npu().scatter_add(0, index[:0].npu(), x[:0].npu()), x)
    scalar, zero = torch.tensor(3.0), torch.tensor(0)
    same(scalar.npu().gather(0, zero.npu()), scalar)
    same(scalar.npu().scatter_add(0, zero.npu(), scalar.npu()), scalar * 2)
    out = torch.empty(2, 3, device="npu").t()
    rows, picked = torch.arange(6.0).view(3, 2), torch.tensor([2, 0, 2])
    assert torch.index_select(rows.npu(), 0, picked.npu(), out=out) is out
    assert out.tolist() == rows[picked].tolist() and out.stride() == (1, 3)


BAD = {
    "IndexSelect: index 3": lambda x, i: x.index_select(0, i),
    "Gather: index 3": lambda x, i: x.gather(0, i.view(1, 1)),
    "ScatterAdd: index 3": lambda x, i: x.clone().scatter_add_(0, i.view(1, 1), x),
    "IndexAdd: index 3": lambda x, i: x.clone().index_add_(0, i, x[:1]),
    "Embedding: index 3": lambda x, i: F.embedding(i, x),
    "EmbeddingDenseBackward: index 3": lambda x, i: torch.ops.aten.embedding_dense_backward(
        x[:1], i, 3, -1, False
    ),
}


@pytest.mark.parametrize("text", BAD)
def test_the_next_synchronization_names_a_bad_index(text):
    x = torch.arange(12.0, device="npu").view(3, 4)
    for index in (3, -2):
        BAD[text](x, torch.tensor([index], device="npu"))
        expected = text.replace("3", str(index)) + " is out of range of a dimension of size 3; 0 to 2 are"
        with pytest.raises(RuntimeError, match=expected):
            torch.npu.synchronize()
        assert x.sum().item() == 66


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("padding", (None, 2, -1))
def test_embedding_and_its_gradient(dtype, padding):
    torch.manual_seed(0)
    weight, index = torch.randn(9, 33).to(dtype), torch.randint(0, 9, (6, 50))
    grad = torch.randn(6, 50, 33).to(dtype)
    ours, expected = weight.npu().requires_grad_(), weight.to(wide(dtype)).requires_grad_()
    result = F.embedding(index.npu(), ours, padding)
    same(result.detach(), weight[index])
    result.backward(grad.npu())
    F.embedding(index, expected, padding).backward(grad.to(wide(dtype)))
    same(ours.grad, expected.grad.to(dtype))


@pytest.mark.parametrize("dim", (0, 1))
def test_gradients(dim):
    torch.manual_seed(0)
    x, index = torch.randn(30, 20), torch.randint(0, 20, (30, 20))
    for function in (lambda x, i: x.gather(dim, i), lambda x, i: x.index_select(dim, i[0])):
        ours, expected = x.npu().requires_grad_(), x.clone().requires_grad_()
        function(ours, index.npu()).square().sum().backward()
        function(expected, index).square().sum().backward()
        same(ours.grad, expected.grad)


def test_any_number_of_threads_gives_the_same_bits():
    torch.manual_seed(0)
    source, index = torch.randn(5000, 600).npu(), torch.randint(0, 40, (5000,)).npu()
    lanes = torch.randint(0, 40, (5000, 600)).npu()

    def sums():
        zeros = torch.zeros(40, 600, device="npu")
        return [zeros.index_add(0, index, source), zeros.scatter_add(0, lanes, source)]

    threads = torch.get_num_threads()
    many = sums()
    torch.set_num_threads(1)
    one = sums()
    torch.set_num_threads(threads)
    assert all(map(torch.equal, one, many))


def test_joins():
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, 5)
    channels = x.contiguous(memory_format=torch.channels_last)
    cases = [
        ([x, x[:1]], 0), ([x, x[:, :, :, :2]], -1), ([x.transpose(1, 2), x.transpose(1, 2)], 1), ([x], 2),
        ([channels, channels], 1), ([channels, x], 1), ([torch.empty(0), x], 3), ([x[:0], x], 0),
        ([x.half(), x.double(), x.int()], 0), ([x.bool(), x.to(torch.uint8)], 1), ([x + 1j, x], 2),
        ([x.expand(2, 3, 4, 5)[:, :1].expand(2, 9, 4, 5), x], 1), ([x.flatten()[:0], x.flatten()[:0]], 0),
    ]  # fmt: skip
    torch_npu.reset_fallback_stats()
    for tensors, dim in cases:
        same(torch.cat([tensor.npu() for tensor in tensors], dim), torch.cat(tensors, dim))
    counts = torch_npu.fallback_stats()["ops"]["aten::cat"]
    assert counts == {
        "fallbacks": 1,
        "native_launches": len(cases) - 1,
        "format_conversions": 0,
    }  # the last one has nothing but empties
    out = torch.empty(3, 4, device="npu").t()
    assert torch.cat([x[0, 0, :, :1].npu(), x[0, 0, :, :2].npu()], 1, out=out) is out
    assert torch.equal(out.cpu(), x[0, 0][:, [0, 0, 1]])


@pytest.mark.parametrize(
    "tensors, dim",
    [
        ([torch.ones(2, 3), torch.ones(3, 3)], 1),
        ([torch.ones(2, 3), torch.ones(2)], 0),
        ([torch.ones(()), torch.ones(())], 0),
        ([torch.ones(2), torch.ones(2)], 1),
        ([], 0),
    ],
)
def test_joins_that_do_not_fit_say_what_the_cpu_says(tensors, dim):
    with pytest.raises((RuntimeError, IndexError, ValueError)) as expected:
        torch.cat(tensors, dim)
    with pytest.raises((RuntimeError, IndexError, ValueError)) as ours:
        torch.cat([tensor.npu() for tensor in tensors], dim)
    assert ours.type is expected.type and str(ours.value) == str(expected.value)
