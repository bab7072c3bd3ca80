"""scaled_dot_product_attention by kernels of our own, against the CPU's and a wider one."""

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import torch_npu


def test_transformers_imports_beside_the_package():
    from transformers.modeling_flash_attention_utils import flash_attn_supports_top_left_mask

    assert flash_attn_supports_top_left_mask() is False


@pytest.mark.parametrize("seen", [100, 511, 513, 1500, 2048])
@pytest.mark.parametrize("shape", [(1, 1, 1, 2048), (1, 2048)], ids=str)
def test_a_mask_of_keys_is_honoured_at_every_length(seen, shape):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 4, 1, 64, generator=generator).half()
    k, v = (torch.randn(1, 4, 2048, 64, generator=generator).half() for _ in range(2))
    mask = (torch.arange(2048) < seen).view(shape)
    wanted = F.scaled_dot_product_attention(q.float(), k[:, :, :seen].float(), v[:, :, :seen].float())
    ours = F.scaled_dot_product_attention(q.npu(), k.npu(), v.npu(), mask.npu())
    torch.testing.assert_close(ours.cpu().float(), wanted, rtol=2e-3, atol=2e-3)
    for of_keys in (mask, mask.flatten()):
        fused, *_ = torch_npu.npu_fusion_attention(
            q.npu(), k.npu(), v.npu(), 4, "BNSD", scale=1 / 8, atten_mask=~of_keys.npu(), sparse_mode=1
        )
        torch.testing.assert_close(fused.cpu().float(), wanted, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("keys", [100, 2048])
def test_a_mask_of_one_dimension_is_refused_at_every_length_as_on_the_cpu(keys):
    x, mask = torch.ones(1, 4, keys, 64), torch.ones(keys, dtype=torch.bool)
    for device in ("cpu", "npu"):
        with pytest.raises(IndexError, match="Dimension out of range"):
            F.scaled_dot_product_attention(*[x.to(device)] * 3, mask.to(device))


def made(dtype, shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def with_gradients(device, tensors, weight, **options):
    """The attention of tensors, and its gradients."""
    leaves = [x.to(device).detach().clone().requires_grad_() for x in tensors]
    options = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    out = F.scaled_dot_product_attention(*leaves, **options)
    out.backward(weight.to(device))
    return [x.cpu() for x in (out.detach(), *(leaf.grad for leaf in leaves))]


def hidden(queries, keys):
    mask = torch.zeros(queries, keys)
    mask[:, keys // 2 :] = -torch.inf
    return mask


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(
    "heads, kv_heads, queries, keys, width, options",
    [
        (2, 2, 70, 70, 64, {"is_causal": True}),
        (2, 2, 300, 40, 16, {"is_causal": True}),
        (4, 2, 3, 600, 40, {"enable_gqa": True}),
        (3, 1, 130, 300, 17, {"enable_gqa": True, "is_causal": True}),
        (2, 2, 100, 270, 72, {"attn_mask": hidden(100, 270)}),
        (2, 2, 1, 33, 8, {"attn_mask": torch.arange(33)[None] % 3 != 0, "scale": 0.7}),
    ],
)
def test_attention_and_its_gradients_are_as_exact_as_the_cpus(
    dtype, heads, kv_heads, queries, keys, width, options
):
    def converted(dtype):
        floats = {
            k: v.to(dtype)
            for k, v in options.items()
            if isinstance(v, torch.Tensor) and v.is_floating_point()
        }
        return options | floats

    # Heads beside each other, as models have them.
    shapes = [(2, queries, heads, width), *[(2, keys, kv_heads, width)] * 2, (2, queries, heads, width)]
    *tensors, weight = (x.transpose(1, 2) for x in made(dtype, shapes))
    ours, cpu = (with_gradients(device, tensors, weight, **converted(dtype)) for device in ("npu", "cpu"))
    wide = with_gradients("cpu", [x.double() for x in tensors], weight.double(), **converted(torch.float64))
    units = 32 if dtype == torch.float64 else 8  # there is nothing wider than f64
    for a, b, exact in zip(ours, cpu, wide, strict=True):
        allowed = max(2 * (b - exact).abs().max(), units * torch.finfo(dtype).eps * exact.abs().max())
        assert a.dtype == dtype and (a - exact).abs().max() <= allowed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dropout_drops_what_it_drops_of_a_tensor_of_weights(dtype):
    *tensors, weight = made(dtype, [(2, 3, 50, 24), *[(2, 3, 301, 24)] * 2, (2, 3, 50, 24)])

    def run(backend):
        torch.manual_seed(5)
        with sdpa_kernel(backend):
            return with_gradients("npu", tensors, weight, dropout_p=0.3)

    fused, composed = run(SDPBackend.OVERRIDEABLE), run(SDPBackend.MATH)
    for a, b in zip(fused, composed, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(fused[0], with_gradients("npu", tensors, weight)[0], atol=1e-2)


def test_scores_are_never_in_memory_as_a_whole():
    tokens, width = 4096, 16
    q, k, v = (x.npu().requires_grad_() for x in made(torch.float32, [(1, 1, tokens, width)] * 3))
    torch.npu.synchronize()
    torch.npu.reset_peak_memory_stats()
    before = torch.npu.memory_allocated()
    F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    torch.npu.synchronize()
    assert torch.npu.max_memory_allocated() - before < 16 * tokens * width * 4 < tokens * tokens * 4 / 8


def test_a_bias_that_needs_a_gradient_gets_it():
    q, k, v, bias = made(torch.float32, [(1, 2, 9, 8), *[(1, 2, 11, 8)] * 2, (9, 11)])
    theirs, ours = bias.clone().requires_grad_(), bias.npu().requires_grad_()
    F.scaled_dot_product_attention(q, k, v, theirs).square().sum().backward()
    F.scaled_dot_product_attention(q.npu(), k.npu(), v.npu(), ours).square().sum().backward()
    torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


def test_a_query_that_a_mask_hides_all_keys_from_gives_zeros():
    q, k, v, weight = made(torch.float32, [(1, 1, 4, 8)] * 4)
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[2] = False
    ours, cpu = (with_gradients(device, (q, k, v), weight, attn_mask=mask) for device in ("npu", "cpu"))
    assert ours[0][0, 0, 2].eq(0).all() and ours[1][0, 0, 2].eq(0).all()
    for a, b in zip(ours, cpu, strict=True):
        torch.testing.assert_close(a, b)


def test_a_result_that_nothing_uses_gives_no_gradient():
    """As gradcheck asks: the gradient that comes is no tensor."""
    unused = torch._C._functions.UndefinedGrad()
    for device in ("cpu", "npu"):
        leaves = [x.to(device).requires_grad_() for x in made(torch.float32, [(1, 2, 5, 8)] * 3)]
        out = unused(F.scaled_dot_product_attention(*leaves))
        assert torch.autograd.grad(out.sum(), leaves, allow_unused=True) == (None,) * 3
