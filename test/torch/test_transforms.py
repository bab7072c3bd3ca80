"""torch.func on npu: vmap, gradients of both modes, and their combinations."""

import pytest
import torch
from conformance.compare import disagreement
from torch.func import (
    functional_call,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)
from torch.nn import functional as F


def f(x, w):
    return (x @ w).tanh().sin()


attend = F.scaled_dot_product_attention


def heads(x):
    """Two heads of two channels, in a batch of one."""
    return x.view(1, -1, 2, 2).transpose(1, 2)


TRANSFORMS = {
    "vmap": lambda x, w: vmap(f, (0, None))(x, w),
    "vmap over another axis": lambda x, w: vmap(lambda column, w: column * w.sum(), (1, 0), 1)(x, w),
    "vmap in chunks": lambda x, w: vmap(f, (0, None), chunk_size=2)(x, w),
    "vmap over a data-dependent shape's cousin": lambda x, w: vmap(torch.argsort)(x),
    "vmap of vmap": lambda x, w: vmap(vmap(torch.dot, (None, 1)), (0, None))(x, w),
    "vmap of indexing": lambda x, w: vmap(lambda row, i: row.gather(0, i))(x, x.argsort(1)),
    "vmap of linear algebra": lambda x, w: vmap(
        lambda m: torch.linalg.inv(m @ m.t() + 4 * torch.eye(4, device=x.device))
    )(torch.stack([x, x * 2])[:, :, :].transpose(1, 2)),
    "vmap of convolution": lambda x, w: vmap(F.conv1d, (0, None))(x.view(5, 1, 1, 4), w.view(-1, 1, 2)[:3]),
    "vmap in place": lambda x, w: vmap(lambda row: row.clone().mul_(2).add_(row))(x),
    "grad": lambda x, w: grad(lambda w: f(x, w).sum())(w),
    "grad of grad": lambda x, w: grad(lambda t: grad(lambda s: f(x * s, w).sum())(t))(
        torch.tensor(0.3, device=x.device)
    ),
    "gradients by sample": lambda x, w: vmap(grad(lambda w, row: f(row, w).sum()), (None, 0))(w, x),
    "vjp": lambda x, w: (lambda out, pull: pull(torch.ones_like(out)))(*vjp(f, x, w)),
    "jvp": lambda x, w: jvp(f, (x, w), (torch.ones_like(x), w)),
    "jacrev": lambda x, w: jacrev(f, argnums=1)(x, w),
    "jacfwd": lambda x, w: jacfwd(f, argnums=(0, 1))(x, w),
    "hessian": lambda x, w: hessian(lambda x: f(x, w).sum())(x),
    "linearize": lambda x, w: (lambda out, push: push(w))(*linearize(lambda w: f(x, w), w)),
    "functionalize": lambda x, w: torch.func.functionalize(lambda x: x.clone().add_(1).view(-1)[::2].mul_(2))(
        x
    ),
    "vmap of attention": lambda x, w: vmap(attend, (0, None, 1))(
        heads(x), heads(w.t()), heads(w.t())[:, None]
    ),
    "vmap of masked attention": lambda x, w: vmap(
        lambda q, mask: F.scaled_dot_product_attention(q, q, q, mask), (None, 0)
    )(heads(x), torch.stack([x @ x.t() < 1, x @ x.t() > -9])),
    "gradients of attention by sample": lambda x, w: vmap(
        grad(lambda q, k: attend(q, k, k).square().sum(), argnums=(0, 1)), (0, None)
    )(torch.stack([heads(x), heads(x * 2)]), heads(w.t())),
    "gradient of attention": lambda x, w: grad(lambda w: attend(heads(x), heads(w.t()), heads(w.t())).sum())(
        w
    ),
    "jvp of a layer": lambda x, w: jvp(lambda x: F.layer_norm(x, (4,)).softmax(1), (x,), (x * x,)),
    "forward mode of zeros": lambda x, w: jvp(lambda x: x * torch.zeros_like(x) + w.sum(), (x,), (x,)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_agrees_with_the_cpu(name):
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(5, 4, generator=generator), torch.randn(4, 3, generator=generator)
    assert not disagreement(TRANSFORMS[name], x, w)


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_random_numbers_under_vmap(randomness):
    def draw(x):
        noise = vmap(lambda row: row + torch.rand_like(row), randomness=randomness)(x)
        return noise, noise[0].eq(noise[1]).all()

    torch.manual_seed(0)
    _, same = draw(torch.zeros(3, 50, device="npu"))
    assert same.item() == (randomness == "same")
    with pytest.raises(RuntimeError, match="random"):
        vmap(torch.rand_like)(torch.zeros(3, device="npu"))


def test_an_ensemble_of_models_is_one_call():
    torch.manual_seed(0)
    models = [
        torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)) for _ in range(3)
    ]
    x = torch.randn(6, 4)
    expected = torch.stack([model(x) for model in models])
    parameters, buffers = stack_module_state([model.npu() for model in models])
    ours = vmap(lambda p, b, x: functional_call(models[0], (p, b), (x,)), (0, 0, None))(
        parameters, buffers, x.npu()
    )
    torch.testing.assert_close(ours.cpu(), expected)


def test_dual_numbers():
    import torch.autograd.forward_ad as fwAD

    def dual(x, t):
        with fwAD.dual_level():
            out = fwAD.make_dual(x, t).exp() * x
            return fwAD.unpack_dual(out)

    assert not disagreement(dual, torch.arange(3.0), torch.ones(3))
