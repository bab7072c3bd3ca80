"""The toolkit: libraries and headers for C and C++ programs, in the layout that users of Ascend's know.

``python -m anynpu --prefix`` prints where it is. Importing this module loads no library.
"""

from pathlib import Path

__version__ = "0.1.0"


def prefix():
    """The toolkit's root, with include/, lib64/, lib64/cmake/ and set_env.sh."""
    root = Path(__file__).parent
    if not (root / "include").is_dir():
        raise RuntimeError(
            f"anynpu.prefix: {root} is a source tree, which has no toolkit: install the wheel, or "
            "'cmake --install build/release --prefix DIR'"
        )
    return root
