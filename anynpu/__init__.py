"""The toolkit: libraries and headers for C and C++ programs, in the layout that users of Ascend's know.

``python -m anynpu --prefix`` prints where it is. Importing this module loads no library.
"""

from pathlib import Path

__version__ = "0.1.0"


def _autoload():
    """What ``import torch`` calls through its ``torch.backends`` entry point.

    Loading torch_npu registers the device, so there is nothing else to do. ``import torch_npu`` imports
    torch, which calls this while torch_npu is half loaded.
    """
    from anynpu import _environment

    _environment.check()
    _environment.load_torch_npu()


def prefix():
    """The toolkit's root, with include/, lib64/, lib/cmake/ and set_env.sh."""
    root = Path(__file__).parent
    if not (root / "include").is_dir():
        raise RuntimeError(
            f"anynpu.prefix: {root} is a source tree, which has no toolkit: install the wheel, or "
            "'cmake --install build/release --prefix DIR'"
        )
    return root
