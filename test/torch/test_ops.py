"""Operators with kernels of our own: against the CPU, and which calls they serve."""

import itertools

import pytest
import torch
import torch.nn.functional as F

import torch_npu

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
SPECIAL = (0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-40, 3e38)


def close(ours, expected, dtype=None):
    """To the CPU's result in f64, rounded, as halves round once here."""
    torch.testing.assert_close(ours.cpu(), expected.to(ours.dtype), equal_nan=True)


@pytest.fixture
def native():
    """Says how many launches of our own an operator had."""
    torch_npu.reset_fallback_stats()

    def count(name):
        return torch_npu.fallback_stats()["ops"].get(name, {}).get("native_launches", 0)

    return count


ELEMENTWISE = {
    "add": lambda x, y: x + y,
    "add alpha": lambda x, y: torch.add(x, y, alpha=3),
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "where": lambda x, y: torch.where(x > y, x, y),
    "div": lambda x, y: x / y,
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=2),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "masked_fill": lambda x, y: x.masked_fill(y > 0, 3),
    **{name: getattr(torch, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
}
ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}
# Their gradients are operators of other rows, which round halves in between.
OF_ONE = {
    "addcdiv": lambda x: torch.addcdiv(x, x.abs(), -2 * x, value=3),
    "lerp": lambda x: torch.lerp(x, -x, 0.75),
    **{name: getattr(torch, name) for name in ("neg", "reciprocal", "sqrt", "exp", "log", "tanh", "sigmoid")},
}


def layouts(dtype):
    """Pairs of tensors on the CPU: adjacent, apart, turned, broadcast, without dimensions, empty."""
    torch.manual_seed(0)

    def make(*shape):
        return torch.randn(shape, dtype=torch.float64).mul(5).to(dtype)

    yield make(1000), make(1000)
    yield make(7, 33), make(33)
    yield make(40, 30).t(), make(30, 40)
    yield make(6, 50)[:, ::3], make(6, 17)
    yield make(2, 3, 1, 5).expand(2, 3, 4, 5), make(4, 1)
    yield make(3, 4, 5, 6).permute(3, 1, 0, 2), make(6, 4, 3, 5)
    yield make(), make(9)
    yield make(), make()
    yield make(0, 3), make(1, 3)
    yield make(70001), make(1)


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name, dtype):
    function = ELEMENTWISE[name]
    for x, y in layouts(dtype):
        expected = function(x, y)
        ours = function(x.npu(), y.npu())
        assert ours.dtype == expected.dtype and ours.stride() == expected.stride()
        wide = function(x.double(), y.double()) if dtype.is_floating_point else expected
        close(ours, wide)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_and_their_gradients(name, dtype):
    function = ACTIVATIONS[name]
    for x, _ in layouts(dtype):
        exact = x.to(torch.float64, copy=True).requires_grad_()
        ours = x.npu().requires_grad_()
        results = function(exact), function(ours)
        grad = torch.randn(x.shape, dtype=dtype)
        results[0].backward(grad.double())
        results[1].backward(grad.npu())
        close(results[1].detach(), results[0].detach())
        close(ours.grad, exact.grad)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", OF_ONE)
def test_functions(name, dtype):
    for x, _ in layouts(dtype):
        ours = OF_ONE[name](x.npu())
        assert ours.dtype == dtype
        close(ours, OF_ONE[name](x.double()))


@pytest.mark.parametrize(
    "function",
    [*ELEMENTWISE.values(), *ACTIVATIONS.values(), *OF_ONE.values()],
    ids=[*ELEMENTWISE, *ACTIVATIONS, *OF_ONE],
)
def test_special_values(function):
    pairs = torch.tensor(list(itertools.product(SPECIAL, SPECIAL)))
    arguments = pairs.unbind(1) if function in ELEMENTWISE.values() else pairs.unbind(1)[:1]
    expected = function(*arguments)
    ours = function(*(argument.npu() for argument in arguments)).cpu()
    torch.testing.assert_close(ours, expected, equal_nan=True)
    if function in ELEMENTWISE.values() and function not in (torch.maximum, torch.minimum):
        assert ours.signbit()[ours == 0].equal(expected.signbit()[expected == 0])


