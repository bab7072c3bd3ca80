"""Formatting, static checks and layering. A check returns what is wrong, or the empty string."""

import hashlib
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import ROOT, build, docs

BIN = Path(sys.executable).parent

# What a layer may include: itself, these, and what these may. A lower layer never includes a higher one.
LAYERS = {
    "base": [],
    "prof": ["base"],
    "runtime": ["prof"],
    "tile": ["base"],
    "jit": ["tile"],
    "ops": ["runtime", "tile", "jit"],
    "graph": ["ops"],
    "fusion": ["graph"],
    "hccl": ["runtime"],
    "abi": ["fusion", "hccl", *(PUBLIC := ["acl", "aclnn", "aclnnop", "ge"])],
    "torch_npu": ["graph", "hccl"],
}
TORCH_INCLUDE = re.compile(r"(torch|ATen|c10|pybind11)/")


def files(*patterns: str) -> list[str]:
    """The files that git tracks or would track, so that builds and environments are left out."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


def cpp_files() -> list[str]:
    return files("*.h", "*.cpp", "*.c")


def check_command(*command: str | Path) -> str:
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return "" if result.returncode == 0 else result.stdout + result.stderr


def clang_format() -> str:
    output = check_command(BIN / "clang-format", "--dry-run", "--Werror", *cpp_files())
    names = sorted(set(re.findall(r"^(\S+?):\d+:\d+: error: code should be", output, re.M)))
    return f"./dev fmt would change {', '.join(names)}" if names else output


def ruff() -> str:
    return check_command(BIN / "ruff", "check", "--quiet", ".")


def ruff_format() -> str:
    output = check_command(BIN / "ruff", "format", "--check", "--output-format=concise", ".")
    return f"./dev fmt would change\n{output}" if output else ""


def allowed(layer: str) -> set[str]:
    return {layer}.union(*(allowed(lower) for lower in LAYERS.get(layer, [])))


def layering() -> str:
    """Of the sources of the libraries; tests, benchmarks and tools may include anything."""
    problems = []
    for name in files("src/*.h", "src/*.cpp", "torch_npu/*.h", "torch_npu/*.cpp"):
        layer = Path(name).parts[1] if name.startswith("src/") else "torch_npu"
        if layer not in LAYERS:
            problems.append(f"{name} is in no layer that tools/devtools/lint.py knows")
        for include in re.findall(r'#include [<"]([^>"]+)[>"]', (ROOT / name).read_text()):
            top = include.split("/")[0]
            if top in {*LAYERS, *PUBLIC} and "/" in include and top not in allowed(layer):
                problems.append(f"{name} includes {include}: not for {layer}")
            if TORCH_INCLUDE.match(include) and layer != "torch_npu":
                problems.append(f"{name} includes {include}: only torch_npu/csrc includes torch")
            if include.startswith("llvm/") and not name.startswith("src/jit/codegen/"):
                problems.append(f"{name} includes {include}: only src/jit/codegen includes LLVM")
    return "\n".join(problems)


def with_headers(name: str, found: set[str]) -> set[str]:
    """A source and the project's headers that it includes, directly or not."""
    found.add(name)
    for include in re.findall(r'#include "([^"]+)"', (ROOT / name).read_text()):
        for header in (f"src/{include}", f"include/{include}"):
            if header not in found and (ROOT / header).exists():
                with_headers(header, found)
    return found


def clang_tidy() -> str:
    """On the sources under src/ that changed, or whose headers did, since they were last found clean."""
    stamps = ROOT / "build" / "tidy"
    stamps.mkdir(parents=True, exist_ok=True)

    def check(name: str) -> str:
        read = [".clang-tidy", "tools/requirements.txt", *sorted(with_headers(name, set()))]
        stamp = stamps / hashlib.sha256(b"".join((ROOT / path).read_bytes() for path in read)).hexdigest()
        if stamp.exists():
            return ""
        # Without OpenMP: its header is the compiler's own.
        arguments = ["-p", str(build.folder("release")), "--quiet", "--extra-arg=-fno-openmp"]
        arguments.append("--extra-arg=-Wno-unknown-warning-option")  # of gcc
        problems = check_command(BIN / "clang-tidy", *arguments, name)
        if not problems:
            stamp.touch()
        return problems

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return "\n".join(filter(None, pool.map(check, files("src/*.cpp"))))


def stale_docs() -> str:
    return "\n".join(docs.update(check=True))


CHECKS = {
    "clang-format": clang_format,
    "ruff": ruff,
    "ruff format": ruff_format,
    "layering": layering,
    "docs": stale_docs,
    "clang-tidy": clang_tidy,
}


def format_all() -> None:
    subprocess.run([BIN / "clang-format", "-i", *cpp_files()], cwd=ROOT, check=True)
    subprocess.run([BIN / "ruff", "check", "--quiet", "--fix", "."], cwd=ROOT)
    subprocess.run([BIN / "ruff", "format", "--quiet", "."], cwd=ROOT, check=True)
