"""Two devices for the tests of this folder, and Python programs of their own for what ends a process."""

import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("ANYNPU_DEVICES", "2")

import pytest
import torch

import torch_npu

# Long enough for the slowest machine: a program that reaches it hangs.
HANGS_AFTER = 120


def _environment(changes):
    environment = {
        name: value for name, value in os.environ.items() if name != "TORCH_DEVICE_BACKEND_AUTOLOAD"
    }
    package_root = str(Path(torch_npu.__file__).parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join([package_root, environment.get("PYTHONPATH", "")])
    for name, value in changes.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    return environment


@pytest.fixture
def python(tmp_path):
    """Runs code in a Python of its own, from a file so that spawned children find it."""

    def run(code, *, env=(), exit_code=0):
        program = tmp_path / "program.py"
        program.write_text(code)
        done = subprocess.run(
            [sys.executable, str(program)],
            cwd=tmp_path,
            env=_environment(dict(env)),
            capture_output=True,
            text=True,
            timeout=HANGS_AFTER,
        )
        if exit_code is not None:
            assert done.returncode == exit_code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run


@pytest.fixture(autouse=True)
def same_state_after():
    """Tests leave the thread's device, streams and random numbers as they found them."""
    device, states = torch.npu.current_device(), torch.npu.get_rng_state_all()
    streams = [torch.npu.current_stream(index) for index in range(torch.npu.device_count())]
    yield
    assert torch.get_default_device().type == "cpu" and not torch.overrides._get_current_function_mode_stack()
    for stream in streams:
        torch.npu.set_stream(stream)
    torch.npu.set_device(device)
    torch.npu.set_rng_state_all(states)
