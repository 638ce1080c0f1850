"""Of several chains one has a wrong target: it is named and left out, and the others stay."""

import sys

from conftest import SCRIPTS

FOLDER = SCRIPTS / "replaced"


def test_a_wrong_target_is_named_and_the_right_ones_stay(program):
    command = [sys.executable, "main.py", 12, "Silu,Steeper,Hardswish", "guilty"]
    rules = FOLDER / "guilty.rule"
    run = program("tune", "--dry-run", "--rules", rules, cwd=FOLDER, command=command)
    assert run.returncode == 0, run.stderr
    sites = {site["rule"]: site for site in run.report["sites"]}
    assert sites["silu"]["refusal"] is None and sites["hardswish"]["refusal"] is None
    wrong = sites["steeper"]
    assert wrong["file"].endswith("guilty.py")
    assert "aten.silu is less accurate than the recorded operators" in wrong["refusal"]["reason"]
