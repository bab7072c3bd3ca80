"""Autograd's machinery on npu: hooks, checkpoints, custom functions, streams, saved tensors, anomalies."""

import copy
import threading

import pytest
import torch
from conformance.compare import disagreement
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


def layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.GELU(), nn.Linear(8, 3))


X = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))


def gradients(model, forward):
    model.zero_grad()
    torch.manual_seed(3)
    forward().sin().sum().backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("device", ["npu:0", "npu:1"])
@pytest.mark.parametrize("preserve", [True, False])
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_give_the_gradients_that_the_model_gives(reentrant, preserve, device):
    model = layers().to(device)
    if not preserve:
        model[1].p = 0.0
    x = X.to(device).requires_grad_()
    options = {"use_reentrant": reentrant, "preserve_rng_state": preserve}
    expected = gradients(model, lambda: model(x))
    assert all(map(torch.equal, gradients(model, lambda: checkpoint(model, x, **options)), expected))
    parts = gradients(model, lambda: checkpoint_sequential(model, 2, x, **options))
    if not preserve:
        assert all(map(torch.equal, parts, expected))
    on_cpu = copy.deepcopy(model).cpu()
    on_cpu_gradients = gradients(on_cpu, lambda: checkpoint(on_cpu, X.clone().requires_grad_(), **options))
    if not preserve:
        for ours, theirs in zip(expected, on_cpu_gradients, strict=True):
            torch.testing.assert_close(ours.cpu(), theirs)


def test_selective_checkpoints_compute_again_what_they_are_told_to():
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def policy(context, op, *args, **kwargs):
        return (
            CheckpointPolicy.MUST_SAVE
            if op == torch.ops.aten.addmm.default
            else CheckpointPolicy.PREFER_RECOMPUTE
        )

    model, x = layers().npu(), X.npu().requires_grad_()
    expected = gradients(model, lambda: model(x))
    again = gradients(
        model,
        lambda: checkpoint(
            model, x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(policy)
        ),
    )
    assert all(map(torch.equal, again, expected))


def test_tensor_hooks_see_and_change_gradients():
    def hooked(x):
        seen = []
        y = x * 3
        y.register_hook(lambda g: g * 2)
        y.retain_grad()
        x.register_hook(lambda g: seen.append(g.clone()))
        handle = x.register_hook(lambda g: g * 100)
        handle.remove()
        x.grad_fn.register_hook(lambda ins, outs: seen.append(outs[0]))
        (grad,) = torch.autograd.grad(y.sin().sum(), x)
        return grad, *seen

    assert not disagreement(lambda x: hooked(x * 1), X.clone().requires_grad_())


def test_hooks_after_accumulation_replace_the_optimizer():
    def stepped(w, x):
        w = nn.Parameter(w.clone())

        def step(parameter):
            with torch.no_grad():
                parameter.sub_(parameter.grad, alpha=0.1)
            parameter.grad = None

        w.register_post_accumulate_grad_hook(step)
        for _ in range(3):
            (x @ w).square().sum().backward()
        assert w.grad is None
        return w.detach()

    assert not disagreement(stepped, torch.ones(6, 2), X)


def test_module_hooks_are_called_in_order_with_tensors_of_the_device():
    def hooked(x):
        model, seen = layers().to(x.device).eval(), []
        model.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
        model[0].register_forward_hook(lambda m, args, out: out + 1)
        model[3].register_full_backward_pre_hook(lambda m, g: (g[0] * 3,))
        model[3].register_full_backward_hook(lambda m, ins, outs: seen.extend((*ins, *outs)))
        model(x).sum().backward()
        return [p.grad for p in model.parameters()], seen

    assert not disagreement(hooked, X)


def test_saved_tensors_can_be_kept_on_the_host():
    model, x = layers().npu(), X.npu().requires_grad_()
    expected = gradients(model, lambda: model(x))
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        assert all(map(torch.equal, gradients(model, lambda: model(x)), expected))


def test_backward_runs_on_the_stream_of_its_forward():
    x, seen = torch.ones(1 << 16, device="npu", requires_grad=True), []

    class Noted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            seen.append((torch.npu.current_stream(), threading.get_ident()))
            return gradient * 2

    side = torch.npu.Stream()
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        y = Noted.apply(x)
    torch.npu.current_stream().wait_stream(side)
    y.sum().backward()
    assert seen[0][0] == side and torch.equal(x.grad.cpu(), torch.full((1 << 16,), 2.0))


def test_gradients_of_two_streams_accumulate_in_order():
    x = torch.ones(1 << 18, device="npu", requires_grad=True)
    main, streams = torch.npu.current_stream(), [torch.npu.Stream() for _ in range(3)]
    parts = []
    for factor, stream in enumerate(streams, 1):
        stream.wait_stream(main)
        with torch.npu.stream(stream):
            parts.append((x * factor).cumsum(0).flip(0).sum())
    for stream in streams:
        main.wait_stream(stream)
    sum(parts).backward()
    expected = torch.arange(1 << 18, 0, -1).float() * 6
    torch.testing.assert_close(x.grad.cpu(), expected)


def test_many_threads_differentiate_at_once():
    model, results = layers().npu().eval(), [None] * 6
    (expected,) = torch.autograd.grad(model(x := X.npu().requires_grad_()).sum(), x)

    def work(index):
        for _ in range(20):
            leaf = X.npu().requires_grad_()
            (results[index],) = torch.autograd.grad(model(leaf).sum(), leaf)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(results))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert all(torch.equal(result, expected) for result in results)


def test_anomalies_name_the_forward_line():
    with torch.autograd.detect_anomaly(), pytest.warns(UserWarning, match="Error detected in SqrtBackward0"):
        x = torch.tensor([-1.0], device="npu", requires_grad=True)
        with pytest.raises(RuntimeError, match="'SqrtBackward0' returned nan values"):
            x.sqrt().sum().backward()


def test_a_changed_saved_tensor_is_noticed():
    x = X.npu().requires_grad_()
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_errors_in_backward_reach_the_caller():
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise ValueError("no gradient today")

    x = X.npu().requires_grad_()
    with pytest.raises(ValueError, match="no gradient today"):
        Failing.apply(x).sum().backward()
    (x * 2).sum().backward()
    assert torch.equal(x.grad.cpu(), torch.full_like(X, 2))


def test_gradients_of_gradients_and_accumulation():
    def twice(x):
        (g,) = torch.autograd.grad(x.exp().sin().sum(), x, create_graph=True)
        (h,) = torch.autograd.grad(g.square().sum(), x)
        return g.detach(), h

    assert not disagreement(twice, X.clone().requires_grad_())
    x = X.npu().requires_grad_()
    for _ in range(3):
        (x * 2).sum().backward()
    assert torch.equal(x.grad.cpu(), torch.full_like(X, 6))


def test_device_of_gradients_follows_their_tensors():
    a, b = torch.ones(2, device="npu:0", requires_grad=True), torch.ones(2, requires_grad=True)
    (a.to("npu:1") * b.to("npu:1") * 3).cpu().sum().backward()
    assert str(a.grad.device) == "npu:0" and str(b.grad.device) == "cpu"
    assert a.grad.tolist() == b.grad.tolist() == [3, 3]


def test_parametrizations_and_weight_norm():
    def normed(x):
        layer = nn.Linear(6, 4)
        nn.init.ones_(layer.weight)
        nn.init.zeros_(layer.bias)
        layer = nn.utils.parametrizations.weight_norm(layer.to(x.device))
        layer(x).sum().backward()
        return [p.grad for p in layer.parameters()]

    assert not disagreement(normed, X)
