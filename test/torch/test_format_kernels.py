"""Kernels that compute with blocks: results are in the format, with the bits of plain memory."""

import copy
import re

import pytest
import torch
import torch.nn.functional as F
from formats import EACH, NC1HWC0, conversions, formatted, random, unasked

import torch_npu
from torch_npu import npu_format_cast as cast

ELEMENTWISE = {
    "relu": F.relu,
    "relu_": lambda x: x.clone().relu_(),
    "add": lambda x: x + x.exp(),
    "add number": lambda x: x + 2.5,
    "mul tensor of one": lambda x: x * torch.tensor(3.0, device=x.device),
    "mul_": lambda x: x.clone().mul_(0.1),
    "silu": F.silu,
    "where": lambda x: torch.where(x > 0, x, x * 2),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.5),
    "out": lambda x: torch.mul(x, 2, out=torch.empty_like(x)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("format, shape", [each for each in EACH if 0 not in each[1]], ids=str)
@pytest.mark.parametrize("op", ELEMENTWISE)
def test_elements_are_computed_in_blocks(op, format, shape, dtype):
    x = random(shape, dtype)
    ours = formatted(x, format)
    torch_npu.reset_fallback_stats()
    got = ELEMENTWISE[op](ours)
    assert conversions() == torch_npu.fallback_stats()["fallbacks"] == 0
    assert torch_npu.get_npu_format(got) == format
    assert torch.equal(got.cpu(), ELEMENTWISE[op](x.npu()).cpu())


def test_a_result_without_dimensions_is_refused_by_the_sizes_that_the_operand_shows():
    x = formatted(random((2, 20, 3, 3)))
    with pytest.raises(RuntimeError, match=re.escape("the broadcast shape [2, 20, 3, 3]")):
        torch.ones((), device="npu").add_(x)
    assert torch.equal(x[1, 19, 2, 2].mul(x).cpu(), x.cpu()[1, 19, 2, 2] * x.cpu())


POOLS = {
    "max": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max with indices": lambda x: torch.cat([y.float() for y in F.max_pool2d(x, 2, return_indices=True)]),
    "max dilated": lambda x: F.max_pool2d(x, 2, 2, 1, 2),
    "mean": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    "adaptive mean": lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
    "adaptive max": lambda x: F.adaptive_max_pool2d(x, (3, 4)),
}
IMAGES = [(2, 32, 9, 11), (3, 20, 8, 7), (1, 5, 7, 7)]


def with_gradient(function, x):
    x = x.detach().requires_grad_()
    made = function(x)
    gradient = random(made.shape, made.dtype, 5).npu()
    if torch_npu.get_npu_format(made) == NC1HWC0:
        gradient = formatted(gradient.cpu())
    made.backward(gradient)
    return made.detach(), x.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", IMAGES, ids=str)
@pytest.mark.parametrize("pool", POOLS)
def test_pooling(pool, shape, dtype):
    x = random(shape, dtype)
    wanted = with_gradient(POOLS[pool], x.npu())
    ours = formatted(x)
    torch_npu.reset_fallback_stats()
    got = with_gradient(POOLS[pool], ours)
    if "indices" not in pool:
        assert unasked() == torch_npu.fallback_stats()["fallbacks"] == 0
    for a, b in zip(got, wanted, strict=True):
        if "indices" not in pool:
            assert torch_npu.get_npu_format(a) == NC1HWC0
        assert torch.equal(a.cpu(), b.cpu())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [*IMAGES, (4, 48, 1, 1), (8, 17, 5, 3)], ids=str)
