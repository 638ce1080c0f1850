#!/usr/bin/env python3
"""Writes a rule from a Python function: its composition is what the function computes, traced.

    tools/rulegen.py FILE.py:FUNCTION --target mine.op [--sample "x=3,4 w=4 eps=1e-6"]

The function's tensor parameters get random tensors of the shapes in --sample (3,4 when absent);
numbers there are handed over as numbers and stand for themselves in the rule. The operators are
those that a recorded step consists of. What no function of docs/rulebook.md says is an error that
names the operator.
"""

import argparse
import importlib.util
import inspect
import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))

_INFIX = {"add.Tensor": "+", "sub.Tensor": "-", "mul.Tensor": "*", "div.Tensor": "/"}
_INFIX |= {"pow.Tensor_Scalar": "**", "mm": "@"}
_STRENGTH = {"+": 1, "-": 1, "*": 2, "/": 2, "@": 2, "neg": 3, "**": 4}
_LINE = re.compile(r"\s*(%\S.*?) = aten\.([\w.]+)\((.*)\)$")


class RuleError(ValueError):
    """A function that the rule language cannot say."""


@dataclass
class Term:
    text: str
    strength: int = 9  # of its outermost sign: what binds weaker gets brackets

    def within(self, strength: int) -> str:
        return self.text if self.strength >= strength else f"({self.text})"


def functions() -> dict[str, str]:
    """Names of the rule language by ATen overload, from the table that the core reads."""
    table = (ROOT / "opfuse/match/rule_functions.cc").read_text()
    return {op: name for name, op in re.findall(r'\{"(\w+)", "aten\.([\w.]+)"\}', table)}


def arguments_of(text: str) -> list[str]:
    """Splits at the commas that stand in no bracket."""
    parts, depth = [""], 0
    for c in text:
        depth += (c == "[") - (c == "]")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [part.strip() for part in parts if part.strip()]


class Writer:
    """The lines of a graph's text form, as bindings and expressions of a rule."""

    def __init__(self, names: dict[str, str]):
        self.names = names  # text-form name -> parameter
        self.terms: dict[str, Term] = {value: Term(name) for value, name in names.items()}
        self.known = functions()

    def write(self, text: str) -> list[str]:
        lines = [line.partition(" @ ")[0] for line in text.splitlines()]
        # A detach keeps a result for backward and is none of the user's operators.
        kept = [m for m in map(_LINE.match, lines) if m and m[2] not in ("detach", "alias")]
        returned = re.findall(r"%(\w+)", lines[-1]) if lines[-1].startswith("return") else []
        if len(returned) != 1:
            raise RuleError(f"expected a function of one result, found {len(returned)}")
        reads: dict[str, int] = {}
        for match in kept:
            for name in re.findall(r"%(\w+)", match[3]):
                reads[name] = reads.get(name, 0) + 1
        bindings = []
        for match in kept:
            results = re.findall(r"%(\w+): ", match[1] + " ")
            term = self.expression(match[2], arguments_of(match[3]), len(results))
            names = [f"t{len(bindings) + i + 1}" for i in range(len(results))]
            if len(results) == 1 and (reads.get(results[0], 0) < 2 or results[0] in returned):
                self.terms[results[0]] = term
                continue
            bindings.append(f"{', '.join(names)} = {term.text}")
            for result, name in zip(results, names, strict=True):
                self.terms[result] = Term(name)
        return bindings + [f"return {self.terms[returned[0]].text}"]

    def expression(self, op: str, arguments: list[str], results: int) -> Term:
        op = re.sub(r"^(\w+)_(\.|$)", r"\1\2", op) if not op.startswith("_") else op
        op = op.replace(".Scalar", ".Tensor") if op.split(".")[0] in ("add", "mul", "div") else op
        if op in _INFIX and len(arguments) == 2:
            return self.infix(_INFIX[op], arguments)
        if op == "neg":
            return Term("-" + self.value(arguments[0]).within(3), 3)
        if op == "split.Tensor":
            dim = arguments[2] if len(arguments) > 2 else "0"
            return Term(f"chunk({self.value(arguments[0]).text}, {results}, {dim})")
        if op == "_to_copy":
            dtype = next(a.partition("=")[2] for a in arguments if a.startswith("dtype="))
            return Term(f"to({self.value(arguments[0]).text}, {dtype})")
        if op in ("view", "_unsafe_view", "reshape", "expand"):
            return Term(f"reshape({self.value(arguments[0]).text})")
        if op not in self.known:
            raise RuleError(f"expected a function of docs/rulebook.md, found aten.{op}")
        return Term(f"{self.known[op]}({', '.join(self.argument(a) for a in arguments)})")

    def infix(self, sign: str, arguments: list[str]) -> Term:
        strength = _STRENGTH[sign]
        left, right = map(self.value, arguments)
        number = not arguments[1].startswith("%")
        if sign == "*" and number:  # as people write it: 0.5 * x
            left, right = right, left
        # a - (b + c), a / (b * c): the right side of equals is bracketed unless order is free.
        return Term(f"{left.within(strength)} {sign} {right.within(strength + (sign != '+'))}",
                    strength)  # fmt: skip

    def argument(self, text: str) -> str:
        name, equals, value = text.partition("=")
        return f"{name}={self.value(value).text}" if equals else self.value(text).text

    def value(self, text: str) -> Term:
        if text.startswith("%"):
            return self.terms[text[1:]]
        if text.startswith("["):
            return Term(f"[{', '.join(self.argument(a) for a in arguments_of(text[1:-1]))}]")
        return Term(text, 3 if text.startswith("-") else 9)


