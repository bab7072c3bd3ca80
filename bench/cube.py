"""Products of matrices beside PyTorch's CPU and oneDNN with packed weights."""

import argparse
import json
import math
import os
import statistics
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from bench.interleave import Side, take_turns
from bench.ops import WIDTH, table_of

# Rows, depth and columns: squares, and what vit_b16, llama, ffn_mlp and small_mlp multiply.
SHAPES = (
    *((n, n, n) for n in (512, 1024, 2048, 4096)),
    *((394, 768, 3072), (394, 3072, 768), (256, 1024, 2816), (64, 1024, 4096), (8, 512, 512)),
)
VECTORS = ((1, 1024, 2816), (1, 4096, 4096))
AIMS = {  # at least: times oneDNN, times F.linear
    "float32": (0.97, 1.8),
    "bfloat16": (0.97, None),
    "float16": (None, 6),
}
COPY_SHARE = 0.9  # of a matrix times a vector
ROUNDS = 9
TURN = 0.05  # seconds, about


def linear(device, shape, dtype):
    """F.linear, as eager models call it."""
    import torch

    x, weight = operands(device, shape, dtype)
    return lambda: torch.nn.functional.linear(x, weight)


def packed_linear(device, shape, dtype):
    """oneDNN's linear, with the weight in the layout that it picks for this shape."""
    import torch

    x, weight = operands(device, shape, dtype)
    supported = {
        "bfloat16": torch.ops.mkldnn._is_mkldnn_bf16_supported,
        "float16": torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }
    if not supported.get(dtype, lambda: True)():
        return None
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, shape[0])
    return lambda: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")


def copy(device, shape, dtype):
    """Of a tensor like the weight."""
    import torch

    _, weight = operands(device, shape, dtype)
    out = torch.empty_like(weight)
    return lambda: out.copy_(weight)


def operands(device, shape, dtype):
    import torch

    rows, depth, columns = shape
    make = torch.Generator().manual_seed(0)
    return (
        torch.randn(size, generator=make).to(getattr(torch, dtype)).to(device)
        for size in ((rows, depth), (columns, depth))
    )


def fastest(device, make, shape, dtype):
    """A generator: for each turn the fastest of the calls that fit it, in seconds, each waited for."""
    import torch

    run = make(device, shape, dtype)
    while run is None:  # this processor has no such call
        yield math.nan
    wait = torch.npu.synchronize if device == "npu" else lambda: None
    while True:
        times, end = [], time.perf_counter() + TURN
        while not times or time.perf_counter() < end:
            start = time.perf_counter()
            run()
            wait()
            times.append(time.perf_counter() - start)
        yield min(times)


def measure(sides, makers, shape, dtype):
    """The medians of the sides, and by how many times the first one is faster, turn by turn."""
    for side, make in zip(sides, makers, strict=True):
        side.start(fastest, make, shape, dtype)
    list(take_turns(sides, 1))
    turns = list(take_turns(sides, ROUNDS))
    seconds = [statistics.median(column) for column in zip(*turns, strict=True)]
    gains = [statistics.median(turn[i] / turn[0] for turn in turns) for i in range(1, len(sides))]
    return seconds, gains


def judged(gain, aim):
    if math.isnan(gain):
        return "none"
    if aim is None:
        return f"{gain:.2f}"
    return f"{gain:.2f} [{'green' if gain >= aim else 'red'}]({'met' if gain >= aim else 'missed'}: {aim})[/]"


def measure_products(sides, dtype, advance):
    table = table_of(
        f"F.linear, {dtype}", "rows x depth x columns", "npu", "times oneDNN packed", "times CPU"
    )
    found = {}
    for shape in SHAPES:
        seconds, (onednn, cpu) = measure(sides, (linear, packed_linear, linear), shape, dtype)
        found[str(shape)] = {"seconds": seconds, "onednn": onednn, "cpu": cpu}
        speed = 2e-9 * shape[0] * shape[1] * shape[2] / seconds[0]
        of_onednn, of_cpu = AIMS[dtype]
        row = (f"{speed:.0f} GFLOP/s", judged(onednn, of_onednn), judged(cpu, of_cpu))
        table.add_row(" x ".join(map(str, shape)), *row)
        advance()
    return table, found


def measure_vectors(sides, dtype, advance):
    """Bytes of the weight a second, beside those that copy_ on npu reads and writes."""
    table = table_of(f"one row, {dtype}", "depth x columns", "npu", "of copy", "times oneDNN packed")
    found = {}
    for shape in VECTORS:
        npu, onednn = sides[:2]
        seconds, (gain,) = measure((npu, onednn), (linear, packed_linear), shape, dtype)
        npu.start(fastest, copy, shape, dtype)
        copied = statistics.median(value for (value,) in take_turns([npu], ROUNDS))
        share = copied / 2 / seconds[0]
        found[str(shape)] = {"seconds": seconds, "onednn": gain, "of_copy": share}
        size = {"float32": 4, "bfloat16": 2, "float16": 2}[dtype] * shape[1] * shape[2]
        row = (f"{size / seconds[0] * 1e-9:.1f} GB/s", judged(share, COPY_SHARE), judged(gain, None))
        table.add_row(f"{shape[1]} x {shape[2]}", *row)
        advance()
    return table, found


def main():
    parser = argparse.ArgumentParser(prog="./dev bench cube", description=__doc__)
    parser.add_argument("--only", action="append", choices=AIMS, help="this type; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file too")
    options = parser.parse_args()
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    found = {}
    with (
        Progress(console=console, transient=True) as bar,
        Side("npu") as npu,
        Side("cpu") as onednn,
        Side("cpu") as cpu,
    ):
        task = bar.add_task("products", total=None)
        for dtype in options.only or AIMS:
            for measured in (measure_products, measure_vectors):
                table, figures = measured((npu, onednn, cpu), dtype, lambda: bar.advance(task))
                console.print(table)
                found[f"{dtype} {measured.__name__}"] = figures
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    if (load := os.getloadavg()[0]) > os.cpu_count() + 1:
        console.print(f"[yellow]load average {load:.1f}[/]: other work disturbed these figures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
