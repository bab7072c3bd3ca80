"""torch_npu.npu_fusion_attention on npu against scaled_dot_product_attention on the CPU."""

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import torch_npu

BATCH, HEADS, KV_HEADS, WIDTH, QUERIES, KEYS = 2, 4, 2, 8, 5, 7
SCALE = WIDTH**-0.5
LAYOUTS = {
    "BNSD": lambda x: x,
    "BSND": lambda x: x.transpose(1, 2),
    "BSH": lambda x: x.transpose(1, 2).flatten(2),
    "SBH": lambda x: x.permute(2, 0, 1, 3).flatten(2),
}


def inputs(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = ((HEADS, QUERIES), (KV_HEADS, KEYS), (KV_HEADS, KEYS))
    return [torch.randn(BATCH, *shape, WIDTH, generator=generator).to(dtype) for shape in shapes]


def triangle():
    return torch.ones(2048, 2048, dtype=torch.bool, device="npu").triu(1)


def attend(q, k, v, layout="BNSD", **options):
    tensors = (LAYOUTS[layout](x).contiguous().npu() for x in (q, k, v))
    return torch_npu.npu_fusion_attention(*tensors, HEADS, layout, scale=SCALE, **options)


def expected(q, k, v, masked=None):
    seen = None if masked is None else ~masked
    return F.scaled_dot_product_attention(q, k, v, seen, enable_gqa=True)


def hidden_right_of(diagonal):
    return torch.ones(QUERIES, KEYS, dtype=torch.bool).triu(diagonal + 1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_attention_of_the_cpu(layout):
    q, k, v = inputs()
    out, *_ = attend(q, k, v, layout)
    torch.testing.assert_close(out.cpu(), LAYOUTS[layout](expected(q, k, v)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_are_computed_in_float32_and_rounded_once(dtype):
    q, k, v = inputs(dtype)
    out, *_ = attend(q, k, v)
    assert torch.equal(out.cpu(), attend(*(x.float() for x in (q, k, v)))[0].to(dtype).cpu())


@pytest.mark.parametrize(
    "mode, diagonal, options",
    [
        (0, None, {}),
        (0, 1, {"next_tockens": 1}),
        (2, 0, {"atten_mask": triangle}),
        (3, KEYS - QUERIES, {"atten_mask": triangle}),
    ],
)
def test_sparse_modes_hide_the_keys_right_of_a_diagonal(mode, diagonal, options):
    q, k, v = inputs()
    options = {name: value() if callable(value) else value for name, value in options.items()}
    out, *_ = attend(q, k, v, sparse_mode=mode, **options)
    masked = None if diagonal is None else hidden_right_of(diagonal)
    torch.testing.assert_close(out.cpu(), expected(q, k, v, masked))


@pytest.mark.parametrize("mode", [0, 1])
def test_a_full_mask_hides_where_it_is_true(mode):
    q, k, v = inputs()
    masked = torch.rand(BATCH, 1, QUERIES, KEYS, generator=torch.Generator().manual_seed(1)) < 0.4
    masked[..., 0] = False
    out, *_ = attend(q, k, v, sparse_mode=mode, atten_mask=masked.npu())
    torch.testing.assert_close(out.cpu(), expected(q, k, v, masked))


def test_a_query_that_sees_no_key_gives_zeros_and_finite_gradients():
    q, k, v = (x.npu().requires_grad_() for x in inputs())
    masked = torch.zeros(QUERIES, KEYS, dtype=torch.bool, device="npu")
    masked[2] = True
    out, *_ = torch_npu.npu_fusion_attention(q, k, v, HEADS, "BNSD", atten_mask=masked, sparse_mode=1)
    out.sum().backward()
    assert out[:, :, 2].eq(0).all() and not out[:, :, 1].eq(0).any()
    assert all(x.grad.isfinite().all() for x in (q, k, v)) and q.grad[:, :, 2].eq(0).all()


def test_statistics_are_the_maximum_and_sum_of_each_row():
    q, k, v = inputs()
    _, maximum, total, *rest = attend(q, k, v)
    scores = SCALE * q @ k.repeat_interleave(HEADS // KV_HEADS, 1).transpose(-1, -2)
    assert maximum.shape == total.shape == (BATCH, HEADS, QUERIES, 8)
    torch.testing.assert_close(maximum.cpu(), scores.amax(-1, keepdim=True).expand(maximum.shape))
    logsumexp = scores.logsumexp(-1, keepdim=True).expand(maximum.shape)
    torch.testing.assert_close((maximum + total.log()).cpu(), logsumexp)
    assert rest[0].numel() == 0 and rest[1:] == [0, 0, 0]


def test_position_scores_are_added_before_scaling():
    q, k, v = inputs()
    pse = torch.randn(1, HEADS, QUERIES, KEYS, generator=torch.Generator().manual_seed(2))
    out, *_ = attend(q, k, v, pse=pse.npu())
    want = F.scaled_dot_product_attention(q, k, v, attn_mask=SCALE * pse, enable_gqa=True)
    torch.testing.assert_close(out.cpu(), want)


def test_gradients_agree_with_the_cpu():
    ours = [x.npu().requires_grad_() for x in inputs()]
    theirs = [x.requires_grad_() for x in inputs()]
    weight = torch.randn(BATCH, HEADS, QUERIES, WIDTH, generator=torch.Generator().manual_seed(3))
    out, *_ = torch_npu.npu_fusion_attention(*ours, HEADS, "BNSD", scale=SCALE)
    (out * weight.npu()).sum().backward()
    (expected(*theirs) * weight).sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad)


@pytest.mark.parametrize("mode", [0, 3])
def test_sequences_of_different_lengths_do_not_see_each_other(mode):
    generator = torch.Generator().manual_seed(4)
    lengths = ((3, 4), (5, 5))
    parts = [
        [
            torch.randn(1, heads, n, WIDTH, generator=generator)
            for heads, n in ((HEADS, a), (KV_HEADS, b), (KV_HEADS, b))
        ]
        for a, b in lengths
    ]
    packed = [torch.cat([part[i][0].transpose(0, 1) for part in parts]).npu() for i in range(3)]
    ends = {"actual_seq_qlen": [3, 8], "actual_seq_kvlen": [4, 9]}
    mask = triangle() if mode == 3 else None
    out, maximum, *_ = torch_npu.npu_fusion_attention(
        *packed, HEADS, "TND", scale=SCALE, sparse_mode=mode, atten_mask=mask, **ends
    )
    want = []
    for (q, k, v), (queries, keys) in zip(parts, lengths, strict=True):
        masked = torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries + 1) if mode == 3 else None
        want.append(expected(q, k, v, masked)[0].transpose(0, 1))
    torch.testing.assert_close(out.cpu(), torch.cat(want))
    assert maximum.shape == (8, HEADS, 8)


def test_dropout_keeps_the_expected_value():
    q, k = torch.zeros(1, 1, 1, WIDTH).npu(), torch.zeros(1, 1, 4000, WIDTH).npu()
    v = torch.ones(1, 1, 4000, WIDTH).npu()
    torch.manual_seed(0)
    out, *_ = torch_npu.npu_fusion_attention(q, k, v, 1, "BNSD", keep_prob=0.5)
    assert abs(out.mean().item() - 1) < 0.1 and out.mean().item() != 1


@pytest.mark.parametrize(
    "options, kind, message",
    [
        (
            {"input_layout": "BDNS"},
            ValueError,
            "input_layout is 'BDNS'; accepted are BNSD, BSND, BSH, SBH and TND",
        ),
        ({"sparse_mode": 4}, NotImplementedError, "sparse_mode is 4; supported are 0, 1, 2 and 3"),
        (
            {"sparse_mode": 2},
            ValueError,
            r"atten_mask has shape None; with sparse_mode 2 it has shape \[2048, 2048\]",
        ),
        ({"sparse_mode": 1}, ValueError, "atten_mask has shape None; with sparse_mode 1 it covers"),
        ({"input_layout": "TND"}, ValueError, "actual_seq_qlen is None and actual_seq_kvlen None"),
        ({"prefix": [1]}, NotImplementedError, "prefix is given; only None"),
    ],
)
def test_what_is_not_accepted_is_named(options, kind, message):
    q, k, v = (x.npu() for x in inputs())
    with pytest.raises(kind, match=message):
        torch_npu.npu_fusion_attention(q, k, v, HEADS, **({"input_layout": "BNSD"} | options))


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
    fused, *_ = torch_npu.npu_fusion_attention(
        q.npu(),
        k.npu(),
        v.npu(),
        4,
        "BNSD",
        scale=1 / 8,
        atten_mask=~mask.view(1, 1, 1, -1).npu(),
        sparse_mode=1,
    )
    torch.testing.assert_close(fused.cpu().float(), wanted, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("keys", [100, 2048])
def test_a_mask_of_one_dimension_is_refused_at_every_length_as_on_the_cpu(keys):
    x, mask = torch.ones(1, 4, keys, 64), torch.ones(keys, dtype=torch.bool)
    for device in ("cpu", "npu"):
        with pytest.raises(IndexError, match="Dimension out of range"):
            F.scaled_dot_product_attention(*[x.to(device)] * 3, mask.to(device))


# scaled_dot_product_attention by kernels of our own


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
