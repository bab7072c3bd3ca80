"""Products of matrices: by kernels of our own, held to sums in f64, and to each other."""

import pytest
import torch

import torch_npu

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
SHAPES = ((1, 1, 1), (1, 300, 70), (5, 64, 33), (6, 16, 16), (200, 300, 40), (7, 0, 3), (0, 4, 5), (3, 4, 0))


def random(*shape, dtype):
    return torch.randn(*shape, dtype=torch.float64).to(dtype)


def layouts(matrix):
    """The same matrix by rows, by columns, and with gaps."""
    return {
        "rows": matrix,
        "columns": matrix.mT.contiguous().mT,
        "gaps": torch.stack((matrix, matrix), -1)[..., 0],
    }


def by_our_kernels(function, *tensors, **kwargs):
    torch_npu.reset_fallback_stats()
    result = function(*(tensor.npu() for tensor in tensors), **kwargs)
    assert torch_npu.fallback_stats()["fallbacks"] == 0
    return result


def check(ours, expected, terms):
    """Within the error of a sum in the type that products are summed in, and of one rounding."""
    sums = torch.finfo(torch.float64 if ours.dtype == torch.float64 else torch.float32).eps
    bound = terms * sums * 2 + expected.abs() * torch.finfo(ours.dtype).eps
    assert (ours.cpu().double() - expected).abs().le(bound).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_products_are_sums_of_products(dtype, shape):
    m, k, n = shape
    left, right, added = random(m, k, dtype=dtype), random(k, n, dtype=dtype), random(n, dtype=dtype)
    terms = left.double().abs() @ right.double().abs() * max(k, 1)
    exact = left.double() @ right.double()
    for x in layouts(left).values():
        for y in layouts(right).values():
            check(by_our_kernels(torch.mm, x, y), exact, terms)
    scaled = by_our_kernels(torch.addmm, added, left, right, beta=0.5, alpha=-2)
    check(scaled, 0.5 * added.double() - 2 * exact, 2 * terms + added.double().abs())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_batches(dtype):
    left, right = random(3, 9, 20, dtype=dtype), random(3, 20, 33, dtype=dtype)
    exact, terms = left.double() @ right.double(), left.double().abs() @ right.double().abs() * 20
    check(by_our_kernels(torch.bmm, left, right), exact, terms)
    check(by_our_kernels(torch.bmm, left.mT.contiguous().mT, right), exact, terms)
    added = random(3, 1, 33, dtype=dtype)
    check(by_our_kernels(torch.baddbmm, added, left, right), exact + added.double(), terms + added.abs())
    once = left[:1].expand(3, -1, -1)
    check(by_our_kernels(torch.bmm, once, right), once.double() @ right.double(), 40 * terms)


def test_integers_wrap():
    left = torch.randint(-(2**31), 2**31, (7, 300), dtype=torch.int32)
    right = torch.randint(-(2**31), 2**31, (300, 20), dtype=torch.int32)
    assert by_our_kernels(torch.mm, left, right).cpu().equal(left @ right)
    wide = left.long() @ right.long()
    assert by_our_kernels(torch.mm, left, right).cpu().equal(wide.to(torch.int32))


@pytest.mark.parametrize("shape", [(17, 8, 8), (40, 300, 24), (300, 520, 72)], ids=str)
def test_products_of_bytes(shape):
    m, k, n = shape
    left, right = (torch.randint(-128, 128, size, dtype=torch.int8) for size in ((m, k), (n, k)))
    wanted = left.int() @ right.int().T
    assert by_our_kernels(torch._int_mm, left, right.T).cpu().equal(wanted)
    assert by_our_kernels(torch._int_mm, left, right.T.contiguous()).cpu().equal(wanted)
    out = torch.empty(m, n, dtype=torch.int32, device="npu")
    torch._int_mm(left.npu(), right.npu().T, out=out)
    assert out.cpu().equal(wanted)


ACCURACY_SHAPES = ((1, 1024, 2816), (8, 512, 512), (64, 1024, 512), (130, 2000, 96), (394, 768, 256))


def onednn(x, weight):
    """oneDNN's product where it has one of the type on this processor, with the weight in its own layout."""
    has = {
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }
    if not has.get(x.dtype, lambda: True)():
        return None
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, x.shape[0])
    return torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")


