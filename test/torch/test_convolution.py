"""Convolutions and their gradients by kernels of our own, beside PyTorch's on the CPU."""

import pytest
import torch
import torch.nn.functional as F

import torch_npu

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)

# Input, weight, and what else the convolution takes.
CASES = {
    "3x3": ((2, 16, 9, 11), (24, 16, 3, 3), {"padding": 1}),
    "1x1": ((2, 40, 7, 7), (33, 40, 1, 1), {}),
    "strided 1x1": ((2, 40, 9, 7), (33, 40, 1, 1), {"stride": 2}),
    "7x7 of an image": ((1, 3, 32, 30), (16, 3, 7, 7), {"stride": 2, "padding": 3}),
    "one channel": ((3, 1, 8, 8), (1, 1, 3, 3), {}),
    "dilated": ((2, 5, 15, 14), (7, 5, 3, 3), {"dilation": 2, "padding": (2, 1)}),
    "strided and dilated": ((1, 4, 17, 16), (6, 4, 2, 3), {"stride": (3, 2), "dilation": (2, 3)}),
    "grouped": ((2, 12, 9, 9), (18, 4, 3, 3), {"groups": 3, "padding": 1}),
    "depthwise": ((2, 13, 10, 9), (13, 1, 3, 3), {"groups": 13, "padding": 1}),
    "strided depthwise": ((2, 8, 11, 10), (8, 1, 5, 5), {"groups": 8, "padding": 2, "stride": 2}),
    "1x1 depthwise": ((3, 8, 7, 7), (24, 1, 1, 1), {"groups": 8}),
    "depthwise with a multiplier": ((2, 6, 8, 8), (12, 1, 3, 3), {"groups": 6}),
    "depthwise of one dimension": ((2, 9, 21), (9, 1, 4), {"groups": 9, "padding": 3, "dilation": 2}),
    "depthwise of three dimensions": (
        (2, 9, 4, 5, 6),
        (9, 1, 2, 3, 3),
        {"groups": 9, "padding": 1, "stride": 2},
    ),
    "window beyond the image": ((1, 3, 2, 3), (4, 3, 5, 5), {"padding": 2}),
    "many channels": ((1, 300, 5, 5), (20, 300, 3, 3), {"padding": 1}),
    "padding by name": ((2, 3, 9, 9), (4, 3, 5, 3), {"padding": "same"}),
    "no images": ((0, 3, 9, 9), (4, 3, 3, 3), {}),
    "without a batch": ((3, 9, 9), (4, 3, 3, 3), {"padding": 1}),
    "1-D": ((2, 6, 31), (5, 6, 4), {"stride": 3, "padding": 2, "dilation": 2}),
    "3-D": ((2, 3, 5, 6, 7), (4, 3, 2, 3, 2), {"stride": (2, 1, 2), "padding": 1}),
}
TRANSPOSED = {
    "2-D": ((2, 6, 7, 8), (6, 5, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    "2-D in groups": ((2, 6, 5, 5), (6, 4, 4, 4), {"stride": 2, "padding": 1, "groups": 3}),
    "gaps": ((1, 4, 4, 4), (4, 3, 2, 2), {"stride": 3}),
    "dilated": ((2, 3, 6, 5), (3, 4, 3, 2), {"stride": 2, "dilation": (2, 3)}),
    "1-D": ((2, 4, 9), (4, 3, 5), {"stride": 2}),
    "3-D": ((1, 3, 3, 4, 2), (3, 2, 3, 2, 3), {"stride": (2, 1, 2), "padding": (1, 0, 1)}),
}


def results(function, tensors, gradient, **options):
    """Of a convolution: the result, and the gradients of its tensors."""
    tensors = [tensor.detach().requires_grad_() for tensor in tensors]
    out = function(*tensors, **options)
    out.backward(gradient)
    return [out.detach(), *(tensor.grad for tensor in tensors)]


def check(function, shapes, options, dtype, layout=lambda tensor: tensor):
    """Results are within the error of sums in the type that products are summed in, and of one rounding."""
    make = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(shape, generator=make, dtype=torch.float64).to(dtype)

    x, weight = (random(*shape) for shape in shapes)
    transposed = function.__name__.startswith("conv_transpose")
    bias = random(weight.shape[1] * options.get("groups", 1) if transposed else weight.shape[0])
    gradient = random(*function(x.double(), weight.double(), bias.double(), **options).shape)
    tensors = (x, weight, bias)
    torch_npu.reset_fallback_stats()
    on_npu = [layout(tensor).npu() for tensor in (gradient, *tensors)]
    ours = results(function, on_npu[1:], on_npu[0], **options)
    assert torch_npu.fallback_stats()["fallbacks"] == 0
    exact = results(function, [tensor.double() for tensor in tensors], gradient.double(), **options)
    terms = results(
        function, [tensor.double().abs() for tensor in tensors], gradient.double().abs(), **options
    )
    sums = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    products = max(weight[0].numel(), weight.numel() // weight.shape[1], gradient.numel())
    for got, wanted, term in zip(ours, exact, terms, strict=True):
        assert got.shape == wanted.shape
        assert got.dtype == dtype
        bound = term * sums * products + wanted.abs() * torch.finfo(dtype).eps
        assert (got.cpu().double() - wanted).abs().le(bound).all()


def of_rank(name, shapes, options):
    dims = len(shapes[1]) - 2
    return getattr(F, f"{name}{dims}d"), shapes, options


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_convolutions_are_sums_of_products(case, dtype):
    shapes, options = CASES[case][:2], CASES[case][2]
    check(*of_rank("conv", shapes, options), dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("case", TRANSPOSED)
def test_transposed_convolutions_are_sums_of_products(case, dtype):
    shapes, options = TRANSPOSED[case][:2], TRANSPOSED[case][2]
    check(*of_rank("conv_transpose", shapes, options), dtype)


def with_channels_last(tensor):
    return tensor.movedim(1, -1).contiguous().movedim(-1, 1) if tensor.dim() > 1 else tensor


LAYOUTS = {
    "channels last": with_channels_last,
    "gaps": lambda tensor: torch.stack((tensor, tensor), -1)[..., 0],
    "turned": lambda tensor: tensor.mT.contiguous().mT if tensor.dim() == 4 else tensor,
}


@pytest.mark.parametrize("layout", ["channels last", "gaps", "turned"])
@pytest.mark.parametrize(
    "case",
    [
        *("3x3", "1x1", "strided 1x1", "7x7 of an image", "grouped", "depthwise", "strided depthwise"),
        *("1x1 depthwise", "depthwise with a multiplier"),
    ],
)
def test_strides_do_not_matter(case, layout):
    shapes, options = CASES[case][:2], CASES[case][2]
    check(F.conv2d, shapes, options, torch.float32, LAYOUTS[layout])
    tensors = [torch.randn(shape).npu() for shape in shapes]
    gradient = torch.randn_like(F.conv2d(*tensors, **options))
    plain = results(F.conv2d, tensors, gradient, **options)
    of_layout = [LAYOUTS[layout](tensor) for tensor in (*tensors, gradient)]
    others = results(F.conv2d, of_layout[:2], of_layout[2], **options)
    assert all(torch.equal(a, b) for a, b in zip(plain, others, strict=True))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("case", ["depthwise of one dimension", "depthwise of three dimensions"])
def test_depthwise_convolutions_of_other_ranks_take_channels_last(case, dtype):
    shapes, options = CASES[case][:2], CASES[case][2]
    check(*of_rank("conv", shapes, options), dtype, with_channels_last)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("case", ["depthwise", "strided depthwise", "depthwise with a multiplier"])
def test_depthwise_gradients_do_not_depend_on_the_layout(case, dtype):
    (shape, taps, options), make = CASES[case], torch.Generator().manual_seed(5)
    x, weight = (torch.randn(sizes, generator=make).to(dtype).npu() for sizes in (shape, taps))
    gradient = torch.randn_like(F.conv2d(x, weight, **options))
    plain = results(F.conv2d, (x, weight), gradient, **options)
    for of_result in (
        gradient,
        LAYOUTS["channels last"](gradient),
        gradient[:1, :1, :1, :1].expand_as(gradient),
    ):
        expected = (
            plain
            if of_result.stride(0)
            else results(F.conv2d, (x, weight), of_result.contiguous(), **options)
        )
        last = results(F.conv2d, (LAYOUTS["channels last"](x), weight), of_result, **options)
        assert last[1].is_contiguous(memory_format=torch.channels_last)
        assert all(map(torch.equal, last, expected))


def test_an_image_does_not_depend_on_the_others():
    x, weight = torch.randn(7, 20, 14, 14).npu(), torch.randn(32, 20, 3, 3).npu()
    together = F.conv2d(x, weight, padding=1)
    for i in range(len(x)):
        assert torch.equal(together[i : i + 1], F.conv2d(x[i : i + 1], weight, padding=1))


def test_results_lie_as_on_the_cpu():
    x, weight = torch.randn(2, 8, 6, 6), torch.randn(4, 8, 3, 3)
    for last in (False, True):
        if last:
            x = x.to(memory_format=torch.channels_last)
        assert F.conv2d(x.npu(), weight.npu()).stride() == F.conv2d(x, weight).stride()


def test_gradients_of_gradients():
    make = torch.Generator().manual_seed(3)
    tensors = [
        torch.randn(shape, generator=make, dtype=torch.float64).npu().requires_grad_()
        for shape in ((2, 4, 5, 6), (6, 2, 3, 2), (6,))
    ]

    def convolve(x, weight, bias):
        return F.conv2d(x, weight, bias, stride=(1, 2), padding=1, groups=2)

    assert torch.autograd.gradcheck(convolve, tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(convolve, tensors, fast_mode=True)


@pytest.mark.parametrize(
    ("shapes", "options"),
    [
        (((1, 4, 8, 8), (6, 3, 3, 3)), {}),
        (((1, 3, 2, 2), (6, 3, 3, 3)), {}),
        (((1, 3, 8, 8), (6, 3, 3, 3)), {"stride": 0}),
        (((1, 4, 8, 8), (6, 2, 3, 3)), {"groups": 4}),
        (((1, 3, 8, 8), (6, 3, 3, 3)), {"padding": -1}),
        (((1, 3, 8, 8), (6, 3, 3, 3)), {"bias": torch.zeros(5)}),
    ],
    ids=str,
)
def test_errors_are_pytorchs(shapes, options):
    x, weight = (torch.randn(shape) for shape in shapes)
    with pytest.raises(RuntimeError) as on_cpu:
        F.conv2d(x, weight, **options)
    moved = {
        name: value.npu() if isinstance(value, torch.Tensor) else value for name, value in options.items()
    }
    with pytest.raises(RuntimeError) as on_npu:
        F.conv2d(x.npu(), weight.npu(), **moved)
    assert str(on_npu.value).splitlines()[0] == str(on_cpu.value).splitlines()[0]
