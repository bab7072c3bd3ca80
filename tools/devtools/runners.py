"""Runs test programs and counts what they say; a crash, a hang and a bad exit status are failures too."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from . import ROOT, build

LIMIT = 2400  # seconds for one program, on a machine that does other work too: a hang is a failure
AT_ONCE = os.cpu_count() or 1  # programs, or workers of pytest

console = Console(highlight=False)


@dataclass
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list[str] = field(default_factory=list)

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.passed + other.passed,
            self.failed + other.failed,
            self.skipped + other.skipped,
            self.failures + other.failures,
        )

    @staticmethod
    def failure(what: str) -> "Counts":
        return Counts(failed=1, failures=[what])

    @staticmethod
    def of(outcome: str, name: str) -> "Counts":
        """One test that 'passed', 'failed' or was 'skipped'."""
        return Counts.failure(name) if outcome == "failed" else Counts(**{outcome: 1})


def run_limited(
    command: list[str], environment: dict[str, str], on_line: Callable[[str], None] | None = None
) -> str | int:
    """Runs a program, its output passed on or given to `on_line`. Its exit status, or what else ended it."""
    pipe = subprocess.PIPE if on_line else None
    process = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | environment, start_new_session=True,
        stdout=pipe, stderr=subprocess.STDOUT if on_line else None, text=True, errors="replace",
    )  # fmt: skip
    hung = threading.Event()

    def kill() -> None:  # the whole group: a test's children too
        hung.set()
        with contextlib.suppress(ProcessLookupError):  # it ended just now
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(LIMIT, kill)
    timer.daemon = True
    timer.start()
    try:
        for line in process.stdout or ():
            on_line(line.rstrip("\n"))
        status = process.wait()
    except BaseException:
        kill()
        raise
    finally:
        timer.cancel()
    if hung.is_set():
        return f"did not end within {LIMIT} s and was killed"
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else status


def judge(name: str, ended: str | int, accepted: set[int], counts: Counts, running: str) -> Counts:
    """Adds a failure when the program ended otherwise than its tests' outcomes explain."""
    if isinstance(ended, int):
        if ended in accepted or (ended in (1, 2) and counts.failed):
            return counts
        ended = f"ended with status {ended}"
    return counts + Counts.failure(f"{name} {ended}" + (f" in {running}" if running else ""))


REPORTS = tempfile.TemporaryDirectory(prefix="anynpu-test-")  # of this process: others may test meanwhile


def report_path(name: str, suffix: str) -> Path:
    path = Path(REPORTS.name) / f"{name}.{suffix}"
    path.unlink(missing_ok=True)
    return path


def gtest(flavour: str, pattern: str, environment: dict[str, str]) -> Counts:
    """Every C++ test program of a build, several at a time."""
    build.build(flavour)
    programs = sorted(path for path in build.folder(flavour).glob("test/test_*") if path.is_file())
    with console.status(flavour) as status, ThreadPoolExecutor(AT_ONCE) as pool:

        def run(program: Path) -> Counts:
            return gtest_program(flavour, program, pattern, environment, status.update)

        return sum(pool.map(run, programs), Counts())


ROUTINE = ("[ RUN", "[       OK", "[--", "[==", "[  PASSED", "Note: Google Test", "Running main")


def gtest_program(
    flavour: str,
    program: Path,
    pattern: str,
    environment: dict[str, str],
    show_progress: Callable[[str], None] = lambda _: None,
) -> Counts:
    """One program; in the end shows its output, without what is mere routine."""
    name = f"{flavour}-{program.name}"
    report = report_path(name, "json")
    running, shown = "", []

    def follow(line: str) -> None:
        nonlocal running
        mark, _, rest = line.partition("] ")
        if mark.startswith("[ RUN"):
            running = rest
            show_progress(f"{name} {running}")
        elif mark.startswith("[       OK") or mark.startswith("[  FAILED"):
            running = ""
        if line and not mark.startswith(ROUTINE):
            shown.append(line)

    ended = run_limited(
        [str(program), f"--gtest_output=json:{report}", f"--gtest_filter={pattern}"], environment, follow
    )
    counts = read_gtest(name, report) if report.exists() else Counts()
    accepted = {0} if report.exists() else set()
    counts = judge(name, ended, accepted, counts, running)
    print("\n".join([*shown, f"{name}: {counts.passed} passed, {counts.failed} failed"]), flush=True)
    return counts


def read_gtest(name: str, report: Path) -> Counts:
    counts = Counts()
    for suite in json.loads(report.read_text())["testsuites"]:
        for case in suite["testsuite"]:
            ran = case.get("status") == "RUN" and case.get("result") == "COMPLETED"
            outcome = "failed" if case.get("failures") else "passed" if ran else "skipped"
            counts += Counts.of(outcome, f"{name} {suite['name']}.{case['name']}")
    return counts


def pytest(
    folder: str, *arguments: str, workers: int = 0, python: Sequence[str] = (sys.executable,)
) -> Counts:
    """A folder or file of Python tests, in this many worker processes; 0: in one process."""
    build.build("release")
    name = f"pytest-{Path(folder).name}"
    report = report_path(name, "jsonl")
    if workers:
        # Not loadfile, which runs a test that crashes again and again.
        arguments = ("-n", str(workers), "--dist", "worksteal", *arguments)
    ended = run_limited(
        [*python, "-m", "pytest", "-p", "devtools.pytest_report", folder, *arguments],
        {"ANYNPU_PYTEST_REPORT": str(report)},
    )
    counts, running = Counts(), set()
    for line in report.read_text().splitlines() if report.exists() else ():
        record = json.loads(line)
        if record["outcome"] == "started":
            running.add(record["test"])
        else:
            running.discard(record["test"])
            counts += Counts.of(record["outcome"], record["test"])
    return judge(name, ended, {0, 5}, counts, ", ".join(sorted(running)))  # 5: no test was selected
