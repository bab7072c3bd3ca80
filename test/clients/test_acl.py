"""Programs that users of AscendCL write: they see include/ and the libraries. And what the libraries show."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
LIBRARIES = ROOT / "anynpu" / "lib64"
WARNINGS = ["-Wall", "-Wextra", "-pedantic", "-Werror"]
COMPILERS = {".cpp": ["g++", "-std=c++17"], ".c": ["gcc", "-std=c11"]}

# The codes that are published for each step of lifecycle.cpp.
LIFECYCLE = {
    "count_before_init": 0,
    "init": 0,
    "init_again": 100002,
    "no_context": 107002,
    "own_context": 0,
    "bad_device": 107001,
    "set_device": 0,
    "malloc": 0,
    "upload": 0,
    "too_small": 100000,
    "untouched": 1,
    "download": 0,
    "same": 1,
    "free": 0,
    "free_again": 107000,
    "free_null": 100000,
    "reset_device": 0,
    "finalize": 0,
    "finalize_again": 100037,
}


def rows(table):
    with open(ROOT / "tools/abi" / table, newline="") as file:
        for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            if not row[0].startswith("#"):
                yield row


def functions(headers):
    """Of the table of functions, those of a folder of headers: name, type, why it is not supported."""
    return [(row[1], row[2], row[5]) for row in rows("acl_functions.tsv") if row[0].startswith(headers)]


def operators():
    """The functions of the table of operators."""
    names = [row[1] for row in rows("aclnn_functions.tsv")]
    return names + [f"{name}GetWorkspaceSize" for name in names]


@pytest.fixture
def program(tmp_path):
    """Compiles a program of this folder, runs it and returns what it printed."""

    def run(source, *more):
        binary = tmp_path / "program"
        compiler = COMPILERS[Path(source).suffix]
        link = [f"-L{LIBRARIES}", *more, "-lascendcl", f"-Wl,-rpath,{LIBRARIES}", "-pthread"]
        subprocess.run(
            [*compiler, *WARNINGS, f"-I{ROOT / 'include'}", HERE / source, "-o", binary, *link], check=True
        )
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ANYNPU_")}
        done = subprocess.run([binary], capture_output=True, text=True, timeout=120, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_a_c_program(program):
    assert program("minimal.c") == "Ascend910B2 41\n"


def test_lifecycle_and_contexts_of_threads(program):
    printed = dict(line.split() for line in program("lifecycle.cpp").splitlines())
    assert printed == {name: str(code) for name, code in LIFECYCLE.items()}


def test_a_pipeline_of_two_streams(program):
    expected = sum((i % 2048) ** 2 for i in range(12_000))
    printed = program("pipeline.cpp")
    assert printed.startswith("0 wrong")
    # The squares are exact in float32, and so is their sum in double.
    assert printed == f"0 wrong, sum {expected}\n"


def test_operators_of_a_c_program(program):
    assert program("operators.c", "-lopapi") == "7 9 11\nother has shape [2], 161002\n"


def test_products_of_a_c_program(program):
    assert program("products.c", "-lacl_cblas") == "58 64 139 154\nlda is 2, 100000\n"


def shown(library):
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", LIBRARIES / library], capture_output=True, text=True, check=True
    )
    return {line.split()[-1] for line in listed.stdout.splitlines()}


# The libraries, and how the names of their headers start.
ASCENDCL = ("acl/acl_base.h", "acl/acl_rt", "acl/acl_mdl.h", "acl/acl_op.h", "profiling/", "runtime/")
HEADERS = {
    "ascendcl": ASCENDCL, "opapi": ("aclnn/",), "acl_op_compiler": ("acl/acl_op_compiler.h",),
    "acl_cblas": ("acl/ops/acl_cblas.h",),
}  # fmt: skip
LINK_ONLY = ("acl_tdt_channel", "ge_runner", "graph", "hccl")


def test_the_libraries_show_every_function_and_nothing_else():
    for library, headers in HEADERS.items():
        more = set(operators()) if library == "opapi" else set()
        assert shown(f"lib{library}.so") == {name for name, _, _ in functions(headers)} | more
    for library in LINK_ONLY:
        assert shown(f"lib{library}.so") == set()
    assert {name for name, _, _ in functions("")} == {
        name for headers in HEADERS.values() for name, _, _ in functions(headers)
    }


# Calls each function with nothing, and tells what it returned and what the message was.
CALL_ALL = """
import ctypes, json, sys
library = ctypes.CDLL(sys.argv[1])
library.aclGetRecentErrMsg.restype = ctypes.c_char_p
types = {"uint32_t": ctypes.c_uint32, "uint64_t": ctypes.c_uint64, "void": None}
types |= dict.fromkeys(("aclError", "aclnnStatus", "rtError_t", "int32_t"), ctypes.c_int)
results = {}
for name, type in json.load(sys.stdin):
    function = getattr(library, name)
    function.restype = types.get(type, ctypes.c_void_p)
    results[name] = [function(*[None] * 10), (library.aclGetRecentErrMsg() or b"").decode()]
json.dump(results, sys.stdout)
"""


FAILED = {
    "aclError": 200006, "aclnnStatus": 200006, "rtError_t": 207000, "int32_t": -1, "uint32_t": 0xFFFFFFFF,
    "uint64_t": 0,
}  # fmt: skip


# Calls functions that take the name of an operator with one, and prints the messages.
CALL_WITH_OPERATOR = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.aclGetRecentErrMsg.restype = ctypes.c_char_p
for name in sys.argv[2:]:
    assert getattr(library, name)(b"ReduceSum", *[None] * 11) == 200006
    print(library.aclGetRecentErrMsg().decode())
"""


@pytest.mark.parametrize("library", ["ascendcl", "acl_op_compiler"])
def test_an_operator_that_is_not_supported_by_name_is_named(library):
    takers = {
        row[1]: row[5] for row in rows("acl_functions.tsv")
        if row[0].startswith(HEADERS[library]) and row[3].startswith("const char *opType") and row[5]
    }  # fmt: skip
    assert len(takers) >= 4
    done = subprocess.run(
        [sys.executable, "-c", CALL_WITH_OPERATOR, LIBRARIES / f"lib{library}.so", *takers],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        f"{name} failed (200006, ACL_ERROR_FEATURE_UNSUPPORTED): "
        f"not supported: operator 'ReduceSum': {missing}"
        for name, missing in takers.items()
    ]


@pytest.mark.parametrize(
    ("library", "least"), [("ascendcl", 30), ("opapi", 1), ("acl_op_compiler", 1), ("acl_cblas", 6)]
)
def test_what_is_not_supported_says_so(library, least):
    headers = HEADERS[library]
    missing_ones = [(name, type) for name, type, missing in functions(headers) if missing]
    assert len(missing_ones) >= least
    done = subprocess.run(
        [sys.executable, "-c", CALL_ALL, LIBRARIES / f"lib{library}.so"],
        input=json.dumps(missing_ones), capture_output=True, text=True, check=True,
    )  # fmt: skip
    results = json.loads(done.stdout)
    for name, type, missing in functions(headers):
        if missing:
            value, message = results[name]
            assert value == FAILED.get(type), name
            assert (
                message == f"{name} failed (200006, ACL_ERROR_FEATURE_UNSUPPORTED): not supported: {missing}"
            )
