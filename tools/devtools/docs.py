"""The generated parts of docs/: code quoted by marker, and tables made from data.

A document quotes code as

    <!-- quote: src/runtime/stream.cpp#stream-launch -->
    ```cpp
    (filled in)
    ```

where the source holds it between `// [docs:stream-launch]` and `// [/docs]` (`#` in Python), and a table as

    <!-- table: options -->
    (filled in)
    <!-- /table -->
"""

import re
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

from . import ROOT, build

QUOTE = re.compile(r"(<!-- quote: (\S+)#(\S+) -->\n```\w*\n)(.*?)(```)", re.DOTALL)
TABLE = re.compile(r"(<!-- table: (\S+) -->\n)(.*?)(<!-- /table -->)", re.DOTALL)


def quoted(source: str, marker: str) -> str:
    text = (ROOT / source).read_text()
    found = re.search(
        rf"^ *(?://|#) \[docs:{re.escape(marker)}\]\n(.*?)^ *(?://|#) \[/docs\]", text, re.S | re.M
    )
    if found is None:
        raise SystemExit(f"./dev docs: {source} has no section [docs:{marker}]")
    return textwrap.dedent(found[1])


def options_table() -> str:
    """All options, as the library itself lists them."""
    program = build.folder("release") / "tools" / "list_options"
    rows = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
    return "\n".join(["| variable | default | meaning |", "|---|---|---|", *rows])


TABLES: dict[str, Callable[[], str]] = {"options": options_table}


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def update(check: bool) -> list[Path]:
    """Rewrites what is out of date (or, with `check`, nothing) and returns those documents."""
    stale = []
    for path in documents():
        if not path.exists():
            continue
        text = path.read_text()
        new = QUOTE.sub(lambda m: f"{m[1]}{quoted(m[2], m[3])}{m[5]}", text)
        new = TABLE.sub(lambda m: f"{m[1]}{TABLES[m[2]]()}\n{m[4]}", new)
        if new != text:
            stale.append(path)
            if not check:
                path.write_text(new)
    return stale
