"""torch_npu.npu_fusion_attention on npu against scaled_dot_product_attention on the CPU."""

import pytest
import torch
from torch.nn import functional as F

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


def nothing():
    """A mask that hides nothing."""
    return torch.zeros(QUERIES, KEYS, dtype=torch.bool, device="npu")


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
        (0, None, {"next_tockens": 1}),
        (0, 1, {"next_tockens": 1, "atten_mask": nothing}),
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
    assert rest[0].numel() == 0 and rest[1:] == [0, 0, BATCH * HEADS * QUERIES * KEYS]


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


def packed_inputs(lengths, seed=4, dtype=torch.float32):
    """Of each sequence, batches of one; and all of them in layout TND, with their cumulative lengths."""
    generator = torch.Generator().manual_seed(seed)
    heads = (HEADS, KV_HEADS, KV_HEADS, HEADS)
    parts = [
        [
            torch.randn(1, h, n, WIDTH, generator=generator).to(dtype)
            for h, n in zip(heads, (a, b, b, a), strict=True)
        ]
        for a, b in lengths
    ]
    tensors = [torch.cat([part[i][0].transpose(0, 1) for part in parts]).npu() for i in range(4)]
    ends = torch.tensor(lengths).cumsum(0).T.tolist()
    return parts, tensors, {"actual_seq_qlen": ends[0], "actual_seq_kvlen": ends[1]}


