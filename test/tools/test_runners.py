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


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\n")
    return folder


@pytest.mark.parametrize("body, expected", PYTHON_FILES.values(), ids=PYTHON_FILES)
def test_python_file(folder, body, expected):
    (folder / "test_file.py").write_text("import os\nimport pytest\n" + body)
    assert runners.pytest(str(folder), "-p", "no:cacheprovider") == expected


def test_python_files_in_workers(folder):
    """A crash is a failure of the test, and loses none of the others."""
    for name, (body, _) in PYTHON_FILES.items():
        (folder / f"test_{name.replace(' ', '_')}.py").write_text("import os\nimport pytest\n" + body)
    counts = runners.pytest(
        str(folder), "-p", "no:cacheprovider", "--continue-on-collection-errors", workers=2
    )
    counts.failures.sort()
    assert counts == Counts(
        *(2, 4, 1),
        [
            "test_cannot_be_imported.py",
            "test_crashes.py::test_crash",
            "test_mixed.py::test_bad",
            "test_mixed.py::test_odd",
        ],
    )


def test_python_tests_that_run_when_all_is_killed_are_named(folder):
    """Each waits until both are reported to run; then one kills the controller of the workers."""
    wait = (
        "import os, pathlib, time\n"
        "report = pathlib.Path(os.environ['ANYNPU_PYTEST_REPORT'])\n"
        "def wait():\n"
        "    limit = time.monotonic() + 60\n"
        "    while not report.exists() or report.read_text().count('started') < 2:\n"
        "        assert time.monotonic() < limit\n"
        "        time.sleep(0.01)\n"
    )
    (folder / "test_a.py").write_text(wait + "def test_a(): wait(); os.kill(os.getppid(), 9)\n")
    (folder / "test_b.py").write_text(wait + "def test_b(): wait(); time.sleep(60)\n")
    counts = runners.pytest(str(folder), "-p", "no:cacheprovider", workers=2)
    name = "pytest-folder was ended by SIGKILL in test_a.py::test_a, test_b.py::test_b"
    assert counts == Counts(0, 1, 0, [name])


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
