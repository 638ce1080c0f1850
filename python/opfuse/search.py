"""Which of the proved replacements pay: each kind is measured by itself, the best set is kept.

A kind is a rule and its target. PyTorch's own operators are tried first, then those of opfuse;
among them first the kind whose chains take the most time. Each is measured in alternating steps
against the code as it is by then and stays only where the whole interval lies above 1.
"""

from __future__ import annotations

import json
from typing import Any

from opfuse import wording
from opfuse.levers.lever import Alternate, Steps
from opfuse.planning import Planner
from opfuse.state import State
from opfuse.switch import Switch, SwitchRefused


class Exchange:
    """Two switches of the same functions: off runs `current`, on runs `trial`."""

    def __init__(self, current: Switch, trial: Switch) -> None:
        self.current = current
        self.trial = trial
        self.on = False

    def set(self, on: bool) -> None:
        """Raises SwitchRefused, with the side that was in place still there."""
        if on == self.on:
            return
        if busy := self.current.busy() or self.trial.busy():
            raise SwitchRefused(busy)
        leaving, coming = (self.current, self.trial) if on else (self.trial, self.current)
        leaving.set(False)
        coming.set(True)
        self.on = on


class Kind:
    """The planned sites of one rule and target."""

    def __init__(self, rule: str, target: str) -> None:
        self.rule = rule
        self.target = target
        self.sites: set[int] = set()
        self.calls = 0
        self.ms = 0.0

    @property
    def place(self) -> tuple[str, str]:
        return self.rule, self.target

    @property
    def own(self) -> bool:
        return self.target.startswith("opfuse.")

    def row(self) -> dict[str, Any]:
        places = f"{len(self.sites)} place{'s' if len(self.sites) != 1 else ''}"
        calls = f"{self.calls} call{'s' if self.calls != 1 else ''}"
        what = f"{self.target} at {places}, {calls}"
        return {"name": self.rule, "what": what, "outcome": "running", "reason": "", "kept": False}


def kinds_of(sites: list[dict[str, Any]]) -> list[Kind]:
    """The kinds of what is planned, in the order in which they are tried."""
    kinds: dict[tuple[str, str], Kind] = {}
    for site in sites:
        if site["status"] != "planned":
            continue
        place = site["rule"], site["target"]
        kind = kinds.setdefault(place, Kind(*place))
        kind.sites.add(site["id"])
        kind.calls += site["calls"]
        kind.ms += site["forward_ms"] + site["backward_ms"]
    return sorted(kinds.values(), key=lambda kind: (kind.own, -kind.ms))


class Search:
    """Writes `search` of the result: a row for each kind.

    Example: `switch = yield from Search(planner, state).run(1, everything, alternate, order)`
    """

    def __init__(self, planner: Planner, state: State) -> None:
        self.planner = planner
        self.state = state
        self.rows: list[dict[str, Any]] = []
        self._switches: list[Switch] = []

    def order(self) -> str:
        """The kinds in the order in which this process would try them, as text."""
        return json.dumps([kind.place for kind in kinds_of(self.state.result["sites"])])

    def run(self, before: int, everything: Switch, alternate: Alternate, order: str) -> Steps:
        """Gives the switch of what is kept: `everything` where all of it or none of it won."""
        places = json.loads(order)
        kinds = kinds_of(self.state.result["sites"])
        kinds.sort(key=lambda kind: places.index([*kind.place]))
        self.state.result["search"] = self.rows
        kept: list[Kind] = []
        current = Switch()
        for kind in kinds if len(kinds) > 1 else ():
            trial = yield from self._try(before, current, [*kept, kind], alternate)
            if self.rows[-1]["kept"]:
                kept.append(kind)
                current = trial
        self.undo()
        if not kept or len(kept) == len(kinds):
            self.planner.plan_again(before)
            return everything
        lost = {
            site: f"measured by itself it is not faster: {row['reason']}"
            for kind, row in zip(kinds, self.rows) if not row["kept"] for site in kind.sites
        }  # fmt: skip
        self.planner.leave_out(before, lost)
        return current

    def interrupted(self, reason: str) -> None:
        """The script ended while a kind was tried."""
        for row in self.rows:
            if row["outcome"] == "running":
                row.update(outcome="undecided", reason=reason)

    def undo(self) -> None:
        """The original code, and no name of ours in the modules. Safe at any time."""
        for switch in self._switches:
            switch.roll_back()

    def _try(self, before: int, current: Switch, kinds: list[Kind], alternate: Alternate) -> Steps:
        """Measures `current` against the code with all of `kinds`, of which the last is new."""
        kind, row = kinds[-1], kinds[-1].row()
        self.rows.append(row)
        self._say(f"trying {kind.rule} by itself: {row['what']}")
        current.set(False)  # the functions that a switch takes are found by their original code
        trial = Switch()
        self._switches.append(trial)
        self.planner.load_part(before, set().union(*(k.sites for k in kinds)), trial)
        current.set(bool(current))
        labels = (f"without_{kind.rule}", f"with_{kind.rule}")
        exchange = Exchange(current, trial)
        yield from alternate(exchange, lambda ab: row.update(ab=ab), labels, 0)
        row.update(outcome=row["ab"]["outcome"], reason=wording.ratio(row["ab"]))
        row["kept"] = row["outcome"] == "tuned"
        exchange.set(row["kept"])
        self._say(f"{kind.rule} {'' if row['kept'] else 'not '}kept: {row['reason']}")
        return trial

    def _say(self, text: str) -> None:
        self.state.event(text, self.planner.boundaries.step, "measuring")
