"""The run of a tuning, written as generators: each `yield` names the coming step's side and gives
back the sample of that step at its end.

    step 1 plain, 2 recorded, 3 recorded with values, 4 validated with the new code, then pairs of
    old and new until the difference is decided; the better side stays.

The tuner speaks to the user in events, counts and costs, and keeps everything for the report.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from opfuse import boundary, distributed, fault, native, record, wording
from opfuse.boundary import Boundaries, StepSample
from opfuse.costs import Costs
from opfuse.levers import LeverRefused, LeverTrials
from opfuse.levers.lever import Context
from opfuse.measurement import Measurement
from opfuse.planning import Done, Planner
from opfuse.search import Search
from opfuse.state import State
from opfuse.switch import Switch, SwitchRefused

Steps = Generator[str, StepSample, Any]

_ATTEMPTS = 3
_STEPS_TO_FIND_ROOT = 2  # the root is the module that is called a second time


class Tuner:
    """One tuning of one process. `run` is advanced at every step boundary by the agent."""

    def __init__(
        self, config: dict[str, Any], session: Any, state: State, boundaries: Boundaries
    ) -> None:
        self.config = config
        self.session = session
        self.state = state
        self.boundaries = boundaries
        self.switch = Switch()
        self.ranks: distributed.Ranks | None = None
        self.ends_script = False
        self.needs_gradient_guard = False
        self._recording = False
        self._records: set[int] = set()
        self._signatures: dict[int, str] = {}
        self.costs = Costs(state.data["steps"])
        self.planner = Planner(
            config, session, state, boundaries, self.costs, write=self._write_record
        )
        self._measurement: Measurement | None = None
        self._measurements = 0
        self._agreed = False  # nobody waits for this rank any more
        self.levers = LeverTrials(state)
        self._searching: Search | None = None
        self._done: Done | None = None  # the outcome of the operators

    # What the agent calls

    def run(self) -> Generator[str, StepSample, None]:
        """The whole story, by verb."""
        story = {
            "tune": self._tune, "record": self._record_only, "run": self._apply_plan,
            "versus": self._versus,
        }  # fmt: skip
        done = Done("undecided", "")
        try:
            yield from story[self.config["verb"]]()
        except Done as reached:
            done = reached
        except SwitchRefused as refused:
            done = Done("refused", str(refused))
        except distributed.CalledOff as off:
            done = Done("undecided", f"the ranks did not agree: {off}")
        self._done = done
        if self.config["verb"] == "tune":
            if done.outcome != "tuned":
                self.roll_back()
            try:
                yield from self._try_levers(done)
            except SwitchRefused as refused:
                done = Done("refused", str(refused))
        self._end(done)
        if self.config.get("once") and self.config["verb"] in ("tune", "versus"):
            yield from self._leave()

    @property
    def edited(self) -> bool:
        """Does edited code run?"""
        return self.switch.on or self._searching is not None

    def roll_back(self) -> None:
        """The original code. Safe at any time."""
        if self._searching is not None:
            self._searching.undo()
        self.switch.roll_back()

    def abandon(self) -> None:
        """Ends a recording that is under way. Safe at any time."""
        if self._recording:
            self._recording = False
            self.session.call("record_abandon")

    def leave_ranks(self) -> None:
        """Tells the other ranks that this one is out, where they go on."""
        if self.ranks is not None and not self.ranks.called_off():
            self.ranks.call_off(f"rank {self.ranks.rank} stopped")

    def interrupted(self) -> None:
        """The script ended first: what is known so far is the result."""
        if self._measurement is not None and self._measurement.is_open:
            self._measurement.close()
        step = self.boundaries.step
        reason = f"the script ended after {step} steps, before a decision"
        if self._done is not None:
            self.levers.interrupted(reason)
            self._end(self._done)
            return
        if self._searching is not None:
            self._searching.interrupted(reason)
        self.state.result["costs"] = self.costs.summary()
        self.state.event(reason, step)
        self.state.finish("undecided", reason)

    def close(self) -> None:
        """Gives back what the session holds."""
        for number in list(self._records):
            self._forget(number)
        self.planner.codes.clear()
        self.planner.facts.clear()

    def _forget(self, number: int) -> None:
        self.session.call("forget", record=number)
        self._records.discard(number)

    # The stories

    def _tune(self) -> Steps:
        yield "plain"
        self._meet_ranks()
        yield from self._plain_until(self._record_step() - 1)
        if device := boundary.holds_graph():
            raise Done(
                "refused", f"the script holds a captured graph of {device}: no edit reaches it"
            )
        if not {"ops", "library"} & set(self.config.get("levers", ["ops"])):
            raise Done("nothing_found", "operators were not looked for, as asked by --levers")
        before = yield from self._record("record", values=False)
        plan = self.planner.plan(before)
        values = yield from self._record("values", values=True)
        plan = self.planner.prove(before, values, plan)
        self.planner.load(plan, self.switch)
        if self.config.get("dry_run") or not self.config.get("live", True):
            raise Done("dry_run", "found and proved; nothing was switched, as asked")
        yield from self._meet("plan", plan["hash"])
        after = yield from self._validate((values, before))
        yield from self._meet("validated", plan["hash"])
        if self.config.get("search"):
            after = yield from self._search(before, values, after)
            yield from self._meet("searched", self.state.result["plan"]["hash"])
        self._write_record(after, "after")
        yield from self._measure()

    def _record_only(self) -> Steps:
        yield "plain"
        yield from self._plain_until(self._record_step() - 1)
        recorded = yield from self._record("record", values=False)
        self.planner.find(recorded)
        self._write_record(recorded, "before")
        raise Done("recorded", "the step was recorded, as asked")

    def _versus(self) -> Steps:
        """Nothing is tuned: the script as it is against torch.compile of its root module."""
        from opfuse import versus

        yield "plain"
        yield from self._plain_until(self._record_step())
        self._meet_ranks()
        try:
            yield from versus.run(
                self.config["versus"], self.state, self.boundaries, self._alternate,
                self.costs.plain_step(), ranks=self.ranks is not None,
            )  # fmt: skip
        except versus.VersusRefused as refused:
            raise Done("refused", str(refused)) from None
        raise Done("recorded", "torch.compile was measured, as asked")

    def _apply_plan(self) -> Steps:
        """Applies a plan before the first step and checks by recording that step."""
        from opfuse import source

        try:
            with self.costs.stage("plan", "plan_s"):
                plan = self.session.call("load_plan", path=self.config["plan"])
                self.planner.facts = [source.facts_of_entry(e) for e in plan["memory"]]
        except (native.NativeError, source.SourceRefused) as error:
            raise Done("refused", str(error).removeprefix("load_plan: ")) from None
        self.state.result.update(plan=plan["plan"], diffs=plan["diffs"], sites=plan["sites"])
        self.planner.load(plan, self.switch)
        with self.costs.stage("switch"):
            self.switch.set(True)
        self.state.event(f"plan {plan['hash']} applied before the first step", 0, "validating")
        for attempt in range(1, _ATTEMPTS + 1):
            recorded = yield from self._record("validate", values=False)
            with self.costs.stage("validate", "validate_s"):
                verdict = self.session.call("validate", after=recorded)
            self.state.result["verdict"] = {"validation": {**verdict, "attempts": attempt}}
            if verdict["accepted"]:
                raise Done("plan_applied", "the planned operators ran in a recorded step")
        self.switch.set(False)
        raise Done("refused", f"the step did not become what was planned: {verdict['reason']}")

    # Recording

    def _record_step(self) -> int:
        """DDP rebuilds its buckets in the second step: one later there."""
        return int(self.config.get("record_step", 2)) + (1 if self.ranks is not None else 0)

    def _plain_until(self, step: int) -> Steps:
        while self.boundaries.step < step:
            yield "plain"

    def _record(self, label: str, values: bool) -> Steps:
        """Records the coming step; gives the record's number."""
        with self.costs.stage("record_start"):
            self.session.call("record_start", values=values)
            self._recording = True
        sample: StepSample = yield label
        with self.costs.stage("record_stop", "record_stop_s"):
            self._recording = False
            answer = self.session.call("record_stop")
            number = answer["record"]
            self._records.add(number)
            codes = record.describe_codes(answer.get("codes", []))
            self.planner.codes = {
                c["code"]: record.code_at(c["pointer"]) for c in answer.get("codes", [])
            }
            self.session.call("set_positions", record=number, codes=codes)
            labels = record.storage_labels(self.boundaries.root, self.boundaries.optimizer)
            self.session.call("set_labels", record=number, storages=labels)
        self._signatures[number] = sample.signature
        self._recorded(label, sample, answer)
        if label == "record":
            self.state.result["losses"] = answer["losses"]
        return number

    def _recorded(self, label: str, sample: StepSample, answer: dict[str, Any]) -> None:
        if answer["calls"] == 0:
            raise RuntimeError(f"step {sample.step}: recorded no operator")
        declined = "; ".join(answer.get("declined", []))
        if label == "values" and not answer["with_values"]:
            raise Done("refused", f"the step was not proved: {declined}")
        if declined:
            self.state.trouble(f"step {sample.step}: {declined}")
        self.costs.recorded_step(label, sample.wall_s)
        with self.costs.stage("find", "find_s"):
            operators = self.session.call("find", record=answer["record"])["operators"]
        what = {"record": "recorded", "validate": "checked"}.get(label, "recorded with values")
        text = f"step {sample.step} {what}: {operators:,} operators in {sample.wall_s:.3g} s"
        if self.costs.plain_step() > 0:
            text += f" ({self.costs.plain_name()}: {self.costs.plain_step():.3g} s)"
        phases = {"record": "finding", "values": "proving", "replayed": "measuring"}
        phase = phases.get(label, "validating")
        self.state.event(text, sample.step, phase)

    def _write_record(self, number: int, when: str) -> None:
        with self.costs.stage("report", "write_s"):
            record.write(self.session, self.state, number, when)

    # Switching and measuring

    def _validate(self, originals: tuple[int, ...]) -> Steps:
        """Runs one step with the new code, recorded: it must be one of the recorded original steps
        as planned. Control flow differs from step to step in some scripts."""
        for attempt in range(1, _ATTEMPTS + 1):
            with self.costs.stage("switch"):
                self.switch.set(True)
            after = yield from self._record("validate", values=False)
            self.switch.set(False)
            with self.costs.stage("validate", "validate_s"):
                verdict = self._compare(originals, after)
            self.state.result["verdict"]["validation"] = {**verdict, "attempts": attempt}
            if verdict["accepted"]:
                self.state.event(wording.validation(verdict), self.boundaries.step, "measuring")
                return after
            self._forget(after)
        self._say_off(f"the switched step was not as planned: {verdict['reason']}")
        raise Done("refused", f"the switched step was not as planned: {verdict['reason']}")

    def _compare(self, originals: tuple[int, ...], after: int) -> dict[str, Any]:
        """The first verdict that accepts, else that of the first of `originals`."""
        verdicts = []
        for before in originals:
            other_shapes = self._signatures[before] != self._signatures[after]
            verdict = self.session.call(
                "validate", before=before, after=after, ignore_shapes=other_shapes
            )
            if verdict["accepted"]:
                return verdict
            verdicts.append(verdict)
        return verdicts[0]

    def _search(self, before: int, values: int, after: int) -> Steps:
        """Leaves in the switch what pays by itself; gives the record of the step with that."""
        everything = self.switch
        self._searching = Search(self.planner, self.state)
        # By the time that they take, which every rank has measured for itself: rank 0's order.
        order = yield from self._hear("order", self._searching.order())
        self.switch = yield from self._searching.run(before, everything, self._alternate, order)
        self._searching = None
        if self.switch is everything:
            return after
        everything.roll_back()
        self._forget(after)
        return (yield from self._validate((values, before)))

    def _measure(self) -> Steps:
        """Old and new in random order until the session has decided; the better one stays."""

        def publish(ab: dict[str, Any]) -> None:
            self.state.result["ab"] = ab

        yield from self._alternate(self.switch, publish)
        ab = self.state.result["ab"]
        with self.costs.stage("switch"):
            self.switch.set(ab["outcome"] == "tuned")
        raise Done(ab["outcome"], wording.ratio(ab))

    def _alternate(
        self, sides: Any, publish: Any, labels: tuple[str, str] = ("old", "new"), warm: int = 0
    ) -> Steps:
        self._measurements += 1
        self._measurement = Measurement(
            self.session, self.state, self.boundaries, sides, publish,
            ranks=self.ranks, meeting=f"end/{self._measurements}",
            budget=self.config.get("budget_steps", 64), labels=labels, warm_steps=warm,
        )  # fmt: skip
        with self.costs.stage("measure"):
            self._measurement.open()
        try:
            yield from self._measurement.run()
        except SwitchRefused as refused:
            self._measurement.close()
            self.leave_ranks()
            raise Done("undecided", str(refused)) from None
        self._measurement.close()

    def _try_levers(self, done: Done) -> Steps:
        """After the operators were decided; their outcome stands whatever happens here."""
        wanted = [name for name in self.config.get("levers", []) if name not in ("ops", "library")]
        if not wanted or done.outcome in ("failed", "dry_run"):
            return
        for _ in range(_STEPS_TO_FIND_ROOT):
            if self.boundaries.root is None:
                yield "plain"
        try:
            yield from self.levers.run(wanted, self._lever_context(), self._alternate, self._agree)
            self._agreed = True
        except (Done, SwitchRefused, LeverRefused, distributed.CalledOff) as reached:
            self.leave_ranks()
            self.state.trouble(f"the levers were not measured to the end: {reached}")
            self.levers.undo()
            self.switch.set(done.outcome == "tuned")

    def _lever_context(self) -> Context:
        return Context(
            self.config, self.session, self.boundaries, self.switch,
            record=lambda: self._record("replayed", values=True), forget=self._forget,
            leave_ranks=self.leave_ranks,
        )  # fmt: skip

    # The ranks

    def _meet_ranks(self) -> None:
        self.ranks = distributed.connect()
        if self.ranks is not None:
            self.state.data.update(rank=self.ranks.rank, world_size=self.ranks.size)

    def _meet(self, meeting: str, value: str) -> Steps:
        """Goes on with plain steps until all ranks make the change at the same step."""
        if self.ranks is None:
            return
        self.ranks.announce(meeting, value)
        yield from self._until(meeting)

    def _agree(self, meeting: str, refusal: str) -> Steps:
        """Gives why any rank refuses, at the same step in all; "" where none does."""
        if self.ranks is None:
            return refusal
        self.ranks.vote(meeting, refusal)
        yield from self._until(meeting)
        return self.ranks.refusal(meeting)

    def _hear(self, meeting: str, value: str) -> Steps:
        """Gives rank 0's value, at the same step in all."""
        if self.ranks is None:
            return value
        if self.ranks.rank == 0:
            self.ranks.propose(meeting, value, self.boundaries.step)
        yield from self._until(meeting)
        return self.ranks.value(meeting)

    def _until(self, meeting: str) -> Steps:
        while not self.ranks.due(meeting, self.boundaries.step):
            yield "new" if self.switch.on else "plain"

    # The end

    def _end(self, done: Done) -> None:
        fault.reach("report")
        step = self.boundaries.step
        kept = done.outcome in ("tuned", "plan_applied")
        for site in self.state.result.get("sites", []):
            measured = self.state.result.get("ab") or done.outcome == "plan_applied"
            if site.get("status") == "planned" and measured:
                site["kept"] = kept
        self.state.result["costs"] = self.costs.summary()
        gave_up = done.outcome in ("nothing_found", "refused", "failed") and not self._agreed
        if self.ranks is not None and gave_up:
            self.ranks.call_off(f"rank {self.ranks.rank}: {done.reason}")
        if not kept:
            self.roll_back()
        self.needs_gradient_guard = self.switch.on and self.boundaries.inference
        better = kept or bool(self.levers.kept)
        text = wording.end(done.outcome, done.reason)
        self.state.event(text, step, "tuned" if better else "off")
        self.state.finish("tuned" if better and not kept else done.outcome, done.reason)

    def _leave(self) -> Steps:
        """Ends the script; all ranks of it after the same step."""
        if self.ranks is not None and self.ranks.rank == 0:
            self.ranks.propose("leave", "", self.boundaries.step)
        try:
            while self.ranks is not None:
                if self.ranks.due("leave", self.boundaries.step, although_off=True):
                    break
                yield ("new" if self.switch.on else "plain")
        except distributed.CalledOff:
            return  # out of step: this script goes on to its own end
        self.ends_script = True

    def _say_off(self, text: str) -> None:
        self.state.event(f"{text}; the original code is back", self.boundaries.step)
