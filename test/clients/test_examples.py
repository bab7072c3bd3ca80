"""The programs under examples/ run as a user runs them, and the demo can fail."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Some minutes on the slowest machine: a program that reaches it hangs.
HANGS_AFTER = 1200
pytestmark = pytest.mark.timeout(HANGS_AFTER + 60)


def python(*command):
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=HANGS_AFTER,
    )


def demo(tmp_path, *options):
    """The demo's exit status, and its rows on small sizes."""
    rows = tmp_path / "rows.json"
    done = python("examples/demo/demo.py", "--quick", "--json", rows, *options)
    assert rows.exists(), done.stdout + done.stderr
    return done, json.loads(rows.read_text())


@pytest.mark.parametrize("name", ["device.py", "model.py"])
def test_an_example_runs_through(name):
    done = python(ROOT / "examples" / name)
    assert done.returncode == 0 and done.stdout, done.stdout + done.stderr


def test_demo_agrees_with_the_cpu_in_every_row(tmp_path):
    done, rows = demo(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(rows) == 8 and not any(row["problems"] for row in rows)
    assert all(row["native_launches"] > 0 and row["fallbacks"] > 0 and row["peak_bytes"] > 0 for row in rows)
    assert "8 of 8 rows agree" in done.stdout


def test_demo_fails_in_every_row_when_one_weight_is_wrong(tmp_path):
    done, rows = demo(tmp_path, "--sabotage")
    assert done.returncode == 1, done.stdout + done.stderr
    assert len(rows) == 8 and "0 of 8 rows agree" in done.stdout
    for row in rows:
        problem = "tokens differ" if row["tolerance"] == "equal" else "beyond the tolerance"
        assert row["problems"] == [problem], row


def test_demo_fails_where_nothing_runs_on_the_device(tmp_path):
    done, rows = demo(tmp_path, "--device", "cpu", "--only", "text_f32")
    assert done.returncode == 1
    assert [row["problems"] for row in rows] == [["no launch on the device's streams"]] * 2


def test_demo_shows_the_exception_that_ends_a_workload(tmp_path):
    done, rows = demo(tmp_path, "--device", "npu:77", "--only", "text_f32", "--only", "text_f16")
    assert done.returncode == 1
    assert len(rows) == 3 and all("invalid device ordinal 77" in row["problems"][0] for row in rows)
    assert "Traceback" in done.stdout