def lists(dtype):
    torch.manual_seed(0)
    shapes = ((3, 4), (), (0,), (5, 1))
    return [torch.randn(shape).mul(5).to(dtype) for shape in shapes]


FOREACH = {
    "add.List": lambda x, y: torch._foreach_add(x, y, alpha=2),
    "add.Scalar": lambda x, y: torch._foreach_add(x, 3),
    "add.ScalarList": lambda x, y: torch._foreach_add(x, [1, 2, 3, 4]),
    "add.Tensor": lambda x, y: torch._foreach_add(x, y[1], alpha=2),
    "mul.List": lambda x, y: torch._foreach_mul(x, y),
    "sub.List": lambda x, y: torch._foreach_sub(x, y),
    "maximum.List": lambda x, y: torch._foreach_maximum(x, y),
    "addcmul.Scalar": lambda x, y: torch._foreach_addcmul(x, x, y, 2),
    "addcmul.ScalarList": lambda x, y: torch._foreach_addcmul(x, x, y, [1, 2, 3, 4]),
    "add_.List": lambda x, y: torch._foreach_add_(x, y) or x,
    "mul_.ScalarList": lambda x, y: torch._foreach_mul_(x, [1, 2, 3, 4]) or x,
}
FOREACH_OF_FLOATS = {
    "div_.List": lambda x, y: torch._foreach_div_(x, y) or x,
    "lerp_.Scalar": lambda x, y: torch._foreach_lerp_(x, y, 0.25) or x,
    "addcdiv_.ScalarList": lambda x, y: torch._foreach_addcdiv_(x, x, y, [1.0, 2.0, 3.0, 4.0]) or x,
    "sqrt": lambda x, y: torch._foreach_sqrt(x),
    "neg_": lambda x, y: torch._foreach_neg_(x) or x,
}


@pytest.mark.parametrize("name", [*FOREACH, *FOREACH_OF_FLOATS])
def test_lists(name, native):
    of_floats = name in FOREACH_OF_FLOATS
    for dtype in FLOATS if of_floats else FLOATS + INTEGERS:
        function = (FOREACH | FOREACH_OF_FLOATS)[name]
        x, y = lists(dtype), lists(dtype)
        before = native(f"aten::_foreach_{name}")
        ours = function([t.npu() for t in x], [t.npu() for t in y])
        assert native(f"aten::_foreach_{name}") == before + len(x)
        wide = [
            [t.double() if of_floats or dtype.is_floating_point else t.clone() for t in part]
            for part in (x, y)
        ]
        for actual, expected in zip(ours, function(*wide), strict=True):
            assert actual.dtype == dtype
            close(actual, expected)


@pytest.mark.parametrize(
    "call",
    [
        lambda make: torch._foreach_add([], 1),
        lambda make: torch._foreach_add([make(2)], [make(2), make(2)]),
        lambda make: torch._foreach_add([make(2)], [1, 2]),
        lambda make: torch._foreach_add([make(2)], make(2)),
        lambda make: torch._foreach_add_([make(2).int()], 1.5),
        lambda make: torch._foreach_add([make(2), make(3)], [make(2), make(2)]),
        lambda make: make(3).masked_fill_(make(3), 1),
        lambda make: make(3).masked_fill_(make(2, 3) > 0, 1),
        lambda make: make(3).masked_fill_(make(3) > 0, make(2)),
        lambda make: make(3).byte().masked_fill_(make(3) > 0, 300),
        lambda make: make(3).half().masked_fill_(make(3) > 0, 1e10),
        lambda make: make(3).half().masked_fill_(make(3) > 0, make(1).mul(1e10).sum()),
        lambda make: torch.lerp(make(3), make(3).double(), 0.5),
    ],
)
def test_refusals_are_the_cpus(call):
    messages = []
    for device in ("cpu", "npu"):
        with pytest.raises(RuntimeError) as error:
            call(lambda *shape, device=device: torch.ones(shape, device=device))
        messages.append(str(error.value).replace("npu:0", "cpu"))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("decay", (0, 0.1))
