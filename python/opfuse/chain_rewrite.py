"""A chain of a captured graph: which nodes it is, and the graph with a call in its place.

A chain is found among the ATen operators that the graph is lowered to; it is replaced in the graph
itself, so every node of it must lie wholly inside.
"""

from __future__ import annotations

import ast
import copy
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from opfuse.capture import Lowered, function_class, is_function
from opfuse.straightline import body_problem


class ChainRefused(Exception):
    """Why a chain stays as it is, as a sentence."""


@dataclass
class Chain:
    """Nodes of a captured graph, and the call that takes their place."""

    report: Any  # backend.ChainReport; its `refusal` is set when the proof fails
    nodes: list[Node]  # in the order of the graph
    inputs: list[Node]  # what the nodes read from outside
    outputs: list[Node]  # whose results are used outside, in the order of the composition
    target: Callable[..., Any]
    args: list[Any]  # nodes and literals
    kwargs: dict[str, Any] = field(default_factory=dict)
    same: dict[Node, Node] = field(default_factory=dict)  # casts that do nothing: what they give

    def call(self, values: dict[Node, Any]) -> tuple[Any, ...]:
        """The results of the fused operator, as `outputs`."""

        def of(argument: Any) -> Any:
            return values[argument] if isinstance(argument, Node) else argument

        result = self.target(*map(of, self.args), **{k: of(v) for k, v in self.kwargs.items()})
        return result if isinstance(result, tuple) else (result,)


def chain_of(graph: GraphModule, lowered: Lowered, found: dict[str, Any], report: Any) -> Chain:
    """The chain that `found` (Session.match_captured) names. Raises ChainRefused."""
    order = {node: index for index, node in enumerate(graph.graph.nodes)}
    owners = {name: node for node, names in lowered.made.items() for name in names}
    missing = [name for name in found["nodes"] if name not in owners]
    if missing:
        raise ChainRefused(f"{missing[0]} belongs to no call of the graph")
    chain_ops = set(found["nodes"])
    nodes = _with_casts(graph, lowered, {owners[name] for name in chain_ops})
    for node in nodes:
        _check_function(node)
        extra = [name for name in lowered.made[node] if name not in chain_ops]
        if extra:
            raise ChainRefused(f"{node.name} does more than the chain: {extra[0]}")
    outputs = [_output(lowered, name, nodes) for name in found["outputs"]]
    args, kwargs = _arguments(lowered, found["arguments"], set(nodes))
    given = {a for a in [*args, *kwargs.values()] if isinstance(a, Node)}
    read = {n for node in nodes for n in node.all_input_nodes if n not in nodes} - given
    same = {node: root for node in read if (root := _root(lowered, node)) in given}
    for node in read - set(same):
        if isinstance(node.meta.get("example_value"), torch.Tensor):
            raise ChainRefused(f"{node.name} is read by the chain and no input of the rule")
    inputs = sorted({*read, *given} - set(same), key=order.__getitem__)
    target = _resolve(found["python"])
    chain = Chain(report, nodes, inputs, outputs, target, args, kwargs, same)
    _check_uses(chain, order)
    _check_regions(graph, chain)
    return chain


def _root(lowered: Lowered, node: Node) -> Node | None:
    """The node whose result a cast or copy that does nothing hands on."""
    names = lowered.results.get(node, ())
    return lowered.values.get(names[0]) if names and not lowered.made[node] else None


def _with_casts(graph: GraphModule, lowered: Lowered, chain: set[Node]) -> list[Node]:
    """The nodes in order, with those that do nothing between them."""
    inside = set(chain)
    for node in reversed(list(graph.graph.nodes)):
        between = node.users and all(user in inside for user in node.users)
        if node not in inside and between and _root(lowered, node) in chain:
            inside.add(node)
    return [node for node in graph.graph.nodes if node in inside]


def _check_function(node: Node) -> None:
    """A custom Function may do anything in Python beside its operators."""
    if not is_function(node):
        return
    cls = function_class(node)
    if cls is None:
        raise ChainRefused("it calls an autograd.Function that is not known")
    problem = body_problem(cls)
    if problem:
        raise ChainRefused(f"{cls.__name__} is not straight-line code: {problem}")


