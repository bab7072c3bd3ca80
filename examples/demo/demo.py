"""Trains and generates with real models on device npu, and compares every number with PyTorch CPU.

`./dev demo` runs it. Exits with 0 only if every row of its table agrees.
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
import sys
import textwrap

import workloads
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.interleave import Side, SideFailed, take_turns

WIDTH = 165  # of the table where the output is no terminal


@dataclasses.dataclass
class Row:
    """One stage on both sides. ``problems`` is empty where they agree and the device did the work."""

    workload: str
    tolerance: str
    difference: str = ""
    loss: str = ""
    npu_seconds: float = 0.0
    cpu_seconds: float = 0.0
    ratio: float = 0.0
    peak_bytes: int = 0
    native_launches: int = 0
    fallbacks: int = 0
    problems: list[str] = dataclasses.field(default_factory=list)
    sample: str = ""


def row_of(stage):
    return Row(stage.title, "equal" if stage.tolerance is None else f"{stage.tolerance:.0e}")


def compare(stage, npu, cpu):
    """The row of a stage from the turns of both sides."""
    row, last = row_of(stage), npu[-1]
    ours, theirs = ([value for turn in turns for value in turn.values] for turns in (npu, cpu))
    if len(ours) != len(theirs):
        row.problems.append(f"{len(ours)} values on npu, {len(theirs)} on CPU")
    elif stage.tolerance is None:
        compare_tokens(row, ours, theirs)
    else:
        compare_losses(row, ours, theirs, stage.tolerance)
    row.npu_seconds = statistics.median(turn.seconds for turn in npu)
    row.cpu_seconds = statistics.median(turn.seconds for turn in cpu)
    row.ratio = statistics.median(a.seconds / b.seconds for a, b in zip(npu, cpu, strict=True))
    row.peak_bytes, row.native_launches, row.fallbacks = last.peak_bytes, last.native_launches, last.fallbacks
    if row.native_launches == 0:
        row.problems.append("no launch on the device's streams")
    row.sample = stage.show(last.values) if stage.show else ""
    return row


def compare_tokens(row, ours, theirs):
    equal = sum(a == b for a, b in zip(ours, theirs, strict=True))
    row.difference = f"{equal}/{len(theirs)} equal"
    if equal != len(theirs):
        row.problems.append("tokens differ")


def compare_losses(row, ours, theirs, tolerance):
    error = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))
    row.difference, row.loss = f"{error:.1e}", f"{ours[0]:.3f} → {ours[-1]:.3f}"
    if not error <= tolerance:  # NaN is beyond every tolerance
        row.problems.append("beyond the tolerance")
    if not ours[-1] < ours[0]:
        row.problems.append("the loss does not fall")


def run_workload(name, sides, options, advance):
    """Yields the rows of a workload."""
    stages = list(workloads.WORKLOADS[name].stages)
    try:
        for side, sabotaged in zip(sides, (options.sabotage, False), strict=True):
            side.start(workloads.run, name, options.quick, sabotaged)
        weights = [side.turn() for side in sides]
        if weights[0] != weights[1]:
            raise SideFailed("the two sides start from different weights")
        while stages:
            turns = []
            for pair in take_turns(sides, stages[0].turns(options.quick)):
                turns.append(pair)
                advance(stages[0].title)
            yield compare(stages.pop(0), *zip(*turns, strict=True))
    except SideFailed as failure:
        for stage in stages:
            yield dataclasses.replace(row_of(stage), problems=[str(failure)])


def run_all(options, console):
    names = options.only or list(workloads.WORKLOADS)
    total = sum(stage.turns(options.quick) for name in names for stage in workloads.WORKLOADS[name].stages)
    columns = (TextColumn("{task.description:36}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar, Side(options.device) as npu, Side("cpu") as cpu:
        task = bar.add_task("starting", total=total)

        def advance(title):
            bar.update(task, advance=1, description=title)

        return [row for name in names for row in run_workload(name, (npu, cpu), options, advance)]


def table_of(rows):
    table = Table(box=box.SIMPLE_HEAD, title="npu against PyTorch CPU", title_justify="left", pad_edge=False)
    for name in ("workload", "difference", "tolerance", "loss"):
        table.add_column(name, no_wrap=True)
    for name in ("npu, a step", "CPU, a step", "npu/CPU", "peak memory", "native launches", "fallbacks"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for row in rows:
        figures = (
            f"{row.npu_seconds * 1e3:.1f} ms", f"{row.cpu_seconds * 1e3:.1f} ms", f"{row.ratio:.2f}",
            f"{row.peak_bytes / 2**20:.1f} MiB", str(row.native_launches), str(row.fallbacks),
        )  # fmt: skip
        problems = "; ".join(textwrap.shorten(last_line(problem), 60) for problem in row.problems)
        table.add_row(
            row.workload, row.difference, row.tolerance, row.loss,
            *(figures if row.difference else [""] * len(figures)),
            f"[red]FAIL[/]: {escape(problems)}" if row.problems else "[green]agrees[/]",
        )  # fmt: skip
    return table


def last_line(text):
    return text.strip().splitlines()[-1]


def report(rows, console):
    console.print(table_of(rows))
    for row in filter(lambda row: row.sample, rows):
        console.print(f"{row.workload}:", style="bold")
        console.print(row.sample, markup=False, highlight=False)
    tracebacks = (problem for row in rows for problem in row.problems if "\n" in problem)
    for traceback in dict.fromkeys(tracebacks):
        console.print(traceback, markup=False, highlight=False)
    console.print(f"{sum(not row.problems for row in rows)} of {len(rows)} rows agree")


def main():
    parser = argparse.ArgumentParser(prog="./dev demo", description=__doc__.splitlines()[0])
    option = parser.add_argument
    option(
        "--sabotage", action="store_true", help="corrupt a weight of each model on npu; all rows must fail"
    )
    option("--quick", action="store_true", help="tiny models and few steps, as the tests use it")
    option("--only", action="append", choices=workloads.WORKLOADS, help="run this; may be repeated")
    option("--device", default="npu", help="the device that stands against the CPU (default: npu)")
    option("--json", type=pathlib.Path, metavar="FILE", help="write the rows to this file too")
    options = parser.parse_args()

    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    rows = run_all(options, console)
    report(rows, console)
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1))
    return 1 if any(row.problems for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
