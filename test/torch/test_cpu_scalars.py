"""A zero-dimensional CPU tensor stands beside npu tensors wherever it does beside other accelerators'."""

import pytest
import torch

BINARY = ["add", "sub", "mul", "div", "floor_divide", "remainder", "pow", "rsub", "maximum", "atan2"]
IN_PLACE = ["lt_", "le_", "gt_", "ge_", "eq_", "ne_", "floor_divide_", "add_", "fmod_", "heaviside_"]


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_a_binary_operator_takes_a_cpu_scalar(name, dtype):
    x, scalar = torch.arange(1, 7).view(2, 3).to(dtype), torch.tensor(3).to(dtype)
    function = getattr(torch, name)
    assert torch.equal(function(x.npu(), scalar).cpu(), function(x, scalar))


@pytest.mark.parametrize("name", IN_PLACE)
def test_an_operator_in_place_takes_a_cpu_scalar(name):
    x, scalar = torch.arange(-3.0, 3.0), torch.tensor(2.0)
    ours = x.npu()
    getattr(ours, name)(scalar)
    assert torch.equal(ours.cpu(), getattr(x.clone(), name)(scalar))


@pytest.mark.parametrize("name", ["matmul", "lt", "floor_divide"])
def test_a_cpu_tensor_with_dimensions_is_refused(name):
    with pytest.raises(RuntimeError, match="at least two devices, npu:0 and cpu!"):
        getattr(torch, name)(torch.ones(2, 2).npu(), torch.ones(2, 2))


@pytest.mark.parametrize("name", ["_foreach_addcmul", "_foreach_addcdiv"])
def test_lists_take_their_numbers_as_a_cpu_tensor(name):
    lists = [[torch.randn(3), torch.randn(2, 2).double(), torch.randn(0)] for _ in range(3)]
    numbers = torch.tensor([2.0, -3.0, 0.5])
    expected = getattr(torch, name)(*lists, numbers)
    for given in (numbers, numbers.npu()):
        results = getattr(torch, name)(*[[x.npu() for x in some] for some in lists], given)
        assert all(torch.equal(ours.cpu(), theirs) for ours, theirs in zip(results, expected, strict=True))
    mixed = [[x.npu() for x in lists[0]], lists[1], [x.npu() for x in lists[2]]]
    with pytest.raises(RuntimeError, match="at least two devices, npu:0 and cpu!"):
        getattr(torch, name)(*mixed, numbers)
