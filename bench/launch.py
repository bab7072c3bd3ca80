"""What the runtime's smallest acts cost, and what eager models pay for them: ratios, all from one run."""

import dataclasses
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from rich.progress import Progress

from bench import models, report
from bench.interleave import Side, take_turns
from bench.report import table_of, verdict

PROGRAM = Path(__file__).parents[1] / "build" / "release" / "bench" / "bench_launch"
LAUNCH_LIMIT, ALLOCATION_LIMIT, ALLOCATION_GAIN, MODEL_LIMIT = 2e-6, 0.2e-6, 100, 1.25
AGREEMENT = 1e-4  # relative, of the norms of a model's outputs on both sides


@dataclasses.dataclass(frozen=True)
class Act:
    """A case of the C++ program beside the one that it is measured by."""

    title: str
    unit: str = "futex_wake_up"
    limit: float | None = None  # seconds
    gain: float | None = None  # how many times faster than the unit


ACTS = {
    "futex_wake_up": Act("wake a thread on another core (futex)"),
    "launch_short": Act("launch and drain, run by the caller", limit=LAUNCH_LIMIT),
    "launch_parallel": Act("launch and drain, compute thread asleep"),
    "launch_host": Act("launch and drain, service thread asleep"),
    "queued_short": Act("one of 1,000 queued, run by the caller", limit=LAUNCH_LIMIT),
    "queued_parallel": Act("one of 1,000 queued, compute thread", limit=LAUNCH_LIMIT),
    "queued_host": Act("one of 1,000 queued, service thread", limit=LAUNCH_LIMIT),
    "copy_4k": Act("copy 4 KiB on the device", limit=LAUNCH_LIMIT),
    "event_record": Act("record an event", limit=LAUNCH_LIMIT),
    "pool_4k": Act("allocate and free 4 KiB", "mmap_4k", ALLOCATION_LIMIT, ALLOCATION_GAIN),
    "pool_1m": Act("allocate and free 1 MiB", "mmap_1m", ALLOCATION_LIMIT, ALLOCATION_GAIN),
    "pool_64m": Act("allocate and free 64 MiB", "mmap_64m", ALLOCATION_LIMIT, ALLOCATION_GAIN),
}


@dataclasses.dataclass(frozen=True)
class Forward:
    """A forward pass in eager mode on npu, beside the same on PyTorch CPU."""

    title: str
    rounds: int
    calls: int  # in each side's turn, of which the fastest counts
    limit: float | None = None  # times the CPU's


FORWARDS = {
    "small_mlp": Forward("small MLP, 8 rows (overhead)", 60, 20, MODEL_LIMIT),
    "llama_decode": Forward("Llama 0.2 B, decode one token", 30, 3, MODEL_LIMIT),
    "llama": Forward("Llama 0.2 B, prefill 256 tokens", 8, 1),
    "resnet50": Forward("ResNet-50, 4 images", 12, 1),
}


@dataclasses.dataclass
class Result:
    """``ratio`` is to what the figure is measured by; ``met`` is None where there is no aim."""

    title: str
    median: float
    best: float
    ratio: float
    aim: str
    met: bool | None
    cpu_median: float | None = None
    cpu_best: float | None = None


# ---- the runtime


def measure_acts(names, seconds):
    if not PROGRAM.exists():
        sys.exit(f"bench launch: {PROGRAM} is not there; ./dev build builds it")
    times = json.loads(subprocess.run([PROGRAM, str(seconds)], check=True, capture_output=True).stdout)
    return {name: result_of_act(name, ACTS[name], times) for name in names}


def result_of_act(name, act, times):
    mine, unit = times[name], times[act.unit]
    ratio = mine["median"] / unit["median"]
    aims, met = [], []
    if act.limit is not None:
        aims.append(f"< {act.limit * 1e6:g} µs")
        met.append(mine["median"] < act.limit)
    if act.gain is not None:
        aims.append(f">= {act.gain} times faster")
        met.append(ratio * act.gain <= 1)
    return Result(act.title, mine["median"], mine["best"], ratio, ", ".join(aims), all(met) if met else None)


