"""Batch normalization and its gradients by kernels of our own, beside the CPU and sums in f64."""

import pytest
import torch
import torch.nn.functional as F

import torch_npu

A = torch.ops.aten
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
SHAPES = (
    (5, 3),
    (70, 40),
    (4, 3, 7),
    (3, 5, 6, 9),
    (2, 33, 7, 7),
    (2, 3, 70, 80),
    (2, 4, 3, 5, 6),
    (1, 2, 9, 1),
)


def channels_last(tensor):
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.contiguous(memory_format=formats.get(tensor.dim(), torch.contiguous_format))


LAYOUTS = {
    "contiguous": lambda tensor: tensor.contiguous(),
    "channels last": channels_last,
    "gaps": lambda tensor: torch.stack((tensor, tensor), -1)[..., 0],
    "turned": lambda tensor: tensor.transpose(0, -1).contiguous().transpose(0, -1),
    "channels first": lambda tensor: tensor.transpose(0, 1).contiguous().transpose(0, 1),
}


def random(shape, dtype, seed=0):
    make = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=make, dtype=torch.float64).to(dtype)


def parameters(channels, dtype):
    """Weight, bias, running mean and variance."""
    weight, bias, mean, variance = (random(channels, dtype, seed) for seed in range(1, 5))
    return weight, bias, mean, variance.abs() + 0.5


def run(x, gradient, weight, bias, mean, variance, training):
    """The result, the gradients of x, weight and bias, and the running statistics after it."""
    x, weight, bias = (
        tensor if tensor is None else tensor.detach().requires_grad_() for tensor in (x, weight, bias)
    )
    running = [tensor if tensor is None else tensor.clone() for tensor in (mean, variance)]
    y = F.batch_norm(x, *running, weight, bias, training, momentum=0.3)
    y.backward(gradient)
    return [y.detach(), x.grad, *(tensor.grad for tensor in (weight, bias) if tensor is not None), *running]


def moved(tensors, to):
    return [tensor if tensor is None else to(tensor) for tensor in tensors]


def check(x, gradient, given, training):
    """Values are those of f64, within what rounding moves them by."""
    torch_npu.reset_fallback_stats()
    ours = run(x.npu(), gradient.npu(), *moved(given, torch.Tensor.npu), training)
    assert torch_npu.fallback_stats()["fallbacks"] == 0
    on_cpu = run(x, gradient, *given, training)
    exact = run(x.double(), gradient.double(), *moved(given, torch.Tensor.double), training)
    for got, cpu, wanted in zip(ours, on_cpu, exact, strict=True):
        if got is None:
            assert cpu is None
            continue
        assert (got.dtype, got.shape) == (cpu.dtype, cpu.shape)
        sums = torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32).eps
        size = x.numel() // x.shape[1]
        # Statistics of halves are kept in halves for the gradient.
        kept = torch.finfo(given[0].dtype if given[0] is not None else x.dtype).eps
        bound = (kept + torch.finfo(got.dtype).eps) * (wanted.abs() + 4 * size**0.5) + 64 * sums * size**0.5
        if got.shape == x.shape:
            bound = 16 * (torch.finfo(x.dtype).eps * (1 + wanted.abs()) + kept * 4) + 64 * sums * size**0.5
        difference = (got.cpu().double() - wanted).abs()
        assert difference.le(bound).all(), (got.shape, (difference / bound).max())


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_are_those_of_f64(shape, dtype, training):
    x, gradient = random(shape, dtype), random(shape, dtype, 9)
    check(x, gradient, parameters(shape[1], dtype), training)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
def test_halves_have_parameters_of_f32(dtype, training):
    shape = (3, 5, 6, 9)
    check(random(shape, dtype), random(shape, dtype, 9), parameters(5, torch.float32), training)


@pytest.mark.parametrize("has_running", [True, False])
@pytest.mark.parametrize("has_affine", [True, False])
def test_parameters_may_be_absent(has_affine, has_running):
    shape = (3, 5, 6, 9)
    weight, bias, mean, variance = parameters(5, torch.float32)
    affine = (weight, bias) if has_affine else (None, None)
    running = (mean, variance) if has_running else (None, None)
    for training in (True, False) if has_running else (True,):
        check(random(shape, torch.float32), random(shape, torch.float32, 9), (*affine, *running), training)


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(70, 40), (4, 3, 7), (3, 20, 9, 40), (2, 4, 3, 5, 6)], ids=str)
def test_bits_do_not_depend_on_strides(shape, layout, training):
    given = moved(parameters(shape[1], torch.float32), torch.Tensor.npu)
    x, gradient = random(shape, torch.float32), random(shape, torch.float32, 9)
    laid = LAYOUTS[layout](x)
    plain = run(x.npu(), gradient.npu(), *given, training)
    torch_npu.reset_fallback_stats()
    other = run(laid.npu(), LAYOUTS[layout](gradient).npu(), *given, training)
    assert torch_npu.fallback_stats()["fallbacks"] == 0
    for a, b in zip(plain, other, strict=True):
        assert torch.equal(a, b)
    on_cpu = run(laid, gradient, *moved(given, torch.Tensor.cpu), training)
    for a, b in zip(other, on_cpu, strict=True):
        assert a.stride() == b.stride()


def test_bits_do_not_depend_on_threads():
    shape = (4, 70, 30, 30)
    given = moved(parameters(shape[1], torch.float32), torch.Tensor.npu)
    x, gradient = random(shape, torch.float32).npu(), random(shape, torch.float32, 9).npu()
    threads = torch.get_num_threads()
    several = run(x, gradient, *given, True)
    try:
        torch.set_num_threads(1)
        one = run(x, gradient, *given, True)
    finally:
        torch.set_num_threads(threads)
    for a, b in zip(several, one, strict=True):
        assert torch.equal(a, b)


