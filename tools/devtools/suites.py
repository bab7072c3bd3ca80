"""The test suites, and the sum of what their runners say."""

import subprocess
import time
from collections.abc import Callable

from . import ROOT, build, lint, published
from .runners import AT_ONCE, Counts, gtest, pytest

# A sanitizer's report fails its test.
SANITIZERS = {
    "asan": {"ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "halt_on_error=1"},
    "tsan": {"TSAN_OPTIONS": "halt_on_error=1"},
}
DEVICES = {"ANYNPU_DEVICES": "8"}  # as many as threads, so that the C++ tests of several devices find them
TINY = ("copy", "views", "cpu_scalars")
# What tiny leaves out: tests that start other processes, and those that take seconds.
NOT_TINY = "*Death*:*Exit*:*Survives*:AttentionTest.*:ConvolutionTest.*:Gemm.*:Ops/*:Unfused.*:Jit.*"
PYTHON_SUITES = {name: f"test/{name}" for name in ("error", "torch", "clients", "tools")}


def run_lint(_: str | None) -> Counts:
    counts = Counts()
    for name, check in lint.CHECKS.items():
        problems = check()
        print(f"lint {name}: {problems[:5000] or 'ok'}", flush=True)
        counts += Counts.of("failed" if problems else "passed", f"lint {name}")
    return counts


def run_gtest(flavour: str, k: str | None, without: str = "") -> Counts:
    pattern = (f"*{k}*" if k else "*") + (f"-{without}" if without else "")
    return gtest(flavour, pattern, DEVICES | SANITIZERS.get(flavour, {}))


def run_pytest(paths: list[str], k: str | None) -> Counts:
    """A whole folder in several workers; what is chosen from it is less than they take to start."""
    whole = k is None and all((ROOT / path).is_dir() for path in paths)
    return pytest(*paths, *(["-k", k] if k else []), workers=AT_ONCE if whole else 0)


def run_tiny(k: str | None) -> Counts:
    """The fast C++ tests that start no other processes, and the fastest files of test/torch."""
    counts = run_gtest("release", k, without=NOT_TINY)
    files = [f"test/torch/test_{name}.py" for name in TINY]
    return counts + run_pytest(files, k)


def run_published(k: str | None) -> Counts:
    """In an environment with the published torch_npu; -P, so that it is not this folder's."""
    return pytest("test/published", *(["-k", k] if k else []), python=published.command("-P"))


SUITES: dict[str, Callable[[str | None], Counts]] = {
    "lint": run_lint,
    "tiny": run_tiny,
    "unit": lambda k: run_gtest("release", k),
    "asan": lambda k: run_gtest("asan", k),
    "tsan": lambda k: run_gtest("tsan", k),
} | {
    name: lambda k, folder=folder: run_pytest([folder], k)
    for name, folder in PYTHON_SUITES.items()
    if any((ROOT / folder).glob("test_*.py"))
}
SUITES["published"] = run_published


def sanitizer_in_turn() -> str:
    """One of the two: the commit decides, so that a commit's test is the same everywhere."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return list(SANITIZERS)[int(head.stdout[:8] or "0", 16) % len(SANITIZERS)]


def everything() -> list[str]:
    """What CI runs. Tiny is a part of the others; the sanitizers, whose builds take long, take turns."""
    left_out = {"tiny", *SANITIZERS} - {sanitizer_in_turn()}
    return [name for name in SUITES if name not in left_out]


def run(names: list[str], k: str | None) -> int:
    build.build("release")  # first: lint reads the compile commands, and every suite needs it
    total = Counts()
    for name in names:
        print(f"\n== {name}", flush=True)
        start = time.monotonic()
        counts = SUITES[name](k)
        print(f"-- {name}: {summary(counts)}, {time.monotonic() - start:.0f} s", flush=True)
        total += counts
    for failure in total.failures:
        print(f"FAILED {failure}")
    nothing = total.passed + total.failed == 0
    if nothing:
        print("no test ran: that is a failure")
    print(summary(total), flush=True)
    return 1 if total.failed or nothing else 0


def summary(counts: Counts) -> str:
    return f"{counts.passed} passed, {counts.failed} failed, {counts.skipped} skipped"
