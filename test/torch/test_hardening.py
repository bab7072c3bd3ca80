"""What fails leaves its tensors usable, and what mixes devices on purpose works."""

import pytest
import torch


def too_large():
    """More elements than device memory has bytes."""
    return torch.npu.mem_get_info()[1] + 1


FAILING_RESIZES = {
    "resize_ beyond memory": lambda x, other: x.resize_(too_large()),
    "resize_ beyond what can be counted": lambda x, other: x.resize_(2**62),
    "resize_ to a negative size": lambda x, other: x.resize_(-1),
    "set_ beyond memory": lambda x, other: x.set_(other, 0, (too_large(),), (1,)),
    "set_ with a negative stride": lambda x, other: x.set_(other, 0, (2,), (-1,)),
    "set_ with a negative offset": lambda x, other: x.set_(other, -1, (2,), (1,)),
    "set_ with a negative size": lambda x, other: x.set_(other, 0, (-2,), (1,)),
}


@pytest.mark.parametrize("resize", FAILING_RESIZES.values(), ids=FAILING_RESIZES)
def test_a_tensor_that_cannot_be_resized_stays_as_it_is(resize):
    base = torch.arange(6.0).npu()
    x, other = base[2:5], torch.ones(1).npu().untyped_storage()
    with pytest.raises(RuntimeError):
        resize(x, other)
    assert (x.shape, x.stride(), x.storage_offset()) == ((3,), (1,), 2)
    assert x.data_ptr() == base.data_ptr() + 8 and other.nbytes() == 4
    assert x.tolist() == [2, 3, 4]


@pytest.mark.parametrize("to", ["cpu", "npu"])
@pytest.mark.parametrize("source", ["cpu", "npu"])
def test_a_list_of_tensors_is_copied_between_devices(source, to):
    values = [torch.arange(3.0), torch.ones(2, 2, dtype=torch.int64)]
    targets = [torch.zeros(3, dtype=torch.float64, device=to), torch.zeros(2, 2, device=to).t()]
    torch._foreach_copy_(targets, [each.to(source) for each in values])
    for target, value in zip(targets, values, strict=True):
        assert torch.equal(target.cpu(), value.to(target.dtype))


def test_conjugates_in_place():
    x = torch.randn(3, dtype=torch.complex64)
    leaf = x.npu().requires_grad_()
    y = (leaf * 1).conj_physical_()
    y.imag.sum().backward()
    assert torch.equal(y.detach().cpu(), x.conj())
    assert torch.equal(leaf.grad.cpu(), torch.full((3,), -1j))
