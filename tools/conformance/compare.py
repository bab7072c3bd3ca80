"""A call on the CPU and the same call on npu, and everything in which they differ.

A function is called with tensors of the CPU, and with copies of them on npu that have the same strides,
offsets and shared memory. Compared are values, types, shapes, strides, conjugate and negative bits,
gradients, what the results share with the arguments, what became of the arguments, and the text of errors.
"""

import contextlib
import functools
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import numpy
import torch
from torch.utils._pytree import tree_leaves, tree_map

from .reference_random import NativeDraws, engine_state, generator_of_call

SEED = 20260101  # of inputs and of random numbers


state_of_cpu = functools.cache(functools.partial(engine_state, offset=0))


manual_seed = torch.manual_seed


def seed_torch(value: int) -> None:
    """Makes the CPU draw the numbers that npu's first random operator draws for that seed."""
    manual_seed(value)
    torch.set_rng_state(state_of_cpu(value))


def seed(value: int = SEED) -> None:
    seed_torch(value)
    random.seed(value)
    numpy.random.seed(value)


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


WIDE = {torch.complex64: torch.complex128, torch.complex32: torch.complex128} | dict.fromkeys(
    (torch.float16, torch.bfloat16, torch.float32), torch.float64
)


class Mover:
    """Copies trees of CPU tensors to a device, with wider types where `wide`. Tensors that shared memory
    still do, but wide ones."""

    def __init__(self, device: str, wide: bool = False) -> None:
        self.device = torch.device(device)
        self.wide = wide
        self.storages: dict[int, torch.UntypedStorage] = {}

    def __call__(self, tree: Any) -> Any:
        return tree_map(self._leaf, tree)

    def _leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            if not leaf.is_cpu:  # a meta tensor
                return leaf
            return self._tensor(leaf.detach()).requires_grad_(leaf.requires_grad)
        if isinstance(leaf, torch.dtype) and self.wide:
            return WIDE.get(leaf, leaf)
        if isinstance(leaf, torch.Generator):
            if self.device.type == "cpu":
                return generator_of_call(leaf.initial_seed())
            return torch.Generator(self.device).manual_seed(leaf.initial_seed())
        if isinstance(leaf, torch.device) or (isinstance(leaf, str) and leaf == "cpu"):
            return self.device
        return leaf

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.wide and tensor.dtype in WIDE:
            return tensor.to(WIDE[tensor.dtype])
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
            return tensor.to(self.device, copy=True)
        if tensor.is_neg():
            return torch._neg_view(self._tensor(torch._neg_view(tensor)))
        if tensor.is_conj():
            return self._tensor(tensor.conj()).conj()
        moved = torch.empty(0, dtype=tensor.dtype, device=self.device)
        return moved.set_(self._storage(tensor), tensor.storage_offset(), tensor.size(), tensor.stride())

    def _storage(self, tensor: torch.Tensor) -> torch.UntypedStorage:
        source = tensor.untyped_storage()
        if source._cdata not in self.storages:
            data = torch.empty(0, dtype=torch.uint8).set_(source)
            self.storages[source._cdata] = data.to(self.device, copy=True).untyped_storage()
        return self.storages[source._cdata]


@dataclass
class Call:
    """A function with arguments, whose tensors are on the CPU."""

    function: Callable
    args: tuple = ()
    kwargs: dict = field(default_factory=dict)
    label: str = ""
    differentiates: bool = False
    composed: bool = False  # of products, exponentials and sums, one after another
    expected: list[torch.Tensor] | None = None  # the values of its results, where another form gives them


@dataclass
class Leaf:
    """A result or an argument as the CPU sees it."""

    value: Any
    device: str = ""
    geometry: tuple = ()
    shares: str = ""


@dataclass
class Observed:
    """What a call did."""

    error: Exception | None = None
    results: list[Leaf] = field(default_factory=list)
    gradients: list[Leaf] = field(default_factory=list)
    arguments: list[Leaf] = field(default_factory=list)
    written: list[bool] = field(default_factory=list)  # each argument, as autograd sees it


def is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested


def observe_leaf(leaf: Any, known: list[torch.Tensor]) -> Leaf:
    """`known` are the tensors that it may share memory with; it becomes one of them."""
    if not isinstance(leaf, torch.Tensor):
        return Leaf(leaf)
    if leaf.is_meta:
        return Leaf((leaf.shape, leaf.stride(), leaf.dtype))
    value = leaf.detach().clone() if leaf.is_cpu else leaf.detach().cpu()
    geometry: tuple = (leaf.layout, leaf.requires_grad, leaf.is_conj(), leaf.is_neg())
    shares = ""
    if is_plain(leaf):
        geometry += (leaf.stride(), leaf.storage_offset())
        storage = leaf.untyped_storage()._cdata
        for i, other in enumerate(known):
            if is_plain(other) and other.untyped_storage()._cdata == storage:
                shares = f"is tensor {i}" if other is leaf else f"shares memory with tensor {i}"
                break
        known.append(leaf)
    elif leaf.layout is torch.sparse_coo:
        geometry += (leaf.is_coalesced(), leaf.sparse_dim(), leaf.dense_dim())
    return Leaf(value, leaf.device.type, geometry, shares)


def cotangent(output: torch.Tensor) -> torch.Tensor:
    if not is_plain(output):
        return torch.ones_like(output)
    generator = torch.Generator().manual_seed(SEED)
    widest = torch.complex128 if output.is_complex() else torch.float64
    return torch.randn(output.shape, dtype=widest, generator=generator).to(output)


def gradients(result: Any, given: list[torch.Tensor]) -> list[Leaf]:
    outputs = [tensor for tensor in tensors(result) if tensor.requires_grad]
    inputs = [tensor for tensor in given if tensor.requires_grad]
    if not outputs or not inputs:
        return []
    found = torch.autograd.grad(outputs, inputs, list(map(cotangent, outputs)), allow_unused=True)
    return [observe_leaf(leaf, []) for leaf in found]


def observe(
    call: Call, device: str, with_seed: int = SEED, wide: bool = False, native_draws: bool = False
) -> Observed:
    args, kwargs = Mover(device, wide)((call.args, call.kwargs))
    given = tensors((args, kwargs))
    before = [tensor._version for tensor in given]
    observed = Observed()
    seed(with_seed)
    try:
        with contextlib.ExitStack() as around:
            seeding = [seed_torch]  # some of the database seed themselves
            if native_draws:
                floats = [
                    tensor.dtype for tensor in tensors((call.args, call.kwargs)) if tensor.is_floating_point()
                ]
                double = floats[0] if wide and floats else torch.float64
                draws = around.enter_context(NativeDraws(with_seed, double))
                seeding.append(draws.manual_seed)
            seed_all = mock.patch.object(
                torch, "manual_seed", lambda value: [each(value) for each in seeding]
            )
            around.enter_context(seed_all)
            result = call.function(*args, **kwargs)
        known = [tensor for tensor in given if is_plain(tensor)]
        observed.results = [observe_leaf(leaf, known) for leaf in tree_leaves(result)]
        if call.differentiates:
            observed.gradients = gradients(result, given)
    except Exception as error:
        observed.error = error.with_traceback(None)
    observed.arguments = [observe_leaf(tensor, []) for tensor in given]
    observed.written = [tensor._version != version for tensor, version in zip(given, before, strict=True)]
    return observed


def one_line(text: Any) -> str:
    return " ".join(str(text).split())[:300]


def differing_values(ours: torch.Tensor, expected: torch.Tensor) -> str:
    if ours.dtype == expected.dtype == torch.complex32:  # which PyTorch cannot compare
        ours, expected = torch.view_as_real(ours), torch.view_as_real(expected)
    try:
        torch.testing.assert_close(ours, expected, equal_nan=True)
    except AssertionError as error:
        return one_line(error)
    return ""


def differing_leaf(ours: Leaf, expected: Leaf) -> str:
    if isinstance(expected.value, torch.Tensor) and isinstance(ours.value, torch.Tensor):
        if ours.device != "npu":
            return f"is on {ours.device}"
        for what in ("geometry", "shares"):
            if getattr(ours, what) != getattr(expected, what):
                return f"{what} is {getattr(ours, what)}, on the CPU {getattr(expected, what)}"
        return differing_values(ours.value, expected.value)
    same = type(ours.value) is type(expected.value) and repr(ours.value) == repr(expected.value)
    return "" if same else f"is {one_line(ours.value)}, on the CPU {one_line(expected.value)}"


def differing_leaves(what: str, ours: list[Leaf], expected: list[Leaf]) -> str:
    if len(ours) != len(expected):
        return f"{len(ours)} {what}s, on the CPU {len(expected)}"
    for i, pair in enumerate(zip(ours, expected, strict=True)):
        if text := differing_leaf(*pair):
            return f"{what} {i} {text}"
    return ""