def test_batch_norm(shape, dtype, affine, training):
    results = []
    for x in (random(shape, dtype).npu(), formatted(random(shape, dtype))):
        torch.manual_seed(0)
        norm = torch.nn.BatchNorm2d(shape[1], affine=affine).npu().train(training)
        norm.running_mean.uniform_(-1, 1, generator=torch.Generator("npu").manual_seed(3))
        norm.running_var.uniform_(1, 2, generator=torch.Generator("npu").manual_seed(3))
        torch_npu.reset_fallback_stats()
        y, gradient = with_gradient(norm, x)
        assert torch_npu.fallback_stats()["fallbacks"] == 0
        if torch_npu.get_npu_format(x) == NC1HWC0:
            assert unasked() == 0
            assert torch_npu.get_npu_format(y) == torch_npu.get_npu_format(gradient) == NC1HWC0
        results.append(
            [y, gradient, norm.running_mean, norm.running_var, *(p.grad for p in norm.parameters())]
        )
    for a, b in zip(*results, strict=True):
        assert torch.equal(a.detach().cpu(), b.detach().cpu())


# Image, outputs, window, and what else a convolution takes.
CONVOLUTIONS = {
    "3x3 padded": ((2, 32, 9, 11), 48, 3, {"padding": 1}),
    "1x1": ((2, 64, 7, 7), 32, 1, {}),
    "1x1 with strides": ((2, 32, 9, 8), 40, 1, {"stride": 2}),
    "few channels": ((2, 3, 20, 20), 16, 7, {"stride": 2, "padding": 3}),
    "few outputs": ((1, 16, 6, 6), 5, 3, {}),
    "odd channels": ((2, 21, 8, 9), 37, 3, {"padding": 1, "stride": 2}),
    "many products": ((1, 160, 6, 5), 33, 3, {"padding": (2, 1)}),
    "many outputs": ((1, 16, 5, 5), 430, 2, {}),
    "dilated": ((2, 16, 13, 12), 16, 3, {"dilation": (2, 3), "padding": 2, "stride": (2, 1)}),
    "with gaps": ((1, 16, 9, 9), 16, 2, {"stride": 3}),
    "one channel": ((3, 1, 9, 8), 37, 3, {"padding": 1, "stride": 2}),
    "one channel, 1x1": ((3, 1, 7, 7), 33, 1, {}),
    "one channel, many taps": ((2, 1, 12, 12), 20, 9, {}),
    "one output": ((2, 21, 6, 5), 1, 3, {}),
}


