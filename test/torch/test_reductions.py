"""Reductions and running sums with kernels of our own: against the CPU, and which calls they serve."""

import pytest
import torch

import torch_npu

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
NAN, INFINITY = float("nan"), float("inf")

# By what they take: any dimensions, one or all, one.
OVER_DIMS = {name: getattr(torch, name) for name in ("sum", "mean", "amax", "amin", "any", "all")}
OVER_ONE_OR_ALL = {name: getattr(torch, name) for name in ("argmax", "argmin", "max", "min", "prod")}
ALONG = {name: getattr(torch, name) for name in ("cumsum", "cumprod")}
ROUNDED = ("sum", "mean", "prod", "cumsum", "cumprod")
NO_BOOL = ("mean", "argmax", "argmin")


@pytest.fixture
def served():
    """Says that an operator had launches of our own and no call of the fallback."""
    torch_npu.reset_fallback_stats()

    def check(*names):
        ops = torch_npu.fallback_stats()["ops"]
        for name in names:
            assert ops[name]["native_launches"] > 0 and ops[name]["fallbacks"] == 0, (name, ops)

    return check


def numbers(shape, dtype):
    """Of small numbers, with ties."""
    values = torch.randint(-3, 4, shape, dtype=torch.float64)
    if dtype.is_floating_point:
        return (values + torch.randint(0, 3, shape) / 8).to(dtype)
    return values.abs().to(dtype) if dtype == torch.uint8 else values.to(dtype)


def layouts(dtype):
    """Tensors on the CPU: adjacent, turned, stepped, expanded, long, without dimensions, of one element."""
    torch.manual_seed(0)
    yield numbers((), dtype)
    yield numbers((1,), dtype)
    yield numbers((40, 30), dtype)
    yield numbers((40, 30), dtype).t()
    yield numbers((3, 4, 5, 6), dtype).permute(2, 0, 3, 1)
    yield numbers((6, 50), dtype)[::2, ::3]
    yield numbers((5, 1, 7), dtype).expand(5, 3, 7)
    yield numbers((3, 9001), dtype)
    yield numbers((9001, 3), dtype)


def check(function, name, x, **arguments):
    """Against the CPU: floats against f64, rounded, where results are rounded."""
    expected, ours = function(x, **arguments), function(x.npu(), **arguments)
    if not isinstance(expected, torch.Tensor):
        assert type(ours) is type(expected)
    else:
        expected, ours = (expected,), (ours,)
    for exact, result in zip(expected, ours, strict=True):
        assert result.dtype == exact.dtype and result.shape == exact.shape
        assert result.stride() == exact.stride()
        limits = {"rtol": 0, "atol": 0}
        if result.dtype.is_floating_point and name in ROUNDED:
            limits = {}
            if x.dtype.is_floating_point and "dtype" not in arguments:
                exact = function(x.double(), **arguments).to(x.dtype)
        torch.testing.assert_close(result.cpu(), exact, equal_nan=True, **limits)


def takes(name, dtype):
    if name == "mean":
        return dtype.is_floating_point
    return name not in NO_BOOL or dtype != torch.bool


def cases(functions):
    return [
        pytest.param(name, dtype, id=f"{name}-{dtype}")
        for name in functions
        for dtype in FLOATS + INTEGERS
        if takes(name, dtype)
    ]


@pytest.mark.parametrize("name, dtype", cases(OVER_DIMS))
def test_over_any_dimensions(name, dtype):
    function = OVER_DIMS[name]
    for x in layouts(dtype):
        check(function, name, x)
        for over in ((0,), (1,), (-1,), (0, -1), (1, 2), (0, 2), tuple(range(x.dim()))):
            if not over or min(over) < -x.dim() or max(over) >= x.dim() or (x.dim() == 1 and len(over) > 1):
                continue
            for keep in (False, True):
                check(function, name, x, dim=over, keepdim=keep)


@pytest.mark.parametrize("name, dtype", cases(OVER_ONE_OR_ALL))
def test_over_one_dimension_or_all(name, dtype):
    function = OVER_ONE_OR_ALL[name]
    for x in layouts(dtype):
        if name == "prod" and dtype.is_floating_point:
            x = (x > 0).to(dtype) + 0.5 if x.numel() < 2000 else (x * 0 + 1)
        check(function, name, x)
        for dim in range(-x.dim(), x.dim()):
            for keep in (False, True):
                check(function, name, x, dim=dim, keepdim=keep)


@pytest.mark.parametrize("name, dtype", cases(ALONG))
def test_running_values(name, dtype):
    function = ALONG[name]
    for x in layouts(dtype):
        if name == "cumprod" and dtype.is_floating_point:
            x = (x > 0).to(dtype) + 0.5 if x.numel() < 2000 else x.sign()
        for dim in range(-max(x.dim(), 1), max(x.dim(), 1)):
            check(function, name, x, dim=dim)


