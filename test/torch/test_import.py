"""Every way to import torch and torch_npu, and what is said where it cannot work."""

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import anynpu
import torch_npu
from anynpu import _environment

ORDERS = [
    "import torch",
    "import torch_npu",
    "import torch, torch_npu",
    "import torch_npu.npu, torch",
    "from torch_npu.npu import amp",
    "from torch_npu.contrib import transfer_to_npu",
]


@pytest.mark.parametrize("autoload", [None, "1", "0"])
@pytest.mark.parametrize("order", ORDERS)
def test_import_order(fresh_python, order, autoload):
    code = f"""
{order}; import torch
found = hasattr(torch, "npu")
print(found, found and torch.npu.device_count(), found and torch.npu.is_initialized())
"""
    done = fresh_python(code, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": autoload, "ANYNPU_DEVICES": "3"})
    loaded = autoload != "0" or order != "import torch"
    assert done.stdout.split() == (["True", "3", "False"] if loaded else ["False"] * 3)
    assert "circular" not in done.stderr and "Error" not in done.stderr


def test_parts_of_torch_npu_are_the_parts_of_torch_npu_npu():
    import torch.npu.amp
    import torch.npu.random

    import torch_npu.npu.amp

    assert torch.npu is torch_npu.npu
    assert torch.npu.amp is torch_npu.npu.amp
    assert sys.modules["torch.npu.random"] is torch_npu.npu.random


@pytest.mark.parametrize("version", ["2.12.1", "2.14.0+cpu", "2.130.0", "2.1"])
def test_other_torch_is_refused(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(RuntimeError) as refusal:
        _environment.check()
    for part in (
        f"torch {version}",
        "built for torch 2.13",
        "torch==2.13.0",
        "TORCH_DEVICE_BACKEND_AUTOLOAD=0",
    ):
        assert part in str(refusal.value)


@pytest.mark.parametrize("version", ["2.13.0", "2.13.0+cpu", "2.13.1"])
def test_torch_of_this_release_is_accepted(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    _environment.check()


def test_processors_without_avx2_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx2_supported", lambda: False)
    with pytest.raises(RuntimeError, match=r"needs a processor with AVX2.*TORCH_DEVICE_BACKEND_AUTOLOAD=0"):
        _environment.check()


# Whichever of the two was installed last: the entry point is in no file that the other replaces.
@pytest.mark.parametrize("check", [_environment.check, anynpu._autoload])
def test_published_distribution_is_refused(monkeypatch, tmp_path, check):
    info = tmp_path / "torch_npu-2.13.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_npu\nVersion: 2.13.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RuntimeError, match=r"published torch_npu 2\.13\.0.*uninstall anynpu torch_npu"):
        check()


def test_files_that_another_distribution_took_with_it_are_missed(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_npu", SimpleNamespace(__file__=None))
    with pytest.raises(RuntimeError, match=r"files of torch_npu are missing: reinstall anynpu"):
        anynpu._autoload()


@pytest.fixture
def broken_copy(tmp_path):
    """A copy of the package whose native library is there and cannot be loaded."""
    package = tmp_path / "site" / "torch_npu"
    shutil.copytree(Path(torch_npu.__file__).parent, package, ignore=shutil.ignore_patterns("*.so", "csrc"))
    (package / Path(torch_npu._C.__file__).name).write_bytes(b"\x7fELF")
    return str(package.parent)


def test_a_library_that_is_missing_is_named(fresh_python, tmp_path):
    package = tmp_path / "site" / "torch_npu"
    shutil.copytree(Path(torch_npu.__file__).parent, package, ignore=shutil.ignore_patterns("csrc"))
    code = f"import sys; sys.path.insert(0, {str(package.parent)!r}); import torch_npu"
    done = fresh_python(
        code, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "LD_LIBRARY_PATH": None}, exit_code=1
    )
    last_line = done.stderr.strip().splitlines()[-1]
    for part in ("libanynpu.so", "anynpu/lib64", "reinstall anynpu", "TORCH_DEVICE_BACKEND_AUTOLOAD=0"):
        assert part in last_line


def test_library_that_cannot_be_loaded_is_named(fresh_python, broken_copy):
    code = f"import sys; sys.path.insert(0, {broken_copy!r}); import torch_npu"
    done = fresh_python(code, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, exit_code=1)
    last_line = done.stderr.strip().splitlines()[-1]
    assert last_line.startswith("RuntimeError: torch_npu cannot load its native library")
    assert Path(torch_npu._C.__file__).name in last_line and "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in last_line


def test_library_that_cannot_be_loaded_leaves_torch_usable(fresh_python, broken_copy):
    start = (
        f"import sys; sys.path.insert(0, {broken_copy!r}); import torch; print(torch.ones(2).sum().item())"
    )
    done = fresh_python(start, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}, exit_code=1)
    assert "torch_npu cannot load its native library" in done.stderr
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in done.stderr.strip().splitlines()[-1]
    assert fresh_python(start, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}).stdout == "2.0\n"


def test_option_that_cannot_be_read_is_named(fresh_python):
    code = """
try:
    import torch_npu
except RuntimeError as error:
    print(error if error.__cause__ is None else error.__cause__)
"""
    done = fresh_python(code, env={"ANYNPU_DEVICES": "many"})
    assert "ANYNPU_DEVICES" in done.stdout and "'many'" in done.stdout
    assert "reinstall" not in done.stdout
