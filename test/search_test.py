"""tune --search on the stand-in device, where the time of a kernel is what the script says."""

import re
import sys

import pytest
from conftest import SCRIPTS

NPU = SCRIPTS / "npu"
SILU_PAYS = ("sigmoid=0.25", "npu_mish=0.3")


@pytest.fixture
def searched(program, device_env):
    def run(*words, flags=(), env=()):
        return program(
            "tune", "--search", "--target", "torch_npu", "--budget", "24", *flags,
            command=[sys.executable, NPU / "train.py", *words], env={**device_env, **dict(env)},
        )  # fmt: skip

    return run


def losses(text: str) -> list[str]:
    words = [line.split() for line in text.splitlines() if "0x" in line]
    return [row[1] for row in words]


def last(run) -> str:
    return run.stdout.splitlines()[-1]


def test_a_kind_that_does_not_pay_is_left_out(searched):
    run = searched(120, "Silu,Mish", "still", *SILU_PAYS)
    assert run.returncode == 0, run.stderr
    assert run.report["outcome"] == "tuned", run.stderr
    rows = {row["name"]: row for row in run.report["search"]}
    assert set(rows) == {"silu", "mish"}
    assert rows["silu"]["kept"] and rows["silu"]["speed"]["choosing"]["low"] > 1
    assert not rows["mish"]["kept"] and rows["mish"]["outcome"] == "not_faster"
    sites = {site["rule"]: site for site in run.report["sites"]}
    assert not sites["silu"]["refusal"]
    assert "measured by itself it is not faster" in sites["mish"]["refusal"]["reason"]
    validation = run.state["result"]["verdict"]["validation"]
    assert validation["accepted"] and validation["sites_replaced"] == 1
    diff = (run.report_dir / "changes.diff").read_text()
    assert "npu_silu" in diff and "npu_mish" not in diff
    assert last(run).startswith("edited Silu left over")
    assert "npu_mish" not in last(run)
    sides = {row["side"] for row in run.state["steps"]}
    assert {"with_silu", "without_silu", "with_mish", "without_mish", "old", "new"} <= sides
    assert re.search(r"kind +mish, \S*npu_mish at 1 place, 1 call: 0\.", run.stderr), run.stderr


def test_where_none_pays_by_itself_all_are_measured_together(searched):
    run = searched(120, "Silu,Mish", "still", "npu_silu=0.25", "npu_mish=0.25")
    assert run.returncode == 0, run.stderr
    assert [row["kept"] for row in run.report["search"]] == [False, False]
    assert run.report["outcome"] == "not_faster", run.stderr
    assert run.report["speed"]["choosing"]["pairs"] > 0
    assert last(run) == "edited nothing left over []"


def test_a_single_kind_needs_no_search(searched):
    run = searched(60, "Silu", "still", "sigmoid=0.25")
    assert run.returncode == 0, run.stderr
    assert run.report["outcome"] == "tuned" and run.report["search"] == []


def test_a_fault_in_the_search_leaves_the_script_as_it_was(searched):
    run = searched(30, "Silu,Mish", "still", *SILU_PAYS, env={"OPFUSE_FAULT": "measure:raise"})
    assert run.returncode == 0, run.stderr
    assert run.report["outcome"] == "failed"
    assert last(run) == "edited nothing left over []"
    assert len(losses(run.stdout)) == 30


def test_a_script_that_ends_in_the_search_is_undecided(searched):
    run = searched(12, "Silu,Mish", "still", *SILU_PAYS)
    assert run.returncode == 0, run.stderr
    assert run.report["outcome"] == "undecided"
    rows = run.report["search"]
    assert rows and rows[-1]["outcome"] == "undecided"
    assert "before a decision" in rows[-1]["reason"]