@pytest.mark.parametrize("shape", ACCURACY_SHAPES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
def test_errors_are_no_larger_than_onednns(dtype, shape):
    """Of F.linear, to the product in f64; where oneDNN has none of the type, beside PyTorch's own.

    Of one row oneDNN adds neighbouring products in lanes of their own, whose sums are shorter than our blocks
    of 256: in f32 its error is smaller there, by a factor of about sqrt(2).
    """
    rows, depth, columns = shape
    make = torch.Generator().manual_seed(rows * depth + columns)
    x, weight = (
        torch.randn(size, generator=make, dtype=torch.float64).to(dtype)
        for size in ((rows, depth), (columns, depth))
    )
    exact = x.double() @ weight.double().T
    theirs = onednn(x, weight)
    name = "oneDNN"
    if theirs is None:
        theirs, name = torch.nn.functional.linear(x, weight), "PyTorch"
    ours = by_our_kernels(torch.nn.functional.linear, x, weight).cpu()
    errors = {}
    for who, result in (("npu", ours), (name, theirs)):
        error = (result.double() - exact).abs()
        errors[who] = (error.max().item(), error.square().mean().sqrt().item())
        print(f"{who}: {dtype}, {shape}: error at most {errors[who][0]:.3g}, rms {errors[who][1]:.3g}")
    (most, rms), (their_most, their_rms) = errors["npu"], errors[name]
    slack = 1.001 if dtype != torch.float32 else 1.6 if rows == 1 else 1.0
    assert rms <= their_rms * slack
    assert most <= their_most * slack


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_row_does_not_depend_on_the_rows_beside_it(dtype):
    linear = torch.nn.Linear(520, 70, dtype=dtype, device="npu")
    rows = random(300, 520, dtype=dtype).npu()
    whole = linear(rows)
    for first, last in ((0, 1), (299, 300), (5, 7), (10, 16), (3, 200)):
        assert linear(rows[first:last]).equal(whole[first:last])
    assert linear(rows.T.contiguous().T).equal(whole)


def test_results_go_where_they_are_to():
    x, y = torch.randn(8, 8), torch.randn(8, 8)
    out = torch.empty(8, 16, device="npu")[:, ::2]
    torch.mm(x.npu(), y.npu(), out=out)
    assert torch.allclose(out.cpu(), x @ y, atol=1e-5)
    out = x.npu()
    out.addmm_(x.npu(), y.npu(), beta=-1)
    assert torch.allclose(out.cpu(), x @ y - x, atol=1e-5)
    nan = torch.full((8, 8), float("nan"))
    assert torch.addmm(nan.npu(), x.npu(), y.npu(), beta=0).isfinite().all()
    assert torch.addmm(nan.npu(), x.npu(), y.npu(), alpha=0).isnan().all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_results_have_the_same_bits_wherever_they_go(dtype):
    left, right = random(31, 255, dtype=dtype).npu(), random(255, 70, dtype=dtype).npu()
    matrices = layouts(right).values()
    outs = [torch.empty(31, 70, dtype=dtype).npu(), torch.empty(70, 31, dtype=dtype).npu().mT]
    torch_npu.reset_fallback_stats()
    results = [torch.mm(left, matrix, out=out).clone() for matrix in matrices for out in outs]
    assert torch_npu.fallback_stats()["fallbacks"] == 0
    assert all(result.equal(left @ right) for result in results)


def test_nans_and_infinities():
    x, y = torch.randn(20, 300), torch.randn(300, 30)
    x[3, 5], x[7, 299], y[0, 11] = float("inf"), float("nan"), -float("inf")
    assert torch.allclose((x.npu() @ y.npu()).cpu(), x @ y, atol=1e-4, equal_nan=True)


def test_gradients():
    x, w, b = (torch.randn(size, requires_grad=True) for size in ((9, 40), (30, 40), (30,)))
    ours = [t.detach().npu().requires_grad_() for t in (x, w, b)]
    torch.nn.functional.linear(x, w, b).sin().sum().backward()
    torch.nn.functional.linear(*ours).sin().sum().backward()
    for here, there in zip(ours, (x, w, b), strict=True):
        assert torch.allclose(here.grad.cpu(), there.grad, atol=1e-4)


def test_errors_are_pytorchs():
    for function, shapes in (
        (torch.mm, ((2, 3), (4, 5))),
        (torch.mm, ((2, 3, 4), (4, 5))),
        (torch.bmm, ((2, 3, 4), (3, 4, 5))),
    ):
        with pytest.raises(RuntimeError) as ours:
            function(*(torch.ones(shape, device="npu") for shape in shapes))
        with pytest.raises(RuntimeError) as theirs:
            function(*(torch.ones(shape) for shape in shapes))
        assert str(ours.value) == str(theirs.value)