@pytest.mark.parametrize("maximize", (False, True))
@pytest.mark.parametrize("amsgrad", (False, True))
@pytest.mark.parametrize("optimizer", (torch.optim.Adam, torch.optim.AdamW))
def test_fused_adam(optimizer, amsgrad, maximize, decay, native):
    torch.manual_seed(0)
    shapes, steps = ((7, 5), (3,), (), (0, 2)), 5
    start = [torch.randn(shape) for shape in shapes]
    grads = [[torch.randn(shape) for shape in shapes] for _ in range(steps)]

    def train(device, dtype, fused):
        params = [torch.nn.Parameter(value.to(device, dtype, copy=True)) for value in start]
        settings = {"lr": 0.01, "amsgrad": amsgrad, "maximize": maximize, "weight_decay": decay}
        steps_of = optimizer(params, fused=fused, **settings)
        for step in grads:
            for param, grad in zip(params, step, strict=True):
                param.grad = grad.to(device, dtype)
            steps_of.step()
        return [param.detach().cpu().double() for param in params]

    exact = train("cpu", torch.float64, False)
    for dtype, most in ((torch.float32, 1e-6), (torch.float64, 1e-14), (torch.bfloat16, 3e-2)):
        for ours, expected in zip(train("npu", dtype, True), exact, strict=True):
            torch.testing.assert_close(ours, expected, rtol=0, atol=most)
    assert native(f"aten::_fused_{optimizer.__name__.lower()}_") == 3 * steps * len(shapes)


def test_types_are_promoted_as_on_the_cpu():
    dtypes = (*FLOATS, *INTEGERS, torch.bool)
    values = torch.tensor([0, 1, 3, 100])
    for a, b in itertools.product(dtypes, dtypes):
        for right in (values.to(b), torch.tensor(3, dtype=b), 2, 2.5, True):
            x = values.to(a)
            moved = right.npu() if isinstance(right, torch.Tensor) else right
            for operation in (torch.add, torch.mul):
                expected, ours = operation(x, right), operation(x.npu(), moved)
                assert ours.dtype == expected.dtype, (a, b, right)
                torch.testing.assert_close(ours.cpu(), expected)


def test_numbers_on_the_host_take_part(native):
    x = torch.arange(5.0, device="npu")
    assert (x + torch.tensor(2.0)).tolist() == [2, 3, 4, 5, 6]
    assert (torch.tensor(2) * x).tolist() == [0, 2, 4, 6, 8]
    assert (3 - x).tolist() == [3, 2, 1, 0, -1]
    assert torch.where(x > 2, x, 0.0).tolist() == [0, 0, 0, 3, 4]
    assert native("aten::add.Tensor") == 1 and native("aten::mul.Tensor") == 1
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        x + torch.ones(5)


def test_results_go_where_they_are_told(native):
    x, y = torch.arange(6.0, device="npu").view(2, 3), torch.ones(3, device="npu")
    out = torch.zeros(3, 2, device="npu").t()
    address = out.data_ptr()
    assert torch.add(x, y, out=out) is out and out.data_ptr() == address
    assert out.tolist() == [[1, 2, 3], [4, 5, 6]] and out.stride() == (1, 2)
    resized = torch.empty(0, device="npu")
    assert torch.mul(x, y, out=resized).tolist() == x.tolist()
    wide = torch.zeros(2, 3, dtype=torch.float64, device="npu")
    assert torch.sub(x, y, out=wide).tolist() == [[-1, 0, 1], [2, 3, 4]]
    same = x
    x += y
    x *= x
    assert same is x and x.tolist() == [[1, 4, 9], [16, 25, 36]]
    assert native("aten::add.out") == native("aten::mul.out") == native("aten::add_.Tensor") == 1


