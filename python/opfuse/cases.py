"""The cases of each operator, from opfuse/ops/NAME/NAME.json: tests, benchmark and the table of
`opfuse ops` go through them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

DTYPES = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f64": torch.float64,
}
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


@dataclass(frozen=True)
class Case:
    """One call: shapes of its tensors, and its other arguments."""

    operator: str
    shapes: dict[str, list[int] | None]
    values: dict[str, Any]
    layout: str
    constant: tuple[str, ...]  # tensors without a gradient
    boolean: tuple[str, ...] = ()  # tensors of True and False, True in the first column

    @property
    def title(self) -> str:
        parts = ["x".join(map(str, shape)) for shape in self.shapes.values() if shape]
        parts += [f"{name}={value}" for name, value in self.values.items() if name != "eps"]
        parts += [f"boolean {name}" for name in self.boolean]
        return "-".join(
            [self.operator, *parts, *([self.layout] if self.layout != "contiguous" else [])]
        )

    def arguments(self, dtype: torch.dtype, seed: int = 0, requires_grad: bool = True) -> dict:
        """New arguments by name: normally distributed, the same for every dtype up to rounding."""
        generator = torch.Generator().manual_seed(seed)
        made: dict[str, Any] = {}
        for name, shape in self.shapes.items():
            made[name] = None
            if shape is not None:
                made[name] = self._tensor(name, shape, dtype, generator, requires_grad)
        return {**made, **self.values}

    def _tensor(self, name, shape, dtype, generator, requires_grad) -> Tensor:
        tensor = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        if name in self.boolean:
            tensor = tensor > 0
            tensor[..., 0] = True
            return tensor
        if name.endswith("var"):
            tensor = tensor.abs() + 0.5
        if len(shape) == 4:
            tensor = tensor.to(memory_format=LAYOUTS[self.layout])
        return tensor.requires_grad_(requires_grad and name not in self.constant)


@dataclass(frozen=True)
class Operator:
    """What opfuse/ops/NAME/NAME.json says of one operator."""

    name: str
    about: dict[str, str]
    cases: tuple[Case, ...]
    bench: tuple[Case, ...]


def read_operator(text: str) -> Operator:
    """Parses one NAME.json.

    Example: `read_operator(Path("opfuse/ops/rope/rope.json").read_text()).cases[0].title`
    """
    content = json.loads(text)
    tensors, constant = content.pop("tensors"), tuple(content.pop("constant", ()))
    name = content.pop("operator")

    def case(row: dict) -> Case:
        shapes = {key: value for key, value in row.items() if key in tensors}
        values = {
            key: value for key, value in row.items() if key not in (*tensors, "layout", "boolean")
        }
        layout, boolean = row.get("layout", "contiguous"), tuple(row.get("boolean", ()))
        return Case(name, shapes, values, layout, constant, boolean)

    cases = tuple(map(case, content.pop("cases")))
    bench = tuple(map(case, content.pop("bench")))
    return Operator(name, content, cases, bench)


def read_folder(folder: Path) -> list[Operator]:
    """All operators of a source tree's opfuse/ops, by name."""
    files = sorted(folder.glob("*/*.json"))
    return [read_operator(file.read_text()) for file in files if file.stem == file.parent.name]