def differentiated(tensors, grad, *places, **options):
    """The results of npu_fusion_attention, and the gradients of the first."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    out, *rest = torch_npu.npu_fusion_attention(*leaves, *places, **options)
    out.backward(grad)
    return [out, *rest], [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mode", [0, 2, 3, 4])
def test_a_packed_sequence_has_the_bits_of_it_alone(mode, dtype):
    parts, tensors, ends = packed_inputs([(3, 4), (0, 6), (200, 700), (5, 0), (1, 1)], dtype=dtype)
    options = {"scale": SCALE, "sparse_mode": mode, "atten_mask": triangle() if mode else None}
    options |= {"pre_tockens": 40, "next_tockens": 7}
    packed, gradients = differentiated(
        tensors[:3], tensors[3], HEADS, "TND", softmax_layout="TND", **options, **ends
    )
    assert packed[1].shape == packed[2].shape == (209, HEADS, 8)
    start = [0, 0]
    for part in parts:
        *each, grad = (x.npu() for x in part)
        places = [slice(start[i], start[i] + each[i].shape[2]) for i in (0, 1)]
        start = [place.stop for place in places]
        if each[0].shape[2] == 0:
            continue
        alone, alone_gradients = differentiated(each, grad, HEADS, "BNSD", **options)
        for i in range(3):
            assert torch.equal(packed[i][places[0]], alone[i][0].transpose(0, 1))
        for got, wanted, i in zip(gradients, alone_gradients, (0, 1, 1), strict=True):
            assert torch.equal(got[places[i]], wanted[0].transpose(0, 1))


def test_statistics_of_packed_sequences_lie_heads_before_tokens_or_as_the_shape_says():
    _, tensors, ends = packed_inputs([(3, 4), (5, 5)])
    default, as_shape = (
        torch_npu.npu_fusion_attention(*tensors[:3], HEADS, "TND", softmax_layout=layout, **ends)
        for layout in ("", "TND")
    )
    for got, wanted in zip(default[1:3], as_shape[1:3], strict=True):
        assert got.shape == wanted.shape == (8, HEADS, 8)
        sequences = got.view(-1, 8).split([3 * HEADS, 5 * HEADS])
        assert torch.equal(torch.cat([x.view(HEADS, -1, 8).transpose(0, 1) for x in sequences]), wanted)


def test_a_band_counts_from_the_last_token_in_mode_4():
    q, k, v = inputs()
    distance = torch.arange(KEYS)[None] - torch.arange(QUERIES)[:, None] - (KEYS - QUERIES)
    out, *_ = attend(q, k, v, sparse_mode=4, pre_tockens=2, next_tockens=1, atten_mask=triangle())
    torch.testing.assert_close(out.cpu(), expected(q, k, v, (distance > 1) | (distance < -2)))


def test_prefixes_are_seen_by_all_queries_of_their_batch():
    q, k, v = inputs()
    prefix = [3, 6]
    mask = torch.zeros(3072, 2048, dtype=torch.bool, device="npu")
    options = {"sparse_mode": 6, "prefix": prefix, "atten_mask": mask, "scale": SCALE}
    tensors = [x.npu() for x in (q, k, v)]
    results, gradients = differentiated(tensors, q.npu(), HEADS, "BNSD", **options)
    hidden = hidden_right_of(KEYS - QUERIES) & (
        torch.arange(KEYS) >= torch.tensor(prefix)[:, None, None, None]
    )
    theirs = [x.clone().requires_grad_() for x in (q, k, v)]
    wanted = expected(*theirs, hidden)
    wanted.backward(q)
    torch.testing.assert_close(results[0].cpu(), wanted.detach())
    for got, leaf in zip(gradients, theirs, strict=True):
        torch.testing.assert_close(got.cpu(), leaf.grad)


@pytest.mark.parametrize(
    "shape", [(BATCH, HEADS, QUERIES, KEYS), (1, HEADS, QUERIES, KEYS), (BATCH, HEADS, 1, KEYS)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_position_scores_get_gradients_of_their_shape(shape, dtype):
    q, k, v = inputs(dtype)
    pse = torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    ours, leaf = [x.npu() for x in (q, k, v)], pse.npu().requires_grad_()
    out, *_ = torch_npu.npu_fusion_attention(*ours, HEADS, "BNSD", pse=leaf, scale=SCALE)
    out.backward(q.npu())
    theirs = pse.double().requires_grad_()
    want = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), SCALE * theirs, enable_gqa=True)
    want.backward(q.double())
    assert leaf.grad.dtype == dtype and leaf.grad.shape == shape
    tolerance = {} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(
        leaf.grad.cpu().double(), theirs.grad, **({"rtol": 1e-4, "atol": 1e-5} | tolerance)
    )


def test_position_scores_of_packed_sequences_lie_one_after_another():
    lengths = [(3, 4), (5, 5)]
    parts, tensors, ends = packed_inputs(lengths)
    pse = [torch.randn(1, HEADS, a, b, generator=torch.Generator().manual_seed(a)) for a, b in lengths]
    joined = torch.cat([x.flatten() for x in pse]).npu().requires_grad_()
    out, *_ = torch_npu.npu_fusion_attention(*tensors[:3], HEADS, "TND", pse=joined, scale=SCALE, **ends)
    out.backward(tensors[3])
    wanted, gradients = [], []
    for (q, k, v, grad), each in zip(parts, pse, strict=True):
        each.requires_grad_()
        found = F.scaled_dot_product_attention(q, k, v, SCALE * each, enable_gqa=True)
        found.backward(grad)
        wanted.append(found.detach()[0].transpose(0, 1))
        gradients.append(each.grad.flatten())
    torch.testing.assert_close(out.detach().cpu(), torch.cat(wanted))
    torch.testing.assert_close(joined.grad.cpu(), torch.cat(gradients), rtol=1e-4, atol=1e-5)


def weights_kept(q, k, seed, **options):
    """Which weights dropout keeps: what comes of values that are a row of the unit matrix each."""
    eye = torch.eye(KEYS).expand(BATCH, KV_HEADS, KEYS, KEYS)
    torch.manual_seed(seed)
    return attend(q, k, eye, **options)


def test_dropout_drops_the_same_weights_in_the_gradients():
    q, k, v = inputs()
    dropped, *_, seed, offset, numels = weights_kept(q, k, 7, keep_prob=0.6)
    weights = weights_kept(q, k, 7)[0].cpu()
    factors = dropped.cpu() / weights
    assert numels == factors.numel() == BATCH * HEADS * QUERIES * KEYS
    assert ((factors - 1 / 0.6).abs() < 1e-5).logical_or(factors == 0).all()
    assert 0.3 < (factors == 0).float().mean() < 0.5
    torch.manual_seed(7)
    tensors = [x.npu() for x in (q, k, v)]
    results, gradients = differentiated(tensors, q.npu(), HEADS, "BNSD", scale=SCALE, keep_prob=0.6)
    assert results[4:] == [seed, offset, numels]
    theirs = [x.double().requires_grad_() for x in (q, k, v)]
    shared = [x.repeat_interleave(HEADS // KV_HEADS, 1) for x in theirs[1:]]
    scores = SCALE * theirs[0] @ shared[0].transpose(-1, -2)
    wanted = (scores.softmax(-1) * factors.round(decimals=4).sign() / 0.6) @ shared[1]
    wanted.backward(q.double())
    torch.testing.assert_close(results[0].cpu(), wanted.float(), rtol=1e-4, atol=1e-5)
    for got, leaf in zip(gradients, theirs, strict=True):
        torch.testing.assert_close(got.cpu(), leaf.grad.float(), rtol=1e-4, atol=1e-5)
    again = torch_npu.npu_fusion_attention_grad(
        *tensors,
        q.npu(),
        HEADS,
        "BNSD",
        softmax_max=results[1],
        softmax_sum=results[2],
        attention_in=results[0].detach(),
        scale_value=SCALE,
        keep_prob=0.6,
        seed=seed,
        offset=offset,
        numels=numels,
    )
    assert again[3] is None or again[3].numel() == 0
    assert all(torch.equal(a, b) for a, b in zip(again[:3], gradients, strict=True))


def test_dropout_keeps_the_expected_value():
    q, k = torch.zeros(1, 1, 1, WIDTH).npu(), torch.zeros(1, 1, 4000, WIDTH).npu()
    v = torch.ones(1, 1, 4000, WIDTH).npu()
    torch.manual_seed(0)
    out, *_ = torch_npu.npu_fusion_attention(q, k, v, 1, "BNSD", keep_prob=0.5)
    assert abs(out.mean().item() - 1) < 0.1 and out.mean().item() != 1


@pytest.mark.parametrize(
    "options, message",
    [
        ({"input_layout": "BDNS"}, 'input_layout is "BDNS"; BNSD, BSND, BSH, SBH and TND are accepted'),
        ({"sparse_mode": 7}, "sparse_mode is 7; 0 to 6 are accepted with layout BNSD"),
        ({"sparse_mode": 2}, r"atten_mask is absent; with sparse_mode 2 it has shape \[2048, 2048\]"),
        ({"sparse_mode": 1}, "atten_mask is absent; with sparse_mode 1 it covers all scores"),
        ({"input_layout": "TND"}, "query has shape .*; 3 dimensions are accepted with layout TND"),
        ({"prefix": [1]}, r"prefix is \[1\], but sparse_mode is 0; with 5 and 6 it is accepted"),
        ({"keep_prob": 0.0}, "keep_prob is 0; more than 0, and 1 at most, is accepted"),
        ({"head_num": 3}, "head_num is 3, but query has shape"),
        ({"actual_seq_qlen": [5]}, r"actual_seq_qlen is \[5\], but input_layout is BNSD; with TND"),
        (
            {"softmax_layout": "TND"},
            'softmax_layout is "TND"; "", and with input_layout TND "TND", are accepted',
        ),
        ({"pse": torch.zeros(3, 3)}, "pse is a Strided tensor on cpu; dense ones on npu:0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_what_is_not_accepted_is_named(options, message):
    q, k, v = (x.npu() for x in inputs())
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_fusion_attention(q, k, v, **({"head_num": HEADS, "input_layout": "BNSD"} | options))


def test_a_padding_mask_is_not_supported():
    q, k, v = (x.npu() for x in inputs())
    with pytest.raises(NotImplementedError, match="padding_mask is given; only None is supported"):
        torch_npu.npu_fusion_attention(q, k, v, HEADS, "BNSD", padding_mask=q)


@pytest.mark.parametrize("shape", [(BATCH, HEADS, 1, 1), (1, HEADS, QUERIES, KEYS)], ids=str)
def test_position_scores_that_need_no_gradient_may_be_any(shape):
    """Their own gradient is not supported, for prefixes or of one number for all keys."""
    q, k, v = inputs()
    pse = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    prefix = [3, 6]
    mask = torch.zeros(3072, 2048, dtype=torch.bool, device="npu")
    options = {"sparse_mode": 6, "prefix": prefix, "atten_mask": mask, "scale": SCALE}
    places = ([x.npu() for x in (q, k, v)], q.npu(), HEADS, "BNSD")
    results, gradients = differentiated(*places, pse=pse.npu(), **options)
    seen = ~hidden_right_of(KEYS - QUERIES) | (torch.arange(KEYS) < torch.tensor(prefix)[:, None, None, None])
    theirs = [x.clone().requires_grad_() for x in (q, k, v)]
    added = torch.where(seen, SCALE * pse, -torch.inf)
    wanted = F.scaled_dot_product_attention(*theirs, added, enable_gqa=True)
    wanted.backward(q)
    torch.testing.assert_close(results[0].cpu(), wanted.detach())
    for got, leaf in zip(gradients, theirs, strict=True):
        torch.testing.assert_close(got.cpu(), leaf.grad)
    with pytest.raises(RuntimeError, match="dpse"):
        differentiated(*places, pse=pse.npu().requires_grad_(), **options)


@pytest.mark.parametrize("mode", [0, 4])
def test_distances_have_no_limit(mode):
    q, k, v = inputs()
    mask = triangle() if mode == 4 else nothing()
    most, least = 2**63 - 1, -(2**63)
    for before, after, all_seen in ((most, most, True), (least, most, False), (most, least, False)):
        out, *_ = attend(q, k, v, sparse_mode=mode, pre_tockens=before, next_tockens=after, atten_mask=mask)
        torch.testing.assert_close(out.cpu(), expected(q, k, v) if all_seen else torch.zeros(out.shape))


def test_gradients_of_gradients_are_refused():
    q, k, v = (x.npu().requires_grad_() for x in inputs())
    out, *_ = torch_npu.npu_fusion_attention(q, k, v, HEADS, "BNSD")
    (gradient,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(
        RuntimeError, match="derivative for npu::npu_fusion_attention_grad is not implemented"
    ):
        gradient.sum().backward()