def test_they_are_served(served):
    x = torch.ones(4, 5, device="npu")
    x.sum(), x.sum(0), x.mean(), x.mean(1), x.amax(), x.argmax(), x.argmin(1), x.max(), x.max(0), x.min(1)
    x.any(), x.all(0), x.prod(), x.prod(1), x.cumsum(0), x.cumsum_(1), x.cumprod(1)
    assert torch.equal(torch.any(x, dim=(0, 1)).cpu(), torch.tensor(True))
    served("aten::sum.dim_IntList", "aten::mean.dim", "aten::amax", "aten::argmax", "aten::argmin")
    served("aten::max", "aten::max.dim", "aten::min.dim", "aten::any", "aten::any.dims", "aten::all.dim")
    served("aten::prod", "aten::prod.dim_int", "aten::cumsum", "aten::cumsum_", "aten::cumprod")


@pytest.mark.parametrize("name", ["amax", "amin", "argmax", "argmin", "max", "min"])
def test_what_is_no_number_and_what_is_equal(name):
    function = {**OVER_DIMS, **OVER_ONE_OR_ALL}[name]
    rows = [
        [1, NAN, 2, NAN],
        [INFINITY, 1, INFINITY, -INFINITY],
        [-INFINITY] * 4,
        [0.0, -0.0, 0.0, -0.0],
        [2, 3, 3, 2],
        [NAN] * 4,
    ]
    for dtype in FLOATS:
        check(function, name, torch.tensor(rows, dtype=dtype), dim=1)
        check(function, name, torch.tensor(rows, dtype=dtype).t().contiguous(), dim=0)
    long = torch.zeros(100000)
    long[[70001, 80001]] = torch.tensor([NAN, NAN])
    check(function, name, long)


def test_sums_of_special_values():
    rows = torch.tensor([[-0.0, -0.0], [INFINITY, -INFINITY], [INFINITY, 1], [NAN, 1], [3e38, 3e38]])
    for function in (torch.sum, torch.mean, torch.cumsum):
        expected, ours = function(rows, dim=1), function(rows.npu(), dim=1).cpu()
        torch.testing.assert_close(ours, expected, equal_nan=True)
        assert ours.signbit().equal(expected.signbit()) or expected.isnan().any()
    assert torch.full((3,), 60000.0, dtype=torch.float16, device="npu").mean().item() == 60000


def test_reductions_of_nothing():
    for shape in ((0,), (0, 3), (3, 0), (2, 0, 3)):
        for dtype in (torch.float32, torch.bool, torch.int32):
            x = torch.empty(shape, dtype=dtype)
            for name in ("sum", "any", "all", "prod"):
                function = {**OVER_DIMS, **OVER_ONE_OR_ALL}[name]
                check(function, name, x)
                for dim in range(x.dim()):
                    check(function, name, x, dim=dim)
            for dim in range(x.dim()):
                check(torch.cumsum, "cumsum", x, dim=dim)
        check(torch.mean, "mean", torch.empty(shape))
    check(torch.amax, "amax", torch.empty(0, 3), dim=1)
    for function in (torch.amax, torch.argmax, torch.max):
        with pytest.raises((RuntimeError, IndexError)) as ours:
            function(torch.empty(0, 3, device="npu"), dim=0)
        with pytest.raises((RuntimeError, IndexError)) as theirs:
            function(torch.empty(0, 3), dim=0)
        assert str(ours.value) == str(theirs.value)


def test_types_of_results(served):
    i, h = torch.arange(300, dtype=torch.int32), torch.full((5000,), 1.0, dtype=torch.float16)
    for x, dtype in [
        (i, torch.int8),
        (i, torch.float32),
        (i, torch.float64),
        (h, torch.float32),
        (h, torch.float64),
        (h, torch.int64),
        (i.float() / 7, torch.int32),
        (i > 5, torch.uint8),
    ]:
        for name in ("sum", "cumsum"):
            check({**OVER_DIMS, **ALONG}[name], name, x, dim=0, dtype=dtype)
    assert torch.mean(i.npu(), dim=0, dtype=torch.float32).item() == 149.5
    assert torch.arange(5, dtype=torch.int32, device="npu").cumsum_(0).tolist() == [0, 1, 3, 6, 10]
    served("aten::sum.dim_IntList", "aten::cumsum", "aten::cumsum_", "aten::mean.dim")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_mean_in_halves_is_that_of_what_was_given(dtype, served):
    wide = torch.tensor([[1e5, -1e5, 3e4, 7.0], [2049.0, 2049.0, 2049.0, 2051.0]])  # as halves: inf, 2048
    for x in (wide, wide.double(), wide[1:].int(), wide.to(torch.bfloat16)):
        for dim in (0, 1, (0, 1)):
            expected = torch.mean(x, dim=dim, dtype=dtype)
            assert expected.isfinite().all()
            torch.testing.assert_close(torch.mean(x.npu(), dim=dim, dtype=dtype).cpu(), expected)
    served("aten::mean.dim")


