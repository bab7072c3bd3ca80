"""Front ends that trace: torch.export, torch.compile without a compiler of ours, fx, TorchScript."""

import copy
import io
import pickle

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

X = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = (
            torch.nn.Linear(6, 8),
            torch.nn.BatchNorm1d(8),
            torch.nn.Linear(8, 3),
        )
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls.add_(1)
        h = torch.nn.functional.gelu(self.norm(self.first(x)))
        h[:, ::2] *= 2
        return self.last(h).softmax(-1), h.mean()


def trained(model, forward, x):
    out, mean = forward(x)
    (out.square().sum() + mean).backward()
    gradients = {name: p.grad.cpu() for name, p in model.named_parameters()}
    state = {name: value.cpu() for name, value in model.state_dict().items()}
    return out.detach().cpu(), mean.detach().cpu(), gradients, state


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_models_train_like_eager_ones(backend, dynamic):
    torch.compiler.reset()
    model, expected = Model().npu(), trained(on_cpu := Model(), on_cpu, X)
    compiled = torch.compile(model, backend=backend, dynamic=dynamic, fullgraph=True)
    torch.testing.assert_close(trained(model, compiled, X.npu()), expected)
    model.eval()
    for size in (2, 3, 7):
        x = torch.randn(size, 6)
        torch.testing.assert_close(compiled(x.npu())[0].cpu(), copy.deepcopy(model).cpu()(x)[0])


def test_inductor_says_that_it_has_no_code_generator():
    torch.compiler.reset()
    for function in (lambda x: x * 2 + 1, lambda x: x.sort()[0].cumsum(0)):
        with pytest.raises(torch._inductor.exc.InductorError, match=r'npu yet\. Use backend="aot_eager"'):
            torch.compile(function)(torch.ones(3, device="npu"))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_functions_see_devices_streams_and_random_numbers(backend):
    torch.compiler.reset()

    @torch.compile(backend=backend)
    def function(x):
        noise = torch.rand(3, device=x.device)
        if x.is_npu and x.device.type == "npu":
            return torch.nn.functional.dropout(x, 0.5)[:3, :3] + noise + torch.arange(3, device="npu")
        return x

    torch.manual_seed(5)
    ours = function(X.npu())
    torch.manual_seed(5)
    noise = torch.rand(3, device="npu")
    expected = torch.nn.functional.dropout(X.npu(), 0.5)[:3, :3] + noise + torch.arange(3, device="npu")
    assert torch.equal(ours, expected)


def test_compiled_functions_under_autocast():
    torch.compiler.reset()
    w = torch.randn(6, 4, generator=torch.Generator().manual_seed(2)).npu()

    @torch.compile(backend="aot_eager", fullgraph=True)
    def function(x):
        with torch.autocast("npu", dtype=torch.bfloat16):
            return x @ w

    with torch.autocast("npu", dtype=torch.bfloat16):
        expected = X.npu() @ w
    ours = function(X.npu())
    assert ours.dtype == torch.bfloat16 and torch.equal(ours, expected)


@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs_run_and_survive_a_file(strict):
    model = Model().npu().eval()
    expected = copy.deepcopy(model).cpu()(X)
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(model, (X.npu(),), dynamic_shapes=({0: batch},), strict=strict)
    devices = {
        node.meta["val"].device
        for node in program.graph.nodes
        if isinstance(node.meta.get("val"), torch.Tensor)
    }
    assert devices == {torch.device("npu:0")}
    torch.testing.assert_close([y.cpu() for y in program.module()(X.npu())], list(expected))
    assert program.module()(X[:3].npu())[0].shape == (3, 3)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    torch.testing.assert_close([y.cpu() for y in torch.export.load(file).module()(X.npu())], list(expected))
    decomposed = program.run_decompositions()
    torch.testing.assert_close([y.cpu() for y in decomposed.module()(X.npu())], list(expected))


class Attention(torch.nn.Module):
    def forward(self, q, mask):
        causal = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        return torch.nn.functional.scaled_dot_product_attention(causal, q, q, mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_is_traced_without_memory(dtype):
    torch.compiler.reset()
    q = torch.randn(2, 3, 9, 16, generator=torch.Generator().manual_seed(1)).to(dtype)
    mask = torch.ones(9, 9, dtype=torch.bool).tril()
    arguments = (q.npu(), mask.npu())
    expected = Attention()(*arguments).cpu()
    torch.testing.assert_close(expected, Attention()(q, mask), atol=8 * torch.finfo(dtype).eps, rtol=0)
    exported = torch.export.export(Attention(), arguments).module()
    compiled = torch.compile(Attention(), backend="aot_eager", fullgraph=True)
    for function in (exported, compiled):
        assert torch.equal(function(*arguments).cpu(), expected)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_fx_traces(mode):
    def function(x):
        y = x.clone()
        y[0] = 1
        return y.view(-1).cumsum(0), torch.zeros(2, device=x.device) + y.max()

    graph = make_fx(function, tracing_mode=mode)(X.npu())
    for ours, expected in zip(graph(X.npu()), function(X), strict=True):
        torch.testing.assert_close(ours.cpu(), expected)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("make", [torch.jit.script, lambda f: torch.jit.trace(f, (X.npu(), X.npu()))])
def test_torchscript_runs_on_npu_and_survives_a_file(make):
    def function(x, y):
        return (x * y).relu().sum(1) + torch.ones(5, device=x.device)

    scripted, expected = make(function), function(X, X)
    for _ in range(3):  # the profiling executor specialises
        torch.testing.assert_close(scripted(X.npu(), X.npu()).cpu(), expected)
    file = io.BytesIO()
    torch.jit.save(scripted, file)
    file.seek(0)
    torch.testing.assert_close(torch.jit.load(file, map_location="npu")(X.npu(), X.npu()).cpu(), expected)


def test_modules_can_be_copied_pickled_and_traced_symbolically():
    model = Model().npu().eval()
    expected = model(X.npu())[0]
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(X.npu())[0], expected)
    layers = torch.nn.Sequential(model.first, torch.nn.ReLU(), model.last)
    assert torch.equal(torch.fx.symbolic_trace(layers)(X.npu()), layers(X.npu()))
