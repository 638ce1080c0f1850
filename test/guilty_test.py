"""Several chains are replaced at once and some targets are wrong: each wrong one is named and left
out by itself, and the others stay.
"""

import sys

import pytest
from conftest import SCRIPTS
from live import MEASURED, Finished, Program

FOLDER = SCRIPTS / "replaced"
NAMES = "Silu,Steeper,Hardswish,Coarse"


def tuned_with(program: Program, *flags: str) -> Finished:
    return program("tune", "--rules", FOLDER / "guilty.rule", "--budget", "24", *flags, cwd=FOLDER,
                   command=[sys.executable, "main.py", 60, NAMES, "guilty"])  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory, library) -> Finished:
    return tuned_with(Program(tmp_path_factory.mktemp("guilty"), library))


def refusals(run: Finished) -> dict[str, str]:
    """Rule -> why its chain is not replaced, or ""."""
    sites = run.report["sites"]
    return {s["rule"]: s["refusal"]["reason"] if s["refusal"] else "" for s in sites}


def test_the_right_ones_are_replaced_and_validated(run):
    assert run.returncode == 0, run.stderr
    assert run.state["outcome"] in MEASURED, run.state["reason"]
    why = refusals(run)
    assert why["silu"] == why["hardswish"] == ""
    validation = run.state["result"]["verdict"]["validation"]
    assert validation["accepted"] and validation["sites_replaced"] == 2


def test_a_target_that_is_another_function_is_named(run):
    (site,) = [s for s in run.report["sites"] if s["rule"] == "steeper"]
    assert site["refusal"], "SiLU is not this function"
    assert " at x = " in site["refusal"]["reason"]
    assert site["file"].endswith("guilty.py")


def test_a_target_that_rounds_too_much_is_named(run):
    assert "less accurate" in refusals(run)["coarse"]


def test_one_rule_can_be_left_out(program):
    run = tuned_with(program, "--dry-run", "--exclude", "silu")
    why = refusals(run)
    assert "left out by --exclude silu" in why["silu"] and why["hardswish"] == ""