@pytest.mark.parametrize("function", [torch.cumsum, torch.cumprod])
def test_a_running_value_of_one_number_is_that_number(function):
    zero = torch.tensor(-0.0)
    assert function(zero, 0).signbit() and function(zero.npu(), 0).cpu().signbit()
    assert function(torch.tensor(True).npu(), -1).cpu().equal(torch.tensor(1))


def test_results_go_where_they_are_told(served):
    x = torch.arange(6.0, device="npu").view(2, 3)
    out = torch.zeros(6, device="npu")[::2]
    address = out.data_ptr()
    assert torch.sum(x, 0, out=out) is out and out.data_ptr() == address and out.stride() == (2,)
    assert out.tolist() == [3, 5, 7]
    resized = torch.empty(0, device="npu")
    assert torch.amax(x, 1, keepdim=True, out=resized).tolist() == [[2], [5]]
    values, indices = torch.empty(2, device="npu"), torch.empty(2, dtype=torch.int64, device="npu")
    torch.max(x, 1, out=(values, indices))
    assert values.tolist() == [2, 5] and indices.tolist() == [2, 2]
    integers = torch.empty(3, dtype=torch.int16, device="npu")
    assert torch.cumsum(x.int()[1], 0, out=integers).tolist() == [3, 7, 12]
    assert x.cumsum_(1).tolist() == [[0, 1, 3], [3, 7, 12]]
    served("aten::sum.IntList_out", "aten::amax.out", "aten::max.dim_max", "aten::cumsum.out")


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.sum(2),
        lambda x: x.sum((0, 0)),
        lambda x: x.int().mean(),
        lambda x: x.argmax(-3),
        lambda x: (x > 0).argmax(),
        lambda x: x.cumsum(5),
        lambda x: torch.sum(x, 0, dtype=torch.float32, out=x.new_empty(3, dtype=torch.float64)),
        lambda x: torch.amax(x, 0, out=x.new_empty(3, dtype=torch.int32)),
    ],
)
def test_wrong_calls_say_what_the_cpu_says(call):
    x = torch.ones(2, 3)
    with pytest.raises((RuntimeError, IndexError)) as theirs:
        call(x)
    with pytest.raises(type(theirs.value)) as ours:
        call(x.npu())
    assert str(ours.value) == str(theirs.value)


def test_lines_of_one_repeated_element():
    x = torch.tensor([[1.0], [2.0]]).expand(2, 5)
    for function in (torch.sum, torch.softmax, torch.log_softmax, torch.cumsum, torch.argmax):
        for tensor, dim in ((x, 1), (x.t(), 0)):
            torch.testing.assert_close(function(tensor.npu(), dim).cpu(), function(tensor, dim))
    mask = torch.tensor([[True, False]]).expand(100000, 2)
    assert mask.npu().sum(0).tolist() == [100000, 0]


def test_more_dimensions_than_anyone_has():
    x = torch.ones([1] * 65, device="npu")
    with pytest.raises(RuntimeError, match="only tensors with up to 64 dims are supported"):
        x.amax(0)


def test_gradients():
    torch.manual_seed(0)
    x = torch.randn(4, 5, 6, dtype=torch.float64)
    functions = [
        lambda x: x.sum((0, 2)),
        lambda x: x.mean(),
        lambda x: x.amax(1),
        lambda x: x.max(2).values,
        lambda x: x.prod(1),
        lambda x: x.cumsum(1),
        lambda x: x.expand(3, 4, 5, 6).contiguous(),
    ]
    for function in functions:
        leaves = x.clone().requires_grad_(), x.npu().requires_grad_()
        results = [function(leaf) for leaf in leaves]
        grad = torch.randn(results[0].shape, dtype=torch.float64)
        for result in results:
            result.backward(grad.to(result.device))
        torch.testing.assert_close(leaves[1].grad.cpu(), leaves[0].grad)


def test_a_sum_has_the_same_bits_however_it_lies():
    torch.manual_seed(0)
    x = torch.randn(70, 9001, device="npu")
    whole, rows, columns = x.sum(), x.sum(1), x.sum(0)
    turned = x.t().contiguous().t()
    assert whole.equal(turned.sum()) and whole.equal(x.flatten().sum())
    assert rows.equal(turned.sum(1)) and columns.equal(turned.sum(0))
    assert rows[3].equal(x[3].sum()) and columns[3].equal(x[:, 3].sum())
    assert whole.equal(x.view(7, 10, 9001).sum((0, 1, 2)))
    assert columns.equal(x.view(7, 10, 9001).sum((0, 1)))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert whole.equal(x.sum()) and x.mean().equal(whole / x.numel())
    finally:
        torch.set_num_threads(threads)


def test_a_repeated_dimension_without_elements_is_reduced_to_nothing():
    x = torch.ones((), device="npu").expand(2, 0)
    for reduce, expected in ((torch.sum, 0), (torch.prod, 1)):
        result = torch.full((2,), 7.0, device="npu")
        reduce(x, 1, out=result)
        assert result.tolist() == [expected] * 2
