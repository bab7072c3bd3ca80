"""PyTorch's operator database on npu: the usual operators in float32, and every tenth unit of all.

`./dev conformance` runs the whole.
"""

import re
from collections import Counter

import pytest
import torch

pytest.importorskip("expecttest", reason="PyTorch's operator database needs it")
from conformance.check import Outcome
from conformance.compare import Call, difference, observe
from conformance.ledger import Ledger, read_results
from conformance.units import Unit, all_units
from conformance.worker import Checker

LEDGER = Ledger()
USUAL = {
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
NAMES = {name for names in USUAL.values() for name in names.split()}


def is_usual(unit: Unit) -> bool:
    return unit.info.name in NAMES and unit.variant in ("forward", "autograd") and unit.is_first_dtype


UNITS = [unit for unit in all_units() if unit.is_one_of(10) or is_usual(unit)]


@pytest.fixture(scope="module")
def checker():
    checker = Checker()
    yield checker
    checker.close()


@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_a_unit_agrees_with_the_cpu(checker, unit):
    verdict = LEDGER.judge(unit, checker(unit, alone=unit in LEDGER))
    if verdict.kind == "cpu":
        pytest.skip(f"not on the CPU: {verdict.detail}")
    assert verdict.kind in ("passed", "known"), verdict.detail


def test_every_usual_name_is_an_operator():
    assert {unit.info.name for unit in UNITS if is_usual(unit)} == NAMES


def test_the_results_are_those_of_this_database():
    """Every unit is counted, and those known to fail are the ledger's."""
    results, units = read_results(), Counter((unit.family, unit.variant) for unit in all_units())
    known = Counter((unit.family, unit.variant) for unit in LEDGER.known)
    assert {key: row.units for key, row in results.items()} == dict(units)
    assert {key: row.known for key, row in results.items() if row.known} == dict(known)
    assert all(row.passed + row.known + row.not_on_cpu == row.units for row in results.values())


def test_the_ledger_notices_what_is_stale_and_what_is_no_reason(tmp_path):
    unit = UNITS[0]
    path = tmp_path / "known.tsv"
    path.write_text(f"{unit}\tPyTorch bug\tis wrong\n")
    ledger = Ledger(path)
    kinds = {status: ledger.judge(unit, Outcome(status)).kind for status in ("passed", "failed", "cpu")}
    assert kinds == {"passed": "stale", "failed": "known", "cpu": "stale"}
    assert ledger.judge(UNITS[1], Outcome("failed")).kind == "failed"
    for line in (f"{unit}\tnot implemented\tx", f"{unit}\tPyTorch bug\t", "none/out/f32\tPyTorch bug\tx"):
        path.write_text(line + "\n")
        with pytest.raises(ValueError, match=r"known\.tsv:1"):
            Ledger(path)


def observed(function, *args, device="cpu"):
    return observe(Call(function, args), device)


DIFFERENCES = {
    "value": (lambda x: x + 1, lambda x: x + 2, "result 0 Tensor-likes are not close"),
    "type": (lambda x: x.double(), lambda x: x.clone(), "result 0 .*dtype"),
    "stride": (lambda x: x.clone().t(), lambda x: x.t().contiguous(), "geometry is"),
    "sharing": (lambda x: x.clone(), lambda x: x.view_as(x), "shares is"),
    "identity": (lambda x: x.view_as(x), lambda x: x, "memory with tensor 0, on the CPU is tensor 0"),
    "number": (lambda x: (x, x), lambda x: x, "2 results, on the CPU 1"),
    "writing": (lambda x: x.clone(), lambda x: x.add_(1).clone(), "arguments written"),
    "error": (lambda x: x.sum(5), lambda x: x, "raises IndexError, on the CPU nothing"),
    "other error": (lambda x: x.sum(5), lambda x: x.sum(6), "says Dimension out of range"),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_the_comparison_sees(name):
    ours, expected, text = DIFFERENCES[name]
    x = torch.arange(6.0).view(2, 3)
    assert re.search(text, difference(observed(ours, x, device="npu"), observed(expected, x)))
    assert difference(observed(expected, x, device="npu"), observed(expected, x)) == ""


def test_a_result_on_the_host_is_a_difference():
    x = torch.ones(2)
    ours = observed(lambda x: x.cpu(), x, device="npu")
    assert difference(ours, observed(lambda x: x * 1, x)) == "result 0 is on cpu"


def test_a_crash_is_an_outcome_and_the_next_unit_runs(checker):
    crash = Unit("abs", "forward", "no such type")  # an exception in the worker ends it
    assert checker(crash) == Outcome("failed", "died with status 1")
    assert checker(Unit("abs", "forward", "f32")) == Outcome("passed")
