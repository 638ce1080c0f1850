"""tools/rulegen.py: a traced Python function gives the composition that the rulebook has."""

import ast
import importlib.util
import math
import os
import re
import subprocess

import pytest
import torch
from conftest import ROOT
from torch.nn import functional as F

_SPEC = importlib.util.spec_from_file_location("rulegen", ROOT / "tools/rulegen.py")
rulegen = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(rulegen)


def silu(x):
    return x * torch.sigmoid(x)


def hardswish(x):
    return x * F.relu6(x + 3) / 6


def mish(x):
    return x * torch.tanh(F.softplus(x))


def gelu(x):
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def quick_gelu(x):
    return x * torch.sigmoid(1.702 * x)


def silu_mul(gate, up):
    return F.silu(gate) * up


def glu(x):
    a, b = x.chunk(2, dim=-1)
    return a * torch.sigmoid(b)


def committed(name: str) -> str:
    """The text of a rule of the rulebook."""
    files = [*ROOT.glob("rulebook/*.rule"), *ROOT.glob("opfuse/ops/*/*.rule")]
    for file in files:
        for text in re.split(r"(?m)^(?=op )", file.read_text()):
            if text.startswith(f"op {name}("):
                return text
    raise KeyError(name)


def composition(rule: str):
    """What the composition computes, whatever its names and the order of sums and products."""
    lines = re.search(r"(?m)^  composition\n((?:    .*\n)+)", rule)[1]
    bound: dict[str, object] = {}

    def meaning(node):
        if isinstance(node, ast.Constant):
            return ("number", f"{float(node.value):.12g}") if node.value is not None else "None"
        if isinstance(node, ast.Name):
            if node.id == "pi":
                return ("number", f"{math.pi:.12g}")
            return bound.get(node.id, node.id)
        if isinstance(node, ast.UnaryOp):
            inner = meaning(node.operand)
            return ("number", f"{-float(inner[1]):.12g}") if inner[0] == "number" else ("-", inner)
        if isinstance(node, ast.BinOp):
            return combined(type(node.op).__name__, meaning(node.left), meaning(node.right))
        if isinstance(node, ast.Call):
            inner = [meaning(a) for a in node.args] + [meaning(k.value) for k in node.keywords]
            if node.func.id == "sqrt" and inner[0][0] == "number":
                return ("number", f"{math.sqrt(float(inner[0][1])):.12g}")
            return (node.func.id, *inner)
        raise AssertionError(ast.dump(node))

    def combined(sign, a, b):
        if a[0] == b[0] == "number":
            x, y = float(a[1]), float(b[1])
            value = {"Add": x + y, "Sub": x - y, "Mult": x * y, "Div": x / y, "Pow": x**y}[sign]
            return ("number", f"{value:.12g}")
        order = sorted([a, b], key=repr) if sign in ("Add", "Mult") else [a, b]
        return (sign, *order)

    for statement in ast.parse(
        re.sub(r"(?m)^    ", "", lines).replace("return ", "result = ")
    ).body:
        target, value = statement.targets[0], meaning(statement.value)
        if isinstance(target, ast.Tuple):
            for i, name in enumerate(target.elts):
                bound[name.id] = ("part", i, value)
        else:
            bound[target.id] = value
    return bound["result"]


@pytest.mark.parametrize(
    "function",
    [silu, hardswish, mish, gelu, gelu_tanh, quick_gelu, silu_mul],
    ids=lambda f: f.__name__,
)
def test_the_rule_of_a_traced_function_is_the_committed_one(function):
    rule = rulegen.rule_of(function, "mine.op")
    assert composition(rule) == composition(committed(function.__name__)), rule


def test_the_comparison_tells_formulas_apart():
    other = rulegen.rule_of(lambda x: x * torch.sigmoid(1.7 * x), "mine.op")
    assert composition(other) != composition(committed("quick_gelu"))


def test_an_operator_without_a_function_is_named():
    with pytest.raises(rulegen.RuleError, match=r"found aten\.cumsum"):
        rulegen.rule_of(lambda x: torch.cumsum(x, 0), "mine.op")


def test_the_text_is_a_rule_that_the_program_reads(tmp_path):
    binary = os.environ.get("OPFUSE_BIN") or next(map(str, ROOT.glob("build/*/bin/opfuse")), None)
    if not binary:
        pytest.skip("opfuse is not built: make build, or set OPFUSE_BIN")
    file = tmp_path / "mine.rule"
    texts = [rulegen.rule_of(f, "mine.op") for f in (silu, gelu_tanh, glu)]
    file.write_text("\n".join(t.replace("op ", "op my_", 1) for t in texts))
    done = subprocess.run(
        [binary, "rules", "my_glu", "--rules", str(file)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "my_glu" in done.stdout and "chunk" in done.stdout + file.read_text()