def ratio_text(name, result):
    if ACTS[name].gain is not None:
        return f"{1 / result.ratio:,.0f} times faster than mmap"
    return f"{result.ratio:.4f} wake-ups"


def acts_table(results):
    table = table_of("runtime", "act", "median", "best", "in the same run", "aim", "verdict")
    for name, result in results.items():
        times = (f"{seconds * 1e6:.3f} µs" for seconds in (result.median, result.best))
        table.add_row(result.title, *times, ratio_text(name, result), result.aim, verdict(result.met))
    return table


# ---- models


def forward_passes(device, name, calls):
    """A generator: the norm of the model's output, then for each turn the fastest of some forward passes."""
    import torch

    model, x = models.make(name)
    model, x = model.to(device), x.to(device)
    wait = torch.npu.synchronize if device == "npu" else lambda: None
    with torch.no_grad():
        yield model(x).double().norm().item()
        while True:
            times = []
            for _ in range(calls):
                start = time.perf_counter()
                model(x)
                wait()
                times.append(time.perf_counter() - start)
            yield min(times)


def measure_forward(name, sides):
    forward = FORWARDS[name]
    for side in sides:
        side.start(forward_passes, name, forward.calls)
    norms = [side.turn() for side in sides]
    if not abs(norms[0] - norms[1]) <= AGREEMENT * norms[1]:
        sys.exit(f"bench launch: the outputs of {name} have norm {norms[0]} on npu, but {norms[1]} on CPU")
    list(take_turns(sides, 2))  # warm up
    npu, cpu = zip(*take_turns(sides, forward.rounds), strict=True)
    ratio = statistics.median(a / b for a, b in zip(npu, cpu, strict=True))
    return Result(
        forward.title,
        statistics.median(npu),
        min(npu),
        ratio,
        "" if forward.limit is None else f"<= {forward.limit}",
        None if forward.limit is None else ratio <= forward.limit,
        statistics.median(cpu),
        min(cpu),
    )


def measure_forwards(names, console):
    results = {}
    with Progress(console=console, transient=True) as bar, Side("npu") as npu, Side("cpu") as cpu:
        task = bar.add_task("models", total=len(names))
        for name in names:
            bar.update(task, description=FORWARDS[name].title)
            results[name] = measure_forward(name, (npu, cpu))
            bar.advance(task)
    return results


def forwards_table(results):
    columns = ("npu median", "CPU median", "ratio", "npu best", "CPU best", "ratio of bests")
    table = table_of("eager forward passes, f32", "model", *columns, "aim", "verdict")
    for result in results.values():
        median, cpu_median, best, cpu_best = (
            f"{seconds * 1e3:.3f} ms"
            for seconds in (result.median, result.cpu_median, result.best, result.cpu_best)
        )
        ratio, best_ratio = f"{result.ratio:.3f}", f"{result.best / result.cpu_best:.3f}"
        row = (median, cpu_median, ratio, best, cpu_best, best_ratio, result.aim, verdict(result.met))
        table.add_row(result.title, *row)
    return table


def main():
    parser = report.parser_of("launch", __doc__)
    option = parser.add_argument
    option("--only", action="append", choices=[*ACTS, *FORWARDS], help="this figure; may be repeated")
    option("--strict", action="store_true", help="exit with 1 if an aim is missed")
    option("--seconds", type=float, default=10, help="how long to repeat the runtime's acts (default: 10)")
    options = parser.parse_args()

    console = report.console()
    acts = [name for name in ACTS if not options.only or name in options.only]
    forwards = [name for name in FORWARDS if not options.only or name in options.only]
    results = {}
    if acts:
        with console.status("runtime"):
            results |= (found := measure_acts(acts, options.seconds))
        console.print(acts_table(found))
    if forwards:
        results |= (found := measure_forwards(forwards, console))
        console.print(forwards_table(found))
    missed = [result.title for result in results.values() if result.met is False]
    console.print(f"missed: {'; '.join(missed)}" if missed else "every aim is met")
    report.finish(console, options, {name: dataclasses.asdict(result) for name, result in results.items()})
    return 1 if missed and options.strict else 0


if __name__ == "__main__":
    sys.exit(main())
