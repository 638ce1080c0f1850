"""The agent in real training loops, with a double for the native session (test/doubles): which
steps it sees, when it switches, what it leaves behind. The session itself is tested elsewhere."""

import itertools
import subprocess
import sys

import pytest
from conftest import SCRIPTS, Runner

OLD_LOSSES = 3  # steps 1 to 3 run the original code


HABITS = {
    "plain": ("optimizer", "SGD.step", 1),
    "gan": ("optimizer", "Adam.step", 2),
    "accumulation": ("optimizer", "SGD.step", 1),
    "scaler": ("optimizer", "SGD.step", 1),
    "variable_batch": ("optimizer", "SGD.step", 1),
    "counting": ("optimizer", "SGD.step", 1),
    "saves_itself": ("optimizer", "SGD.step", 1),
    "global_hook_after_ours": ("optimizer", "SGD.step", 1),
    "loader_fork": ("optimizer", "SGD.step", 1),
    "loader_spawn": ("optimizer", "SGD.step", 1),
    "in_backward": ("root", "Sequential.forward", 1),
    "by_hand": ("root", "Sequential.forward", 1),
    "inference": ("root", "Sequential.forward", 1),
}


# Steps are paired when these are equal: shapes and number of the root's forwards.
BATCH_OF_4 = "float32[4,8]"
SIGNATURES = {
    "accumulation": [" ".join([BATCH_OF_4] * 3)],
    "gan": [" ".join([BATCH_OF_4] * 3)],
    "scaler": [BATCH_OF_4, f"{BATCH_OF_4} {BATCH_OF_4}"],  # a skipped step is part of the next
    "variable_batch": ["float32[2,8]", "float32[3,8]", "float32[4,8]"],
}


@pytest.fixture(scope="session")
def untouched(tmp_path_factory) -> dict[str, list[str]]:
    """The lines that each habit prints when everything is switched off."""
    runner = Runner(tmp_path_factory.mktemp("untouched"))
    run = runner.habit(",".join(HABITS), env={"OPFUSE_DISABLE": "1"})
    assert (run.returncode, run.states) == (0, []), run.stderr
    lines = iter(run.stdout.splitlines())
    return {
        habit: [*itertools.takewhile(lambda line: not line.startswith("done"), lines),
                f"done {habit}"]
        for habit in HABITS
    }  # fmt: skip


@pytest.mark.parametrize("habit", HABITS)
def test_a_habit_is_tuned_and_left_alone_until_the_switch(habit, runner, untouched):
    run = runner.habit(habit, double={})
    assert (run.returncode, run.stderr) == (0, "")
    assert run.state["outcome"] == "tuned", run.state["trouble"]
    assert run.state["trouble"] == []
    boundary = run.state["boundary"]
    assert (boundary["kind"], boundary["name"], boundary["count"]) == HABITS[habit]
    assert run.state["model"]["batch"] in (2, 3, 4)
    assert run.sides[:4] == ["plain", "record", "values", "validate"]
    assert set(run.sides[4:]) == {"old", "new"}
    assert all(row["wall"] > 0 and row["data"] >= 0 for row in run.state["steps"])
    lines = run.stdout.splitlines()
    assert lines[:OLD_LOSSES] == untouched[habit][:OLD_LOSSES]
    assert len(lines) == len(untouched[habit])
    assert_out_of_the_way(habit, run)
    assert run.state["result"]["ab"]["signatures"] == SIGNATURES.get(habit, [BATCH_OF_4])
    costs = run.state["result"]["costs"]
    assert {"record_s", "values_s", "find_s", "facts_s", "prove_s", "validate_s"} <= set(costs)
    assert costs["total_in_plain_steps"] > 0 and costs["memory_peak_mb"] > 50


def assert_out_of_the_way(habit, run):
    """Tuned, and nothing registered: but for the guard that inference needs, and what is the
    script's own in torch's table."""
    guarded = habit == "inference"
    own = 1 if habit == "global_hook_after_ours" else 0
    assert not run.report["original"]
    assert run.report["module_hooks"] == int(guarded)
    assert run.report["optimizer_hooks"] == own + int(guarded) + own
    assert run.report["path"] == run.report["finders"] == []
    assert run.report["threads"] == 1


def test_the_script_sees_no_difference_while_nothing_is_switched(runner, untouched):
    idle = runner.habit("plain", double={"qualname": "Nowhere.forward"})
    dry = runner.habit("plain", double={}, config={"dry_run": True})
    assert idle.state["outcome"] == "nothing_found"
    assert dry.state["outcome"] == "dry_run" and dry.said("proved the same function")
    for run in (idle, dry):
        assert (run.returncode, run.stderr) == (0, "")
        assert run.stdout == "\n".join(untouched["plain"]) + "\n"
        assert run.report["original"] and run.report["globals"] == []
        assert (run.report["module_hooks"], run.report["optimizer_hooks"]) == (0, 0)


