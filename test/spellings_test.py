"""Every way of writing a known chain that scripts/spellings.py collects is found, by its rule.

All functions are captured in one graph; `opfuse match` says what stands at which line.
"""

import ast
import inspect
import os
import re
import subprocess
import sys
from collections import defaultdict

import pytest
import torch
from conftest import ROOT, SCRIPTS

sys.path.insert(0, str(SCRIPTS))
import spellings  # noqa: E402

from opfuse.capture import graph_texts  # noqa: E402

_SOURCE = (SCRIPTS / "spellings.py").read_text()


def marked() -> dict[str, tuple[str, range]]:
    """Function -> rule, lines."""
    lines = _SOURCE.splitlines()
    found = {}
    for node in ast.parse(_SOURCE).body:
        if not isinstance(node, ast.FunctionDef):
            continue
        head = " ".join(lines[node.lineno - 1 : node.body[0].lineno])
        if mark := re.search(r"# (\w+)\b", head):
            found[node.name] = (mark[1], range(node.lineno, node.end_lineno + 1))
    return found


MARKED = marked()


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[int, dict[str, str]]:
    """Line -> rule -> what is said of the place."""
    binary = os.environ.get("OPFUSE_BIN") or next(map(str, ROOT.glob("build/*/bin/opfuse")), None)
    if not binary:
        pytest.skip("opfuse is not built: make build, or set OPFUSE_BIN")
    functions = [getattr(spellings, name) for name in MARKED]
    torch.manual_seed(0)
    inputs = [
        torch.randn(2, 8, 4, 4) if f.__name__.endswith("_image") else torch.randn(2, 6, 8)
        for f in functions
    ]
    texts = graph_texts(lambda xs: [f(x) for f, x in zip(functions, xs, strict=True)], inputs)
    assert len(texts) == 1, "one graph, without a break"
    file = tmp_path_factory.mktemp("spellings") / "spellings.graph"
    file.write_text(texts[0])
    done = subprocess.run([binary, "match", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    places: dict[int, dict[str, str]] = defaultdict(dict)
    for line in done.stdout.splitlines():
        if match := re.match(r".*spellings\.py:(\d+): (\w+) (\(.*)", line):
            places[int(match[1])][match[2]] = match[3]
    return places


@pytest.mark.parametrize("name", MARKED)
def test_it_is_found(name, found):
    rule, lines = MARKED[name]
    here = {r: text for line in lines for r, text in found.get(line, {}).items()}
    assert rule in here, f"expected {rule} in {lines}, found {here}"


def test_every_function_is_marked_and_every_mark_is_a_rule():
    takers = [
        name
        for name, f in inspect.getmembers(spellings, inspect.isfunction)
        if f.__module__ == "spellings" and "x" in inspect.signature(f).parameters
    ]
    assert set(takers) == set(MARKED)
    rules = "".join(f.read_text() for f in ROOT.rglob("*.rule"))
    for name, (rule, _) in MARKED.items():
        assert re.search(rf"(?m)^op {rule}\(", rules), f"{name}: no rule {rule}"
