"""Help of the commands of `./dev`, which must not wait for a build."""

import pytest
from devtools import __main__, build
from typer.testing import CliRunner


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