def _output(lowered: Lowered, name: str, nodes: list[Node]) -> Node:
    node = lowered.values.get(name)
    if node not in nodes:
        raise ChainRefused(f"its result {name} is no result of a call of the graph")
    return node


def _arguments(lowered: Lowered, texts: list[str], inside: set[Node]):
    def of(text: str) -> Any:
        if not text.startswith("%"):
            return ast.literal_eval(text)
        node = lowered.values.get(text[1:])
        if node is None or node in inside:
            raise ChainRefused(f"its input {text[1:]} is no result of a call of the graph")
        return node

    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for text in texts:
        name, equal, value = text.partition("=")
        if equal and name.isidentifier():
            kwargs[name] = of(value)
        else:
            args.append(of(text))
    return args, kwargs


def _resolve(dotted: str) -> Callable[..., Any]:
    module, _, name = dotted.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _check_uses(chain: Chain, order: dict[Node, int]) -> None:
    """Inner results are used inside alone; what is used outside is used after the chain's end."""
    inside, end = set(chain.nodes), order[chain.nodes[-1]]
    for node in chain.nodes:
        for user in node.users:
            if user in inside:
                continue
            if node not in chain.outputs:
                raise ChainRefused(f"{node.name} is also used by {user.name}")
            if order[user] < end:
                raise ChainRefused(f"{node.name} is used before the chain ends")


_REGIONS = ("enter", "exit", "set_grad_enabled", "inference_mode", "saved_tensors_hooks")


def _check_regions(graph: GraphModule, chain: Chain) -> None:
    """No autocast, grad or other mode begins or ends between its nodes."""
    inside, seen = set(chain.nodes), 0
    for node in graph.graph.nodes:
        if node in inside:
            seen += 1
        elif 0 < seen < len(inside):
            name = getattr(node.target, "__name__", str(node.target))
            if node.op.startswith("call") and any(word in name for word in _REGIONS):
                raise ChainRefused(f"{name} stands between its operators")


def composition(graph: GraphModule, chain: Chain) -> GraphModule:
    """The chain's own nodes as a graph of `chain.inputs`, whose results are `chain.outputs`."""
    alone = Graph()
    values = {node: alone.placeholder(node.name) for node in chain.inputs}
    values.update({node: values[root] for node, root in chain.same.items()})
    for node in chain.nodes:
        values[node] = alone.node_copy(node, lambda n: values[n])
    alone.output(tuple(values[node] for node in chain.outputs))
    return GraphModule(graph, alone)


def rewritten(graph: GraphModule, chains: list[Chain]) -> GraphModule:
    """A copy of the graph with each chain replaced by its call. The chains must not overlap."""
    copied = Graph()
    values: dict[Node, Node] = {}
    result = copied.graph_copy(graph.graph, values)
    copied.output(result)
    for chain in chains:
        nodes = [values[node] for node in chain.nodes]
        args = [values[a] if isinstance(a, Node) else a for a in chain.args]
        kwargs = {k: values[v] if isinstance(v, Node) else v for k, v in chain.kwargs.items()}
        with copied.inserting_after(nodes[-1]):
            call = copied.call_function(chain.target, tuple(args), kwargs)
        call.meta = {k: copy.copy(v) for k, v in nodes[-1].meta.items() if k == "stack_trace"}
        several = len(chain.outputs) > 1
        after = call
        for index, output in enumerate(chain.outputs):
            made = call
            if several:
                with copied.inserting_after(after):
                    made = after = copied.call_function(_item, (call, index))
            values[output].replace_all_uses_with(made, lambda user, made=call: user is not made)
            values[output] = made  # other chains may read it
        for node in reversed(nodes):
            copied.erase_node(node)  # users first
    copied.lint()
    return GraphModule(graph, copied)


def _item(values: tuple[Any, ...], index: int) -> Any:
    return values[index]
