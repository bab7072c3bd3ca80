"""PyTorch's own samples of its operators on npu against the CPU: one of each kind, forward and backward."""

import functools

import pytest
import torch
from reference_random import engine_state
from torch.utils._pytree import tree_flatten, tree_map

import torch_npu

pytest.importorskip("expecttest", reason="PyTorch's operator database needs it")
from torch.testing._internal.common_methods_invocations import op_db

KINDS = {
    "elementwise": "add mul div pow remainder atan2 exp log1p sigmoid erf clamp where lerp nan_to_num",
    "reductions": "sum mean var prod amax logsumexp norm argmax softmax",
    "scans": "cumsum cumprod cummax logcumsumexp",
    "order": "sort topk msort kthvalue median searchsorted",
    "indexing": "index_select gather index_put index_add masked_fill take",
    "scattering": "scatter scatter_add scatter_reduce",
    "shapes": "cat stack repeat_interleave roll flip tile unfold diag_embed tril combinations",
    "sizes that depend on data": "nonzero masked_select unique bincount histc",
    "products": "matmul addmm bmm einsum cdist",
    "factorisations": "linalg.svd linalg.solve linalg.qr linalg.eigh linalg.det cholesky",
    "transforms": "fft.fft fft.irfft stft",
    "convolution": "nn.functional.conv2d nn.functional.conv_transpose2d",
    "pooling": "nn.functional.max_pool2d nn.functional.avg_pool2d nn.functional.adaptive_avg_pool2d",
    "images": "nn.functional.interpolate nn.functional.grid_sample nn.functional.pad",
    "normalisation": "nn.functional.batch_norm nn.functional.layer_norm nn.functional.group_norm",
    "activations": "nn.functional.gelu nn.functional.rrelu nn.functional.dropout",
    "losses": "nn.functional.cross_entropy nn.functional.nll_loss nn.functional.huber_loss "
    "nn.functional.binary_cross_entropy_with_logits nn.functional.ctc_loss",
    "attention": "nn.functional.scaled_dot_product_attention nn.functional.multi_head_attention_forward",
    "embeddings": "nn.functional.embedding nn.functional.embedding_bag",
    "random numbers": "normal bernoulli multinomial",
}
NAMES = {name for names in KINDS.values() for name in names.split()}
OPERATORS = [op for op in op_db if op.name in NAMES and op.supported_dtypes("cpu")]
SAMPLES = 12

state_of_cpu = functools.cache(functools.partial(engine_state, offset=0))


def seed_alike(seed):
    """Makes the CPU draw the numbers that npu draws first for that seed."""
    torch.set_rng_state(state_of_cpu(seed))
    torch.npu.manual_seed(seed)


@pytest.fixture(autouse=True)
def same_numbers(monkeypatch):
    """Also for the operators of the database that seed themselves."""
    monkeypatch.setattr(torch, "manual_seed", seed_alike)


def tensors(tree):
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def on_npu(tree):
    def move(leaf):
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().npu().requires_grad_(leaf.requires_grad)
        return "npu" if isinstance(leaf, str) and leaf == "cpu" else leaf

    return tree_map(move, tree)


def run(op, sample):
    torch.manual_seed(7)
    input, args, kwargs = sample
    return op.op(input, *args, **kwargs)


def gradients(result, sample):
    outputs = [x for x in tensors(result) if x.requires_grad]
    inputs = [x for x in tensors(sample) if x.requires_grad]
    if not outputs or not inputs:
        return []
    return torch.autograd.grad(outputs, inputs, [torch.ones_like(x) for x in outputs], allow_unused=True)


def check(ours, expected):
    assert len(ours) == len(expected)
    for a, b in zip(ours, expected, strict=True):
        if b is None:
            assert a is None
            continue
        assert a.device.type == "npu" and a.stride() == b.stride()
        torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-4, atol=1e-5, equal_nan=True)


def test_every_name_is_an_operator():
    assert {op.name for op in OPERATORS} == NAMES


@pytest.mark.filterwarnings("ignore")  # of deprecated forms, which the database samples too
@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.formatted_name)
def test_an_operator_agrees_with_the_cpu(op):
    torch_npu.reset_fallback_stats()
    dtype = torch.float32 if torch.float32 in op.supported_dtypes("cpu") else torch.int64
    differentiable = dtype.is_floating_point and op.supports_autograd
    compared = 0
    for sample in list(op.sample_inputs("cpu", dtype, requires_grad=differentiable))[:SAMPLES]:
        sample = (sample.input, sample.args, sample.kwargs)
        moved = on_npu(sample)
        expected, ours = run(op, sample), run(op, moved)
        check(tensors(ours), tensors(expected))
        compared += len(tensors(expected))
        if differentiable:
            check(gradients(ours, moved), gradients(expected, sample))
    assert compared > 0
    assert torch_npu.fallback_stats()["fallback_copies"] == 0
