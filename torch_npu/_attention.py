"""Attention under the name and conventions of Ascend's fused operator."""

import inspect

import torch


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
    pre_tockens=2147483647,
    next_tockens=2147483647,
    inner_precise=0,
    prefix=None,
    actual_seq_qlen=None,
    actual_seq_kvlen=None,
    sparse_mode=0,
    gen_mask_parallel=True,
    sync=False,
    softmax_layout="",
):
    """dropout(softmax(scale * (query @ key.T + pse), but 0 where atten_mask is True)) @ value.

    Layouts are BNSD, BSND, BSH and SBH, and TND: sequences one after another, of which actual_seq_qlen and
    actual_seq_kvlen are the cumulative lengths. Keys and values may have fewer heads, each shared by equally
    many query heads. pse is broadcast to batch x heads x queries x keys; of TND it has the scores of all
    sequences, one after another. atten_mask too is broadcast so; of TND it is that of the longest sequence.

    sparse_mode 0 hides what atten_mask does and, where that is given, keys more than pre_tockens before and
    next_tockens after the query's position; 1 and 5 hide what atten_mask does; 2 and 3 hide later keys,
    counted from the first or from the last token; 4 is pre_tockens and next_tockens counted from the last
    token; 6 is 3 but for the first keys, as many as prefix says of each batch; 7 and 8, of TND, are 3 and 2,
    but 4 in the last or in the first sequence. In 2, 3, 4, 6, 7 and 8 atten_mask is the triangle that stands
    for that, of 2048 x 2048, or in 6 of 3072 x 2048.

    Returns the attention, each row's maximum and sum of exponentials (both repeated eight times; of TND
    heads before tokens in each sequence's memory, or as the shape says with softmax_layout "TND"), an empty
    tensor, and seed, offset and number of the weights that dropout was drawn for.
    ``inner_precise``, ``gen_mask_parallel`` and ``sync`` choose between hardware's ways to one result, so any
    value will do.
    """
    return torch.ops.npu.npu_fusion_attention(
        query,
        key,
        value,
        head_num,
        input_layout,
        pse,
        padding_mask,
        atten_mask,
        scale,
        keep_prob,
        pre_tockens,
        next_tockens,
        inner_precise,
        prefix,
        actual_seq_qlen,
        actual_seq_kvlen,
        sparse_mode,
        gen_mask_parallel,
        sync,
        softmax_layout,
    )


_NAMES = list(inspect.signature(npu_fusion_attention).parameters)
_SAVED = ("query", "key", "value", "pse", "atten_mask")
# The others' names of the gradient's operator, which are those of the forward one but for the scale.
_OPTIONS = {
    name: "scale_value" if name == "scale" else name
    for name in _NAMES
    if name not in (*_SAVED, "head_num", "input_layout", "padding_mask")
}


def _save(ctx, inputs, output):
    given = dict(zip(_NAMES, inputs, strict=True))
    out, maximum, total, _, seed, offset, numels = output
    ctx.save_for_backward(*(given[name] for name in _SAVED), out, maximum, total)
    ctx.mark_non_differentiable(maximum, total, output[3])
    ctx.set_materialize_grads(False)
    ctx.places = given["head_num"], given["input_layout"]
    ctx.options = {theirs: given[name] for name, theirs in _OPTIONS.items()}
    ctx.options |= {"seed": seed, "offset": offset, "numels": numels}


def _differentiate(ctx, grad, *_):
    found = dict.fromkeys(_NAMES)
    if grad is not None:
        query, key, value, pse, atten_mask, out, maximum, total = ctx.saved_tensors
        gradients = torch.ops.npu.npu_fusion_attention_grad(
            query,
            key,
            value,
            grad,
            *ctx.places,
            pse=pse,
            atten_mask=atten_mask,
            softmax_max=maximum,
            softmax_sum=total,
            attention_in=out,
            needs_dpse=pse is not None and pse.requires_grad,
            **ctx.options,
        )
        found |= zip(("query", "key", "value", "pse"), gradients, strict=True)
    return tuple(found.values())


def npu_fusion_attention_grad(query, key, value, dy, head_num, input_layout, **options):
    """The gradients of npu_fusion_attention to query, key, value and pse (None without it).

    ``options`` are those of npu_fusion_attention, of which the scale is called scale_value; softmax_max,
    softmax_sum and attention_in, which it returned; seed, offset and numels, which it returned too; and
    needs_dpse, without which None comes for pse.
    """
    return torch.ops.npu.npu_fusion_attention_grad(query, key, value, dy, head_num, input_layout, **options)


def register_gradient():
    """Tells autograd how the operator is differentiated."""
    torch.library.register_autograd("npu::npu_fusion_attention", _differentiate, setup_context=_save)