def rule_of(function, target: str, sample: dict[str, str] | None = None) -> str:
    """The text of a rule named like the function, whose composition is what it computes."""
    import torch

    from opfuse.capture import text_of

    sample = sample or {}
    values, tensors = [], []
    for name in inspect.signature(function).parameters:
        shape = sample.get(name, "3,4")
        if re.fullmatch(r"\d+(,\d+)*,?", shape):
            tensors.append(name)
            values.append(torch.rand([int(n) for n in shape.split(",") if n]))
        else:
            values.append(float(shape))
    texts, labels = [], []

    def backend(graph, inputs):
        labels.extend(str(n.target) for n in graph.graph.nodes if n.op == "placeholder")
        texts.append(text_of(graph, inputs))
        return graph.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend, dynamic=False)(*values)
    if len(texts) != 1:
        raise RuleError(
            f"expected one graph, found {len(texts)}: the function was not traced whole"
        )
    externals = re.findall(r"(?m)^%(\w+): [^=\n]*$", texts[0])[: len(labels)]
    names = {
        external: re.sub(r"^L_(\w+?)_$", r"\1", label)
        for external, label in zip(externals, labels, strict=True)
    }
    lines = Writer(names).write(texts[0])
    used = [name for name in tensors if name in names.values()]
    head = f"op {function.__name__}({', '.join(f'{name}: T' for name in used)}) -> T"
    body = ["  composition", *[f"    {line}" for line in lines]]
    return "\n".join([head, *body, f"  target {target}({', '.join(used)})"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("function", metavar="FILE.py:FUNCTION")
    parser.add_argument("--target", required=True, help="the fused operator, as aten.silu")
    parser.add_argument("--sample", default="", help="shapes and numbers: x=3,4 eps=1e-6")
    words = parser.parse_args()
    file, _, name = words.function.rpartition(":")
    spec = importlib.util.spec_from_file_location("traced", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sample = dict(word.split("=") for word in words.sample.split())
    try:
        print(rule_of(getattr(module, name), words.target, sample), end="")
    except RuleError as error:
        sys.exit(f"rulegen: {words.function}: {error}")


if __name__ == "__main__":
    main()
