"""Two devices for the tests of this folder, and Python programs of their own for what ends a process."""

import gc
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("ANYNPU_DEVICES", "2")

import pytest
import torch
from fork_server import READ_LATE, ForkServer

import torch_npu

# Long enough for the slowest machine: a program that reaches it hangs.
HANGS_AFTER = 120


def pytest_collection_finish():
    """What was imported stays: garbage collections of tests, some of which need one each, pass it by."""
    gc.collect()
    gc.freeze()


def _environment(changes):
    environment = {
        name: value for name, value in os.environ.items() if name != "TORCH_DEVICE_BACKEND_AUTOLOAD"
    }
    package_root = str(Path(torch_npu.__file__).parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [package_root, environment.get("PYTHONPATH")]))
    for name, value in changes.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    return environment


@pytest.fixture(scope="session")
def fork_server():
    server = ForkServer(_environment({}))
    yield server
    server.close()


@pytest.fixture
def python(tmp_path, fork_server):
    """Runs code in a process of its own, as `fresh_python` does, where torch is imported already."""

    def start(program, env, outputs):
        late = all(name.startswith(READ_LATE) for name in env)
        assert late, f"{sorted(env)}: `import torch` may read some of them; that takes fresh_python"
        return fork_server.run(program, _environment(env), *outputs, timeout=HANGS_AFTER)

    return _runner(tmp_path, start)


@pytest.fixture
def fresh_python(tmp_path):
    """Runs code in a Python of its own, from a file so that spawned children find it."""

    def start(program, env, outputs):
        return subprocess.run(
            [sys.executable, str(program)],
            cwd=tmp_path,
            env=_environment(env),
            stdin=subprocess.DEVNULL,
            stdout=outputs[0],
            stderr=outputs[1],
            timeout=HANGS_AFTER,
        ).returncode

    return _runner(tmp_path, start)


def _runner(folder, start):
    program, outputs = folder / "program.py", [folder / "stdout", folder / "stderr"]

    def run(code, *, env=(), exit_code=0):
        program.write_text(code)
        with open(outputs[0], "wb") as stdout, open(outputs[1], "wb") as stderr:
            ended = start(program, dict(env), (stdout, stderr))
        done = subprocess.CompletedProcess(code, ended, *(output.read_text() for output in outputs))
        if exit_code is not None:
            assert ended == exit_code, f"exit code {ended}\n{done.stdout}\n{done.stderr}"
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
