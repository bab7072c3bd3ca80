"""What `./dev emulate` takes along into the emulated machine."""

import sys
from pathlib import Path

import pytest
from devtools import __main__, build, emulator
from typer.testing import CliRunner


def test_libraries_have_the_paths_by_which_the_loader_finds_them():
    found = emulator.libraries_of(Path(sys.executable).resolve())
    assert all(path.is_absolute() and path.exists() for path in found)
    assert any(path.name.startswith("ld-linux") for path in found)
    assert any(path.name == "libc.so.6" for path in found)


def test_a_command_that_fails_is_named_with_what_it_says(tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    with pytest.raises(SystemExit, match=rf"ldd {script}: .*not a dynamic executable"):
        emulator.libraries_of(script)


@pytest.mark.parametrize(("arguments", "said"), [([], "Missing argument"), (["nothing"], "test_jit")])
def test_it_says_which_programs_there_are(arguments, said, monkeypatch):
    monkeypatch.setattr(build, "build", lambda *_, **__: None)
    done = CliRunner().invoke(__main__.app, ["emulate", *arguments], env={"COLUMNS": "300"})
    assert done.exit_code == 2 and said in done.output