def test_a_far_mean_cancels_nothing():
    x = random((8, 3, 20, 20), torch.float32) + 1e4
    y = F.batch_norm(x.npu(), None, None, training=True)
    wanted = F.batch_norm(x.double(), None, None, training=True)
    assert (y.cpu().double() - wanted).abs().max() < 2e-3


def test_one_element_and_what_is_no_number_are_as_on_the_cpu():
    for x in (torch.tensor([[0.5, -2.0]]), torch.tensor([[1.0, 5.0], [2.0, 3.0], [float("nan"), 4.0]])):
        on_cpu, on_npu = (
            [torch.zeros(2, device=device), torch.ones(2, device=device)] for device in ("cpu", "npu")
        )
        cpu = A.native_batch_norm(x, None, None, *on_cpu, True, 0.1, 1e-5)
        npu = A.native_batch_norm(x.npu(), None, None, *on_npu, True, 0.1, 1e-5)
        for a, b in zip((*npu, *on_npu), (*cpu, *on_cpu), strict=True):
            torch.testing.assert_close(a.cpu(), b, equal_nan=True)


def overload_results(device, name, overload, *arguments):
    """What it returns, and the tensors among its arguments after it."""
    arguments = moved(arguments, lambda given: given.to(device) if isinstance(given, torch.Tensor) else given)
    results = getattr(getattr(A, name), overload)(*arguments)
    return [*results, *(given for given in arguments if isinstance(given, torch.Tensor))]


@pytest.mark.parametrize(
    ("name", "overload", "running", "training"),
    [
        ("native_batch_norm", "default", True, True),
        ("native_batch_norm", "default", True, False),
        ("_native_batch_norm_legit", "default", True, True),
        ("_native_batch_norm_legit", "no_stats", False, True),
        ("_native_batch_norm_legit_functional", "default", True, True),
        ("_native_batch_norm_legit_no_training", "default", True, None),
        ("_batch_norm_with_update", "default", True, None),
        ("_batch_norm_with_update_functional", "default", True, None),
        ("_batch_norm_no_update", "default", True, None),
    ],
)
def test_overloads_return_what_the_cpu_returns(name, overload, running, training):
    weight, bias, mean, variance = parameters(3, torch.float32)
    arguments = [random((4, 3, 5, 6), torch.float32), weight, bias]
    arguments += [mean, variance] if running else []
    arguments += [] if training is None else [training]
    arguments += [0.3, 1e-5]
    torch_npu.reset_fallback_stats()
    ours = overload_results("npu", name, overload, *arguments)
    assert torch_npu.fallback_stats()["fallbacks"] == 0
    for a, b in zip(ours, overload_results("cpu", name, overload, *arguments), strict=True):
        torch.testing.assert_close(a.cpu(), b)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["native_batch_norm", "_native_batch_norm_legit"])
def test_results_that_are_given_are_written(name, training):
    x = random((4, 3, 5, 6), torch.float32)
    results = []
    for device in ("npu", "cpu"):
        given = moved(parameters(3, torch.float32), lambda tensor, device=device: tensor.to(device))
        outs = [torch.full(size, 7.0, device=device) for size in (x.shape, (3,), (3,))]
        torch_npu.reset_fallback_stats()
        with torch.no_grad():
            getattr(A, name).out(
                x.to(device), *given, training, 0.3, 1e-5, out=outs[0], save_mean=outs[1], save_invstd=outs[2]
            )
        assert torch_npu.fallback_stats()["fallbacks"] == 0
        results.append([*outs, *given])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a.cpu(), b)


def test_gradients_of_gradients():
    x, weight, bias = (random(shape, torch.float64).npu() for shape in ((3, 2, 4), (2,), (2,)))
    tensors = [tensor.requires_grad_() for tensor in (x, weight, bias)]

    def normalize(x, weight, bias):
        return F.batch_norm(x, None, None, weight, bias, training=True)

    assert torch.autograd.gradcheck(normalize, tensors)
    assert torch.autograd.gradgradcheck(normalize, tensors)


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 3, 0)], ids=str)
def test_without_elements_results_are_those_of_the_cpu(shape):
    results = []
    for device in ("npu", "cpu"):
        given = moved(parameters(3, torch.float32), lambda tensor, device=device: tensor.to(device))
        x = torch.zeros(shape, device=device)
        results.append(run(x, torch.ones_like(x), *given, False))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a.cpu(), b, equal_nan=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda x, w, b, m, v: (x, w[:2], b, m, v),
        lambda x, w, b, m, v: (x, w, b, m.double(), v),
        lambda x, w, b, m, v: (x, w, b, m, None),
        lambda x, w, b, m, v: (x[0, :, 0, 0], w, b, m, v),
        lambda x, w, b, m, v: (x.long(), w, b, m, v),
    ],
)
def test_errors_are_pytorchs(change):
    messages = []
    for device in ("npu", "cpu"):
        tensors = change(random((4, 3, 5, 6), torch.float32), *parameters(3, torch.float32))
        x, weight, bias, mean, variance = moved(tensors, lambda tensor, device=device: tensor.to(device))
        with pytest.raises((RuntimeError, IndexError, ValueError)) as raised:
            torch.batch_norm(x, weight, bias, mean, variance, True, 0.1, 1e-5, False)
        messages.append(str(raised.value).splitlines()[0])
    assert messages[0] == messages[1]
