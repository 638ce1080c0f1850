"""Switches functions between their original code and the edited one.

The original code objects are kept and assigned back, so after a rollback the running code is the
original itself, not a copy. Switching is refused while the code runs anywhere.
"""

from __future__ import annotations

import dis
import gc
import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch


class SwitchRefused(RuntimeError):
    """Switching now would not be safe; the reason is the message."""


def functions_with(code: CodeType) -> list[FunctionType]:
    """Every function object that runs `code`."""
    return [
        found
        for found in gc.get_referrers(code)
        if type(found) is FunctionType and found.__code__ is code
    ]


def resolve(dotted: str) -> Any:
    """The object that "torch.nn.functional.silu" names."""
    module_name, _, attribute = dotted.rpartition(".")
    return getattr(importlib.import_module(module_name), attribute)


@dataclass
class CodeSwitch:
    """One function's two codes, and the globals that the edited one needs."""

    original: CodeType
    edited: CodeType
    names: dict[str, Any]
    functions: list[FunctionType] = field(default_factory=list)


class Switch:
    """All edits of a plan, switched together. `on` says which side runs.

    Example: `switch.add(code, edited, {"_opfuse_silu": silu}); switch.set(True); switch.set(False)`
    """

    def __init__(self) -> None:
        self._switches: list[CodeSwitch] = []
        self.on = False

    def __bool__(self) -> bool:
        return bool(self._switches)

    def add(self, original: CodeType, edited: CodeType, names: dict[str, Any]) -> None:
        """Registers an edit. Raises SwitchRefused if no function can take it."""
        functions = functions_with(original)
        where = f"{original.co_filename}:{original.co_firstlineno} {original.co_name}"
        if not functions:
            raise SwitchRefused(f"{where}: expected a function that runs this code, found none")
        if edited.co_freevars != original.co_freevars:
            raise SwitchRefused(f"{where}: the edited code closes over other names")
        unbound = _globals_of(edited) - _globals_of(original) - set(names)
        if unbound:
            raise SwitchRefused(
                f"{where}: the edited code reads {sorted(unbound)[0]}, not bound here"
            )
        for function in functions:
            taken = [n for n, v in names.items() if function.__globals__.get(n, v) is not v]
            if taken:
                raise SwitchRefused(f"{where}: the name {taken[0]} is taken in its module")
        self._switches.append(CodeSwitch(original, edited, names, functions))

    def load(self, memory: list[dict[str, Any]], facts: list[dict[str, Any]]) -> None:
        """Compiles a plan's edited functions and registers them; nothing runs differently yet.

        Raises source.SourceRefused when an edit is not the program that its diff gives.
        """
        from opfuse import source

        known = {(fact["file"], fact["qualname"]): fact for fact in facts}
        entries: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for entry in memory:
            entries.setdefault((entry["file"], entry["qualname"]), []).append(entry)
        for place, group in entries.items():
            names = {e["global_name"]: resolve(e["python_target"]) for e in group}
            texts = group[0]["text"], group[0]["source_text"]
            self.add(*source.prepare_code(known[place], *texts, next(iter(names))), names)

    def set(self, on: bool) -> None:
        """Puts the edited codes (on) or the originals (off) in place, all or none."""
        if on == self.on:
            return
        busy = self.busy()
        if busy:
            raise SwitchRefused(busy)
        try:
            for switch in self._switches:
                for function in switch.functions:
                    function.__globals__.update(switch.names)
                    function.__code__ = switch.edited if on else switch.original
            self.on = on
        except BaseException:
            self.roll_back()
            raise

    def roll_back(self) -> None:
        """Assigns the original code objects for good and takes our names out of the modules.

        Never refuses: a frame that still runs the edited code ends with it, and keeps its names.
        """
        for switch in self._switches:
            needed = _runs(switch.edited)
            for function in switch.functions:
                if function.__code__ is switch.edited:
                    function.__code__ = switch.original
                for name in () if needed else switch.names:
                    function.__globals__.pop(name, None)
        self.on = False

    def busy(self) -> str:
        """Why the codes cannot be switched now, or "". A step boundary is the place to ask."""
        codes = {c for switch in self._switches for c in (switch.original, switch.edited)}
        for frame in _all_frames():
            if frame.f_code in codes:
                return f"{frame.f_code.co_name} is running"
            if _is_backward(frame.f_code):
                return "a backward pass is running"
        return "a backward pass is running" if in_graph_task() else ""


def in_graph_task() -> bool:
    """True when this thread runs inside a backward pass."""
    return torch._C._current_graph_task_id() != -1


def _all_frames() -> Iterator[FrameType]:
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            yield frame
            frame = frame.f_back


def _globals_of(code: CodeType) -> set[str]:
    """The names that the code looks up in its module, attributes left out."""
    return {
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }


def _is_backward(code: CodeType) -> bool:
    return code.co_name == "_engine_run_backward"


def _runs(code: CodeType) -> bool:
    return any(frame.f_code is code for frame in _all_frames())
