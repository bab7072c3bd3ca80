"""Autocast on npu follows PyTorch's own lists, and GradScaler scales, skips and recovers."""

import pytest
import torch
from torch.nn import functional as F

LOWER = {
    "mm": lambda x: x @ x,
    "linear": lambda x: F.linear(x, x, x[0]),
    "conv2d": lambda x: F.conv2d(x.view(1, 1, 8, 8), x.view(1, 1, 8, 8)[..., :3, :3]),
    "baddbmm": lambda x: torch.baddbmm(x[None], x[None], x[None]),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
    "attention": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
}
FULL = {
    "exp": torch.exp,
    "log": lambda x: x.abs().log(),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "sum": lambda x: x.sum(),
    "cumsum": lambda x: x.cumsum(0),
    "mse_loss": lambda x: F.mse_loss(x, x.flip(0)),
    "norm": lambda x: x.norm(),
    "pow": lambda x: x.abs().pow(2.5),
}
UNCHANGED = {"relu": torch.relu, "add": lambda x: x + x, "max_pool": lambda x: F.max_pool1d(x, 2)}


def matrix(dtype=torch.float32):
    return (torch.arange(64.0).view(8, 8) / 64 - 0.3).to(dtype).npu()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", LOWER)
def test_products_are_computed_in_the_lower_type(name, dtype):
    x, function = matrix(), LOWER[name]
    with torch.autocast("npu", dtype=dtype):
        y = function(x)
    assert y.dtype == dtype
    torch.testing.assert_close(y.cpu(), function(x.to(dtype).cpu()))
    assert function(x).dtype == torch.float32


@pytest.mark.parametrize("name", FULL)
def test_what_loses_accuracy_is_computed_in_float32(name):
    x, function = matrix(torch.float16), FULL[name]
    with torch.autocast("npu"):
        y = function(x)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y.cpu(), function(x.float().cpu()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("name", UNCHANGED)
def test_the_rest_keeps_its_type(name, dtype):
    with torch.autocast("npu"):
        assert UNCHANGED[name](matrix(dtype)).dtype == dtype


def test_mixed_types_are_promoted_to_the_widest():
    x, y = matrix(torch.float16)[0], matrix()[0]
    with torch.autocast("npu"):
        assert torch.dot(x, y).dtype == torch.float32
        assert torch.addcmul(x, y, x).dtype == torch.float32


def test_the_default_type_is_half_and_can_be_set():
    assert torch.get_autocast_dtype("npu") == torch.float16
    x = matrix()
    with torch.autocast("npu"):
        assert (x @ x).dtype == torch.float16
        with torch.autocast("npu", enabled=False):
            assert (x @ x).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.float32, "autocast of the CPU has no part in npu tensors"
    with torch.npu.amp.autocast():
        assert torch.is_autocast_enabled("npu") and not torch.is_autocast_enabled("cpu")


def test_the_unsafe_loss_is_refused():
    x = matrix().sigmoid()
    with (
        torch.autocast("npu"),
        pytest.raises(RuntimeError, match=r"BCELoss are unsafe to autocast"),
    ):
        F.binary_cross_entropy(x, x)
    torch.testing.assert_close(F.binary_cross_entropy(x, x).cpu(), F.binary_cross_entropy(x.cpu(), x.cpu()))


def test_weights_are_cast_once_and_get_gradients_in_their_own_type():
    model = torch.nn.Linear(8, 8).npu()
    x = matrix()
    with torch.autocast("npu"):
        y = model(model(x))
    y.float().sum().backward()
    assert model.weight.grad.dtype == torch.float32
    reference = torch.nn.Linear(8, 8)
    reference.load_state_dict(model.state_dict())
    reference(reference(x.cpu())).sum().backward()
    torch.testing.assert_close(model.weight.grad.cpu(), reference.weight.grad, rtol=2e-2, atol=2e-2)


def test_the_scaler_skips_steps_that_overflow_and_lowers_its_scale():
    weight = torch.nn.Parameter(torch.ones(4, device="npu"))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scaler = torch.amp.GradScaler("npu", init_scale=1024.0, growth_interval=2)
    overflow = float("inf")
    for factor, scale in ((2.0, 1024), (overflow, 512), (1.0, 512), (1.0, 1024)):
        steps = factor != overflow
        before = weight.detach().clone()
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.unscale_(optimizer)
        if steps:
            assert torch.equal(weight.grad, torch.full_like(weight, factor))
        scaler.step(optimizer)
        scaler.update()
        expected = before - 0.5 * factor if steps else before
        assert torch.equal(weight, expected)
        assert scaler.get_scale() == scale


def test_custom_functions_take_their_type_from_autocast():
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="npu", cast_inputs=torch.float16)
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x @ x

        @staticmethod
        @torch.amp.custom_bwd(device_type="npu")
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad @ x.t() + x.t() @ grad

    x = matrix().requires_grad_()
    with torch.autocast("npu"):
        y = Product.apply(x)
    assert y.dtype == torch.float16
    y.float().sum().backward()
    assert x.grad.dtype == torch.float32