def test_calls_without_a_kernel_are_served_all_the_same(native):
    x = torch.ones(2, dtype=torch.complex64, device="npu")
    assert (x + 1j).tolist() == [1 + 1j, 1 + 1j] and native("aten::add.Tensor") == 0


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda i: torch.add(i, 1, alpha=1.5), "argument alpha must not be a floating point number"),
        (lambda i: i.add_(1.5), "result type Float can't be cast to the desired output type Int"),
        (lambda i: F.gelu(i), "\"GeluKernelImpl\" not implemented for 'Int'"),
        (lambda i: F.gelu(i.float(), approximate="none such"), "approximate argument must be either"),
        (lambda i: torch._C._nn.gelu(i.half(), out=i.double()), "Found dtype Double but expected Half"),
        (lambda i: i + i[:2], "must match the size of tensor b"),
        (lambda i: i[1:].add_(i[:-1]), "unsupported operation: some elements"),
        (lambda i: i.bool() - i.bool(), "Subtraction, the `-` operator, with two bool tensors"),
        (lambda i: i - i.bool(), "Subtraction, the `-` operator, with a bool tensor"),
        (lambda i: 3 - i.bool(), "Subtraction, the `-` operator, with a bool tensor"),
    ],
)
def test_wrong_calls_say_what_the_cpu_says(call, message):
    i = torch.arange(3, dtype=torch.int32, device="npu")
    with pytest.raises(RuntimeError, match=message):
        call(i)


WITH_NUMBER = {
    "masked_fill": lambda x, n: x.masked_fill(x > 1, n),
    "lerp": lambda x, n: torch.lerp(x, x, n),
    "addcmul": lambda x, n: torch.addcmul(x, x, x, value=n),
    "add": lambda x, n: x + n,
    "add with alpha": lambda x, n: torch.add(x, x, alpha=n),
    "addcdiv": lambda x, n: torch.addcdiv(x, x, x, value=n),
    "sum of lists with alpha": lambda x, n: torch._foreach_add([x], [x], alpha=n),
    "index_add": lambda x, n: x.index_add(0, torch.tensor([1, 0], device=x.device), x, alpha=n),
    "clamp": lambda x, n: x.clamp(max=n),
    "quotient": lambda x, n: x / n,
    "where": lambda x, n: torch.where(x > 1, x, n),
    "leaky_relu": lambda x, n: F.leaky_relu(x, n),
    "power": lambda x, n: x**n,
    "in place": lambda x, n: x.mul_(n),
    "comparison": lambda x, n: x < n,
    "maximum of a list": lambda x, n: torch._foreach_maximum([x], n),
    "sum of a list": lambda x, n: torch._foreach_add([x], n),
    "addmm with alpha": lambda x, n: torch.addmm(x, x, x, alpha=n),
    "baddbmm with beta": lambda x, n: torch.baddbmm(x[None], x[None], x[None], beta=n),
}


@pytest.mark.parametrize(
    "number",
    [1e39, -1e300, 7e4, 65510.0, 3.395e38, 2**40, -(2**63), 2**63, 2**64 - 1, float("inf"), -3, 2.5],
)
@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.uint8, torch.int64],
    ids=str,
)
@pytest.mark.parametrize("name", WITH_NUMBER)
def test_numbers_out_of_range_are_treated_as_on_the_cpu(name, dtype, number):
    def outcome(device):
        x = torch.tensor([[1, 2], [1, 3]], device=device).to(dtype)
        try:
            result = WITH_NUMBER[name](x, number)
        except RuntimeError as error:
            return str(error)
        return (result if torch.is_tensor(result) else result[0]).cpu()

    ours, expected = outcome("npu"), outcome("cpu")
    if isinstance(expected, str):
        assert ours == expected
    else:
        torch.testing.assert_close(ours, expected, equal_nan=True)


LINES = {
    "softmax": torch.softmax,
    "log_softmax": torch.log_softmax,
    "layer_norm": lambda x, dim: F.layer_norm(x, x.shape[dim:]),
}


