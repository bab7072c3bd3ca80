"""Views of npu tensors share memory and have the geometry of the same view on the CPU."""

import pytest
import torch
from torch.nn import functional as F

import torch_npu

VIEWS = {
    "view": lambda x: x.view(6, 4),
    "view as another type": lambda x: x.view(torch.int32),
    "reshape": lambda x: x.reshape(2, 12),
    "transpose": lambda x: x.transpose(0, 2),
    "permute": lambda x: x.permute(2, 0, 1),
    "select": lambda x: x[1],
    "slice": lambda x: x[:, 1:, ::2],
    "narrow": lambda x: x.narrow(2, 1, 2),
    "expand": lambda x: x[:, :1].expand(2, 5, 4),
    "squeeze": lambda x: x[:, :1].squeeze(1),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "diagonal": lambda x: x.diagonal(dim1=1, dim2=2),
    "unfold": lambda x: x.unfold(2, 2, 1),
    "as_strided": lambda x: x.as_strided((3, 2), (1, 8), 2),
    "flatten": lambda x: x.flatten(1),
    "movedim": lambda x: x.movedim(0, 1),
    "unbind": lambda x: x.unbind(1)[2],
    "split": lambda x: x.split(2, 1)[1],
    "chunk": lambda x: x.chunk(2, 2)[1],
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "view_as": lambda x: x.view_as(torch.empty(4, 6)),
    "detach": lambda x: x.detach(),
    "alias": lambda x: torch.ops.aten.alias(x),
}
COMPLEX_VIEWS = {
    "real": lambda x: x.real,
    "imag": lambda x: x.imag,
    "view_as_real": torch.view_as_real,
    "conj": lambda x: x.conj().imag,
    "transposed real": lambda x: x.t().real,
}


def check(view, base):
    ours, expected = view(base.npu_copy), view(base.cpu_copy)
    assert ours.untyped_storage().data_ptr() == base.npu_copy.untyped_storage().data_ptr()
    assert (ours.shape, ours.stride(), ours.storage_offset()) == (
        expected.shape,
        expected.stride(),
        expected.storage_offset(),
    )
    assert torch.equal(ours.cpu(), expected)
    if expected.stride().count(0) == 0:
        ours.add_(1)
        expected.add_(1)
        assert torch.equal(base.npu_copy.cpu(), base.cpu_copy)


class Pair:
    def __init__(self, x):
        self.cpu_copy, self.npu_copy = x, x.npu()


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_shares_and_has_the_cpu_s_geometry(name):
    torch_npu.reset_fallback_stats()
    base = Pair(torch.arange(24.0).view(2, 3, 4))
    view = VIEWS[name]
    view(base.npu_copy)
    assert torch_npu.fallback_stats()["fallbacks"] == 0
    if name == "unfold":  # its windows overlap, so that nothing may write to them
        ours, expected = view(base.npu_copy), view(base.cpu_copy)
        assert torch.equal(ours.cpu(), expected) and ours.stride() == expected.stride()
        ours.select(-1, 0).zero_()
        expected.select(-1, 0).zero_()
        assert torch.equal(base.npu_copy.cpu(), base.cpu_copy)
    else:
        check(view, base)


@pytest.mark.parametrize("name", COMPLEX_VIEWS)
def test_a_view_of_a_complex_tensor_shares(name):
    x = torch.arange(12.0).view(3, 4)
    base = Pair(torch.complex(x, -2 * x))
    ours, expected = COMPLEX_VIEWS[name](base.npu_copy), COMPLEX_VIEWS[name](base.cpu_copy)
    assert torch.equal(ours.cpu(), expected) and ours.is_neg() == expected.is_neg()
    ours.mul_(3)
    expected.mul_(3)
    assert torch.equal(base.npu_copy.cpu(), base.cpu_copy)


def test_view_as_complex_shares():
    x = torch.arange(12.0).view(3, 2, 2).npu()
    torch.view_as_complex(x).mul_(1j)
    expected = torch.view_as_complex(torch.arange(12.0).view(3, 2, 2)) * 1j
    assert torch.equal(x.cpu(), torch.view_as_real(expected))


def test_a_view_that_does_not_fit_raises_as_on_the_cpu():
    x = torch.arange(6.0).view(2, 3)
    for wrong in (
        lambda x: x.view(4),
        lambda x: x.t().view(6),
        lambda x: x.as_strided((3, 3), (3, 1)),
        lambda x: x.unfold(1, 4, 1),
        lambda x: torch.view_as_complex(x),
    ):
        with pytest.raises(RuntimeError) as expected:
            wrong(x)
        with pytest.raises(RuntimeError) as ours:
            wrong(x.npu())
        assert str(ours.value) == str(expected.value)


def test_views_in_place_change_the_tensor_itself():
    x = torch.arange(6.0).view(2, 3).npu()
    place = x.data_ptr()
    assert x.t_() is x and x.shape == (3, 2) and x.stride() == (1, 3)
    x.unsqueeze_(0).squeeze_(0).transpose_(0, 1)
    assert x.data_ptr() == place and torch.equal(x.cpu(), torch.arange(6.0).view(2, 3))


