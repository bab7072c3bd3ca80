"""What `./dev test` makes of programs that pass, fail, crash, hang, or end with a bad exit status."""

import json

import pytest
from devtools import build, runners, suites
from devtools.runners import Counts


@pytest.fixture(autouse=True)
def nothing_to_build(monkeypatch):
    monkeypatch.setattr(build, "build", lambda *_, **__: None)


def case(name, **ending):
    return {"name": name, "status": "RUN", "result": "COMPLETED"} | ending


MIXED = [
    case("good"),
    case("bad", failures=[{}]),
    case("absent", result="SKIPPED"),
    case("off", status="NOTRUN"),
]
RUNNING = "echo '[ RUN      ] Suite.current'"

# What a C++ test program does, which tests its report then holds (None: no report), and what is counted.
CPP_PROGRAMS = {
    "passes": ("exit 0", [case("good")], Counts(1, 0, 0)),
    "mixed": ("exit 1", MIXED, Counts(1, 1, 2, ["release-test_it Suite.bad"])),
    "crashes": (
        f"{RUNNING}; kill -SEGV $$",
        None,
        Counts(0, 1, 0, ["release-test_it was ended by SIGSEGV in Suite.current"]),
    ),
    "stops": (
        f"{RUNNING}; exit 0",
        None,
        Counts(0, 1, 0, ["release-test_it ended with status 0 in Suite.current"]),
    ),
    "leaks": ("exit 23", [case("good")], Counts(1, 1, 0, ["release-test_it ended with status 23"])),
    "crashes at exit": (
        "kill -ABRT $$",
        [case("good")],
        Counts(1, 1, 0, ["release-test_it was ended by SIGABRT"]),
    ),
}


@pytest.mark.parametrize("body, tests, expected", CPP_PROGRAMS.values(), ids=CPP_PROGRAMS)
def test_cpp_program(tmp_path, body, tests, expected):
    program = tmp_path / "test_it"
    report = json.dumps({"testsuites": [{"name": "Suite", "testsuite": tests}]})
    writes = f"echo '{report}' > ${{1#--gtest_output=json:}}; " if tests is not None else ""
    program.write_text(f"#!/bin/bash\n{writes}{body}\n")
    program.chmod(0o755)
    assert runners.gtest_program("release", program, "*", {}) == expected


def test_program_that_hangs_is_killed_with_its_children(tmp_path, monkeypatch):
    monkeypatch.setattr(runners, "LIMIT", 1)
    program = tmp_path / "test_it"
    program.write_text(f"#!/bin/bash\n{RUNNING}\nsleep 1000 & wait\n")
    program.chmod(0o755)
    counts = runners.gtest_program("release", program, "*", {})
    assert counts == Counts(
        0, 1, 0, ["release-test_it did not end within 1 s and was killed in Suite.current"]
    )


# The body of a Python test file, and what is counted.
PYTHON_FILES = {
    "mixed": (
        "def test_good(): pass\n"
        "def test_bad(): assert False\n"
        "def test_absent(): pytest.skip('absent')\n"
        "def test_odd(no_such_fixture): pass\n",
        Counts(1, 2, 1, ["test_file.py::test_bad", "test_file.py::test_odd"]),
    ),
    "crashes": (
        "def test_good(): pass\ndef test_crash(): os.kill(os.getpid(), 11)\n",
        Counts(1, 1, 0, ["pytest-folder was ended by SIGSEGV in test_file.py::test_crash"]),
    ),
    "cannot be imported": ("import no_such_module\n", Counts(0, 1, 0, ["test_file.py"])),
    "no test": ("", Counts()),
}


@pytest.mark.parametrize("body, expected", PYTHON_FILES.values(), ids=PYTHON_FILES)
def test_python_file(tmp_path, body, expected):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "test_file.py").write_text("import os\nimport pytest\n" + body)
    (folder / "pytest.ini").write_text("[pytest]\n")
    assert runners.pytest(str(folder), "-p", "no:cacheprovider") == expected


@pytest.mark.parametrize(
    "counts, status, last_line",
    [
        (Counts(3, 0, 1), 0, "3 passed, 0 failed, 1 skipped"),
        (Counts(3, 1, 0, ["a"]), 1, "3 passed, 1 failed, 0 skipped"),
        (Counts(0, 0, 2), 1, "0 passed, 0 failed, 2 skipped"),
    ],
)
def test_last_line_and_status(monkeypatch, capsys, counts, status, last_line):
    monkeypatch.setitem(suites.SUITES, "one", lambda _: counts)
    monkeypatch.setitem(suites.SUITES, "two", lambda _: Counts())
    assert suites.run(["one", "two"], None) == status
    assert capsys.readouterr().out.splitlines()[-1] == last_line
