"""What operators with kernels of our own cost: bandwidth, rows, small calls, compilation, starting."""

import dataclasses
import os
import statistics
import subprocess
import sys
import tempfile
import time

from rich.progress import Progress

from bench import report
from bench.interleave import Side, take_turns
from bench.report import table_of, verdict

COPY_SHARE, ROW_GAIN, CALL_LIMIT, COMPILE_LIMIT = 0.9, 1.5, 0.8e-6, 5e-3
LARGE_BYTES = 64 << 20  # of a tensor that no cache holds, whatever its type
ITEM_BYTES = {"float32": 4, "bfloat16": 2}
SMALL = 1000
ROWS = ((16384, 64), (8192, 256), (2048, 1024), (512, 4096), (64, 32768))
ROUNDS = 15


@dataclasses.dataclass(frozen=True)
class Op:
    """``moves`` says how many tensors a call reads and writes."""

    title: str
    moves: int
    call: str  # an expression over x and y, of one shape and dtype, out, and w, a row


LARGE = {
    "copy": Op("copy", 2, "out.copy_(x)"),
    "add": Op("x + y", 3, "torch.add(x, y, out=out)"),
    "mul_number": Op("2.5 x", 2, "torch.mul(x, two, out=out)"),
    "where": Op("where(mask, x, y)", 3.25, "torch.where(mask, x, y, out=out)"),
    "gelu": Op("gelu", 2, "torch._C._nn.gelu(x, out=out)"),
    "silu": Op("silu", 2, "torch._C._nn.silu(x, out=out)"),
}
BY_ROW = {
    "softmax": Op("softmax", 2, "torch.softmax(x, -1)"),
    "layer_norm": Op("layer norm", 2, "torch.nn.functional.layer_norm(x, w.shape, w, w)"),
}
CALLS = {
    "add": "x + y",
    "mul_number": "x * 2.5",
    "gelu": "torch.nn.functional.gelu(x)",
    "softmax": "torch.softmax(x, -1)",
}


def prepared(device, call, shape, dtype):
    """A function that makes the call once, with arguments that exist, and what waits for it."""
    import torch

    x, y, out = (torch.rand(shape).to(getattr(torch, dtype)).to(device) for _ in range(3))
    names = {"torch": torch, "x": x, "y": y, "out": out, "w": y[0] if y.dim() > 1 else y, "mask": x > y}
    names["two"] = torch.tensor(2.5)
    wait = torch.npu.synchronize if device == "npu" else lambda: None
    return eval(f"lambda: {call}", names), wait


def fastest_call(device, call, shape, dtype, calls):
    """A generator: for each turn the fastest of some calls, in seconds, each waited for."""
    run, wait = prepared(device, call, shape, dtype)
    while True:
        times = []
        for _ in range(calls):
            start = time.perf_counter()
            run()
            wait()
            times.append(time.perf_counter() - start)
        yield min(times)


def mean_of_calls(device, call, calls):
    """A generator: for each turn the seconds of one of many calls, which are waited for together."""
    run, wait = prepared(device, call, (SMALL,), "float32")
    while True:
        start = time.perf_counter()
        for _ in range(calls):
            run()
        wait()
        yield (time.perf_counter() - start) / calls


def measure(sides, job, *arguments, rounds=ROUNDS):
    """The medians of both sides, and of the ratios and differences of their turns."""
    for side in sides:
        side.start(job, *arguments)
    list(take_turns(sides, 3))  # warm up, and compile
    npu, cpu = zip(*take_turns(sides, rounds), strict=True)
    pairs = list(zip(npu, cpu, strict=True))
    return {
        "npu": statistics.median(npu),
        "cpu": statistics.median(cpu),
        "gain": statistics.median(theirs / ours for ours, theirs in pairs),
        "more": statistics.median(ours - theirs for ours, theirs in pairs),
    }


def measure_large(sides, dtype, advance):
    """Bytes a second are compared with those of copy on npu, in the same run."""
    elements = LARGE_BYTES // ITEM_BYTES[dtype]
    table = table_of(
        f"{elements:,} elements of {dtype}", "operator", "npu", "CPU", "times CPU", "of copy", "aim"
    )
    found = {}
    for name, op in LARGE.items():
        found[name] = result = measure(sides, fastest_call, op.call, (elements,), dtype, 2)
        result["of_copy"] = op.moves / result["npu"] * found["copy"]["npu"] / LARGE["copy"].moves
        met = result["of_copy"] >= COPY_SHARE
        aim = "" if name == "copy" else f">= {COPY_SHARE}: {verdict(met)}"
        times = (f"{result[side] * 1e3:.3f} ms" for side in ("npu", "cpu"))
        table.add_row(op.title, *times, f"{result['gain']:.2f}", f"{result['of_copy']:.2f}", aim)
        advance()
    return table, found


