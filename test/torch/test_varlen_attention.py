"""torch.nn.attention.varlen on npu: sequences of different lengths, packed one after another."""

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention.varlen import AuxRequest, varlen_attn

HEADS, KV_HEADS, WIDTH = 4, 2, 16
LENGTHS = ((3, 4), (0, 6), (130, 300), (5, 0), (1, 1))


def packed(lengths, dtype=torch.float32):
    """Queries, keys, values and gradients of the result, and the cumulative positions of both."""
    generator = torch.Generator().manual_seed(0)
    queries, keys = (sum(each) for each in zip(*lengths, strict=True))
    shapes = ((queries, HEADS), (keys, KV_HEADS), (keys, KV_HEADS), (queries, HEADS))
    tensors = [torch.randn(*shape, WIDTH, generator=generator).to(dtype) for shape in shapes]
    positions = torch.tensor(((0, 0), *lengths)).cumsum(0).to(torch.int32)
    return tensors, positions.unbind(1)


def attend(tensors, positions, **options):
    leaves = [x.npu().requires_grad_() for x in tensors[:3]]
    places = [x.npu() for x in positions]
    out, lse = varlen_attn(
        *leaves, *places, 300, 300, enable_gqa=True, return_aux=AuxRequest(lse=True), **options
    )
    out.backward(tensors[3].npu())
    return out.detach(), lse, [leaf.grad for leaf in leaves]


def seen(queries, keys, window):
    """Which keys a query sees, counted from the last token."""
    distance = torch.arange(keys)[None] - torch.arange(queries)[:, None] - (keys - queries)
    left, right = (10**6 if each < 0 else each for each in window)
    return (distance >= -left) & (distance <= right)


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (40, 0), (20, 30)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_sequence_is_attention_of_its_own(window, dtype):
    tensors, positions = packed(LENGTHS, dtype)
    out, lse, gradients = attend(tensors, positions, window_size=window)
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 3e-2, "atol": 3e-2}
    for i, lengths in enumerate(LENGTHS):
        places = [slice(int(p[i]), int(p[i + 1])) for p in positions]
        part = [
            x[places[j]].double().transpose(0, 1)[None] for x, j in zip(tensors, (0, 1, 1, 0), strict=True)
        ]
        leaves = [x.requires_grad_() for x in part[:3]]
        if 0 in lengths:
            assert out[places[0]].eq(0).all() and gradients[0][places[0]].eq(0).all()
            assert all(x[places[1]].eq(0).all() for x in gradients[1:])
            continue
        mask = seen(*lengths, window)
        wanted = F.scaled_dot_product_attention(*leaves, mask, enable_gqa=True)
        wanted.backward(part[3])
        torch.testing.assert_close(
            out[places[0]].cpu().double(), wanted.detach()[0].transpose(0, 1), **tolerance
        )
        scores = leaves[0] @ leaves[1].repeat_interleave(2, 1).transpose(-1, -2) * WIDTH**-0.5
        log_sum = scores.masked_fill(~mask, -torch.inf).logsumexp(-1)[0]
        torch.testing.assert_close(lse[:, places[0]].cpu().double(), log_sum.detach(), **tolerance)
        for got, leaf, j in zip(gradients, leaves, (0, 1, 1), strict=True):
            torch.testing.assert_close(
                got[places[j]].cpu().double(), leaf.grad[0].transpose(0, 1), **tolerance
            )


def test_a_sequence_has_the_same_bits_in_any_company():
    tensors, positions = packed(LENGTHS)
    out, lse, gradients = attend(tensors, positions, window_size=(-1, 0))
    places = [slice(int(p[2]), int(p[3])) for p in positions]
    part = [x[places[j]] for x, j in zip(tensors, (0, 1, 1, 0), strict=True)]
    alone, lse_alone, gradients_alone = attend(
        part, [torch.tensor([0, n]) for n in LENGTHS[2]], window_size=(-1, 0)
    )
    assert torch.equal(out[places[0]], alone) and torch.equal(lse[:, places[0]], lse_alone)
    for got, wanted, j in zip(gradients, gradients_alone, (0, 1, 1), strict=True):
        assert torch.equal(got[places[j]], wanted)


def test_windows_have_no_limit():
    tensors, positions = packed(((4, 1), (3, 8)))
    most = 2**63 - 1
    for wide, open_window in (((most, most), (-1, -1)), ((most, 0), (-1, 0))):
        (out, lse, gradients), (wanted, *others) = (
            attend(tensors, positions, window_size=window) for window in (wide, open_window)
        )
        assert torch.equal(out, wanted) and torch.equal(lse, others[0])
        assert all(torch.equal(a, b) for a, b in zip(gradients, others[1], strict=True))


def test_only_used_keys_are_seen():
    tensors, positions = packed(((3, 8), (2, 9)))
    q, k, v = (x.npu() for x in tensors[:3])
    places = [x.npu() for x in positions]
    used = torch.tensor([5, 0])
    out = varlen_attn(q, k, v, *places, 3, 9, enable_gqa=True, seqused_k=used.npu())
    wanted = F.scaled_dot_product_attention(
        *(x.transpose(0, 1)[None] for x in (tensors[0][:3], tensors[1][:5], tensors[2][:5])), enable_gqa=True
    )
    torch.testing.assert_close(out[:3].cpu(), wanted[0].transpose(0, 1))
    assert out[3:].eq(0).all()


@pytest.mark.parametrize(
    "options, kind, message",
    [
        (
            {"cu_seq_q": [0, 4, 3]},
            RuntimeError,
            r"cum_seq_q\[2\] is 3 after 4; positions that do not fall, to 5 tokens",
        ),
        ({"cu_seq_q": [0, 6, 6]}, RuntimeError, r"cum_seq_q\[1\] is 6 after 0"),
        ({"cu_seq_q": [1, 3, 5]}, RuntimeError, "cum_seq_q starts with 1; 0 is accepted"),
        ({"cu_seq_q": [0, 5]}, RuntimeError, "cum_seq_q is of 1 sequences, cum_seq_k of 2"),
        ({"seqused_k": [9, 9]}, RuntimeError, r"seqused_k\[0\] is 9; 0 to the sequence's 8 keys"),
        ({"block_table": [[0]]}, NotImplementedError, "block_table is given; only None is supported"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_what_is_not_accepted_is_named(options, kind, message):
    tensors, positions = packed(((3, 8), (2, 9)))
    arguments = {"cu_seq_q": positions[0], "cu_seq_k": positions[1], "max_q": 3, "max_k": 9}
    arguments |= {name: torch.tensor(value, dtype=torch.int32) for name, value in options.items()}
    arguments = {name: x.npu() if isinstance(x, torch.Tensor) else x for name, x in arguments.items()}
    q, k, v = (x.npu() for x in tensors[:3])
    if "block_table" in options:
        k, v = k[None], v[None]
    with pytest.raises(kind, match=message):
        varlen_attn(q, k, v, enable_gqa=True, **arguments)
