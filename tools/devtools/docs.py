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

Programs tools/*/generate.py write what else is generated; with --check they only name what is stale.
"""

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

from . import ROOT

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
    """All options, as the libraries themselves list them."""
    program = "import torch_npu._C as c\nfor o in c.options(): print(*o, sep='\\t')"
    listed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    rows = (line.split("\t") for line in listed.splitlines())
    return "\n".join(
        ["| variable | default | meaning |", "|---|---|---|"]
        + [f"| `{name}` | {default or 'unset'} | {meaning} |" for name, default, meaning in rows]
    )


def ops_table() -> str:
    """All operators: what their rows say, ATen's that they serve, and the functions of aclnn."""
    program = (
        "import json, torch_npu._C as c; print(json.dumps({'rows': c.operators(), 'served': c.served()}))"
    )
    listed = json.loads(
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    )
    aten, aclnn = ({name: [] for name, *_ in listed["rows"]} for _ in range(2))
    for op, rows in sorted(listed["served"].items()):
        for row in rows:
            aten[row].append(op.removeprefix("aten::"))
    functions = (ROOT / "tools" / "abi" / "aclnn_functions.tsv").read_text().splitlines()
    for _, function, _, plan, *_ in (line.split("\t") for line in functions if not line.startswith("#")):
        row = plan.split()[1]
        if row not in aclnn:
            raise SystemExit(f"./dev docs: {function} is of {row}, which is no operator of src/ops")
        aclnn[row].append(function.removeprefix("aclnn"))

    def code(names: list[str]) -> str:
        return " ".join(f"`{name}`" for name in names)

    lines = [
        "| operator | computes | types | rules of types | error | ATen | aclnn |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, doc, dtypes, rules, error in listed["rows"]:
        cells = (name, doc, " ".join(dtypes), rules, error or "none", code(aten[name]), code(aclnn[name]))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def acl_table() -> str:
    """How many functions of each AscendCL header are supported, from the headings of docs/acl_support.md."""
    support = (ROOT / "docs" / "acl_support.md").read_text()
    headers = re.findall(r"^## (\S+): (\d+) of (\d+) supported", support, re.M)
    return "\n".join(
        [
            "| header | supported | declared |",
            "|---|---|---|",
            *(f"| {h} | {n} | {m} |" for h, n, m in headers),
        ]
    )


def conformance_rows(name: str) -> list[list[str]]:
    lines = (ROOT / "tools" / "conformance" / name).read_text().splitlines()
    return [line.split("\t") for line in lines]


def conformance_table() -> str:
    """By family, from what the last whole run of ./dev conformance counted."""
    sums: dict[str, list[int]] = {}
    for family, _, *counts in conformance_rows("results.tsv")[1:]:
        for name in (family, "**all**"):
            sums[name] = [a + int(b) for a, b in zip(sums.get(name, [0] * 4), counts, strict=True)]
    sums["**all**"] = sums.pop("**all**")
    lines = [
        "| operators | units on the CPU | pass | known to differ | share that passes |",
        "|---|---|---|---|---|",
    ]
    for name, (units, not_on_cpu, passed, known) in sums.items():
        on_cpu = units - not_on_cpu
        lines.append(f"| {name} | {on_cpu} | {passed} | {known} | {100 * passed / on_cpu:.2f} % |")
    return "\n".join(lines)


def conformance_known_table() -> str:
    rows = [f"| {' | '.join(row)} |" for row in conformance_rows("known.tsv")]
    return "\n".join(["| unit | reason | symptom |", "|---|---|---|", *rows]) if rows else "Nothing."


TABLES: dict[str, Callable[[], str]] = {
    "options": options_table,
    "ops": ops_table,
    "acl": acl_table,
    "conformance": conformance_table,
    "conformance_known": conformance_known_table,
}


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def update(check: bool) -> list[str]:
    """Rewrites what is out of date or, with `check`, nothing; and says what that was."""
    stale = []
    for generator in sorted((ROOT / "tools").glob("*/generate.py")):
        command = [sys.executable, str(generator), *(["--check"] if check else [])]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        stale += result.stdout.splitlines()
        if result.returncode != 0 and not (check and stale):
            raise SystemExit(f"./dev docs: {generator.relative_to(ROOT)} failed\n{result.stderr}")
    for path in documents():
        text = path.read_text()
        new = QUOTE.sub(lambda m: f"{m[1]}{quoted(m[2], m[3])}{m[5]}", text)
        new = TABLE.sub(lambda m: f"{m[1]}{TABLES[m[2]]()}\n{m[4]}", new)
        if new != text:
            stale.append(
                f"{path.relative_to(ROOT)} is stale: run ./dev docs"
                if check
                else f"wrote {path.relative_to(ROOT)}"
            )
            if not check:
                path.write_text(new)
    return stale