def test_gradients_flow_through_views_and_writes_to_them():
    def loss(device):
        x = torch.arange(12.0, device=device).view(3, 4).requires_grad_()
        y = x * 2
        y[1:, ::2].mul_(3)
        y.t()[0] = 7
        z = torch.view_as_complex(y.view(3, 2, 2)).imag.exp()
        (z.unfold(0, 2, 1).sum() + y.diagonal().sin().sum()).backward()
        return x.grad.cpu()

    torch.testing.assert_close(loss("npu"), loss("cpu"))


def test_a_stale_view_is_noticed():
    x = torch.ones(3, device="npu", requires_grad=True)
    y = x.exp()
    y[:1].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# Storages


def test_set_takes_over_a_storage():
    x, y = torch.arange(6.0, device="npu"), torch.empty(0, device="npu")
    y.set_(x)
    assert y.data_ptr() == x.data_ptr() and y.shape == (6,)
    y.set_(x.untyped_storage(), 1, (2, 2), (3, 1))
    y.zero_()
    assert x.tolist() == [0, 0, 0, 3, 0, 0]
    z = torch.empty(0, device="npu").set_(x.untyped_storage())
    assert z.data_ptr() == x.data_ptr() and z.shape == (6,)
    y.set_()
    assert y.shape == (0,) and y.untyped_storage().nbytes() == 0 and x.shape == (6,)


def test_set_refuses_what_does_not_belong():
    x = torch.arange(6.0, device="npu")
    with pytest.raises(RuntimeError, match="device"):
        torch.empty(0, device="npu").set_(torch.ones(3).untyped_storage(), 0, (3,), (1,))
    with pytest.raises(RuntimeError, match="invalid storage offset"):
        torch.empty(0, device="npu").set_(x.untyped_storage(), -1, (3,), (1,))


def test_resize_keeps_what_fits_and_grows_the_storage():
    x = torch.arange(6.0, device="npu")
    view = x[2:4]
    x.resize_(2, 2)
    assert x.tolist() == [[0, 1], [2, 3]] and x.untyped_storage().nbytes() == 24
    x.resize_(10)
    assert x[:6].tolist() == [0, 1, 2, 3, 4, 5] and x.untyped_storage().nbytes() == 40
    x[2] = 9
    assert view.tolist() == [9, 3]
    x.resize_(1, 2, 2, 2, memory_format=torch.channels_last)
    assert x.stride() == (8, 1, 4, 2)
    with pytest.raises(RuntimeError, match="negative dimension"):
        x.resize_(-1)


def test_resize_behind_queued_work_keeps_its_result():
    x = torch.zeros(1 << 20, device="npu")
    x.fill_(3)
    x.resize_(1 << 21)
    assert x[: 1 << 20].sum().item() == 3 << 20


def test_uninitialised_memory_is_filled_where_determinism_asks_for_it():
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(5, device="npu").isnan().all()
        assert (torch.empty(5, dtype=torch.int32, device="npu") == torch.iinfo(torch.int32).max).all()
        grown = torch.zeros(2, device="npu").resize_(4)
        assert grown[:2].tolist() == [0, 0] and grown[2:].isnan().all()
    finally:
        torch.use_deterministic_algorithms(False)


# Factories


@pytest.mark.parametrize(
    "make",
    [
        lambda d: torch.zeros(2, 3, device=d),
        lambda d: torch.ones(2, dtype=torch.int8, device=d),
        lambda d: torch.full((2, 2), 3.5, dtype=torch.bfloat16, device=d),
        lambda d: torch.arange(3, 9, 2, device=d),
        lambda d: torch.linspace(0, 1, 5, device=d),
        lambda d: torch.eye(3, 4, device=d),
        lambda d: torch.tril_indices(3, 4, device=d),
        lambda d: torch.tensor([[1, 2], [3, 4]], device=d),
        lambda d: torch.hann_window(8, device=d),
        lambda d: torch.scalar_tensor(4, device=d),
        lambda d: torch.zeros(1, 2, 3, 4, device=d).to(memory_format=torch.channels_last),
        lambda d: torch.ones(2, 3, device=d).new_full((2,), 5),
        lambda d: torch.zeros_like(torch.ones(2, 3, device=d).t()),
        lambda d: torch.empty_strided((2, 3), (1, 2), device=d).zero_(),
        lambda d: torch._efficientzerotensor(3, device=d) + 1,
        lambda d: F.one_hot(torch.tensor([0, 2], device=d), 3),
    ],
)
def test_factories_agree_with_the_cpu(make):
    ours, expected = make("npu"), make("cpu")
    assert ours.device.type == "npu"
    assert (ours.dtype, ours.shape, ours.stride()) == (expected.dtype, expected.shape, expected.stride())
    torch.testing.assert_close(ours.cpu(), expected)  # windows are computed by functions of our own


def test_factories_refuse_what_no_device_tensor_can_be():
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.empty(3, device="npu", pin_memory=True)
    with pytest.raises(RuntimeError, match="negative dimension"):
        torch.empty(-1, device="npu")
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 60, dtype=torch.uint8, device="npu")