def measure_rows(sides, advance):
    table = table_of("rows, f32", "operator", "npu", "CPU", "times CPU", "aim")
    found, gains = {}, {name: [] for name in BY_ROW}
    for name, op in BY_ROW.items():
        for shape in ROWS:
            found[f"{name} {shape}"] = result = measure(sides, fastest_call, op.call, shape, "float32", 5)
            gains[name].append(result["gain"])
            times = (f"{result[side] * 1e3:.3f} ms" for side in ("npu", "cpu"))
            table.add_row(f"{op.title} {shape[0]} x {shape[1]}", *times, f"{result['gain']:.2f}", "")
            advance()
        gain = statistics.geometric_mean(gains[name])
        found[name] = {"gain": gain}
        table.add_row(op.title, "", "", f"{gain:.2f}", f">= {ROW_GAIN}: {verdict(gain >= ROW_GAIN)}")
    return table, found


def measure_calls(sides, advance):
    title = f"calls from Python, {SMALL:,} elements of f32"
    table = table_of(title, "call", "npu", "CPU", "more", "aim")
    found = {}
    for name, call in CALLS.items():
        found[name] = result = measure(sides, mean_of_calls, call, 2000)
        times = (f"{result[side] * 1e6:.2f} µs" for side in ("npu", "cpu"))
        aim = f"<= {CALL_LIMIT * 1e6:g} µs more: {verdict(result['more'] <= CALL_LIMIT)}"
        table.add_row(call, *times, f"{result['more'] * 1e6:+.2f} µs", aim)
        advance()
    return table, found


COMPILE = """
import time, torch, torch_npu
import torch.nn.functional as F

calls = (
    lambda x: x + x, lambda x: x * 2.5, lambda x: torch.where(mask[:, : x.shape[1]], x, x), F.gelu, F.silu,
    lambda x: torch.softmax(x, -1), lambda x: torch.log_softmax(x, -1),
    lambda x: F.layer_norm(x, x.shape[1:]),
)

def seconds(call, x):
    start = time.perf_counter()
    call(x)
    torch.npu.synchronize()
    return time.perf_counter() - start

mask = torch.rand(64, 64, device="npu") > 0.5
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    x = torch.rand(64, 64, device="npu").to(dtype)
    for layout in (x, x[:, ::2]):
        for call in calls:
            print(seconds(call, layout) - seconds(call, layout))
"""
START = "import torch; x = torch.rand(64, 64).to(DEVICE); y = torch.softmax(x + x, -1).sum().item()"


def run_python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=os.environ | environment
    ).stdout


def measure_compilation(advance):
    """First calls less second ones, in a process without a cache."""
    times = sorted(map(float, run_python(COMPILE, ANYNPU_CACHE_DIR="off").split()))
    advance()
    median = statistics.median(times)
    table = table_of(
        f"compilation of {len(times)} kernels", "", "least", "median", "nine in ten", "most", "aim"
    )
    picked = (times[0], median, times[len(times) * 9 // 10], times[-1])
    aim = f"median <= {COMPILE_LIMIT * 1e3:g} ms: {verdict(median <= COMPILE_LIMIT)}"
    table.add_row("first call less second", *(f"{seconds * 1e3:.1f} ms" for seconds in picked), aim)
    return table, {"compile": {"times": times, "median": median}}


def seconds_of_start(device, cache):
    start = time.perf_counter()
    code = START.replace("DEVICE", repr(device))
    run_python(code, ANYNPU_CACHE_DIR=cache, TORCH_DEVICE_BACKEND_AUTOLOAD=str(int(device == "npu")))
    return time.perf_counter() - start


def measure_start(advance, rounds=7):
    """Whole processes that import torch and compute two operators."""
    times = {"npu, empty cache": [], "npu, full cache": [], "CPU": []}
    with tempfile.TemporaryDirectory() as full:
        seconds_of_start("npu", full)
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as empty:
                times["npu, empty cache"].append(seconds_of_start("npu", empty))
            times["npu, full cache"].append(seconds_of_start("npu", full))
            times["CPU"].append(seconds_of_start("cpu", full))
            advance()
    table = table_of("start of a process", "", "median", "times CPU")
    medians = {name: statistics.median(column) for name, column in times.items()}
    for name, seconds in medians.items():
        table.add_row(name, f"{seconds * 1e3:.0f} ms", f"{seconds / medians['CPU']:.3f}")
    return table, {"start": medians}


def main():
    parser = report.parser_of("ops", __doc__)
    parts = ("large", "rows", "calls", "compilation", "start")
    parser.add_argument("--only", action="append", choices=parts, help="this part; may be repeated")
    options = parser.parse_args()
    console = report.console()
    found = {}
    with Progress(console=console, transient=True) as bar, Side("npu") as npu, Side("cpu") as cpu:
        task = bar.add_task("operators", total=None)
        sides = (npu, cpu)

        def advance():
            bar.advance(task)

        measures = {
            "large": [
                lambda dtype=dtype: measure_large(sides, dtype, advance) for dtype in ("float32", "bfloat16")
            ],
            "rows": [lambda: measure_rows(sides, advance)],
            "calls": [lambda: measure_calls(sides, advance)],
            "compilation": [lambda: measure_compilation(advance)],
            "start": [lambda: measure_start(advance)],
        }
        for part in options.only or parts:
            for number, measured in enumerate(measures[part]):
                table, figures = measured()
                console.print(table)
                found[f"{part} {number}"] = figures
    report.finish(console, options, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
