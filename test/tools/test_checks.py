"""The layering check and the generated documents find what is wrong in a small tree."""

import pytest
from devtools import docs, lint


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Makes a tree of files the project; returns a function that writes one."""
    for module in (docs, lint):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    written = []
    monkeypatch.setattr(lint, "files", lambda *_: [name for name in written if name.endswith((".h", ".cpp"))])

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        written.append(name)
        return path

    write("README.md", "")
    return write


@pytest.mark.parametrize(
    "name, include, problem",
    [
        ("src/base/a.h", '"base/b.h"', None),
        ("src/graph/a.h", '"runtime/stream.h"', None),  # by way of ops
        ("src/abi/a.cpp", '"acl/acl.h"', None),
        ("torch_npu/csrc/a.cpp", "<ATen/ATen.h>", None),
        ("src/base/a.h", '"runtime/stream.h"', "not for base"),
        ("src/runtime/a.h", '"acl/acl.h"', "not for runtime"),
        ("torch_npu/csrc/a.cpp", '"acl/acl.h"', "not for torch_npu"),
        ("src/ops/a.h", "<c10/core/Device.h>", "only torch_npu/csrc includes torch"),
        ("src/jit/a.h", '"llvm/IR/Module.h"', "only src/jit/codegen includes LLVM"),
        ("src/misc/a.h", "<vector>", "no layer"),
    ],
)
def test_layering(tree, name, include, problem):
    tree(name, f"#include {include}\n")
    found = lint.layering()
    assert found == "" if problem is None else problem in found and found.startswith(name)


def test_quoted_code_follows_its_source(tree):
    source = tree("src/a.cpp", "  // [docs:mark]\n  int x = 1;\n  // [/docs]\n")
    page = tree("docs/page.md", "Look:\n<!-- quote: src/a.cpp#mark -->\n```cpp\nold\n```\nend\n")
    assert docs.update(check=True) == ["docs/page.md is stale: run ./dev docs"]
    assert docs.update(check=False) == ["wrote docs/page.md"]
    assert (
        page.read_text() == "Look:\n<!-- quote: src/a.cpp#mark -->\n```cpp\nint x = 1;\n```\nend\n"
    )  # dedented
    assert docs.update(check=True) == []
    source.write_text("int x = 1;\n")
    with pytest.raises(SystemExit, match=r"src/a\.cpp has no section \[docs:mark\]"):
        docs.update(check=True)


def test_generators_are_asked(tree):
    tree("tools/a/generate.py", "import sys\nprint('a is stale')\nsys.exit('--check' in sys.argv)\n")
    assert docs.update(check=True) == ["a is stale"]
    tree("tools/a/generate.py", "import sys\nsys.exit('no table')\n")
    with pytest.raises(SystemExit, match="failed\nno table"):
        docs.update(check=True)
