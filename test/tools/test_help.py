"""Help of `./dev` and its commands, which must not wait for a build."""

import shutil
import subprocess
from pathlib import Path

import pytest
import typer
from devtools import __main__, build
from typer.testing import CliRunner

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_build(monkeypatch):
    def refuse(*_, **__):
        pytest.fail("it builds")

    monkeypatch.setattr(build, "build", refuse)


@pytest.mark.parametrize("command", ["demo", "conformance", "bench launch", "bench ops", "bench imports"])
def test_help_is_the_program_s_own_without_a_build(command, capfd):
    assert CliRunner().invoke(__main__.app, [*command.split(), "--help"]).exit_code == 0
    assert f"usage: ./dev {command} " in capfd.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_bench_lists_topics_with_what_they_measure(arguments):
    done = CliRunner().invoke(__main__.app, ["bench", *arguments])
    topics = dict(line.split(maxsplit=1) for line in done.output.splitlines())
    assert set(topics) >= {"imports", "launch", "ops"}
    assert "import torch" in topics["imports"]


def test_the_help_of_test_says_what_tiny_is():
    done = CliRunner().invoke(__main__.app, ["test", "--help"], env={"COLUMNS": "200"})
    assert "tiny" in done.output and "fastest" in done.output


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]], ids=" ".join)
def test_help_of_all_needs_no_set_up(arguments, tmp_path):
    """It lists every command, with what it says of itself, in a tree where nothing was set up, or is then."""
    program = tmp_path / "tools/devtools/__main__.py"
    program.parent.mkdir(parents=True)
    shutil.copy(ROOT / "tools/devtools/__main__.py", program)
    shutil.copy(ROOT / "dev", tmp_path)
    before = sorted(tmp_path.rglob("*"))
    done = subprocess.run([tmp_path / "dev", *arguments], capture_output=True, text=True, check=True)
    assert sorted(tmp_path.rglob("*")) == before
    listed = done.stdout.partition("Commands:\n")[2].partition("\n\n")[0]
    found = [tuple(line.split(maxsplit=1)) for line in listed.splitlines()]
    commands = typer.main.get_command(__main__.app).commands
    assert found == [(name, command.help.partition("\n")[0]) for name, command in commands.items()]
