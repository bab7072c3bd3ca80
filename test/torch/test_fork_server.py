"""A program that the fork server runs finds what it finds in an interpreter of its own, and ends alike."""

import json
import subprocess

import pytest

DESCRIBE = """
import json, os, signal, sys, threading, torch
print(json.dumps({
    "names": sorted(set(globals()) - {"__cached__"}),
    "name and file": [__name__, __file__],
    "arguments": sys.argv,
    "paths": sys.path,
    "folder": os.getcwd(),
    "environment": dict(os.environ),
    "signals": [str(signal.getsignal(each)) for each in signal.valid_signals()],
    "threads": threading.active_count(),
    "files": sorted(os.readlink(f"/proc/self/fd/{each}") for each in range(64)
                    if os.path.exists(f"/proc/self/fd/{each}")),
    "devices": torch.npu.device_count(),
}))
"""

ENDINGS = {
    "the last line": ("x = 1", 0),
    "sys.exit": ("import sys; sys.exit(3)", 3),
    "sys.exit with a message": ("import sys; sys.exit('a message')", 1),
    "an exception": ("import torch\nraise KeyError('a key')", 1),
    "an interrupt": ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", -2),
    "a signal": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9),
    "os._exit": ("import os; print('lost', end=''); os._exit(4)", 4),
    "exit handlers, threads and what is in globals": (
        "import atexit, threading, time\n"
        "class Last:\n"
        "    def __del__(self, print=print): print('last')\n"
        "last = Last()\n"
        "atexit.register(print, 'handler')\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()",
        0,
    ),
}


def test_a_program_finds_an_interpreter_of_its_own(python, fresh_python):
    env = {"ANYNPU_DEVICES": "3", "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
    found, expected = (json.loads(run(DESCRIBE, env=env).stdout) for run in (python, fresh_python))
    assert found == expected and found["devices"] == 3


@pytest.mark.parametrize(("code", "exit_code"), ENDINGS.values(), ids=ENDINGS)
def test_a_program_ends_as_an_interpreter_ends(python, fresh_python, code, exit_code):
    ours, expected = (run(code, exit_code=exit_code) for run in (python, fresh_python))
    assert ours.stdout == expected.stdout
    assert ours.stderr.splitlines()[-1:] == expected.stderr.splitlines()[-1:]


def test_what_torch_reads_when_it_is_imported_takes_a_fresh_interpreter(python, fresh_python):
    code = "import torch; print(torch.get_num_threads())"
    assert fresh_python(code, env={"OMP_NUM_THREADS": "1"}).stdout == "1\n"
    with pytest.raises(AssertionError, match="OMP_NUM_THREADS"):
        python(code, env={"OMP_NUM_THREADS": "1"})


def test_a_program_that_hangs_is_killed(fork_server, python, tmp_path):
    program = tmp_path / "hangs.py"
    program.write_text("import time; time.sleep(1000)")
    with open(tmp_path / "output", "w") as output, pytest.raises(subprocess.TimeoutExpired):
        fork_server.run(program, {}, output, output, timeout=0.2)
    assert python("print('the next one')").stdout == "the next one\n"
