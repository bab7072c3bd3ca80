"""Pooling and its gradients by kernels of our own, beside PyTorch's on the CPU."""

import math

import pytest
import torch
import torch.nn.functional as F

import torch_npu

A = torch.ops.aten
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)

# The function, the image, and what else it takes.
CASES = {
    "max 2-D": (F.max_pool2d, (2, 5, 12, 15), {"kernel_size": 2}),
    "max 3x3/2 padded": (F.max_pool2d, (2, 3, 14, 17), {"kernel_size": 3, "stride": 2, "padding": 1}),
    "max dilated": (
        F.max_pool2d,
        (1, 3, 17, 13),
        {"kernel_size": (4, 2), "stride": (2, 3), "padding": (2, 1), "dilation": (2, 3)},
    ),
    "max overlapping": (F.max_pool2d, (2, 3, 9, 70), {"kernel_size": 3, "stride": 1}),
    "max rounded up": (
        F.max_pool2d,
        (2, 3, 10, 11),
        {"kernel_size": 3, "stride": 3, "padding": 1, "ceil_mode": True},
    ),
    "max without a batch": (F.max_pool2d, (3, 9, 9), {"kernel_size": 3}),
    "max with gaps": (F.max_pool2d, (1, 2, 20, 20), {"kernel_size": 2, "stride": 5}),
    "max 1-D": (F.max_pool1d, (3, 4, 33), {"kernel_size": 4, "stride": 3, "padding": 2}),
    "max 1-D without a batch": (F.max_pool1d, (4, 33), {"kernel_size": 4}),
    "max 3-D": (F.max_pool3d, (2, 3, 7, 8, 9), {"kernel_size": (2, 3, 2), "stride": (1, 2, 3), "padding": 1}),
    "max 3-D without a batch": (F.max_pool3d, (3, 7, 8, 9), {"kernel_size": 3, "stride": 2, "dilation": 2}),
    "mean 2-D": (F.avg_pool2d, (2, 5, 12, 15), {"kernel_size": 2}),
    "mean padded": (F.avg_pool2d, (2, 3, 14, 17), {"kernel_size": 3, "stride": 2, "padding": 1}),
    "mean of what is there": (
        F.avg_pool2d,
        (2, 3, 14, 17),
        {"kernel_size": (3, 4), "stride": 2, "padding": (1, 2), "count_include_pad": False},
    ),
    "mean rounded up": (
        F.avg_pool2d,
        (2, 3, 11, 12),
        {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    ),
    "mean rounded up of what is there": (
        F.avg_pool2d,
        (2, 3, 11, 12),
        {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True, "count_include_pad": False},
    ),
    "mean by a divisor": (
        F.avg_pool2d,
        (2, 3, 9, 9),
        {"kernel_size": 3, "padding": 1, "divisor_override": -4},
    ),
    "mean of all": (F.avg_pool2d, (2, 3, 7, 7), {"kernel_size": 7}),
    "mean without a batch": (F.avg_pool2d, (3, 9, 9), {"kernel_size": 3, "stride": 1}),
    "mean 1-D": (F.avg_pool1d, (3, 4, 33), {"kernel_size": 4, "stride": 3, "padding": 2}),
    "mean 3-D": (
        F.avg_pool3d,
        (2, 3, 7, 8, 9),
        {"kernel_size": (2, 3, 2), "stride": (1, 2, 3), "padding": 1, "count_include_pad": False},
    ),
    "adaptive mean": (F.adaptive_avg_pool2d, (2, 5, 13, 11), {"output_size": (4, 3)}),
    "adaptive mean, divided": (F.adaptive_avg_pool2d, (2, 5, 12, 9), {"output_size": (4, 3)}),
    "adaptive mean, enlarged": (F.adaptive_avg_pool2d, (2, 5, 3, 4), {"output_size": (7, 9)}),
    "adaptive mean, one size kept": (F.adaptive_avg_pool2d, (5, 9, 8), {"output_size": (None, 3)}),
    "adaptive mean 3-D": (F.adaptive_avg_pool3d, (2, 3, 7, 6, 5), {"output_size": (3, 2, 4)}),
    "adaptive mean 1-D": (F.adaptive_avg_pool1d, (2, 3, 17), {"output_size": 5}),
    "adaptive max": (F.adaptive_max_pool2d, (2, 5, 13, 11), {"output_size": (4, 3)}),
    "adaptive max, divided": (F.adaptive_max_pool2d, (2, 5, 12, 9), {"output_size": (4, 3)}),
    "adaptive max 3-D": (F.adaptive_max_pool3d, (2, 3, 7, 6, 5), {"output_size": (3, 2, 4)}),
    "adaptive max 1-D": (F.adaptive_max_pool1d, (2, 3, 17), {"output_size": 5}),
}


def channels_last(tensor):
    """Where there is a batch."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    has_batch = tensor.dim() == 5 or tensor.shape[0] < 3
    return tensor.contiguous(memory_format=formats.get(tensor.dim() * has_batch, torch.contiguous_format))


LAYOUTS = {
    "contiguous": lambda tensor: tensor,
    "channels last": channels_last,
    "gaps": lambda tensor: torch.stack((tensor, tensor), -1)[..., 0],
    "turned": lambda tensor: tensor.mT.contiguous().mT,
}


def is_max(function):
    return "max_pool" in function.__name__


def random(shape, dtype, seed=0):
    """Few values, so that some are equal."""
    make = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=make) * 8).round().div(4).to(dtype)


def results(function, x, options, gradient=None):
    """The result, the indices where there are some, and the gradient."""
    x = x.detach().requires_grad_()
    made = function(x, **options, **({"return_indices": True} if is_max(function) else {}))
    made = made if isinstance(made, tuple) else (made,)
    if gradient is None:
        gradient = random(made[0].shape, x.dtype, 7).to(x.device)
    made[0].backward(gradient)
    return [*(tensor.detach() for tensor in made), x.grad]


def check(case, dtype, layout):
    """Values are those of f64, rounded once; strides those of the CPU."""
    function, shape, options = CASES[case]
    x = LAYOUTS[layout](random(shape, dtype))
    wanted = results(function, x.double(), options)
    gradient = LAYOUTS[layout](random(wanted[0].shape, dtype, 7))
    wanted = results(function, x.double(), options, gradient.double())
    torch_npu.reset_fallback_stats()
    got = results(function, x.npu(), options, gradient.npu())
    assert torch_npu.fallback_stats()["fallbacks"] == 0
    for ours, exact in zip(got, wanted, strict=True):
        assert ours.dtype == (torch.long if exact.dtype == torch.long else dtype)
        assert ours.stride() == exact.stride()
        rounding = torch.finfo(dtype).eps
        sums = 16 * torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
        torch.testing.assert_close(ours.cpu().double(), exact.double(), rtol=rounding, atol=sums)
    return got


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_f64(case, dtype):
    if CASES[case][0] is F.avg_pool3d and dtype in (torch.float16, torch.bfloat16):
        with pytest.raises(NotImplementedError):  # as on the CPU
            check(case, dtype, "contiguous")
        return
    check(case, dtype, "contiguous")


@pytest.mark.parametrize("layout", ["channels last", "gaps", "turned"])
@pytest.mark.parametrize("case", CASES)
def test_bits_do_not_depend_on_strides(case, layout):
    plain = check(case, torch.float32, "contiguous")
    for a, b in zip(plain, check(case, torch.float32, layout), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("case", CASES)
def test_bits_do_not_depend_on_threads(case):
    function, shape, options = CASES[case]
    x = random((*shape[:-1], 4 * shape[-1]), torch.float32).npu()
    several = results(function, x, options)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = results(function, x, options)
    finally:
        torch.set_num_threads(threads)
    for a, b in zip(several, one, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize("case", [case for case in CASES if is_max(CASES[case][0])])
def test_the_greatest_of_special_values(case, layout):
    function, shape, options = CASES[case]
    make = torch.Generator().manual_seed(3)
    values = torch.tensor([0.0, -0.0, 1.0, math.inf, -math.inf, -math.inf, math.nan])
    for chosen in (values, values[:-1], values[4:5]):
        x = chosen[torch.randint(len(chosen), shape, generator=make)]
        wanted, places = function(x, **options, return_indices=True)
        got, found = function(LAYOUTS[layout](x).npu(), **options, return_indices=True)
        assert torch.equal(found.cpu(), places)
        torch.testing.assert_close(got.cpu(), wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dims", [2, 3])
def test_results_that_are_given_are_written(dims):
    shape = (2, 3, 6, 8, 9)[: dims + 2]
    x = random(shape, torch.float32)
    pooled, means = getattr(A, f"max_pool{dims}d_with_indices"), getattr(A, f"avg_pool{dims}d")
    size = [2] * dims
    wanted = (*pooled(x, size), means(x, size))
    outs = [torch.empty_like(tensor, device="npu") for tensor in wanted]
    torch_npu.reset_fallback_stats()
    pooled.out(x.npu(), size, out=outs[0], indices=outs[1])
    means.out(x.npu(), size, out=outs[2])
    assert torch_npu.fallback_stats()["fallbacks"] == 0
    for a, b in zip(outs, wanted, strict=True):
        torch.testing.assert_close(a.cpu(), b)


def test_gradients_of_gradients():
    make = torch.Generator().manual_seed(3)
    x = torch.randn(2, 2, 6, 5, generator=make, dtype=torch.float64).npu().requires_grad_()
    for pool in (
        lambda x: F.max_pool2d(x, 3, 2, 1),
        lambda x: F.avg_pool2d(x, 3, 2, 1),
        lambda x: F.adaptive_avg_pool2d(x, (4, 2)),
    ):
        assert torch.autograd.gradcheck(pool, (x,))
        assert torch.autograd.gradgradcheck(pool, (x,))


@pytest.mark.parametrize(
    ("function", "shape", "options"),
    [
        (F.max_pool2d, (2, 3, 9, 9), {"kernel_size": 3, "padding": 2}),
        (F.max_pool2d, (2, 3, 2, 9), {"kernel_size": 3}),
        (F.max_pool2d, (9, 9), {"kernel_size": 3}),
        (F.max_pool2d, (2, 3, 9, 9), {"kernel_size": 0}),
        (F.max_pool2d, (2, 3, 9, 9), {"kernel_size": 2, "dilation": 0}),
        (F.max_pool2d, (2, 0, 9, 9), {"kernel_size": 2}),
        (F.avg_pool2d, (2, 3, 9, 9), {"kernel_size": (1, 2, 3)}),
        (F.avg_pool2d, (2, 3, 9, 9), {"kernel_size": 2, "divisor_override": 0}),
        (F.avg_pool3d, (3, 9, 9), {"kernel_size": 2}),
        (F.adaptive_avg_pool2d, (2, 3, 9, 9), {"output_size": (-1, 2)}),
        (F.adaptive_max_pool2d, (2, 3, 0, 9), {"output_size": (2, 2)}),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_errors_are_pytorchs(function, shape, options):
    messages = []
    for device in ("cpu", "npu"):
        with pytest.raises((RuntimeError, IndexError)) as raised:
            function(torch.zeros(shape, device=device), **options)
        messages.append(str(raised.value).splitlines()[0])
    assert messages[0] == messages[1]


@pytest.mark.parametrize("shape", [(0, 3, 9, 9), (2, 3, 9, 9)], ids=str)
def test_without_elements_results_are_those_of_the_cpu(shape):
    x = torch.zeros(shape)
    for pool in (lambda x: F.max_pool2d(x, 3), lambda x: F.adaptive_avg_pool2d(x, (0, 2))):
        assert pool(x.npu()).shape == pool(x).shape


def test_an_index_that_is_none_is_reported():
    grad, x = torch.ones(1, 1, 2, 2).npu(), torch.ones(1, 1, 4, 4).npu()
    indices = torch.full((1, 1, 2, 2), 16).npu()
    with pytest.raises(RuntimeError, match="index 16 is out of range"):
        A.max_pool2d_with_indices_backward(grad, x, [2, 2], [2, 2], [0, 0], [1, 1], False, indices)
        torch.npu.synchronize()
