"""The environment of test/published: the published torch_npu, unmodified, over the libraries of this tree."""

import fcntl
import hashlib
import os
import shlex
import subprocess
import sys
from pathlib import Path

from . import ROOT, build

FOLDER = ROOT / "build" / "published"
REQUIREMENTS = ROOT / "test" / "published" / "requirements.txt"


def command(*arguments: str) -> list[str]:
    """A command of Python in that environment, with the variables that a user of the toolkit sets."""
    build.build("release")
    python = install()
    script = ROOT / "anynpu" / "set_env.sh"
    return ["bash", "-c", f'source {shlex.quote(str(script))} && exec "$@"', "bash", str(python), *arguments]


def install() -> Path:
    """Installs what the requirements name, unless it was done; the Python of the environment."""
    stamp = FOLDER / hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:16]
    python = FOLDER / "bin" / "python"
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with open(FOLDER.parent / ".published.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists():
            print("installing the published torch_npu into build/published", flush=True)
            subprocess.run([sys.executable, "-m", "venv", "--clear", FOLDER], check=True)
            options = shlex.split(os.environ.get("ANYNPU_PIP_ARGS", ""))
            subprocess.run(
                [python, "-m", "pip", "install", "--quiet", *options, "-r", REQUIREMENTS], check=True
            )
            stamp.touch()
    return python
