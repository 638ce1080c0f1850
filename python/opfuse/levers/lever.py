"""What a lever is: something that makes a step faster beside the edits of source code."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from opfuse.boundary import Boundaries, StepSample
from opfuse.switch import Switch

Steps = Generator[str, StepSample, Any]
# Measures two sides: (sides, publish, labels of their steps, steps to warm up after a change).
Alternate = Callable[[Any, Callable[[dict[str, Any]], None], tuple[str, str], int], Steps]
# Hears why this rank refuses, "" where it does not; gives why any rank does.
Agree = Callable[[str, str], Steps]


class LeverRefused(RuntimeError):
    """Why a lever is not tried here, as a sentence."""


@dataclass
class Context:
    """What levers get of the running tuning."""

    config: dict[str, Any]
    session: Any
    boundaries: Boundaries
    switch: Switch
    # Records the coming step with its values; gives the record's number.
    record: Callable[[], Steps]
    # Drops a record.
    forget: Callable[[int], None]
    # Tells the other ranks that this one is out.
    leave_ranks: Callable[[], None]


class Lever:
    """One lever. The constructor and `prepare` raise LeverRefused where it cannot be tried, and
    leave everything as it was.

    Example: `lever = MemoryLever(context); yield from lever.prepare(); lever.set(True)`
    """

    name = ""
    what = ""  # after "trying lever NAME: "
    lines: tuple[str, ...] = ()  # what a user writes to have it without opfuse
    where = "at the top of the script"  # do these lines go
    warm_steps = 0  # steps after a change that do not count
    on = False

    def __init__(self, context: Context) -> None:
        raise NotImplementedError

    def prepare(self) -> Steps:
        """Steps of the program before it is measured; `on` is False afterwards."""
        return
        yield

    def set(self, on: bool) -> None:
        """Puts it in place or takes it back; at a step boundary."""
        raise NotImplementedError

    def drop(self) -> None:
        """Takes it back for good."""
        self.set(False)


def wrapper_of(root: Any) -> str:
    """The class that holds the model for several ranks, "" where none does."""
    name = type(root).__name__
    return name if name in ("DistributedDataParallel", "FullyShardedDataParallel") else ""


def devices_of(root: Any) -> set[str]:
    """Device types of the parameters."""
    return {tensor.device.type for tensor in root.parameters()} if root is not None else set()
