"""Configures and builds the native code; one folder under build/ for each flavour."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from . import ROOT

console = Console(highlight=False)

COMMON = [
    "-DCMAKE_C_COMPILER_LAUNCHER=ccache",
    "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache",
    *(f"-DCMAKE_{kind}_LINKER_FLAGS=-fuse-ld=mold" for kind in ("EXE", "SHARED", "MODULE")),
    f"-DPython_EXECUTABLE={sys.executable}",
]
# So that ccache serves precompiled headers too, and clones in other folders.
CCACHE = {
    "CCACHE_BASEDIR": str(ROOT),
    "CCACHE_NOHASHDIR": "1",
    "CCACHE_SLOPPINESS": "pch_defines,time_macros",
}
ONEDNN = Path("/usr/include/oneapi/dnnl/dnnl.hpp")  # a rival in benchmarks, where it is installed
NATIVE_ONLY = ["-DANYNPU_TORCH=OFF", "-DANYNPU_BENCH=OFF"]
# Compiled in half the time of -O2 -g; reports still name functions and lines.
QUICKLY = [f"-DCMAKE_{language}_FLAGS_RELWITHDEBINFO=-O1 -g1 -DNDEBUG" for language in ("C", "CXX")]
SANITIZED = [*NATIVE_ONLY, "-DCMAKE_BUILD_TYPE=RelWithDebInfo"]
FLAVOURS = {
    "release": [f"-DANYNPU_PYTHON_DIR={ROOT}", f"-DANYNPU_BENCH_ONEDNN={'ON' if ONEDNN.exists() else 'OFF'}"],
    "debug": ["-DCMAKE_BUILD_TYPE=Debug"],
    "asan": [*SANITIZED, *QUICKLY, "-DANYNPU_SANITIZE=address,undefined", "-DANYNPU_JIT=ON"],
    "tsan": [*SANITIZED, *QUICKLY, "-DANYNPU_SANITIZE=thread", "-DANYNPU_JIT=ON"],
}


def folder(flavour: str) -> Path:
    return ROOT / "build" / flavour


def build(flavour: str, quiet: bool = False) -> None:
    """Brings a flavour up to date, or ends the program with the compiler's messages."""
    directory = folder(flavour)
    directory.mkdir(parents=True, exist_ok=True)
    with open(ROOT / "build" / ".build.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        configure(flavour)
        log = ROOT / "build" / "logs" / f"build-{flavour}.log"
        command = ["cmake", "--build", str(directory)]
        with console.status(f"building {flavour}") as status, open(log, "w") as output:
            process = subprocess.Popen(
                command, env=os.environ | CCACHE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            for line in process.stdout:
                output.write(line)
                if line.startswith("["):
                    status.update(f"building {flavour} {line.strip()[:90]}")
                    if not console.is_terminal and not quiet:
                        print(line.rstrip()[:110], flush=True)
        if process.wait() != 0:
            fail(f"the {flavour} build failed", log)


def configure(flavour: str) -> None:
    """CMake notices changed files by itself; it is started anew only when its arguments change."""
    directory = folder(flavour)
    arguments = ["-S", str(ROOT), "-B", str(directory), "-G", "Ninja", *COMMON, *FLAVOURS[flavour]]
    stamp = directory / ".arguments"
    if stamp.exists() and stamp.read_text() == "\n".join(arguments) and (directory / "build.ninja").exists():
        return
    log = ROOT / "build" / "logs" / f"configure-{flavour}.log"
    with console.status(f"configuring {flavour}"), open(log, "w") as output:
        result = subprocess.run(["cmake", *arguments], stdout=output, stderr=subprocess.STDOUT)
    if result.returncode != 0:
        fail(f"configuring {flavour} failed", log)
    stamp.write_text("\n".join(arguments))


def fail(what: str, log: Path) -> None:
    """Ends the program with the log from the first error on, or its end."""
    lines = log.read_text().splitlines()
    first = next((i for i, line in enumerate(lines) if "error:" in line.lower()), max(0, len(lines) - 30))
    print("\n".join(lines[first : first + 30]), file=sys.stderr)
    sys.exit(f"./dev: {what}; the whole log is {log.relative_to(ROOT)}")
