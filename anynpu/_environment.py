"""What must hold before the native module can be loaded, and errors that say what to do where it does not.

Not a part of torch_npu: the published torch_npu, installed later, replaces files of that package.
"""

import importlib
import importlib.metadata
import os

from anynpu import __version__ as VERSION

TORCH_VERSION = "2.13"

_SWITCH = "PyTorch alone still works with TORCH_DEVICE_BACKEND_AUTOLOAD=0 in the environment."


def check():
    """Raises a RuntimeError where this build cannot work in this environment."""
    _refuse_published_distribution()
    import torch

    version = torch.__version__.split("+")[0]
    if not f"{version}.".startswith(f"{TORCH_VERSION}."):
        raise RuntimeError(
            f"torch_npu (anynpu {VERSION}) is built for torch {TORCH_VERSION}, but torch {torch.__version__} "
            f"is installed: install torch=={TORCH_VERSION}.0, or an anynpu for this torch. {_SWITCH}"
        )
    if os.uname().machine == "x86_64" and not torch.cpu._is_avx2_supported():
        raise RuntimeError(f"anynpu {VERSION} needs a processor with AVX2, which this one has not. {_SWITCH}")


def _refuse_published_distribution():
    try:
        published = importlib.metadata.version("torch_npu")
    except importlib.metadata.PackageNotFoundError:
        return
    raise RuntimeError(
        f"anynpu {VERSION} and the published torch_npu {published} both provide the module torch_npu, and an "
        "environment can use only one: uninstall both (pip uninstall anynpu torch_npu), then install anynpu "
        f"to run on the CPU, or torch_npu to run on Ascend hardware. {_SWITCH}"
    )


def load_torch_npu():
    """Raises a RuntimeError where torch_npu is not whole, as an uninstalled torch_npu leaves it."""
    import torch_npu

    if torch_npu.__file__ is None:
        raise RuntimeError(f"files of torch_npu are missing: reinstall anynpu {VERSION}. {_SWITCH}")


def load_native_module():
    try:
        return importlib.import_module("torch_npu._C")
    except ImportError as error:
        if error.name is None:  # it was found and loaded, and what it did then failed
            raise RuntimeError(f"torch_npu cannot start: {error}. {_SWITCH}") from error
        raise RuntimeError(
            f"torch_npu cannot load its native library: {error}. It needs those in anynpu/lib64 beside it: "
            f"reinstall anynpu (in a source tree: ./dev build). {_SWITCH}"
        ) from error
