"""What only Python knows about a recorded step: source positions and the names of storages; and
the record as files."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from types import CodeType
from typing import TYPE_CHECKING, Any

from opfuse import cells, fault
from opfuse.state import State

if TYPE_CHECKING:
    import torch


def code_at(pointer: int) -> CodeType:
    """The code object at `pointer`. The recorder holds a reference to it, so it is alive."""
    code = ctypes.cast(pointer, ctypes.py_object).value
    if not isinstance(code, CodeType):
        raise TypeError(f"expected a code object at {pointer:#x}, found {type(code).__name__}")
    return code


def positions_of(code: CodeType, offsets: list[int]) -> list[list[int]]:
    """[[offset, line, end line, column, end column]]; columns are UTF-8 bytes, unknown is -1."""
    if hasattr(code, "co_positions"):
        table = list(code.co_positions())
        rows = [(offset, *table[offset // 2]) for offset in offsets if offset // 2 < len(table)]
    else:
        lines = {begin: line for begin, end, line in code.co_lines() for begin in range(begin, end)}
        rows = [(offset, lines.get(offset), lines.get(offset), None, None) for offset in offsets]
    return [[-1 if value is None else value for value in row] for row in rows]


def describe_codes(codes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The request of `set_positions` for the codes that `record_stop` named."""
    described = []
    for entry in codes:
        code = code_at(entry["pointer"])
        described.append(
            {
                "code": entry["code"],
                "file": cells.shown_file(code.co_filename),
                "qualname": getattr(code, "co_qualname", code.co_name),
                "positions": positions_of(code, entry["lasti"]),
            }
        )
    return described


def storage_labels(
    root: torch.nn.Module | None, optimizer: torch.optim.Optimizer | None
) -> list[list[Any]]:
    """[[storage pointer, "param:fc.weight"]] for parameters, buffers, gradients and state."""
    labels: list[list[Any]] = []
    names: dict[int, str] = {}
    for name, tensor in root.named_parameters() if root is not None else ():
        names[id(tensor)] = name
        _label(labels, tensor, f"param:{name}")
        _label(labels, tensor.grad, f"grad:{name}")
    for name, tensor in root.named_buffers() if root is not None else ():
        _label(labels, tensor, f"buffer:{name}")
    for parameter, key, tensor in _optimizer_state(optimizer):
        _label(labels, tensor, f"state:{names.get(id(parameter), '?')}.{key}")
    return labels


def _optimizer_state(optimizer: torch.optim.Optimizer | None) -> Iterator[tuple[Any, str, Any]]:
    for parameter, state in optimizer.state.items() if optimizer is not None else ():
        for key, value in state.items() if isinstance(state, dict) else ():
            yield parameter, key, value


def _label(labels: list[list[Any]], tensor: Any, text: str) -> None:
    """Subclasses, sparse and meta tensors have no such storage: they stay without a name."""
    try:
        labels.append([tensor.untyped_storage()._cdata, text])
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        pass


def write(session: Any, state: State, number: int, when: str) -> None:
    """Leaves a record, "before" or "after", as files for the report. A full disk costs the report,
    nothing else."""
    pid = state.data["pid"]
    names = {"ofr": f"step_{when}-{pid}.ofr", "trace": f"trace_{when}-{pid}.json"}
    paths = {kind: os.path.join(state.directory, name) for kind, name in names.items()}
    try:
        session.call("write_record", record=number, **paths)
    except fault.InjectedFault:
        raise
    except RuntimeError as error:
        state.trouble(str(error))
        return
    files = state.result.setdefault("files", {})
    files.update({f"step_{when}": names["ofr"], f"trace_{when}": names["trace"]})