def message(error: Exception) -> str:
    """Its text, with one word for a device however it is called.

    Of an index that a stream found out of range: what all have to say of it, the index and the size.
    """
    if found := re.search(r"\bindex (-?\d+) is out of .* size (\d+)", str(error)):
        return "index {} of {}".format(*found.groups())
    return re.sub(r"(npu|cpu|PrivateUse1)(:\d+)?", "DEVICE", str(error), flags=re.IGNORECASE)


def differing_errors(ours: Exception | None, expected: Exception | None) -> str:
    if type(ours) is not type(expected):
        names = [type(error).__name__ if error else "nothing" for error in (ours, expected)]
        return f"raises {names[0]}, on the CPU {names[1]}: {one_line(ours or expected)}"
    if ours is not None and message(ours) != message(expected):
        return f"says {one_line(ours)} | on the CPU {one_line(expected)}"
    return ""


def difference(ours: Observed, expected: Observed) -> str:
    """The first one, or the empty string."""
    if ours.error is not None or expected.error is not None:
        return differing_errors(ours.error, expected.error)
    # An out= tensor that PyTorch resizes counts as written on every device but the CPU.
    if any(there and not here for here, there in zip(ours.written, expected.written, strict=True)):
        return f"arguments written are {ours.written}, on the CPU {expected.written}"
    return (
        differing_leaves("result", ours.results, expected.results)
        or differing_leaves("gradient", ours.gradients, expected.gradients)
        or differing_leaves("argument", ours.arguments, expected.arguments)
    )


# The CPU's error, to be as exact as it: gradients and composed operators go through many operators, whose
# roundings multiply.
TIMES = {"results": 2, "arguments": 2, "gradients": 8}
TIMES_COMPOSED = 8


def is_as_exact(ours: Any, cpu: Any, wide: Any, times: float) -> bool:
    """Whether no element of `ours` is further from `wide` than so many times what the furthest of the CPU's
    is, or than two units of the last digit of the largest."""
    if not all(isinstance(value, torch.Tensor) and is_plain(value) for value in (ours, cpu, wide)):
        return False
    if ours.dtype not in WIDE or ours.dtype != cpu.dtype or not ours.shape == cpu.shape == wide.shape:
        return False
    finite = cpu.isfinite()
    if not finite.any() or not finite.equal(ours.isfinite()):
        return False
    exact = wide[finite]
    allowed = max(
        times * (cpu[finite] - exact).abs().max(), 2 * torch.finfo(ours.dtype).eps * exact.abs().max()
    )
    return bool((ours[finite] - exact).abs().max() <= allowed)


def difference_from_cpu(call: Call, ours: Observed, cpu: Observed) -> str:
    """Values may also be the CPU's with the random numbers that npu's own kernels draw, or as exact as the
    CPU's, by what it computes with wider types: many of its kernels round more than once, and some cancel."""
    text = difference(ours, cpu)
    if not text or ours.error is not None or cpu.error is not None:
        return text
    drawn = observe(call, "cpu", native_draws=True)
    if drawn.error is None and not difference(ours, drawn):
        return ""
    for reference, native_draws in ((cpu, False), (drawn, True)):
        wide = observe(call, "cpu", wide=True, native_draws=native_draws)
        if reference.error is None and is_within_rounding(ours, reference, wide, call.composed):
            return ""
    return text


def is_within_rounding(ours: Observed, cpu: Observed, wide: Observed, composed: bool) -> bool:
    """Whether ``ours`` differs from ``cpu`` only where it is as exact."""
    if wide.error is not None:
        return False
    times = dict.fromkeys(TIMES, TIMES_COMPOSED) if composed else TIMES

    def accepted(part: str) -> list[Leaf]:
        triples = [getattr(each, part) for each in (ours, cpu, wide)]
        if len({len(leaves) for leaves in triples}) != 1:
            return getattr(cpu, part)
        return [
            replace(there, value=here.value)
            if is_as_exact(here.value, there.value, exact.value, times[part])
            else there
            for here, there, exact in zip(*triples, strict=True)
        ]

    expected = replace(cpu, **{part: accepted(part) for part in ("results", "gradients", "arguments")})
    return not difference(ours, expected)


def disagreement(function: Callable, *args: Any, differentiates: bool = False) -> str:
    """How `function` on npu differs from itself on the CPU, or the empty string."""
    call = Call(function, args, differentiates=differentiates)
    expected = observe(call, "cpu")
    if expected.error is not None:
        raise expected.error
    return difference_from_cpu(call, observe(call, "npu"), expected)
