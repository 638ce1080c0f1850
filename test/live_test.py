"""The agent and the program with the real library, on scripts of many habits and in trouble."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import SCRIPTS, Runner
from live import MEASURED, OPFUSE

# The report of a run


def test_once_ends_the_script_after_the_report_with_status_0(tuned, plain_output):
    assert tuned.returncode == 0, tuned.stderr
    printed = tuned.stdout.splitlines(keepends=True)
    assert 10 < len(printed) < 60  # the script would have gone on
    steps = [row["side"] for row in tuned.state["steps"]]
    assert steps[:4] == ["plain", "record", "values", "validate"]
    assert printed[:3] == plain_output[:3]  # before the first switched step, bit by bit
    assert [line.split()[0] for line in printed] == [str(i + 1) for i in range(len(printed))]


def test_the_report_directory_is_complete(tuned):
    names = {path.name for path in tuned.report_dir.iterdir()}
    assert {"report.html", "report.json", "plan.json", "changes.diff", "config.json", "state",
            "trace_before.json", "trace_after.json"} <= names  # fmt: skip
    assert tuned.report["outcome"] in MEASURED
    chains = [site for site in tuned.report["sites"] if site["rule"] == "silu"]
    assert len(chains) == 2
    before, after = (json.loads((tuned.report_dir / f"trace_{w}.json").read_text())["traceEvents"]
                     for w in ("before", "after"))  # fmt: skip
    assert sum(e.get("name") == "aten::sigmoid" for e in before) == 3  # two forward, one backward
    assert not any(e.get("name") == "aten::sigmoid" for e in after)
    assert sum(e.get("name") == "aten::silu" for e in after) == 2


def test_a_step_is_counted_in_operators_that_do_the_work(tuned):
    operators = tuned.state["result"]["operators"]
    (said,) = [e["text"] for e in tuned.state["events"] if "step 2 recorded" in e["text"]]
    assert f"{operators:,} operators" in said
    assert tuned.report["step"]["operators"] == operators
    assert tuned.report["losses"] == {}


def test_nothing_of_ours_is_left_after_a_rollback(runner, library):
    config = {"library": library, "budget_steps": 24, "headline_pairs": 6}
    run = runner.habit("plain", 60, config=config)
    bare = runner.habit("plain", 60, env={"OPFUSE_DISABLE": "1"})
    assert (run.returncode, run.stderr) == (0, "") and run.state["trouble"] == []
    assert run.losses[:3] == bare.losses[:3] and len(run.losses) == len(bare.losses)
    assert run.stdout.splitlines()[-1] == bare.stdout.splitlines()[-1]
    # Identity of the code object, not equality.
    assert run.report["original"] == (run.state["outcome"] != "tuned")
    assert (run.report["module_hooks"], run.report["optimizer_hooks"]) == (0, 0)


def test_a_disabled_run_is_the_script_itself(program, project, plain_output):
    run = program("tune", command=[sys.executable, "main.py", 60], cwd=project,
                  env={"OPFUSE_DISABLE": "1"})  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.splitlines(keepends=True) == plain_output


# Habits of scripts


def check_habit(runner, library, habit, steps=60, equal=3):
    """Measured, and the script is what it is alone."""
    config = {"library": library, "budget_steps": 24, "headline_pairs": 6}
    run = runner.habit(habit, steps, config=config)
    bare = runner.habit(habit, steps, env={"OPFUSE_DISABLE": "1"})
    # Kineto notes with the time of day when a profiler starts and stops.
    assert [line for line in run.stderr.splitlines() if not line.startswith("USDT:")] == []
    assert run.returncode == bare.returncode == 0
    assert run.state["trouble"] == []
    assert run.state["outcome"] in MEASURED, run.state["reason"]
    assert len(run.losses) == len(bare.losses) and run.losses[:equal] == bare.losses[:equal]
    assert run.state["result"]["verdict"]["step"]["replayed_exactly"]
    return run


@pytest.mark.parametrize(
    "habit",
    ["gan", "in_backward", "accumulation", "scaler", "variable_batch", "counting", "by_hand",
     "loader_fork", "loader_spawn", "fused_adam", "foreach_adamw", "profiles_itself"],
)  # fmt: skip
def test_a_habit_is_proved_switched_and_measured(habit, runner, library):
    run = check_habit(runner, library, habit, equal=2 if habit == "scaler" else 3)
    assert run.state["result"]["verdict"]["validation"]["accepted"]
    assert run.report["original"] == (run.state["outcome"] != "tuned")


def test_an_inference_loop_is_proved_switched_and_measured(runner, library):
    run = check_habit(runner, library, "inference", 100)
    assert run.sides[:4] == ["plain", "record", "values", "validate"]
    assert run.state["result"]["verdict"]["validation"]["sites_replaced"] == 1


def test_a_recorded_step_is_left_as_files(runner, library):
    run = runner.habit("plain", config={"library": library, "verb": "record"})
    assert run.returncode == 0 and run.state["outcome"] == "recorded", run.state["trouble"]
    files = run.state["result"]["files"]
    trace = json.loads((run.run_dir / "state" / files["trace_before"]).read_text())
    names = [event.get("name") for event in trace["traceEvents"]]
    assert "aten::sigmoid" in names or "aten.sigmoid" in names
    assert (run.run_dir / "state" / files["step_before"]).stat().st_size > 1000


@pytest.mark.parametrize("way", ["bash", "module"])
def test_other_ways_to_start_a_script(way, program, project, plain_output):
    if way == "bash":
        script = program.folder / "x.sh"
        script.write_text(f"cd {project}\n{sys.executable} main.py 30 | cat\nexit 3\n")
        command, cwd, status = ["bash", script], None, 3
    else:
        command, cwd, status = [sys.executable, "-m", "main", 30], project, 0
    run = program("tune", "--budget", "24", command=command, cwd=cwd)
    assert run.returncode == status
    assert run.stdout.splitlines(keepends=True)[:3] == plain_output[:3]
    assert run.stdout.endswith("end\n") and run.report["outcome"] in MEASURED


def torchrun(program, *flags, steps, env=None):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone",
               "--nproc_per_node=2", SCRIPTS / "train.py", "ddp", steps]  # fmt: skip
    return program("tune", *flags, command=command, env=env)


def test_ranks_decide_together(program):
    run = torchrun(program, "--budget", "24", steps=80)
    assert run.returncode == 0, run.stderr
    first, second = sorted((s for s in run.states if s["steps"]), key=lambda s: s["rank"])
    assert first["trouble"] == second["trouble"] == []
    assert first["outcome"] == second["outcome"] and first["outcome"] in MEASURED
    sides = [row["side"] for row in first["steps"]]
    assert sides == [row["side"] for row in second["steps"]]
    assert sides.index("validate") + 1 <= 10
    assert first["result"]["plan"] == second["result"]["plan"]


def test_a_rank_that_dies_ends_the_run_as_always(program):
    run = torchrun(program, steps=200, env={"TEST_DIE_AT": "24"})
    assert run.returncode == 1
    assert run.report["outcome"] in ("undecided", "ended_early")
    assert (run.report_dir / "report.html").exists()


# Trouble


@pytest.mark.parametrize("method", ["open", "set_positions", "ab_open", "ab_next", "ab_add"])
def test_an_allocation_failure_inside_the_library_is_survived(method, runner, library):
    run = runner.habit(
        "inference", config={"library": library}, env={"OPFUSE_FAULT": f"{method}:alloc"}
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.state["outcome"] == "failed" and len(run.losses) == 20
    assert run.report["original"] and run.report["globals"] == []
    assert (run.report["module_hooks"], run.report["optimizer_hooks"]) == (0, 0)


@pytest.fixture(scope="module")
def bare_losses(tmp_path_factory) -> list[str]:
    """Every bit of the losses of the plain habit without us."""
    runner = Runner(tmp_path_factory.mktemp("bare"))
    return runner.habit("plain", 40, env={"OPFUSE_DISABLE": "1"}).losses


@pytest.mark.parametrize("kind", ["raise", "alloc"])
@pytest.mark.parametrize("stage", ["record_stop", "find", "plan", "prove", "validate", "report"])
def test_a_failure_of_ours_leaves_the_run_unharmed(stage, kind, runner, library, bare_losses):
    config = {"library": library, "budget_steps": 24, "headline_pairs": 6}
    run = runner.habit("plain", 40, config=config, env={"OPFUSE_FAULT": f"{stage}:{kind}"})
    assert (run.returncode, run.stderr) == (0, "") and len(run.losses) == 40
    assert run.state["outcome"] == "failed"
    assert f"injected at {stage}" in run.state["reason"]
    assert run.report["original"] and run.report["globals"] == []
    assert (run.report["module_hooks"], run.report["optimizer_hooks"]) == (0, 0)
    if stage not in ("validate", "report"):  # back before the first new step
        assert run.losses == bare_losses


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_of_measuring_keeps_what_was_measured(sent, program, project):
    (project / "uneven.py").write_text(  # its steps take so different times that nothing decides
        (project / "main.py").read_text().replace("import sys\n", "import random, sys, time\n", 1)
        .replace("optimizer.step()", "time.sleep(0.03 * random.random())\n    optimizer.step()")
    )  # fmt: skip
    process, out = program.start(
        "tune", "--budget", "4000", cwd=project, command=[sys.executable, "uneven.py", 1000000],
        start_new_session=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    counted = 0
    deadline = time.monotonic() + 60
    while counted < 10 and time.monotonic() < deadline:
        time.sleep(0.1)
        for file in (out / "state").glob("process-*.json"):
            counted = (json.loads(file.read_text())["progress"] or {}).get("done", 0)
    if counted < 10:
        os.killpg(process.pid, signal.SIGKILL)
    assert counted >= 10
    if sent == signal.SIGINT:
        os.killpg(process.pid, sent)  # as the terminal does
    else:
        process.send_signal(sent)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + sent
    report = json.loads((out / "report.json").read_text())
    assert report["outcome"] in ("undecided", "ended_early")
    assert report["speed"]["choosing"]["pairs"] >= 5
    assert ("KeyboardInterrupt" in stderr) == (sent == signal.SIGINT)


@pytest.mark.parametrize(
    ("size", "reason"), [("20000", "20000 bytes allowed"), ("100000", "expected at most")]
)
def test_more_values_than_the_memory_allowed_are_declined(
    size, reason, program, project, plain_output
):
    command = [sys.executable, "main.py", 10]
    run = program("tune", "--verify-memory", size, command=command, cwd=project)
    assert run.returncode == 0
    assert run.stdout.splitlines(keepends=True)[:10] == plain_output[:10]
    assert run.report["outcome"] == "refused"
    assert reason in run.report["reason"]


def test_a_full_disk_costs_the_report_and_nothing_else(runner, library):
    run = runner.habit("full_disk", 40, config={"library": library})
    assert (run.returncode, run.stderr) == (0, "") and len(run.losses) == 40


def test_a_folder_that_takes_no_files_is_replaced_or_named(program, plain_output, project):
    """The default folder cannot be made: a note names the other one, and the run is measured."""
    (project / "opfuse-report").write_text("a file of the user's")
    try:
        words = [OPFUSE, "tune", "--once", "--budget", "24", "--", sys.executable, "main.py", "60"]
        env = {**program.env, "TMPDIR": str(program.folder)}
        done = subprocess.run(words, cwd=project, env=env, capture_output=True, text=True)
    finally:
        (project / "opfuse-report").unlink()
    assert done.returncode == 0
    assert done.stdout.splitlines(keepends=True)[:3] == plain_output[:3]
    assert "the report cannot be written to" in done.stderr
    (folder,) = (program.folder / "opfuse-report").glob("main-*")
    assert (folder / "report.html").exists()


def test_an_output_folder_that_cannot_be_made_is_named_before_anything_runs(program, project):
    words = [OPFUSE, "tune", "-o", "/proc/opfuse-report", "--", sys.executable, "main.py", "3"]
    done = subprocess.run(words, cwd=project, env=program.env, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert "-o /proc/opfuse-report" in done.stderr


def test_nothing_is_kept_after_the_decision(runner, library):
    config = {"library": library, "budget_steps": 24, "headline_pairs": 6}
    run = runner.habit("holds_nothing", 80, config=config)
    assert run.returncode == 0, run.stderr
    assert run.state["outcome"] in MEASURED
    kept = json.loads(run.stdout.splitlines()[-2])
    assert kept == {"records": 0, "codes": 0}
