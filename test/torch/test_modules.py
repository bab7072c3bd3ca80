"""Modules and tensors that move between the CPU and npu in place keep their identity."""

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
