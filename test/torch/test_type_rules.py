"""Types of results, and which types are refused: as PyTorch has them on the CPU, for every operator with
kernels of our own, and what its operator database says of them."""

import itertools

import pytest
import torch

pytest.importorskip("expecttest", reason="PyTorch's operator database needs it")
import torch_npu._C
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_map_only

import torch_npu

ROWS = {name: set(types) for name, _, types, *_ in torch_npu._C.operators()}
SERVED = torch_npu._C.served()
NAMES = {
    "bool": torch.bool, "u8": torch.uint8, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32,
    "i64": torch.int64, "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32,
    "f64": torch.float64,
}  # fmt: skip
DTYPES = [*NAMES.values(), torch.complex64]
NUMBERS = (True, 2, 2.5, 1 + 2j)


def base_name(overload):
    name = overload.removeprefix("aten::").partition(".")[0].removeprefix("_foreach_")
    return name.removesuffix("_")


def overload_of(name):
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def tensor(dtype, shape):
    return torch.zeros(shape, dtype=dtype)


# What arguments that are neither tensors nor numbers are, by type and name; others are as usual.
NAMED = {
    ("int", "dim"): 1, ("List[int]", "dim"): [1], ("Optional[List[int]]", "dim"): [1],
    ("bool", "half_to_float"): False, ("int", "input_dtype"): torch.float32, ("int", "num_weights"): 4,
    ("int", "padding_idx"): -1, ("bool", "scale_grad_by_freq"): False, ("float", "p"): 0.5,
    ("Optional[bool]", "train"): True, ("float", "scale"): 2.0,
}  # fmt: skip
# Their tensors have shapes that follow from each other.
LEFT_OUT = {
    "_fused_adam", "_fused_adamw", "native_layer_norm", "native_layer_norm_backward",
    "_scaled_dot_product_fused_attention_overrideable_backward", "_flash_attention_forward",
    "_flash_attention_backward", "convolution", "_convolution",
    "convolution_backward", "native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update",
    "_batch_norm_no_update", "native_batch_norm_backward", "batch_norm_backward",
    *(f"{name}{dims}d{rest}" for dims in (2, 3) for name, rest in (
        ("max_pool", "_with_indices"), ("max_pool", "_with_indices_backward"), ("avg_pool", ""),
        ("avg_pool", "_backward"), ("adaptive_max_pool", ""), ("_adaptive_avg_pool", ""),
        ("adaptive_avg_pool", ""),
    )),
}  # fmt: skip