def shapes_and_dims():
    for shape in [(4, 7), (3, 1), (5, 100), (2, 3, 4, 5), (64,), (3, 5000), (5000, 3)]:
        for dim in range(-len(shape), 0):
            yield shape, dim


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", LINES)
def test_lines_and_their_gradients(name, dtype):
    function = LINES[name]
    torch.manual_seed(0)
    for shape, dim in shapes_and_dims():
        for turned in (False, True):
            x = torch.randn(shape, dtype=torch.float64).to(dtype)
            if turned:
                x = x.transpose(0, -1)
            exact = x.to(torch.float64, copy=True).requires_grad_()
            ours = x.npu().requires_grad_()
            results = function(exact, dim), function(ours, dim)
            assert results[0].stride() == results[1].stride()
            grad = torch.randn(x.shape, dtype=torch.float64).to(dtype)
            results[0].backward(grad.double())
            results[1].backward(grad.npu())
            close(results[1].detach(), results[0].detach())
            if name == "layer_norm" and dtype in (torch.float16, torch.bfloat16) and x[0].numel() < 30:
                continue  # statistics of few elements, which are rounded, decide
            # Of the whole, as backward takes rounded results, and sums cancel.
            error = (ours.grad.cpu().double() - exact.grad).norm() / exact.grad.norm().clamp(min=1)
            limits = {torch.float64: 1e-12, torch.float32: 4e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
            assert error < limits[dtype], (shape, dim, turned)


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1)], ids=str)
def test_elements_that_lie_in_one_place_count_each(name, dims):
    """Of expanded tensors, and of expanded gradients as a sum has them."""
    sizes = [1 if d in dims else size for d, size in enumerate((4, 7))]
    x = torch.randn(sizes, generator=torch.Generator().manual_seed(0))
    for dim in range(2):
        runs = []
        for leaf in (x.clone().requires_grad_(), x.npu().requires_grad_()):
            y = LINES[name](leaf.expand(4, 7), dim)
            y.backward(y.detach()[:1, :1].expand(4, 7))
            runs.append((y.detach().cpu(), leaf.grad.cpu()))
        torch.testing.assert_close(runs[1], runs[0], atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("with_weight", (False, True))
@pytest.mark.parametrize("with_bias", (False, True))
def test_layer_norm_with_parameters(dtype, with_weight, with_bias, native):
    torch.manual_seed(0)
    x = torch.randn(6, 5, 33, dtype=torch.float64).to(dtype)
    grad = torch.randn(6, 5, 33, dtype=torch.float64).to(dtype)
    parameters = [
        torch.randn(33, dtype=torch.float64).to(dtype) if given else None
        for given in (with_weight, with_bias)
    ]

    def run(convert):
        leaves = [None if leaf is None else convert(leaf).requires_grad_() for leaf in (x, *parameters)]
        result = F.layer_norm(leaves[0], (33,), leaves[1], leaves[2])
        result.backward(convert(grad))
        return [result.detach(), *(leaf.grad for leaf in leaves if leaf is not None)]

    for ours, exact in zip(run(lambda leaf: leaf.npu()), run(lambda leaf: leaf.double()), strict=True):
        tolerance = {"atol": 1e-5, "rtol": 1e-4} if dtype == torch.float32 else {"atol": 0.02, "rtol": 0.02}
        torch.testing.assert_close(ours.cpu(), exact.to(dtype), **tolerance)
    assert native("aten::native_layer_norm") == 1


def test_a_row_has_the_same_bits_whatever_is_computed_beside_it():
    torch.manual_seed(0)
    x = torch.randn(64, 3000, device="npu")
    for function in (lambda x: torch.softmax(x, -1), lambda x: F.layer_norm(x, (3000,)), F.gelu):
        whole = function(x)
        assert whole[17].equal(function(x[17:18])[0])
        assert whole.equal(function(x.t().contiguous().t()))
    assert torch.softmax(x, 0).equal(torch.softmax(x.t(), 1).t())
