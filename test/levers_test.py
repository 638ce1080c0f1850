"""Levers: what is tried beside the operators."""

import sys
from pathlib import Path

from conftest import ROOT
from live import MEASURED


def test_a_lever_alone_is_measured_and_changes_no_bit(program, project, plain_output):
    run = program("tune", "--levers", "memory", "--budget", "24", cwd=project,
                  command=[sys.executable, "main.py", 60])  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines(keepends=True) == plain_output
    (lever,) = run.report["levers"]
    assert lever["name"] == "memory" and lever["outcome"] in MEASURED, lever
    assert lever["kept"] == (lever["outcome"] == "tuned")
    assert run.report["outcome"] == ("tuned" if lever["kept"] else "nothing_found")
    assert run.report["sites"] == [] and lever["speed"]["choosing"]["pairs"] > 0
    sides = {row["side"] for row in run.state["steps"]}
    assert {"memory_off", "memory_on", "warm"} <= sides and not sides & {"old", "new", "record"}
    assert "lever  memory" in run.stderr


def test_a_lever_is_tried_after_the_operators(program, project, plain_output):
    run = program("tune", "--levers", "all", "--once", "--budget", "24", cwd=project,
                  command=[sys.executable, "main.py", 400])  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines(keepends=True)[:3] == plain_output[:3]
    sides = [row["side"] for row in run.state["steps"]]
    assert sides.index("memory_on") > sides.index("new")
    assert run.report["verdict"]["validation"]["accepted"]
    (lever,) = run.report["levers"]
    both = lever["kept"] and run.report["speed"]["outcome"] == "tuned"
    assert (run.report["together"]["choosing"]["pairs"] > 0) == both
    assert ("all_on" in sides) == both


def test_a_lever_that_cannot_be_tried_says_why(program, project):
    code = "import opfuse.memory; opfuse.memory.use_caching_allocator(); import runpy, sys;"
    code += "sys.argv = ['main.py', '20']; runpy.run_path('main.py', run_name='__main__')"
    operators = Path(program.env["OPFUSE_LIBRARY"]).parent / "libopfuse_ops.so"
    env = {"OPFUSE_OPS_LIBRARY": str(operators), "PYTHONPATH": f"{ROOT / 'python'}:{project}"}
    run = program("tune", "--levers", "memory", cwd=project, env=env,
                  command=[sys.executable, "-c", code])  # fmt: skip
    assert run.returncode == 0, run.stderr
    (lever,) = run.report["levers"]
    assert (lever["outcome"], lever["kept"]) == ("refused", False)
    assert lever["reason"] == "the script uses opfuse.memory already"