class Case:
    """An overload whose arguments are tensors, numbers, and what NAMED has; lists of tensors have one."""

    def __init__(self, name):
        self.call = overload_of(name)
        self.arguments = [
            a for a in self.call._schema.arguments if not (a.has_default_value() and self.usual(a))
        ]
        kinds = [str(a.type) for a in self.arguments]
        self.tensors = [i for i, kind in enumerate(kinds) if kind in ("Tensor", "List[Tensor]")]
        self.numbers = [i for i, kind in enumerate(kinds) if kind in ("number", "List[number]")]
        known = (*self.tensors, *self.numbers)
        self.fits = all(
            i in known or (kind, a.name) in NAMED
            for i, (kind, a) in enumerate(zip(kinds, self.arguments, strict=True))
        )

    @staticmethod
    def usual(argument):
        return str(argument.type) != "number" and not argument.is_out

    def outs(self):
        return [i for i in self.tensors if self.arguments[i].is_out]

    def calls(self):
        """All pairs of types of the first two operands, and of the first result; further operands are as the
        first. Tensors are empty or have no dimensions, so that no kernel is compiled."""
        operands = [i for i in (*self.tensors, *self.numbers) if not self.arguments[i].is_out]
        free = [*operands[:2], *self.outs()[:1]]

        def choices(i):
            if i in self.numbers:
                return NUMBERS
            shapes = [(0, 3)] if self.outs() else [(0, 3), ()]
            return [tensor(dtype, shape) for dtype in DTYPES for shape in shapes]

        for chosen in itertools.product(*(choices(i) for i in free)):
            if all(isinstance(value, torch.Tensor) and value.dim() == 0 for value in chosen):
                continue
            values = dict(zip(free, chosen, strict=True))
            for i in range(len(self.arguments)):
                if i in values:
                    continue
                if i in self.outs():
                    values[i] = tensor(torch.int64, (0, 3))
                elif i in self.tensors:
                    values[i] = values[operands[0]]
                elif i in self.numbers:
                    values[i] = 1
                else:
                    values[i] = NAMED[str(self.arguments[i].type), self.arguments[i].name]
            yield [values[i] for i in range(len(self.arguments))]

    def outcome(self, values, device):
        """The types of the results, or what was refused."""

        def moved(i, value):
            value = value.to(device, copy=True) if isinstance(value, torch.Tensor) else value
            return [value] if str(self.arguments[i].type) in ("List[Tensor]", "List[number]") else value

        given, named = [], {}
        for i, (argument, value) in enumerate(zip(self.arguments, values, strict=True)):
            if argument.kwarg_only:
                named[argument.name] = moved(i, value)
            else:
                given.append(moved(i, value))
        try:
            results = self.call(*given, **named)
        except (RuntimeError, IndexError, NotImplementedError, TypeError) as error:
            return type(error), str(error).partition("\n")[0]
        results = results if isinstance(results, (list, tuple)) else [results]
        leaves = [r for result in results for r in (result if isinstance(result, list) else [result])]
        return [result.dtype for result in leaves if result is not None]


CASES = {name: case for name in sorted(SERVED) if (case := Case(name)).fits and case.tensors}


def test_every_operator_has_cases():
    assert {base_name(name) for name in SERVED} - {base_name(name) for name in CASES} == LEFT_OUT


@pytest.mark.parametrize("name", CASES)
def test_results_have_the_types_of_the_cpu_and_the_same_is_refused(name):
    case = CASES[name]
    for values in case.calls():
        expected, ours = case.outcome(values, "cpu"), case.outcome(values, "npu")
        given = [(v.dtype, tuple(v.shape)) if isinstance(v, torch.Tensor) else v for v in values]
        assert ours == expected, given


# Entries whose samples are all of overloads or numbers that no kernel of ours takes: a rounding mode, a
# tensor of probabilities, an alpha.
OTHER_SAMPLES = {"div_trunc_rounding", "div_floor_rounding", "bernoulli", "index_add"}


def entries():
    """Of the database, those of operators that kernels of ours serve, with the types of the kernels."""
    types = {}
    for name, rows in SERVED.items():
        if not name.startswith("aten::_foreach_"):
            found = types.setdefault(base_name(name), set())
            found.update(NAMES[dtype] for row in rows for dtype in ROWS[row])
    for info in op_db:
        if info.variant_test_name == "triton_optimized":  # of CUDA's types
            continue
        name = info.aten_name.removeprefix("aten::") if info.aten_name else info.name
        if name in types and info.formatted_name not in OTHER_SAMPLES:
            yield pytest.param(info, types[name], id=info.formatted_name)


def is_native(info, sample):
    """Whether kernels of ours alone compute it."""
    arguments = tree_map_only(torch.Tensor, lambda t: t.detach().npu(), (sample.input, *sample.args))
    torch_npu.reset_fallback_stats()
    info.op(*arguments, **sample.kwargs)
    stats = torch_npu.fallback_stats()
    return stats["fallbacks"] == 0 and stats["native_launches"] > 0


@pytest.mark.parametrize("info, types", list(entries()))
def test_kernels_have_the_types_of_the_operator_database(info, types):
    assert types <= info.dtypes
    for dtype in sorted(types, key=str):
        assert any(is_native(info, sample) for sample in info.sample_inputs("cpu", dtype)), dtype
