"""Faults on demand, for tests: OPFUSE_FAULT=<stage>:<raise|alloc> fails our step of that name."""

from __future__ import annotations

import os

STAGES = (
    "arm", "record_start", "record_stop", "find", "facts", "plan", "prove", "switch", "validate",
    "measure", "report",
)  # fmt: skip


class InjectedFault(RuntimeError):
    """The error that OPFUSE_FAULT asked for."""


def reach(stage: str) -> None:
    """Marks that `stage` begins; raises when the environment asks for a fault there."""
    wanted, _, kind = os.environ.get("OPFUSE_FAULT", "").partition(":")
    if wanted != stage:
        return
    if kind == "alloc":
        raise MemoryError(f"injected at {stage}")
    raise InjectedFault(f"injected at {stage}")
