"""tile-opt, as developers run it; and what it says of libraries that do not fit together."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TILE_OPT = ROOT / "build/release/tools/tile-opt"
LIBRARIES = ROOT / "anynpu/lib64"

PROGRAMS = """
kernel @scale(%x: f16[?n], %y: f16[?n], %by: f32) grid(ceil(?n / 256)) {
  %a = load %x[256 * block] : tile<1 x min(256, ?n - 256 * block), f16>
  store %y[256 * block], (cast (mul (cast %a : f32), %by) : f16)
}
kernel @softmax(%x: f32[?r, ?c], %y: f32[?r, ?c]) grid(?r) {
  %a = load %x[block, 0] : tile<1 x ?c, f32>
  %e = exp (sub %a, (row_max %a))
  store %y[block, 0], (div %e, (row_sum %e))
}
"""
SIZES = ["--size", "n=1000", "--size", "r=5", "--size", "c=77"]


def tile_opt(*arguments, text=PROGRAMS, **environment):
    return subprocess.run(
        [TILE_OPT, *arguments], input=text, capture_output=True, text=True, env=os.environ | environment
    )


def output(*arguments, text=PROGRAMS):
    done = tile_opt(*arguments, text=text)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_print_gives_a_form_that_reads_back(tmp_path):
    (tmp_path / "programs").write_text(PROGRAMS)
    printed = output("print", str(tmp_path / "programs"))
    assert printed.startswith("kernel @scale(%x: f16[?n], %y: f16[?n], %by: f32) grid((?n + 255) / 256) {\n")
    assert output("print", text=printed) == printed


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("schedule", "1 over ?c: exp to row, row_sum"),
        ("emitted", "define void @softmax("),
        ("optimized", "define void @softmax("),
        ("assembly", "vdivps"),
        ("aarch64", "fdiv\tv"),
    ],
)
def test_stages(command, expected):
    assert expected in output(command, "--isa", "avx2", "--kernel", "softmax")
    assert "softmax" not in output(command, "--kernel", "scale")


def test_machine_code_gives_what_the_interpreter_gives():
    interpreted = output("interpret", *SIZES)
    assert re.search(r"%y: f16, 1000 elements, sha256 [0-9a-f]{16}: \S+", interpreted)
    assert output("run", *SIZES) == interpreted
    assert output("interpret", "--seed", "2", *SIZES) != interpreted
    assert output("compare", *SIZES) == "kernel @scale: no difference\nkernel @softmax: no difference\n"


def test_time_gives_a_line_a_kernel():
    lines = output("time", *SIZES).splitlines()
    assert len(lines) == 2
    for line in lines:
        numbers = re.search(r"in ([\d.]+) ms; one thread: ([\d.]+) us .* ([\d.]+) ns .* ([\d.]+) GB/s", line)
        assert all(float(number) > 0 for number in numbers.groups())


@pytest.mark.parametrize(
    ("arguments", "text", "expected"),
    [
        (["run"], PROGRAMS, "kernel @scale takes a size ?n; give --size n=NUMBER"),
        (["run", "--size", "n=x"], PROGRAMS, "--size: 'x' is not a number of 0 or more"),
        (["assembly", "--isa", "neon"], PROGRAMS, "--isa: 'neon' is not one of avx2, avx512"),
        (
            ["run", "--size", f"n={2**62}"],
            PROGRAMS,
            "@scale: %x has 4.61169e+18 elements; at most 268435456 are",
        ),
        (["print", "/tmp"], PROGRAMS, "cannot read /tmp"),
        (["print", "--kernel", "none"], PROGRAMS, "no kernel @none"),
        (["print", "/does/not/exist"], PROGRAMS, "cannot read /does/not/exist"),
        (["print"], "kernel @f(%x: f32[?n]) grid(1) { store %x[0], %a }", "%a"),
        (["fold"], PROGRAMS, "tile-opt COMMAND [OPTION]... [FILE]"),
    ],
)
def test_errors(arguments, text, expected):
    done = tile_opt(*arguments, text=text)
    assert done.returncode == 2
    assert expected in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("command", ["interpret", "run", "compare", "time"])
@pytest.mark.parametrize(
    ("access", "position"),
    [
        ("store %y[0], (load %x[?n] : tile<1 x 1, f32>)", "position 9 in dimension 0 of %x"),
        ("store %y[1], (load %x[0] : tile<1 x ?n, f32>)", "position 9 in dimension 0 of %y"),
        ("store %y[0 - 4096], (load %x[0] : tile<1 x ?n, f32>)", "position -4096 in dimension 0 of %y"),
    ],
)
def test_an_access_outside_a_buffer_is_reported(command, access, position):
    text = f"kernel @beyond(%x: f32[?n], %y: f32[?n]) grid(1) {{ {access} }}"
    done = tile_opt(command, "--size", "n=9", text=text)
    assert done.returncode == 2
    assert f"kernel @beyond: {position}" in done.stderr
    assert done.stdout == ""


def test_a_missing_compiler_is_named(tmp_path):
    shutil.copy(LIBRARIES / "libanynpu.so", tmp_path)
    done = tile_opt("assembly", LD_LIBRARY_PATH=str(tmp_path))
    assert done.returncode == 2
    assert f"{tmp_path}/libanynpu_jit.so" in done.stderr
    assert tile_opt("interpret", *SIZES, LD_LIBRARY_PATH=str(tmp_path)).returncode == 0


def test_a_compiler_of_another_version_is_named(tmp_path):
    shutil.copy(LIBRARIES / "libanynpu.so", tmp_path)
    compiler = (LIBRARIES / "libanynpu_jit.so").read_bytes()
    (build_id,) = set(re.findall(rb"[0-9a-f]{32}, LLVM ", compiler))
    other = b"0" * 32 + build_id[32:]
    (tmp_path / "libanynpu_jit.so").write_bytes(compiler.replace(build_id, other))
    done = tile_opt("assembly", LD_LIBRARY_PATH=str(tmp_path))
    assert done.returncode == 2
    assert f"{tmp_path}/libanynpu_jit.so is of another version" in done.stderr
    assert "00000000000000000000000000000000, LLVM" in done.stderr
