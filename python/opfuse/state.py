"""state/process-<pid>.json: what this process tells the `opfuse` that started it."""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import time
from typing import Any

_PROGRESS_EVERY_S = 0.5
_MOST_STEPS = 4096


class State:
    """The file's content. Every event rewrites it at once: a killed run keeps what it had.

    A folder that is full or read-only is not an error of the user's run: nothing is written then,
    and the next event tries again.
    """

    def __init__(self, run_dir: str) -> None:
        self._directory = os.path.join(run_dir, "state")
        self._started = time.perf_counter()
        self._written = 0.0
        self.silent = False
        self.data: dict[str, Any] = {
            "version": 1,
            "pid": os.getpid(),
            "argv": list(sys.argv),
            "script": os.path.basename(sys.argv[0]) if sys.argv else "",
            "rank": None,
            "world_size": 1,
            "python": platform.python_version(),
            "torch": "",
            "threads": 0,
            "phase": "armed",
            "finished": False,
            "events": [],
            "progress": None,
            "boundary": {"kind": "none", "name": "", "count": 0},
            "model": {"root": "", "batch": -1},
            "steps": [],
            "outcome": None,
            "reason": "",
            "trouble": [],
            "result": {},
        }

    @property
    def directory(self) -> str:
        return self._directory

    @property
    def result(self) -> dict[str, Any]:
        return self.data["result"]

    def event(self, text: str, step: int, phase: str = "") -> None:
        """Says one thing to the user. `phase` is the phase that begins with it."""
        if phase:
            self.data["phase"] = phase
        now = round(time.perf_counter() - self._started, 3)
        event = {"t": now, "step": step, "phase": self.data["phase"], "text": text}
        self.data["events"].append(event)
        self.write()

    def trouble(self, text: str) -> None:
        """Says once what went wrong on our side."""
        if text not in self.data["trouble"]:
            self.data["trouble"].append(text)
            self.write()

    def progress(self, progress: dict[str, Any] | None) -> None:
        """Shows how far the measurement is; written at most twice a second."""
        self.data["progress"] = progress
        if progress is None or time.perf_counter() - self._written > _PROGRESS_EVERY_S:
            self.write()

    def add_step(self, row: dict[str, Any]) -> None:
        if len(self.data["steps"]) < _MOST_STEPS:
            self.data["steps"].append(row)

    def finish(self, outcome: str, reason: str) -> None:
        self.data.update(outcome=outcome, reason=reason, progress=None)
        self.write()

    def write(self) -> None:
        """Replaces the file as a whole; a reader never sees half of it."""
        if self.silent:
            return
        self._written = time.perf_counter()
        path = os.path.join(self._directory, f"process-{self.data['pid']}.json")
        try:
            text = json.dumps(_finite(self.data), separators=(",", ":"))
            with open(path + ".tmp", "w", encoding="utf-8", errors="replace") as file:
                file.write(text)
            os.replace(path + ".tmp", path)
        except (OSError, TypeError, ValueError):
            pass


def _finite(value: Any) -> Any:
    """`value` with infinities and NaN as null: JSON has no other word for them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
