"""The test suites, and the sum of what their runners say."""

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from . import ROOT, build, lint

LIMIT = 900  # seconds for one runner: a hang is a failure


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


def run_limited(command: list[str], environment: dict[str, str]) -> str | None:
    """Runs a test program; None when it ended by itself with a report to read, else what happened to it."""
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | environment, start_new_session=True)
    try:
        code = process.wait(LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"did not end within {LIMIT} s and was killed"
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return None


def report_path(name: str, suffix: str) -> Path:
    path = ROOT / "build" / "reports" / f"{name}.{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    return path


def gtest(flavour: str, pattern: str) -> Counts:
    """Every C++ test program of a build."""
    build.build(flavour)
    total = Counts()
    for program in sorted(build.folder(flavour).glob("test/test_*")):
        if not os.access(program, os.X_OK) or program.is_dir():
            continue
        name = f"{flavour}-{program.name}"
        report = report_path(name, "json")
        print(f"\n== {name}", flush=True)
        arguments = ["--gtest_brief=1", f"--gtest_output=json:{report}", f"--gtest_filter={pattern}"]
        trouble = run_limited([str(program), *arguments], SANITIZER_OPTIONS.get(flavour, {}))
        if trouble or not report.exists():
            total += Counts.failure(f"{name} {trouble or 'left no report'}")
        else:
            total += read_gtest(name, report)
    return total


# As many devices as threads, so that the tests of several devices find them; a report fails its test.
SANITIZER_OPTIONS = {
    "asan": {"ANYNPU_DEVICES": "8", "ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "halt_on_error=1"},
    "tsan": {"ANYNPU_DEVICES": "8", "TSAN_OPTIONS": "halt_on_error=1"},
}


def read_gtest(name: str, report: Path) -> Counts:
    counts = Counts()
    for suite in json.loads(report.read_text())["testsuites"]:
        for case in suite["testsuite"]:
            if case.get("failures"):
                counts += Counts.failure(f"{name} {suite['name']}.{case['name']}")
            elif case.get("result") in ("SKIPPED", "SUPPRESSED") or case.get("status") == "NOTRUN":
                counts += Counts(skipped=1)
            else:
                counts += Counts(passed=1)
    return counts


def pytest(folder: str, *arguments: str) -> Counts:
    if not (ROOT / folder).exists():
        return Counts()
    build.build("release")
    name = "pytest-" + folder.replace("/", "-")
    report = report_path(name, "xml")
    print(f"\n== {name}", flush=True)
    trouble = run_limited([sys.executable, "-m", "pytest", folder, f"--junitxml={report}", *arguments], {})
    if trouble or not report.exists():
        return Counts.failure(f"{name} {trouble or 'left no report'}")
    counts = Counts()
    for case in ET.parse(report).iter("testcase"):
        outcome = {child.tag for child in case} & {"failure", "error", "skipped"}
        if outcome & {"failure", "error"}:
            counts += Counts.failure(f"{case.get('classname')}::{case.get('name')}")
        elif "skipped" in outcome:
            counts += Counts(skipped=1)
        else:
            counts += Counts(passed=1)
    return counts


def run_lint(_: str | None) -> Counts:
    counts = Counts()
    for name, check in lint.CHECKS.items():
        problems = check()
        print(f"lint {name}: {problems if problems else 'ok'}", flush=True)
        counts += Counts.failure(f"lint {name}") if problems else Counts(passed=1)
    return counts


def gtest_pattern(k: str | None) -> str:
    return f"*{k}*" if k else "*"


def pytest_filter(k: str | None) -> list[str]:
    return ["-k", k] if k else []


SUITES: dict[str, Callable[[str | None], Counts]] = {
    "lint": run_lint,
    "tiny": lambda k: (
        gtest("release", gtest_pattern(k) + "-*Death*:*Exit*:*Survives*")
        + pytest("test/torch", "-m", "tiny", *pytest_filter(k))
    ),
    "unit": lambda k: gtest("release", gtest_pattern(k)),
    "asan": lambda k: gtest("asan", gtest_pattern(k)),
    "tsan": lambda k: gtest("tsan", gtest_pattern(k)),
    "torch": lambda k: pytest("test/torch", *pytest_filter(k)),
    "clients": lambda k: pytest("test/clients", *pytest_filter(k)),
    "tools": lambda k: pytest("test/tools", *pytest_filter(k)),
}
ALL = [name for name in SUITES if name != "tiny"]


def run(names: list[str], k: str | None) -> int:
    build.build("release")  # first: lint reads the compile commands, and every suite needs it
    total = Counts()
    for name in names:
        start = time.monotonic()
        counts = SUITES[name](k)
        print(
            f"-- {name}: {counts.passed} passed, {counts.failed} failed, {time.monotonic() - start:.0f} s",
            flush=True,
        )
        total += counts
    for failure in total.failures:
        print(f"FAILED {failure}")
    if total.passed + total.failed == 0:
        print("no test ran")
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped", flush=True)
    return 1 if total.failed or total.passed == 0 else 0
