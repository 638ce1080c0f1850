"""Every rule that `opfuse rules` calls replaced, in a running script: found, edited, proved with
its gradients, switched in and compared with the plan; the diff gives a project that trains alike.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, SCRIPTS
from live import MEASURED, ONE_THREAD, OPFUSE, Finished, Program

# The class that spells the rule, and what its function calls in the diff.
RULES = {
    "silu": ("Silu", "F.silu(x)"),
    "hardswish": ("Hardswish", "F.hardswish(x)"),
    "gelu": ("Gelu", "F.gelu(x)"),
    "gelu_tanh": ("GeluTanh", 'F.gelu(x, approximate="tanh")'),
    "silu_mul": ("SiluMul", "opfuse.functional.silu_mul(gate, up)"),
    "rms_norm": (
        "RmsNorm",
        "opfuse.functional.rms_norm(hidden_states, self.weight, self.variance_epsilon, "
        'cast="input")',
    ),
    "layer_norm": (
        "LayerNorm",
        "F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)",
    ),
    "softmax": ("Softmax", "torch.softmax(x, -1)"),
    "log_softmax": ("LogSoftmax", "torch.log_softmax(x, -1)"),
    "lerp": ("Lerp", "torch.lerp(a, b, self.rate)"),
    "addmm": ("Addmm", "torch.addmm(self.b, x, self.w)"),
    "sigmoid_gate": ("SigmoidGate", "opfuse.functional.sigmoid_gate(x, gate)"),
}
# Their targets give another infinity or NaN at infinities: replaced with --allow E2 alone.
AT_INFINITIES = {"gelu", "silu_mul", "log_softmax"}
ALL = ("--allow", "E2", "--levers", "ops,library")  # what must be asked for
STEPS = 60


def copy_of_spellings(folder: Path) -> Path:
    return Path(shutil.copytree(SCRIPTS / "replaced", folder, dirs_exist_ok=True))


def losses(text: str) -> list[float]:
    return [float.fromhex(line.split()[1]) for line in text.splitlines()]


def train(folder: Path, steps: int = STEPS) -> list[float]:
    names = ",".join(name for name, _ in RULES.values())
    command = [sys.executable, "main.py", str(steps), names]
    env = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT / "python")}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return losses(done.stdout)


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    return copy_of_spellings(tmp_path_factory.mktemp("replaced"))


@pytest.fixture(scope="module")
def plain(project) -> list[float]:
    return train(project)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, library, project) -> Finished:
    """One run for all rules."""
    program = Program(tmp_path_factory.mktemp("tuned"), library)
    names = ",".join(name for name, _ in RULES.values())
    return program("tune", *ALL, "--budget", "24", cwd=project,
                   command=[sys.executable, "main.py", STEPS, names])  # fmt: skip


@pytest.fixture(scope="module")
def edited(tuned, project, library, tmp_path_factory) -> Path:
    """A copy of the project with the diff in it."""
    copy = copy_of_spellings(tmp_path_factory.mktemp("edited"))
    program = Program(tmp_path_factory.mktemp("apply"), library)
    applied = program.apply("--root", copy, tuned.report_dir)
    assert applied.returncode == 0, applied.stderr
    return copy


def test_the_switched_step_is_what_was_planned(tuned):
    assert tuned.returncode == 0, tuned.stderr
    assert tuned.state["outcome"] in MEASURED, tuned.state["reason"]
    validation = tuned.state["result"]["verdict"]["validation"]
    assert validation["accepted"], validation["reason"]
    assert validation["sites_replaced"] == len(RULES)
    assert validation["backward_replaced"] >= len(RULES)


def test_the_run_trains_as_before(tuned, plain):
    found = losses("\n".join(line for line in tuned.stdout.splitlines() if "0x" in line))
    assert found == pytest.approx(plain, rel=1e-4)


@pytest.mark.parametrize("rule", RULES)
def test_a_chain_of_the_rule_is_replaced(rule, tuned, edited):
    found = [site for site in tuned.report["sites"] if site["rule"] == rule]
    # A larger chain may hold one of the rule that is passed over.
    sites = [site for site in found if not site.get("refusal")]
    assert len(sites) == 1, [site["refusal"]["reason"] for site in found]
    (verdict,) = [
        v for v in tuned.state["result"]["verdict"]["sites"] if v["site"] == sites[0]["id"]
    ]
    assert verdict["accepted"] and verdict["captured_calls"] == 1
    gradients = {error["what"] for error in verdict["captured"]} - {"output"}
    assert gradients and all(what.startswith("d/d") for what in gradients)
    name, call = RULES[rule]
    text = (edited / "spellings.py").read_text()
    body = re.search(rf"\nclass {name}\(.*?(?=\n\n\n(?:class|@)|\Z)", text, re.S)[0]
    assert call in body


def test_the_edited_project_trains_alike(edited, plain):
    assert train(edited) == pytest.approx(plain, rel=1e-4)


def test_the_program_says_which_rules_are_replaced():
    done = subprocess.run([OPFUSE, "rules"], capture_output=True, text=True)
    fates = dict(re.split(r" {2,}", line)[:2] for line in done.stdout.splitlines())
    said = {rule for rule, fate in fates.items() if fate == "replaced after proof"}
    permitted = {rule for rule, fate in fates.items() if fate.endswith("with --allow E2")}
    assert permitted == AT_INFINITIES
    assert fates["depthwise_conv2d"] == "replaced after proof in captured graphs"
    assert fates["rope"] == "replaced after proof on npu and in captured graphs"
    assert fates["attention"] == "found only"
    assert said | permitted == set(RULES)


def test_an_operator_of_the_library_must_be_asked_for(program, project):
    run = program("tune", "--dry-run", cwd=project,
                  command=[sys.executable, "main.py", 6, "RmsNorm,SigmoidGate,Silu"])  # fmt: skip
    assert run.returncode == 0, run.stderr
    reasons = {site["rule"]: site["refusal"] for site in run.report["sites"]}
    for rule in ("rms_norm", "sigmoid_gate"):
        assert "--levers ops,library takes it" in reasons[rule]["reason"]
    assert reasons["silu"] is None
    assert "opfuse.functional" not in (run.report_dir / "changes.diff").read_text()


def test_another_value_at_infinities_needs_permission(program, project):
    names = ",".join(RULES[rule][0] for rule in sorted(AT_INFINITIES))
    run = program(
        "tune",
        "--dry-run",
        "--levers",
        "ops,library",
        cwd=project,
        command=[sys.executable, "main.py", 6, names],
    )
    assert run.returncode == 0, run.stderr
    sites = {site["rule"]: site for site in run.report["sites"] if site["rule"] in AT_INFINITIES}
    assert set(sites) == AT_INFINITIES
    for site in sites.values():
        assert site["refusal"]["row"] == 28
        assert "--allow E2 takes it" in site["refusal"]["reason"]


# The class of lookalikes.py, and what the report says of it: the row and a part of the sentence.
LOOKALIKES = {
    "InnerValueKept": "kept",
    "InnerNameReadLater": "x is also",
    "EpsOutsideTheRoot": "eps is added to the root",
    "DimensionFromTheFront": "counted from the front",
    "CastAfterTheWeight": "not the whole value of its statement",
    "CastOfNothing": "they may differ at another call",
    "EpsOfAProperty": "property",
    "TwoNumbers": "was recorded as",
    "OtherOrder": "another order",
    "InALoop": "",
    "Softplus": "no Python name",
    "ShortConstant": "the constant is 0.7978",
}


@pytest.fixture(scope="module")
def refused(tmp_path_factory, library, project) -> Finished:
    program = Program(tmp_path_factory.mktemp("lookalikes"), library)
    command = [sys.executable, "main.py", 6, ",".join(LOOKALIKES), "lookalikes"]
    return program("tune", *ALL, "--dry-run", cwd=project, command=command)


def test_a_cast_after_the_chain_stays_where_it_is(program, project):
    command = [sys.executable, "main.py", 6, "CastOfTheResult", "lookalikes"]
    run = program("tune", "--dry-run", cwd=project, command=command)
    assert run.returncode == 0, run.stderr
    assert "+        return (F.silu(x)).float()" in (run.report_dir / "changes.diff").read_text()


@pytest.mark.parametrize("name", LOOKALIKES)
def test_a_lookalike_stays_as_it_is(name, refused):
    assert refused.returncode == 0, refused.stderr
    text = (SCRIPTS / "replaced" / "lookalikes.py").read_text()
    first = text[: text.index(f"class {name}(")].count("\n") + 1
    body = re.search(rf"class {name}\(.*?(?=\n\n\nclass|\Z)", text, re.S)[0]
    lines = range(first, first + body.count("\n") + 1)
    here = [
        entry
        for kind in ("sites", "near_misses")
        for entry in refused.report[kind]
        if entry["line"] in lines and entry["file"].endswith("lookalikes.py")
    ]
    assert here and all(entry.get("refusal") or "reason" in entry for entry in here)
    said = " ".join(
        entry["refusal"]["reason"] if entry.get("refusal") else entry.get("reason", "")
        for entry in here
    )
    assert LOOKALIKES[name] in said