@pytest.mark.parametrize("outcome", ["not_faster", "undecided"])
def test_without_a_gain_the_original_code_object_is_back(outcome, runner):
    run = runner.habit("plain", double={"outcome": outcome})
    assert run.state["outcome"] == outcome
    assert run.report["original"] and run.report["globals"] == []
    assert run.said("original code")
    assert [site["kept"] for site in run.state["result"]["sites"]] == [False]


def test_a_refused_proof_switches_nothing(runner, untouched):
    run = runner.habit("plain", double={"reject_proof": "another function: d/dx differs"})
    assert run.state["outcome"] == "refused"
    assert "d/dx differs" in run.state["reason"]
    assert run.stdout == "\n".join(untouched["plain"]) + "\n"


def test_a_step_that_did_not_become_the_plan_is_rolled_back(runner):
    run = runner.habit("plain", double={"refuse_validations": 3})
    assert run.state["outcome"] == "refused"
    assert "aten.relu at models.py:1" in run.state["reason"]
    assert run.sides.count("validate") == 3 and "new" not in run.sides
    assert run.report["original"]


def test_validation_is_tried_again_when_control_flow_changed(runner):
    run = runner.habit("plain", double={"refuse_validations": 1})
    assert run.state["outcome"] == "tuned"
    assert run.state["result"]["verdict"]["validation"]["attempts"] == 2


@pytest.mark.parametrize("habit", ["compiled", "compiled_in_place"])
def test_a_compiled_model_is_left_alone(habit, runner):
    run = runner.habit(habit, double={})
    bare = runner.habit(habit, env={"OPFUSE_DISABLE": "1"})
    assert (run.returncode, run.stdout, run.stderr) == (0, bare.stdout, bare.stderr)
    assert run.state["outcome"] == "refused" and "compile" in run.state["reason"]
    assert (run.report["module_hooks"], run.report["optimizer_hooks"]) == (0, 0)


def test_a_trainer_in_a_forked_child_is_tuned(runner):
    run = runner.habit("fork_trainer", double={})
    assert (run.returncode, run.stderr) == (0, "")
    assert run.state["outcome"] == "tuned"
    assert len(run.states) == 2


def test_inference_goes_back_to_the_original_code_when_gradients_are_wanted(runner):
    run = runner.habit("inference_then_training", double={})
    assert run.returncode == 0, run.stderr
    assert run.said("only inference was checked: the original code is back")
    assert run.report["original"] and run.report["module_hooks"] == 0


def test_once_ends_the_script_with_status_0_and_its_own_exit_handlers(runner, tmp_path):
    script = tmp_path / "bye.py"
    script.write_text(
        "import atexit, sys\nsys.argv = ['train.py', 'plain']\n"
        f"sys.path.insert(0, {str(SCRIPTS)!r})\n"
        "atexit.register(print, 'bye')\nimport train\ntrain.torch.manual_seed(7)\ntrain.plain()\n"
        "print('not reached')\n"
    )
    run = runner(sys.executable, script, double={}, config={"once": True})
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.endswith("\nbye\n")
    assert len(run.losses) == 9  # the tenth step ended it
    assert run.state["finished"] and run.state["outcome"] == "tuned"


def test_run_applies_a_plan_before_the_first_step_and_checks_one(runner, untouched):
    run = runner.habit("plain", double={}, config={"verb": "run", "plan": "plan.json"})
    assert (run.returncode, run.stderr) == (0, "")
    assert run.state["outcome"] == "plan_applied", run.state
    assert run.sides == ["validate"]
    assert not run.report["original"] and run.report["module_hooks"] == 0
    assert len(run.losses) == len(untouched["plain"]) - 1


def test_run_rolls_back_a_plan_that_did_not_come_true(runner):
    config = {"verb": "run", "plan": "plan.json"}
    run = runner.habit("plain", double={"refuse_validations": 3}, config=config)
    assert run.state["outcome"] == "refused"
    assert run.report["original"] and run.report["globals"] == []


def test_record_records_one_step_and_goes_out_of_the_way(runner, untouched):
    run = runner.habit("plain", double={}, config={"verb": "record", "record_step": 3})
    assert run.state["outcome"] == "recorded"
    assert run.sides == ["plain", "plain", "record"]
    assert run.stdout == "\n".join(untouched["plain"]) + "\n"
    assert set(run.state["result"]["files"]) == {"step_before", "trace_before"}


# Several processes


def torchrun(runner, **options):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    command += ["--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0", SCRIPTS / "train.py"]
    return runner(*command, "ddp", 30, **options)


def ranks_of(run):
    stepped = [state for state in run.states if state["steps"]]
    return sorted(stepped, key=lambda state: state["rank"] or 0)


