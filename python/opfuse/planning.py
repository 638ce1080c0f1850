"""What to replace: finds the sites of a recorded step, plans their edits and proves them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opfuse import library, wording
from opfuse.boundary import Boundaries
from opfuse.costs import Costs
from opfuse.state import State
from opfuse.switch import Switch

_PROOF_IN_STEPS = 14
_PROOF_AT_LEAST_S = 2.0


class Done(Exception):
    """The run has come to its outcome."""

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.reason = reason


class Planner:
    """The sites, facts and plan of one tuning; whatever ends it is raised as Done.

    `codes` are the code objects of the last record, by the numbers that it uses; `write` keeps a
    record's trace for the report.
    Example: `plan = planner.plan(1); plan = planner.prove(1, 2, plan); planner.load(plan, switch)`
    """

    def __init__(
        self,
        config: dict[str, Any],
        session: Any,
        state: State,
        boundaries: Boundaries,
        costs: Costs,
        write: Callable[[int, str], None],
    ) -> None:
        self.config = config
        self.session = session
        self.state = state
        self.boundaries = boundaries
        self.costs = costs
        self.codes: dict[int, Any] = {}
        self.facts: list[dict[str, Any]] = []
        self._write = write
        self._own_operators = False  # those of opfuse are loaded
        self._failed: dict[int, dict[str, Any]] = {}  # sites that left the plan, with the reason
        library.look_beside(config.get("library", ""))

    def plan(self, before: int) -> dict[str, Any]:
        from opfuse import source

        sites = self.find(before)
        self._write(before, "before")
        if not sites:
            raise Done(
                "nothing_found", "no chain of this step has a fused operator in the rulebook"
            )
        if not self.config.get("source", True):
            raise Done("refused", "found, but edits of source code are switched off (--no-source)")
        with self.costs.stage("facts", "facts_s"):
            legal = [site for site in sites if not site.get("refusals")]
            asked = "library" in self.config.get("levers", ["ops"])
            if asked and any(site.get("own") for site in legal):
                self._own_operators = not (problem := library.problem())
                if problem:
                    self.state.trouble(f"the operators of opfuse are not there: {problem}")
            self.facts = source.collect_facts(legal, self.codes)
        return self._ask_plan(before, self.facts)

    def find(self, number: int) -> list[dict[str, Any]]:
        with self.costs.stage("find", "find_s"):
            found = self.session.call("find", record=number)
        self.state.result.update(found)
        return found["sites"]

    def _ask_plan(self, before: int, facts: list[dict[str, Any]]) -> dict[str, Any]:
        plan = self._call_plan(before, facts)
        sites = [self._failed.get(site["id"], site) for site in plan["sites"]]
        self.state.result.update(plan=plan["plan"], diffs=plan["diffs"], sites=sites)
        for text in wording.sites(sites) if not self._failed else ():
            self.state.event(text, self.boundaries.step)
        if not plan["memory"]:
            reasons = sorted({wording.refusal(site) for site in sites})
            raise Done("refused", "; ".join(reasons) or "no site can be edited")
        return plan

    def _call_plan(self, before: int, facts: list[dict[str, Any]]) -> dict[str, Any]:
        with self.costs.stage("plan", "facts_s"):
            return self.session.call(
                "plan", record=before, facts=facts, own_operators=self._own_operators,
                packages=library.versions(),
            )  # fmt: skip

    def prove(self, before: int, values: int, plan: dict[str, Any]) -> dict[str, Any]:
        """Proves every planned site; a site that fails leaves the plan, the others stay."""
        plan = self._drop_absent(before, values, plan)
        with self.costs.stage("prove", "prove_s"):
            verdict = self.session.call("prove", record=values, seconds=self._proof_seconds())
            self.session.call("release_values", record=values)
        self.state.result["verdict"] = {"sites": verdict["sites"], "step": verdict["step"]}
        if not verdict["step"]["accepted"]:
            raise Done("refused", f"the step was not proved: {verdict['step']['reason']}")
        failed = {
            site["site"]: _refusal(site["reason"])
            for site in verdict["sites"]
            if not site["accepted"]
        }
        plan = self._without(before, plan, failed)
        text = wording.proof(verdict, self.state.result["sites"], self.costs["prove_s"])
        self.state.event(text, self.boundaries.step, "validating")
        return plan

    def _proof_seconds(self) -> float:
        """After this long the proof leaves out what only makes its floors better known."""
        return max(_PROOF_AT_LEAST_S, _PROOF_IN_STEPS * self.costs.plain_step())

    def _drop_absent(self, before: int, values: int, plan: dict[str, Any]) -> dict[str, Any]:
        """A site must run, and be legal, in the second recorded step too."""
        with self.costs.stage("find", "find_s"):
            again = {_site_key(s): s for s in self.session.call("find", record=values)["sites"]}
        failed = {}
        for site in self.state.result["sites"]:
            found = again.get(_site_key(site))
            if site["status"] != "planned":
                continue
            if found is None:
                reason = f"it did not run again in step {self.boundaries.step}"
                failed[site["id"]] = _refusal(reason)
            elif found.get("refusals"):
                failed[site["id"]] = found["refusals"][0]
        return self._without(before, plan, failed)

    def _without(
        self, before: int, plan: dict[str, Any], failed: dict[int, dict[str, Any]]
    ) -> dict[str, Any]:
        """The plan less the sites that failed, each with its reason."""
        if not failed:
            return plan
        for site in self.state.result["sites"]:
            if site["id"] in failed:
                site.update(status="refused", refusal=failed[site["id"]])
                self._failed[site["id"]] = site
                self.state.event(wording.site(site), self.boundaries.step)
        self.facts = [fact for fact in self.facts if fact["site"] not in failed]
        if not self.facts:
            reasons = {refusal["reason"] for refusal in failed.values()}
            raise Done("refused", "; ".join(sorted(reasons)))
        return self._ask_plan(before, self.facts)

    def load_part(self, before: int, sites: set[int], switch: Switch) -> None:
        """Loads the edits of some of the proved sites; the plan stays as it is."""
        facts = [fact for fact in self.facts if fact["site"] in sites]
        self._load(self._call_plan(before, facts), facts, switch)

    def plan_again(self, before: int) -> None:
        """Makes the whole plan the session's again, after some of it was loaded."""
        self._call_plan(before, self.facts)

    def leave_out(self, before: int, sites: dict[int, str]) -> dict[str, Any]:
        """The plan less these sites, which were proved, each with the reason."""
        return self._without(before, {}, {site: _refusal(why) for site, why in sites.items()})

    def load(self, plan: dict[str, Any], switch: Switch) -> None:
        """Compiles the edited files; nothing runs differently yet."""
        self._load(plan, self.facts, switch)

    def _load(self, plan: dict[str, Any], facts: list[dict[str, Any]], switch: Switch) -> None:
        from opfuse import source

        with self.costs.stage("facts", "facts_s"):
            try:
                switch.load(plan["memory"], facts)
            except source.SourceRefused as refused:
                raise Done("refused", str(refused)) from None


def _refusal(reason: str) -> dict[str, Any]:
    return {"row": 0, "reason": reason, "node": ""}


def _site_key(site: dict[str, Any]) -> tuple[Any, ...]:
    """What makes a site the same in two records."""
    stack = [(p["file"], p["line"], p["column"]) for p in site["stack"]]
    return site["rule"], site["function_class"], *stack
