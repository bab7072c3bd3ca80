"""Models train on npu as on the CPU: losses and weights agree, with AMP and every form of an optimizer."""

import copy

import pytest
import torch
from torch import nn

OPTIMIZERS = {
    "SGD": lambda parameters, **kind: torch.optim.SGD(
        parameters, lr=0.05, momentum=0.9, weight_decay=0.01, **kind
    ),
    "Adam": lambda parameters, **kind: torch.optim.Adam(parameters, lr=0.01, weight_decay=0.1, **kind),
    "AdamW": lambda parameters, **kind: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1, **kind),
}
KINDS = {"default": {}, "foreach": {"foreach": True}, "single": {"foreach": False}, "fused": {"fused": True}}


def convolutional():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, stride=2), nn.GELU(), nn.Flatten(), nn.LazyLinear(10),
    )  # fmt: skip


def recurrent():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.lstm, self.out = (
                nn.Embedding(20, 16),
                nn.LSTM(16, 12, batch_first=True),
                nn.Linear(12, 10),
            )

        def forward(self, tokens):
            return self.out(self.lstm(self.embedding(tokens))[0][:, -1])

    return Tagger()


def attentive():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(20, 32)
            self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
            self.out = nn.Linear(32, 10)

        def forward(self, tokens):
            return self.out(self.layer(self.embedding(tokens)).mean(1))

    return Encoder()


def images():
    return torch.randn(6, 3, 8, 8)


def tokens():
    return torch.randint(0, 20, (6, 7))


MODELS = {
    "convolutional": (convolutional, images),
    "recurrent": (recurrent, tokens),
    "attentive": (attentive, tokens),
}


def train(model, inputs, targets, device, steps=4, optimizer="AdamW", kind=KINDS["default"]):
    """The losses of the steps and the weights after them."""
    model = copy.deepcopy(model).to(device)
    optimizer = OPTIMIZERS[optimizer](model.parameters(), **kind)
    losses = []
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(inputs.to(device)), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: value.cpu() for name, value in model.state_dict().items()}


def prepared(name):
    torch.manual_seed(0)
    make, make_inputs = MODELS[name]
    model, inputs, targets = make(), make_inputs(), torch.randint(0, 10, (6,))
    model(inputs)
    return model, inputs, targets


@pytest.mark.parametrize("name", MODELS)
def test_training_agrees_with_the_cpu(name):
    model, inputs, targets = prepared(name)
    losses, weights = train(model, inputs, targets, "npu", optimizer="SGD")
    expected_losses, expected_weights = train(model, inputs, targets, "cpu", optimizer="SGD")
    assert losses[-1] < losses[0]
    torch.testing.assert_close(losses, expected_losses, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(weights, expected_weights, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_form_of_an_optimizer_agrees(optimizer, kind):
    model, inputs, targets = prepared("convolutional")
    losses, weights = train(model, inputs, targets, "npu", optimizer=optimizer, kind=KINDS[kind])
    expected = train(model, inputs, targets, "cpu", optimizer=optimizer, kind=KINDS["single"])
    # Adam divides by the size of a gradient: a rounding difference of a tiny one becomes a part of a step.
    torch.testing.assert_close((losses, weights), expected, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mixed_precision(dtype):
    torch.manual_seed(0)
    layer, x = nn.Linear(8, 8).npu(), torch.randn(4, 8, device="npu")
    assert not torch.is_autocast_enabled("npu") and torch.get_autocast_dtype("npu") == torch.float16
    with torch.autocast("npu", dtype=dtype):
        assert torch.is_autocast_enabled("npu") and torch.get_autocast_dtype("npu") == dtype
        y = layer(x)
        assert y.dtype == (x @ x.t()).dtype == dtype and layer.weight.dtype == torch.float32
        for exact in (y.softmax(-1), nn.functional.layer_norm(y, (8,)), y.sum()):
            assert exact.dtype == torch.float32
        with torch.autocast("npu", enabled=False):
            assert (x @ x.t()).dtype == torch.float32
        y.float().sum().backward()
    assert layer.weight.grad.dtype == torch.float32 and not torch.is_autocast_enabled("npu")
    torch.testing.assert_close(layer.bias.grad, torch.full((8,), 4.0, device="npu"))
    with torch.npu.amp.autocast():
        assert layer(x).dtype == torch.float16


def test_gradient_scaler_skips_and_grows():
    parameter = nn.Parameter(torch.ones(3, device="npu"))
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    scaler = torch.npu.amp.GradScaler(init_scale=4.0, growth_interval=2)
    for factor in (1.0, float("inf"), 1.0, 1.0):
        optimizer.zero_grad()
        scaler.scale((parameter * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert parameter.tolist() == [-0.5] * 3  # three steps of 0.5, one skipped
    assert scaler.get_scale() == 4.0  # halved by the overflow, doubled after two good steps
    assert torch.amp.GradScaler("npu").scale(torch.ones(1, device="npu")).item() == 65536


def test_mixed_precision_training_reaches_the_same_loss():
    model, inputs, targets = prepared("convolutional")
    expected, _ = train(model, inputs, targets, "cpu")
    model = model.npu()
    optimizer, scaler = OPTIMIZERS["AdamW"](model.parameters()), torch.amp.GradScaler("npu")
    losses = []
    for _ in range(4):
        with torch.autocast("npu"):
            loss = nn.functional.cross_entropy(model(inputs.npu()), targets.npu())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    torch.testing.assert_close(losses, expected, rtol=2e-2, atol=2e-2)


def test_custom_functions_under_autocast():
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.npu.amp.custom_fwd
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a @ b

        @staticmethod
        @torch.npu.amp.custom_bwd
        def backward(ctx, gradient):
            a, b = ctx.saved_tensors
            return gradient @ b.t(), a.t() @ gradient

    a, b = (torch.ones(2, 2, device="npu", requires_grad=True) for _ in range(2))
    with torch.autocast("npu"):
        out = Product.apply(a, b)
    assert out.dtype == torch.float16
    out.sum().backward()
    assert a.grad.tolist() == [[2, 2], [2, 2]]
