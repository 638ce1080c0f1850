"""Agreement of the ranks of torch.distributed, without anybody waiting for anybody.

A meeting has a name. Each rank announces a value; when all are there and equal, rank 0 proposes a
step at least five ahead; the others acknowledge it; with all acknowledgements in, rank 0 commits.
Everything goes through the default store with one prefix and is only ever polled. Any rank can call
the whole thing off; a rank that is missing or late makes rank 0 call it off.
"""

from __future__ import annotations

from typing import Any

_AHEAD = 5
# Boundaries that rank 0 polls for announcements before a rank counts as missing.
_PATIENCE = 50
_YES, _NO = "yes", "no "


class CalledOff(Exception):
    """Some rank cannot go on with the others; the message says which and why."""


def connect() -> Ranks | None:
    """The ranks of this run, or None when torch.distributed is not in use."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() < 2:
        return None
    store = dist.PrefixStore("opfuse", dist.distributed_c10d._get_default_store())
    return Ranks(store, dist.get_rank(), dist.get_world_size())


class Ranks:
    """One rank's view of the meetings.

    Example: `ranks.announce("plan", plan_hash)`, then at each boundary `ranks.due("plan", step)`.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store = store
        self.rank = rank
        self.size = size
        self._polls: dict[str, int] = {}
        self._announced: set[str] = set()
        self._acknowledged: set[str] = set()

    def announce(self, meeting: str, value: str) -> None:
        self._announced.add(meeting)
        self._store.set(f"{meeting}/value/{self.rank}", value)

    def vote(self, meeting: str, refusal: str) -> None:
        """Announces "" for yes, or why not; one no is everybody's: see `refusal`."""
        self.announce(meeting, f"{_NO}rank {self.rank}: {refusal}" if refusal else _YES)

    def refusal(self, meeting: str) -> str:
        """After a vote: why it was refused, "" where all said yes."""
        value = self.value(meeting)
        return value.removeprefix(_NO) if value.startswith(_NO) else ""

    def propose(self, meeting: str, value: str, step: int) -> None:
        """Rank 0 decides alone: the others learn `value` and the step from which it counts."""
        self._store.set(f"{meeting}/step", f"{step + _AHEAD} {value}")

    def due(self, meeting: str, step: int, although_off: bool = False) -> bool:
        """Called at the boundary after `step`: does the agreed change apply to the coming step?

        Raises CalledOff when this will not happen any more. `although_off` is for the one meeting
        that is left when the rest was called off: to leave together.
        """
        if self.called_off() and not although_off:
            raise CalledOff(self.called_off())
        agreed = self._peek(f"{meeting}/step")
        if not agreed:
            if self.rank == 0 and meeting in self._announced:
                self._gather(meeting, step)
            return False
        target = int(agreed.partition(" ")[0])
        self._acknowledge(meeting, step, target)
        if step + 1 < target:
            return False
        if step + 1 == target and self._peek(f"{meeting}/commit"):
            return True
        self.call_off(f"rank {self.rank} was late for step {target}")
        raise CalledOff(f"rank {self.rank} was late for step {target}")

    def value(self, meeting: str) -> str:
        """What rank 0 proposed, "" before it did."""
        return self._peek(f"{meeting}/step").partition(" ")[2]

    def call_off(self, reason: str) -> None:
        self._store.set("off", reason)

    def called_off(self) -> str:
        return self._peek("off")

    def _gather(self, meeting: str, step: int) -> None:
        values = [self._peek(f"{meeting}/value/{rank}") for rank in range(self.size)]
        missing = [rank for rank, value in enumerate(values) if not value]
        self._polls[meeting] = self._polls.get(meeting, 0) + 1
        if missing and self._polls[meeting] > _PATIENCE:
            self.call_off(f"rank {missing[0]} did not answer")
        elif not missing and any(value.startswith(_NO) for value in values):
            self.propose(meeting, next(v for v in values if v.startswith(_NO)), step)
        elif not missing and len(set(values)) > 1:
            other = next(rank for rank, value in enumerate(values) if value != values[0])
            self.call_off(f"rank {other} has another plan than rank 0")
        elif not missing:
            self.propose(meeting, values[0], step)

    def _acknowledge(self, meeting: str, step: int, target: int) -> None:
        """Two steps before the change everybody must have seen it, or it does not happen."""
        if meeting not in self._acknowledged and step + 1 < target:
            self._acknowledged.add(meeting)
            self._store.set(f"{meeting}/seen/{self.rank}", "1")
        if self.rank != 0 or step + 2 != target:
            return
        seen = [bool(self._peek(f"{meeting}/seen/{rank}")) for rank in range(self.size)]
        if all(seen):
            self._store.set(f"{meeting}/commit", "1")
        else:
            self.call_off(f"rank {seen.index(False)} lags behind")

    def _peek(self, key: str) -> str:
        """The value of `key`, "" when it is not there. Does not wait."""
        return self._store.get(key).decode() if self._store.check([key]) else ""
