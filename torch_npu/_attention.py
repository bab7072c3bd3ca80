"""Attention under the name and conventions of Ascend's fused operator, composed of PyTorch's own."""

import torch
from torch.nn import functional as F

_ANY = 2**31 - 1  # a band so wide that it masks nothing
_TRIANGLE = [2048, 2048]  # the shape of the mask that stands for a causal one of any size
_STATISTICS = 8  # how often each row's maximum and sum stand side by side

# Which axes, once heads and their width are two of them, are batch, head, sequence and width.
_LAYOUTS = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3), "BSH": (0, 2, 1, 3), "SBH": (1, 2, 0, 3)}


def npu_fusion_attention(
    query,
    key,
    value,
    head_num,
    input_layout,
    pse=None,
    padding_mask=None,
    atten_mask=None,
    scale=1.0,
    keep_prob=1.0,
    pre_tockens=_ANY,
    next_tockens=_ANY,
    inner_precise=0,
    prefix=None,
    actual_seq_qlen=None,
    actual_seq_kvlen=None,
    sparse_mode=0,
    gen_mask_parallel=True,
    sync=False,
):
    """softmax(scale * (query @ key.T + pse), but 0 where atten_mask is True) @ value, computed in float32.

    Layouts are BNSD, BSND, BSH and SBH, and TND with the cumulative lengths actual_seq_qlen and
    actual_seq_kvlen. Keys and values may have fewer heads, each shared by equally many query heads.
    sparse_mode 0 masks with atten_mask, if given, and the band of pre_tockens and next_tockens around the
    diagonal; 1 with atten_mask alone; 2 and 3 causally, aligned at the first or the last token, and take the
    triangle as atten_mask.

    Returns the attention, each row's maximum and sum of exponentials (both repeated eight times), an empty
    tensor, and three numbers by which hardware finds its dropout mask again, which are 0 here.
    ``inner_precise``, ``gen_mask_parallel`` and ``sync`` choose between hardware's ways to one result, so any
    value will do.
    """
    _check(padding_mask, prefix, pse, atten_mask, sparse_mode, input_layout)

    def attend(q, k, v):
        masked = _masked(q, k, atten_mask, sparse_mode, pre_tockens, next_tockens)
        return _attention(q, k, v, pse, masked, scale, keep_prob)

    if input_layout == "TND":
        parts = _sequences(query, key, value, actual_seq_qlen, actual_seq_kvlen)
        results = [[each[0].transpose(0, 1) for each in attend(*part)] for part in parts]
        out, maximum, total = (torch.cat(each) for each in zip(*results, strict=True))
    else:
        width = query.shape[-1] // head_num if input_layout in ("BSH", "SBH") else None
        out, maximum, total = attend(*(_split(each, input_layout, width) for each in (query, key, value)))
        out = _join(out, input_layout)
    return out, maximum, total, query.new_empty(0), 0, 0, 0


def _check(padding_mask, prefix, pse, atten_mask, sparse_mode, input_layout):
    if input_layout not in (*_LAYOUTS, "TND"):
        raise ValueError(
            f"npu_fusion_attention: input_layout is {input_layout!r}; accepted are {', '.join(_LAYOUTS)} "
            "and TND"
        )
    for name, given in (("padding_mask", padding_mask), ("prefix", prefix)):
        if given is not None:
            raise NotImplementedError(f"npu_fusion_attention: {name} is given; only None is supported")
    if sparse_mode not in (0, 1, 2, 3):
        raise NotImplementedError(
            f"npu_fusion_attention: sparse_mode is {sparse_mode}; supported are 0, 1, 2 and 3"
        )
    if input_layout == "TND" and (pse is not None or (atten_mask is not None and sparse_mode < 2)):
        raise NotImplementedError(
            "npu_fusion_attention: pse or a full atten_mask is given with layout TND; supported are "
            "sparse_mode 2 and 3, and no mask"
        )
    shape = None if atten_mask is None else list(atten_mask.shape)
    if (sparse_mode in (2, 3) and shape != _TRIANGLE) or (sparse_mode == 1 and shape is None):
        wanted = f"has shape {_TRIANGLE}" if sparse_mode != 1 else "covers all queries and keys"
        raise ValueError(
            f"npu_fusion_attention: atten_mask has shape {shape}; with sparse_mode {sparse_mode} it {wanted}"
        )


def _split(x, layout, width):
    """As (batch, head, sequence, width)."""
    return (x if width is None else x.unflatten(-1, (-1, width))).permute(_LAYOUTS[layout])


def _join(x, layout):
    x = x.permute(sorted(range(4), key=_LAYOUTS[layout].__getitem__))
    return x.flatten(-2) if layout in ("BSH", "SBH") else x


def _sequences(query, key, value, query_ends, key_ends):
    """The sequences that TND tensors hold one after the other, each as a batch of one."""
    if not query_ends or not key_ends or len(query_ends) != len(key_ends):
        raise ValueError(
            f"npu_fusion_attention: actual_seq_qlen is {query_ends} and actual_seq_kvlen {key_ends}; layout "
            "TND needs both, with one cumulative length for each sequence"
        )
    q_start = k_start = 0
    for q_end, k_end in zip(query_ends, key_ends, strict=True):
        ranges = ((query, q_start, q_end), (key, k_start, k_end), (value, k_start, k_end))
        yield [x[start:end].transpose(0, 1)[None] for x, start, end in ranges]
        q_start, k_start = q_end, k_end


def _masked(q, k, atten_mask, sparse_mode, before, after):
    """True where a key is hidden from a query, or None where none is."""
    queries, keys = q.shape[-2], k.shape[-2]
    if sparse_mode == 1 or (sparse_mode == 0 and before >= queries and after >= keys):
        return None if atten_mask is None else atten_mask.bool()
    # How far to the right of its query, in the first row's count, each key stands.
    distance = torch.arange(keys, device=q.device) - torch.arange(queries, device=q.device)[:, None]
    if sparse_mode != 0:
        return distance > (keys - queries if sparse_mode == 3 else 0)
    outside = (distance > after) | (distance < -before)
    return outside if atten_mask is None else outside | atten_mask.bool()


def _attention(q, k, v, pse, masked, scale, keep_prob):
    shared_by = q.shape[1] // k.shape[1]
    k, v = (x.float().repeat_interleave(shared_by, 1) for x in (k, v))
    scores = q.float() @ k.transpose(-1, -2)
    scores = scale * (scores if pse is None else scores + pse)
    if masked is not None:
        scores = scores.masked_fill(masked, -torch.inf)
    maximum = scores.amax(-1, keepdim=True)
    # A row that sees no key has the maximum -inf: it counts as 0, and all its exponentials are 0.
    exponentials = (scores - maximum.detach().clamp_min(torch.finfo(torch.float32).min)).exp()
    total = exponentials.sum(-1, keepdim=True)
    probabilities = F.dropout(exponentials / total.clamp_min(torch.finfo(torch.float32).tiny), 1 - keep_prob)
    statistics = (x.detach().expand(*x.shape[:-1], _STATISTICS).contiguous() for x in (maximum, total))
    return (probabilities @ v).to(q.dtype), *statistics
