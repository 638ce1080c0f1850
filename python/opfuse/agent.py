"""opfuse inside the user's process: armed once torch is imported, out of the way at the end.

The agent owns the state file, the step boundaries and the tuner, and stands between them and the
user's program: whatever fails on our side rolls the code back, is said once, and ends us, not it.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from collections.abc import Generator
from typing import Any

from opfuse import fault, native, torchversion
from opfuse.boundary import Boundaries, NotTunable, StepSample
from opfuse.state import State
from opfuse.tuner import Tuner

_agent: Agent | None = None


def arm(run_dir: str) -> None:
    """Called by the shim when `torch` has been imported."""
    global _agent
    if _agent is not None and not _agent.detached:
        return
    with open(os.path.join(run_dir, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    _agent = Agent(config, run_dir)
    _agent.start()


def check_free() -> None:
    """Raises RuntimeError where another tuning of this process is under way."""
    if _agent is not None and not _agent.detached:
        raise RuntimeError("opfuse.tune: this process is tuned already")


def attach(run_dir: str) -> Agent:
    """Arms this process in the middle of its life; `detach` ends it."""
    check_free()
    arm(run_dir)
    assert _agent is not None
    return _agent


class Agent:
    """One at a time."""

    def __init__(self, config: dict[str, Any], run_dir: str) -> None:
        self.config = config
        self.run_dir = run_dir
        self.state = State(run_dir)
        self.boundaries = Boundaries(self._on_step, self._on_restart, self._on_trouble)
        self.tuner: Tuner | None = None
        self._run: Generator[str, StepSample, None] | None = None
        self._label = "plain"
        self._over = False
        self.detached = False

    def start(self) -> None:
        import torch

        self.state.data.update(torch=torch.__version__, threads=torch.get_num_threads())
        # A worker that never trains has no story of its own; its first step gives it one.
        self.state.silent = _is_spawned()
        fault.reach("arm")
        if self.config["verb"] == "run":
            self.boundaries.before_first_forward = self._apply_plan
        self.boundaries.start()
        os.register_at_fork(after_in_child=self._forked)
        atexit.register(self._at_exit)
        self.state.write()

    # What the boundaries tell

    def _on_step(self, sample: StepSample) -> None:
        if self._over:
            return
        self.state.silent = False
        self._describe(sample)
        if sample.step == 1:
            self.state.write()
        try:
            self._advance(sample)
        except Exception as error:
            self._on_trouble(error)
        except BaseException:  # Ctrl-C inside our part: the user's program may go on after it
            self._put_back()
            raise
        if self._over and self.tuner is not None and self.tuner.ends_script and _is_main_thread():
            raise SystemExit(0)

    def _advance(self, sample: StepSample) -> None:
        if self._run is None:
            self._begin()
        assert self._run is not None
        try:
            self._label = self._run.send(sample)
        except StopIteration:
            self._finished()

    def _begin(self) -> None:
        """Loads the library and starts the tuner, which waits for the step that has just ended."""
        self.tuner = self._new_tuner()
        self._run = self.tuner.run()
        next(self._run)

    def _new_tuner(self) -> Tuner:
        if note := torchversion.note(self.state.data["torch"]):
            self.state.event(note, self.boundaries.step)
        session = native.load(self.config["library"], self.config)
        return Tuner(self.config, session, self.state, self.boundaries)

    def _apply_plan(self) -> None:
        """The first step is about to begin: a plan is applied before it."""
        self.tuner = self._new_tuner()
        self._run = self.tuner.run()
        try:
            self._label = next(self._run)
        except StopIteration:
            self._finished()

    def _on_restart(self, why: str) -> None:
        """Another kind of boundary took over: what was learnt is about other steps."""
        if self._over:
            return
        if self._run is not None:
            self.state.event(f"starting over: {why}", self.boundaries.step, "armed")
        self._undo()
        self._run = self.tuner = None
        self._label = "plain"
        self.state.data["steps"].clear()
        self.state.result.clear()

    def _on_trouble(self, error: Exception) -> None:
        step = self.boundaries.step
        if isinstance(error, NotTunable):
            self._put_back()
            self.state.event(f"not tuned: {error}", step, "off")
            self.state.finish("refused", str(error))
            return
        at_all = self.tuner is not None and self.tuner.edited
        self._put_back()
        text = f"{type(error).__name__}: {error}"
        what = "the original code is back" if at_all else "the script goes on as it is"
        self.state.trouble(text)
        self.state.event(f"stopped after a failure of ours ({text}); {what}", step, "off")
        self.state.finish("failed", text)

    def _finished(self) -> None:
        """The tuner has come to its end: only a guard may stay, where one is needed."""
        assert self.tuner is not None
        guard = self._gradients_wanted if self.tuner.needs_gradient_guard else None
        self._over = True
        self._run = None
        self.boundaries.stop(on_gradients=guard)
        self.tuner.close()
        if guard is None and not self.tuner.switch.on:
            self.tuner.switch.roll_back()

    def _gradients_wanted(self) -> None:
        assert self.tuner is not None
        self.tuner.switch.roll_back()
        text = "gradients are wanted, but only inference was checked: the original code is back"
        self.state.event(text, self.boundaries.step, "off")

    def _put_back(self) -> None:
        """Original code, no recording, no hook: as if we were not there."""
        self._over = True
        self._run = None
        self._undo()
        self.boundaries.stop()

    def _undo(self) -> None:
        """Original code and no recording. Each part is tried even if another one fails."""
        if self.tuner is None:
            return
        tuner = self.tuner
        for part in (
            tuner.roll_back, tuner.levers.undo, tuner.abandon, tuner.leave_ranks
        ):  # fmt: skip
            try:
                part()
            except Exception as error:
                self.state.trouble(f"{type(error).__name__}: {error}")

    # What the state file says about every step

    def _describe(self, sample: StepSample) -> None:
        data = self.state.data
        data["boundary"] = self.boundaries.describe()
        root = self.boundaries.root
        data["model"] = {
            "root": type(root).__name__ if root is not None else "",
            "batch": self.config.get("batch", -1)
            if self.config.get("batch", -1) > 0
            else sample.batch,
        }
        self.state.add_step(
            {
                "step": sample.step,
                "wall": round(sample.wall_s, 6),
                "data": round(sample.data_s, 6),
                "cpu": round(sample.cpu_s, 6),
                "side": self._label,
            }
        )

    def undo(self) -> None:
        """The original code, whatever was kept. Safe at any time."""
        self._put_back()

    def detach(self) -> None:
        """The end of the steps that are ours, in a process that goes on. What was kept stays."""
        self._at_exit()
        atexit.unregister(self._at_exit)
        kept = self.tuner is not None and (self.tuner.switch.on or bool(self.tuner.levers.kept))
        if self._run is not None or not kept:
            self._put_back()
        self.detached = True

    # The ends of the process

    def _forked(self) -> None:
        """In a forked child: it may have its own steps to tell of, or be a loader's worker."""
        try:
            self.state.silent = True
            if self._run is not None or self._over:
                self._put_back()
            else:
                self.state.data["pid"] = os.getpid()
        except Exception:
            self._over = True

    def _at_exit(self) -> None:
        try:
            if self.tuner is not None and self._run is not None:
                self.tuner.abandon()
                if self.state.data["outcome"] is None:
                    self.tuner.interrupted()
            self.state.data["finished"] = True
            if self.state.data["phase"] not in ("off", "tuned"):
                self.state.data["phase"] = "finished"
            self.state.write()
        except Exception:
            pass


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _is_spawned() -> bool:
    """True in a child of multiprocessing: a loader's worker, or a trainer started by mp.spawn."""
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return False
    # While a child still loads its main module, only the mark of that phase tells.
    starting = getattr(process.current_process(), "_inheriting", False)
    return starting or process.parent_process() is not None
