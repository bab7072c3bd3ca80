"""Operators on tensors that are transposed, stepped, expanded or in another memory format."""

import pytest
import torch
from conformance.compare import disagreement
from torch.nn import functional as F


def matrix():
    return torch.randn(32, 48, generator=torch.Generator().manual_seed(0))


def images():
    return torch.randn(2, 3, 9, 7, generator=torch.Generator().manual_seed(0))


FUNCTIONS = {
    "softmax": lambda t: t.t().softmax(-1),
    "log_softmax": lambda t: t.t().log_softmax(0),
    "topk": lambda t: t.t().topk(5)[0],
    "cumsum": lambda t: t[::2, 1::3].cumsum(0),
    "argmax": lambda t: t.t()[5:9].argmax(1),
    "matmul": lambda t: t.view(2, 16, 48).transpose(0, 1) @ t[:, :4].t()[:, :1].expand(4, 48).t(),
    "layer_norm": lambda t: F.layer_norm(t.t(), (32,)),
    "sort": lambda t: t.t().flip(0)[::3].sort(0),
    "sum of an expanded tensor": lambda t: t[:, :1].expand(32, 5).sum(0),
    "cat": lambda t: torch.cat([t.t()[::2], t[:12, :16].repeat(2, 2)]),
    "where": lambda t: torch.where(t.t() > 0, t.t()[:1], t[0].view(-1, 1)),
    "addmm": lambda t: torch.addmm(t[0, :32], t.t()[:, ::2], t[::2, ::3].repeat(1, 2)),
    "einsum": lambda t: torch.einsum("ij,kj->ki", t[:, ::4], t[::8, 1::4]),
    "index_select": lambda t: t.t().index_select(1, torch.tensor([3, 0, 3], device=t.device)),
    "a diagonal in place": lambda t: t.clone().t().diagonal().fill_(2),
    "bitwise": lambda t: (t.t()[::5] > 0) ^ (t.t()[:10] > 0),
}
DIFFERENTIABLE = [name for name in FUNCTIONS if name not in ("argmax", "a diagonal in place", "bitwise")]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_strides_are_the_cpu_s(name):
    assert not disagreement(FUNCTIONS[name], matrix())


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_reach_the_base_in_its_own_layout(name):
    for x in (matrix(), matrix().t().contiguous().t()):
        assert not disagreement(FUNCTIONS[name], x.requires_grad_(), differentiates=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int8])
@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.t(),
        lambda t: t[::2, 1::3],
        lambda t: t[3].view(-1, 1).expand(-1, 4),
        lambda t: t.unfold(1, 5, 2),
        lambda t: t.as_strided((4, 6), (0, 7), 3),
        lambda t: t[:0].t(),
    ],
    ids=["transposed", "stepped", "expanded", "overlapping", "as_strided", "empty"],
)
def test_a_view_arrives_on_the_host_as_it_is_seen(view, dtype):
    x = (matrix() * 10).to(dtype)
    assert torch.equal(view(x.npu()).cpu(), view(x))


OF_ONE_OR_NONE = {
    "channels last, one channel": lambda: torch.ones(2, 1, 4, 4).to(memory_format=torch.channels_last),
    "channels last, one position": lambda: torch.ones(2, 8, 1, 1).to(memory_format=torch.channels_last),
    "channels last, one image": lambda: torch.ones(1, 8, 3, 3).to(memory_format=torch.channels_last),
    "a stride that does not count": lambda: torch.empty_strided((2, 1, 3), (3, 100, 1)).fill_(1),
    "one element": lambda: torch.ones(1, 1),
    "a column": lambda: torch.ones(4, 6)[:, :1],
    "no columns": lambda: torch.ones(17, 6)[:, :0],
    "no rows": lambda: torch.ones(6, 17)[:0],
    "no rows, transposed": lambda: torch.ones(17, 6)[:0].t(),
    "no channels": lambda: torch.ones(2, 0, 3, 3),
}
BESIDE = {
    "a number": lambda t: t * 2,
    "a scalar on the host": lambda t: t + torch.tensor(2.0),
    "a scalar": lambda t: torch.full((), 2.0, device=t.device) - t,
    "itself": lambda t: t * t,
    "nothing": lambda t: t.exp(),
    "a comparison": lambda t: t > 0.5,
}


@pytest.mark.parametrize("other", BESIDE)
@pytest.mark.parametrize("kind", OF_ONE_OR_NONE)
def test_dimensions_of_one_or_no_element_lie_as_on_the_cpu(kind, other):
    x = OF_ONE_OR_NONE[kind]()
    ours = torch.empty_strided(x.size(), x.stride(), device="npu").copy_(x)
    cpu, npu = BESIDE[other](x), BESIDE[other](ours)
    assert npu.stride() == cpu.stride() and torch.equal(npu.cpu(), cpu)


def scattered(x, index):
    return torch.zeros(3, 3, device=x.device).scatter_add_(0, index.view(-1, 1).expand(4, 3), x)


def test_an_index_of_stride_zero_scatters_every_column():
    assert not disagreement(scattered, torch.ones(4, 3), torch.tensor([0, 2, 2, 1]))


def test_a_copy_into_a_stepped_view_writes_only_there():
    def written(target, source):
        target.t()[::2, 1:3].copy_(source)
        return target

    assert not disagreement(written, torch.zeros(4, 6), torch.arange(6.0).view(3, 2))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    "layer",
    [
        lambda x, w: F.conv2d(x, w),
        lambda x, w: F.conv2d(x, w, stride=2, padding=1, dilation=2),
        lambda x, w: F.conv_transpose2d(x, w.transpose(0, 1)),
        lambda x, w: F.max_pool2d(x, 2),
        lambda x, w: F.avg_pool2d(x, 3, 1),
        lambda x, w: F.batch_norm(x, None, None, w[:3, 0, 0, 0], w[:3, 1, 0, 0], training=True),
        lambda x, w: F.interpolate(x, scale_factor=2, mode="bilinear"),
        lambda x, w: x.to(memory_format=torch.channels_last).contiguous(),
    ],
    ids=[
        "conv",
        "conv with geometry",
        "transposed conv",
        "max_pool",
        "avg_pool",
        "norm",
        "upsample",
        "copies",
    ],
)
def test_images_in_both_formats_through_layers(layer, layout):
    x = images().contiguous(memory_format=layout).requires_grad_()
    w = torch.randn(5, 3, 6, 6, generator=torch.Generator().manual_seed(1))[:, :, ::2, ::2].requires_grad_()
    assert not disagreement(layer, x, w, differentiates=True)
