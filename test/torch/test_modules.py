"""Modules keep their parameters when they move, and compute what they compute on PyTorch's own devices."""

import pytest
import torch
from torch import nn

MOVES = {
    "npu()": lambda m: m.npu(),
    "to a device": lambda m: m.to("npu:1"),
    "to a device and type": lambda m: m.to("npu", torch.float64),
    "there and back": lambda m: m.npu().cpu(),
    "half, then there": lambda m: m.half().npu().float(),
}


@pytest.mark.parametrize("move", MOVES)
def test_a_module_that_moves_keeps_its_parameters(move):
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    before = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    MOVES[move](model)
    assert model[1].weight is model[0].weight is before
    model.zero_grad()
    weight = before.detach().clone()
    model(torch.ones(2, 3, device=before.device, dtype=before.dtype)).sum().backward()
    optimizer.step()
    assert before.grad.device == before.device
    torch.testing.assert_close(before.detach(), weight - 0.5 * before.grad)


def test_gradients_and_buffers_move_along():
    model = nn.BatchNorm1d(3)
    model(torch.randn(4, 3)).square().sum().backward()
    gradient = model.weight.grad.clone()
    model.npu()
    assert model.running_mean.is_npu and model.weight.grad.is_npu
    assert torch.equal(model.weight.grad.cpu(), gradient)
    model(torch.randn(4, 3, device="npu")).square().sum().backward()


@pytest.mark.parametrize("to", ["npu", "cpu"])
def test_data_can_be_replaced_by_that_of_another_device(to):
    origin = "cpu" if to == "npu" else "npu"
    parameter = nn.Parameter(torch.arange(3.0, device=origin))
    view = parameter.detach()
    (parameter * 2).sum().backward()
    parameter.grad = None
    parameter.data = torch.ones(2, 2, device=to).t()
    assert parameter.device.type == to and parameter.shape == (2, 2) and parameter.is_leaf
    assert view.device.type == origin and view.tolist() == [0, 1, 2]
    (parameter * 2).sum().backward()
    assert parameter.grad.device.type == to and parameter.grad.tolist() == [[2, 2], [2, 2]]


@pytest.mark.parametrize(
    "other, message",
    [
        (torch.ones(2).to_sparse(), "incompatible tensor type"),
        (torch.ones(2, dtype=torch.int64), "must be floating point or complex"),
    ],
)
def test_data_of_another_kind_is_refused(other, message):
    parameter = nn.Parameter(torch.ones(2, device="npu"))
    with pytest.raises(RuntimeError, match=message):
        parameter.data = other.npu()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_integers_are_counted_as_on_accelerators(dtype):
    x = torch.tensor([0, 3, 1, 3, 7, 2, 9]).to(dtype)
    ours = torch.histc(x.npu(), bins=4, min=0, max=4)
    assert ours.dtype == dtype and torch.equal(ours.cpu(), torch.histc(x.double(), 4, 0, 4).to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_loss_in_chunks_accumulates_in_float32(dtype):
    from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions

    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(size, 16, generator=generator).to(dtype) for size in (64, 40))
    target = torch.arange(64) % 40

    def loss(device):
        leaves = [each.to(device).requires_grad_() for each in (x, w)]
        out = nn.functional.linear_cross_entropy(
            leaves[0], leaves[1], target.to(device), options=LinearCrossEntropyOptions()
        )
        return out, *torch.autograd.grad(out, leaves)

    for ours, expected in zip(loss("npu"), loss("cpu"), strict=True):
        assert torch.equal(ours.cpu(), expected)