# The same in groups.
CONVOLUTIONS |= {
    "depthwise": ((2, 37, 9, 11), 37, 3, {"padding": 1, "groups": 37}),
    "depthwise with strides": ((3, 32, 14, 9), 32, 5, {"stride": 2, "padding": 2, "groups": 32}),
    "depthwise, many taps": ((1, 20, 12, 12), 20, 9, {"padding": 4, "groups": 20}),
    "depthwise, 1x1": ((2, 17, 5, 4), 17, 1, {"groups": 17}),
    "groups in a block": ((2, 36, 8, 7), 36, 3, {"padding": 1, "groups": 9}),
    "groups of blocks": ((2, 48, 7, 6), 96, 3, {"padding": 1, "stride": 2, "groups": 3}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolution(case, bias, transposed, dtype):
    """The bits of plain memory, in results and gradients."""
    shape, outputs, window, options = CONVOLUTIONS[case]
    groups = options.get("groups", 1)
    function = F.conv_transpose2d if transposed else F.conv2d
    size = (shape[1], outputs // groups) if transposed else (outputs, shape[1] // groups)
    results = []
    for x in (random(shape, dtype).npu(), formatted(random(shape, dtype))):
        weight = random((*size, window, window), dtype, 1).npu().requires_grad_()
        added = random((outputs,), dtype, 2).npu().requires_grad_() if bias else None
        torch_npu.reset_fallback_stats()
        with torch.no_grad():
            function(x, weight, added, **options)
        assert conversions() == torch_npu.fallback_stats()["fallbacks"] == 0
        y, gradient = with_gradient(lambda x: function(x, weight, added, **options), x)  # noqa: B023
        blocks = torch_npu.get_npu_format(x) == NC1HWC0
        assert unasked() == (1 if bias and blocks else 0)  # a bias's gradient sums plain memory
        assert (
            torch_npu.get_npu_format(y) == torch_npu.get_npu_format(gradient) == torch_npu.get_npu_format(x)
        )
        results.append([y, gradient, weight.grad, *([added.grad] if bias else [])])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a.detach().cpu(), b.detach().cpu())


def test_convolution_does_not_depend_on_threads():
    x, weight = formatted(random((3, 48, 19, 17))), random((70, 48, 3, 3), seed=1).npu()
    several = F.conv2d(x, weight, padding=1)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = F.conv2d(x, weight, padding=1)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(several, one)


class Block(torch.nn.Module):
    """A residual one, of ResNet."""

    def __init__(self, channels):
        super().__init__()
        inner = channels // 4
        sizes = ((channels, inner, 1), (inner, inner, 3), (inner, channels, 1))
        self.convolutions = torch.nn.ModuleList(
            torch.nn.Conv2d(i, o, k, padding=k // 2, bias=False) for i, o, k in sizes
        )
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(o) for _, o, _ in sizes)

    def forward(self, x):
        y = x
        for i, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            y = norm(convolution(y))
            y = F.relu(y + x) if i == 2 else F.relu(y)
        return y


def test_a_network_converts_at_its_edges():
    torch.manual_seed(0)
    depthwise = torch.nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False)
    network = torch.nn.Sequential(
        Block(64), torch.nn.MaxPool2d(3, 2, 1), depthwise, torch.nn.ReLU(), Block(64), Block(64)
    ).npu()
    x = random((2, 64, 12, 12)).npu()
    wanted = copy.deepcopy(network)(x)
    torch_npu.reset_fallback_stats()
    got = network(cast(x, NC1HWC0))
    assert conversions() == conversions("npu::npu_format_cast") == 1
    assert torch_npu.get_npu_format(got) == NC1HWC0
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("groups, outputs", [(24, 48), (3, 36), (4, 24)])
def test_groups_that_blocks_do_not_have_whole(groups, outputs):
    """They are computed as plain memory."""
    x, weight = random((2, 24, 6, 5)), random((outputs, 24 // groups, 3, 3), seed=1)
    y = F.conv2d(formatted(x), weight.npu(), groups=groups)
    assert torch_npu.get_npu_format(y) != NC1HWC0
    assert torch.equal(y, F.conv2d(x.npu(), weight.npu(), groups=groups))


@pytest.fixture
def internal_formats():
    torch.npu.config.allow_internal_format = True
    yield
    torch.npu.config.allow_internal_format = False


def small_model():
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 20, 3, padding=1),
        torch.nn.BatchNorm2d(20),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(20, 7, 1, bias=False),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(7 * 16, 5),
    )


def test_convolutions_keep_blocks_where_they_may(internal_formats):
    torch.manual_seed(3)
    model = small_model()
    ours, x = copy.deepcopy(model).npu(), random((2, 3, 8, 8))
    plain = copy.deepcopy(ours)
    torch_npu.reset_fallback_stats()
    blocks = ours[:6](x.npu())
    assert torch_npu.get_npu_format(blocks) == NC1HWC0
    assert conversions() == 1  # the image's
    torch.npu.config.allow_internal_format = False
    assert torch_npu.get_npu_format(plain[:6](x.npu())) == 0
    for each, allowed in ((ours, True), (plain, False)):
        torch.npu.config.allow_internal_format = allowed
        each.zero_grad()
        each(x.npu()).square().sum().backward()
    assert all(
        torch.equal(a.grad, b.grad) for a, b in zip(ours.parameters(), plain.parameters(), strict=True)
    )


def test_convolutions_that_make_no_blocks(internal_formats):
    x, weight = random((2, 4, 6, 6)).npu(), random((8, 4, 3, 3)).npu()
    assert torch_npu.get_npu_format(F.conv2d(x, weight)) == NC1HWC0
    for y in (
        F.conv2d(x.to(memory_format=torch.channels_last), weight),
        F.conv2d(x, weight[:, :1], groups=4),
        F.conv1d(x[:, :, 0], weight[:, :, 0]),
        F.conv2d(x[:0], weight),
    ):
        assert torch_npu.get_npu_format(y) != NC1HWC0
    assert torch.equal(F.conv2d(x, weight).cpu(), F.conv2d(x.flip(3).flip(3), weight).cpu())