def test_two_ranks_switch_at_the_same_steps(runner):
    run = torchrun(runner, double={})
    assert run.returncode == 0, run.stderr
    first, second = ranks_of(run)
    assert first["outcome"] == second["outcome"] == "tuned", (first, second)
    sides = [[row["side"] for row in state["steps"]] for state in (first, second)]
    assert sides[0][:4] == ["plain", "plain", "record", "values"]
    assert sides[0].index("validate") <= 9
    assert sides[0] == sides[1]
    launcher = [state for state in run.states if not state["steps"]]
    assert [state["outcome"] for state in launcher] == [None] * len(launcher)


def test_ranks_with_different_plans_switch_nothing(runner):
    run = torchrun(runner, double={"hash_by_rank": True})
    assert run.returncode == 0, run.stderr
    for state in ranks_of(run):
        assert state["outcome"] == "undecided"
        assert "another plan" in state["reason"]
        assert not {"validate", "new"} & {row["side"] for row in state["steps"]}


def test_once_ends_all_ranks_after_the_same_step(runner):
    run = torchrun(runner, double={"reject_proof": "not the same"}, config={"once": True})
    assert run.returncode == 0, run.stderr
    assert "done" not in run.stdout
    assert [state["outcome"] for state in ranks_of(run)].count("refused") >= 1
    first, second = ([row["side"] for row in s["steps"]] for s in ranks_of(run))
    assert len(first) == len(second) < 20


def test_a_rank_that_dies_ends_the_run_as_it_would_without_us(runner):
    env = {"TEST_DIE_AT": "14"}
    run = torchrun(runner, double={}, env=env)
    bare = torchrun(runner, env={**env, "OPFUSE_DISABLE": "1"})
    assert run.returncode == bare.returncode != 0
    assert len(run.losses) == len(bare.losses)
    assert any(state["events"] for state in ranks_of(run))


class StoreDouble(dict):
    def set(self, key, value):
        self[key] = value.encode()

    def check(self, keys):
        return all(key in self for key in keys)

    def get(self, key):
        return self[key]


def meet(boundaries: dict[int, list[int]], announcing=(0, 1)):
    """The step at which each rank made its change; `boundaries[rank]` are the rounds at which it
    reaches steps 1, 2, …"""
    from opfuse.distributed import CalledOff, Ranks

    store = StoreDouble()
    ranks = {rank: Ranks(store, rank, 2) for rank in boundaries}
    for rank in announcing:
        ranks[rank].announce("plan", "hash")
    changed: dict[int, int | str] = {}
    for now in range(200):
        for rank, rounds in boundaries.items():
            if rank in changed or now not in rounds:
                continue
            step = rounds.index(now) + 1
            try:
                if ranks[rank].due("plan", step):
                    changed[rank] = step + 1
            except CalledOff as off:
                changed[rank] = str(off)
    return changed


def test_ranks_in_step_meet_five_steps_ahead():
    assert meet({0: list(range(30)), 1: list(range(30))}) == {0: 6, 1: 6}


def test_a_missing_rank_means_no_switch_and_nobody_waits():
    changed = meet({0: list(range(100)), 1: list(range(100))}, announcing=(0,))
    assert changed == {0: "rank 1 did not answer", 1: "rank 1 did not answer"}


def test_a_lagging_rank_means_no_switch():
    changed = meet({0: list(range(40)), 1: list(range(30, 60))})
    assert changed == {0: "rank 1 lags behind", 1: "rank 1 lags behind"}


@pytest.mark.parametrize("refusals", [("", ""), ("", "cannot"), ("will not", "cannot")])
def test_a_vote_is_refused_by_any_rank(refusals):
    from opfuse.distributed import Ranks

    store = StoreDouble()
    ranks = [Ranks(store, rank, 2) for rank in (0, 1)]
    for rank, refusal in zip(ranks, refusals):
        rank.vote("lever", refusal)
    steps = iter(range(1, 20))
    while not all([rank.due("lever", step) for step in [next(steps)] for rank in ranks]):
        pass
    first = next((f"rank {k}: {refusal}" for k, refusal in enumerate(refusals) if refusal), "")
    assert [rank.refusal("lever") for rank in ranks] == [first, first]


# Entry


@pytest.mark.parametrize("way", ["module", "shell"])
def test_other_ways_to_start_python_are_armed(way, runner, tmp_path):
    shell = tmp_path / "train.sh"
    shell.write_text(f'cd {SCRIPTS} && exec "{sys.executable}" train.py plain 4\n')
    command = {
        "module": [sys.executable, "-m", "train", "plain", "4"],
        "shell": ["bash", shell],
    }[way]
    run = runner(*command, double={}, path=[SCRIPTS])
    assert run.returncode == 0, run.stderr
    assert run.state["script"] == "train.py"
    assert len(run.state["steps"]) == 4
    assert run.state["outcome"] == "undecided" and run.state["finished"]


def test_importing_the_package_imports_no_torch():
    code = "import sys, opfuse; print('torch' in sys.modules, opfuse.__version__)"
    path = str(SCRIPTS.parent.parent / "python")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": path}
    )
    assert done.stdout == "False 0.1.0\n"
