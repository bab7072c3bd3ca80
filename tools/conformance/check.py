"""One unit: its calls, and whether npu agrees with the CPU about them."""

import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal.common_utils import DeterministicGuard
from torch.utils._pytree import tree_map

import torch_npu

from .compare import (
    SEED,
    Call,
    Mover,
    Observed,
    difference_from_cpu,
    differing_values,
    is_plain,
    observe,
    one_line,
    seed,
    tensors,
)
from .units import DTYPES, Unit

SAMPLES = {"forward": 16, "out": 2, "inplace": 8, "autograd": 8}  # at most, spread over all of the database

# What these give is memory that nobody wrote: it is compared under PyTorch's option that fills it.
GIVE_UNWRITTEN_MEMORY = {
    *("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"),
    *("resize_", "resize_as_"),
}


# Operators that amplify their own roundings.
COMPOSED = {"nn.functional.scaled_dot_product_attention", "nn.functional.multi_head_attention_forward"}

# What every device expects on the host beside its tensors: where to split.
TAKES_HOST_TENSORS = {"tensor_split"}


@dataclass
class Outcome:
    """Of a unit: "passed", "failed", or "cpu" where the CPU does not do it."""

    status: str
    detail: str = ""


def samples(unit: Unit) -> list:
    seed()
    dtype, differentiates = DTYPES[unit.dtype], unit.variant == "autograd"
    every = list(unit.info.sample_inputs("cpu", dtype, requires_grad=differentiates, set_seed=False))
    if unit.info.is_factory_function:
        for sample in every:
            sample.kwargs.setdefault("device", torch.device("cpu"))
    return every[:: -(-len(every) // SAMPLES[unit.variant])] if every else []


def arguments(sample: Any) -> tuple:
    return (sample.input, *sample.args)


def on_host(leaf: Any) -> Any:
    return leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf


def function_of(unit: Unit) -> Callable:
    op = unit.info.op
    if unit.op not in TAKES_HOST_TENSORS:
        return op
    return lambda input, *args, **kwargs: op(input, *tree_map(on_host, args), **kwargs)


def forward_calls(unit: Unit) -> Iterator[Call]:
    for sample in samples(unit):
        yield Call(function_of(unit), arguments(sample), sample.kwargs, composed=unit.op in COMPOSED)
    if unit.info.error_inputs_func is not None and unit.is_first_dtype:
        seed()
        for error in unit.info.error_inputs("cpu", set_seed=False):
            sample = error.sample_input
            yield Call(unit.info.op, arguments(sample), sample.kwargs, "wrong input")


def autograd_calls(unit: Unit) -> Iterator[Call]:
    for sample in samples(unit):

        def function(*args, process=sample.output_process_fn_grad, **kwargs):
            return process(function_of(unit)(*args, **kwargs))

        composed = unit.op in COMPOSED
        yield Call(function, arguments(sample), sample.kwargs, differentiates=True, composed=composed)


def results_of_function(unit: Unit, sample: Any) -> Any:
    """What the plain form gives, or None where it raises, which the forward variant compares."""
    args, kwargs = Mover("cpu")((arguments(sample), sample.kwargs))
    seed()
    try:
        return unit.info.op(*args, **kwargs)
    except Exception:
        return None


def inplace_calls(unit: Unit) -> Iterator[Call]:
    for sample in samples(unit):
        result = results_of_function(unit, sample)
        same = isinstance(result, torch.Tensor) and result.dtype == getattr(sample.input, "dtype", None)
        expected = [result] if same else None
        yield Call(unit.info.get_inplace(), arguments(sample), sample.kwargs, expected=expected)


def filled(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.fill_(True if tensor.dtype == torch.bool else 77)


def strided(like: torch.Tensor) -> torch.Tensor:
    """Every second element of a larger tensor."""
    return filled(like.new_empty((*like.shape, 2)))[..., 0]


def transposed(like: torch.Tensor) -> torch.Tensor:
    return filled(like.new_empty(like.shape[::-1])).permute(tuple(reversed(range(like.dim()))))


# How a tensor that out= is given may lie, and whether it can hold the results as they are.
OUT_FORMS = {
    "like the results": (lambda like: filled(torch.empty_like(like)), True),
    "strided": (strided, True),
    "transposed": (transposed, True),
    "empty": (lambda like: like.new_empty(0), True),
    "of float64": (lambda like: filled(like.new_empty(like.shape, dtype=torch.float64)), False),
    "of int64": (lambda like: filled(like.new_empty(like.shape, dtype=torch.int64)), False),
}


def is_tuple_of_tensors(results: Any) -> bool:
    return isinstance(results, tuple) and all(isinstance(each, torch.Tensor) for each in results)


def out_calls(unit: Unit) -> Iterator[Call]:
    for sample, (name, (form, same)) in itertools.product(samples(unit), OUT_FORMS.items()):
        results = results_of_function(unit, sample)
        if not isinstance(results, torch.Tensor) and not is_tuple_of_tensors(results):
            continue
        if not all(map(is_plain, tensors(results))):
            if name != "like the results":
                continue
            form = torch.clone
        out = form(results) if isinstance(results, torch.Tensor) else tuple(map(form, results))
        kwargs = {**sample.kwargs, "out": out}
        expected = tensors(results) if same else None
        yield Call(unit.info.op, arguments(sample), kwargs, f"out {name}", expected=expected)


CALLS = {"forward": forward_calls, "out": out_calls, "inplace": inplace_calls, "autograd": autograd_calls}


def is_random(call: Call, cpu: Observed) -> bool:
    return any(
        differing_values(a.value, b.value)
        for a, b in zip(observe(call, "cpu", SEED + 1).results, cpu.results, strict=True)
    )


def cpu_fault(call: Call, cpu: Observed) -> str:
    """How the CPU's in-place or out= form differs from its function, or the empty string."""
    if call.expected is None or len(call.expected) != len(cpu.results):
        return ""
    for leaf, expected in zip(cpu.results, call.expected, strict=True):
        if (text := differing_values(leaf.value, expected)) and not is_random(call, cpu):
            return f"{call.label}: {text}" if call.label else text
    return ""


@contextmanager
def surroundings(unit: Unit) -> Iterator[None]:
    unwritten = unit.op in GIVE_UNWRITTEN_MEMORY
    with warnings.catch_warnings(), DeterministicGuard(True) if unwritten else nullcontext():
        warnings.simplefilter("ignore")
        yield


def check(unit: Unit, on_npu: Callable[[], None] = lambda: None) -> Outcome:
    """Calls `on_npu` between the CPU's part and npu's."""
    with surroundings(unit):
        calls = list(CALLS[unit.variant](unit))
        expected = [observe(call, "cpu") for call in calls]
        if fault := next(filter(None, map(cpu_fault, calls, expected)), ""):
            return Outcome("cpu", f"is wrong on the CPU: {fault}")
        if all(each.error is not None for each in expected):
            return Outcome("cpu", one_line(expected[0].error) if expected else "has no samples")
        on_npu()
        torch_npu.reset_fallback_stats()
        for call, cpu in zip(calls, expected, strict=True):
            if text := difference_from_cpu(call, observe(call, "npu"), cpu):
                return Outcome("failed", f"{call.label}: {text}" if call.label else text)
        if copied := torch_npu.fallback_stats()["fallback_copies"]:
            return Outcome("failed", f"{copied} results were copied into device memory")
    return Outcome("passed")
