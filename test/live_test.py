"""The agent with the real library: OPFUSE_LIBRARY names it, else it is looked for in build/."""

import json
import os

import pytest
from conftest import ROOT


@pytest.fixture(scope="module")
def library() -> str:
    named = os.environ.get("OPFUSE_LIBRARY")
    found = [named] if named else sorted(map(str, ROOT.glob("build/*/**/libopfuse_torch.so")))
    if not found:
        pytest.skip("libopfuse_torch.so is not built: make build, or set OPFUSE_LIBRARY")
    return found[0]


def test_an_inference_loop_is_proved_switched_and_measured(runner, library):
    run = runner.habit("inference", 200, config={"library": library})
    bare = runner.habit("inference", 200, env={"OPFUSE_DISABLE": "1"})
    assert (run.returncode, run.stderr) == (0, "")
    assert run.state["trouble"] == []
    assert run.state["outcome"] in ("tuned", "not_faster", "undecided"), run.state["reason"]
    assert run.sides[:4] == ["plain", "record", "values", "validate"]
    assert run.losses[:3] == bare.losses[:3] and len(run.losses) == len(bare.losses)
    verdict = run.state["result"]["verdict"]
    assert verdict["sites"][0]["accepted"] and verdict["step"]["replayed_exactly"]
    assert verdict["validation"]["sites_replaced"] == 1
    assert run.report["original"] == (run.state["outcome"] != "tuned")


def test_a_recorded_step_is_left_as_files(runner, library):
    run = runner.habit("plain", config={"library": library, "verb": "record"})
    assert run.returncode == 0 and run.state["outcome"] == "recorded", run.state["trouble"]
    files = run.state["result"]["files"]
    trace = json.loads((run.run_dir / "state" / files["trace_before"]).read_text())
    names = [event.get("name") for event in trace["traceEvents"]]
    assert "aten::sigmoid" in names or "aten.sigmoid" in names
    assert (run.run_dir / "state" / files["step_before"]).stat().st_size > 1000


@pytest.mark.parametrize("method", ["open", "set_positions", "ab_open", "ab_next", "ab_add"])
def test_an_allocation_failure_inside_the_library_is_survived(method, runner, library):
    run = runner.habit(
        "inference", config={"library": library}, env={"OPFUSE_FAULT": f"{method}:alloc"}
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.state["outcome"] == "failed" and len(run.losses) == 20
    assert run.report["original"] and run.report["globals"] == []
    assert (run.report["module_hooks"], run.report["optimizer_hooks"]) == (0, 0)
