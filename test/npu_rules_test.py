"""Rules with a torch_npu target on the stand-in: found, edited, proved with their gradients against
the composition on the CPU, switched in; what only looks like them is refused."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SCRIPTS
from live import MEASURED, OPFUSE, Finished, Program

NPU = SCRIPTS / "npu"

# The class of chains.py that spells the rule, and what its function calls in the diff.
RULES = {
    "silu": ("Silu", "torch_npu.npu_silu(x)"),
    "gelu": ("Gelu", "torch_npu.npu_gelu(x)"),
    "gelu_tanh": ("GeluTanh", 'torch_npu.npu_gelu(x, approximate="tanh")'),
    "quick_gelu": ("QuickGelu", "torch_npu.npu_fast_gelu(x)"),
    "mish": ("Mish", "torch_npu.npu_mish(x)"),
    "rms_norm": ("RmsNorm", "torch_npu.npu_rms_norm(x, self.weight, self.eps)[0]"),
    "silu_mul_packed": ("Swiglu", "torch_npu.npu_swiglu(x, -1)"),
    "gelu_mul_packed": ("Geglu", "torch_npu.npu_geglu(x, -1, 0, True)[0]"),
    "gelu_mul_packed_last": ("GegluLast", "torch_npu.npu_geglu(x, -1, 0, False)[0]"),
    "gelu_tanh_mul_packed": ("GegluTanh", "torch_npu.npu_geglu(x, -1, 1, True)[0]"),
    "gelu_tanh_mul_packed_last": ("GegluTanhLast", "torch_npu.npu_geglu(x, -1, 1, False)[0]"),
    "rope": ("Rope", "torch_npu.npu_rotary_mul(x, cos, sin)"),
}

# What only looks like a chain of these operators: its names are the same, or nearly.
LOOKALIKES = {
    "SwigluLast": "npu_swiglu: the gate is the second half",
    "Glu": "npu_silu: the sigmoid is of another half",
    "GemmaNorm": "npu_rms_norm: one is added; npu_gemma_rms_norm has no derivative",
    "InfinityMasked": "npu_scaled_masked_softmax: masked scores are another number",
}


def names(rules: dict) -> str:
    return ",".join(name for name, _ in rules.values())


def losses(text: str) -> list[float]:
    return [float.fromhex(line.split()[1]) for line in text.splitlines() if "0x" in line]


def train(device_env, *words) -> list[float]:
    done = subprocess.run(
        [sys.executable, NPU / "train.py", *map(str, words)], env=device_env,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return losses(done.stdout)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, library, device_env) -> Finished:
    """One run for all rules."""
    program = Program(tmp_path_factory.mktemp("npu_rules"), library)
    return program("tune", "--once", "--target", "torch_npu", "--allow", "E2", "--budget", "24",
                   command=[sys.executable, NPU / "train.py", 60, names(RULES)],
                   env=device_env)  # fmt: skip


def site_of(run: Finished, rule: str) -> dict:
    found = [site for site in run.report["sites"] if site["rule"] == rule]
    legal = [site for site in found if not site.get("refusal")]
    assert len(legal) == 1, [(site["line"], site["refusal"]) for site in found]
    return legal[0]


@pytest.mark.parametrize("rule", RULES)
def test_a_chain_becomes_the_vendors_operator(rule, tuned):
    assert tuned.returncode == 0, tuned.stderr
    site = site_of(tuned, rule)
    (verdict,) = [v for v in tuned.state["result"]["verdict"]["sites"] if v["site"] == site["id"]]
    assert verdict["accepted"] and verdict["captured_calls"] == 1, verdict["reason"]
    assert {"output", "d/dx"} <= {error["what"] for error in verdict["captured"]}
    assert any(error["what"].startswith("d/dx ") for error in verdict["generated"])
    name, call = RULES[rule]
    added = [
        line[1:].strip()
        for line in (tuned.report_dir / "changes.diff").read_text().splitlines()
        if line.startswith("+")
    ]
    assert f"return {call}" in added, added


def test_the_switched_step_is_what_was_planned(tuned):
    assert tuned.report["outcome"] in MEASURED, tuned.state["reason"]
    validation = tuned.state["result"]["verdict"]["validation"]
    assert validation["accepted"], validation["reason"]
    assert validation["sites_replaced"] == len(RULES)
    assert validation["backward_replaced"] >= len(RULES)


def test_it_trains_as_before_and_as_on_the_cpu(tuned, device_env):
    plain = train(device_env, 60, names(RULES))
    found = losses(tuned.stdout)  # --once ends the script when all is measured
    switched = [row["side"] for row in tuned.state["steps"]].index("validate")
    assert len(found) > switched + 1
    assert found == pytest.approx(plain[: len(found)], rel=1e-4)
    assert plain == pytest.approx(train(device_env, 60, names(RULES), "cpu"), rel=1e-4)


def test_after_a_rollback_the_script_is_as_it_was(program, device_env):
    """Both operators lose: the original code objects run, and no name of ours is left. Without a
    learning rate the losses say so bit by bit."""
    words = [60, "Silu,Mish", "still"]
    slow = ["npu_silu=0.2", "npu_mish=0.2"]
    run = program("tune", "--target", "torch_npu", "--budget", "24",
                  command=[sys.executable, NPU / "train.py", *words, *slow],
                  env=device_env)  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.report["outcome"] == "not_faster", run.stderr
    sides = [row["side"] for row in run.state["steps"]]
    found, plain = losses(run.stdout), train(device_env, *words)
    assert {"validate", "new"} <= set(sides)
    assert len(sides) < len(found) == len(plain)
    assert found[len(sides) :] == plain[len(sides) :]
    assert run.stdout.splitlines()[-1] == "edited nothing left over []"


@pytest.mark.parametrize("fault", ["validate:raise", "measure:alloc"])
def test_after_a_fault_of_ours_the_script_is_as_it_was(fault, program, device_env):
    """In the step that runs the new operators for the first time, and in the measurement."""
    words = [40, "Silu,Mish", "still"]
    run = program("tune", "--target", "torch_npu", "--budget", "24",
                  command=[sys.executable, NPU / "train.py", *words],
                  env={**device_env, "OPFUSE_FAULT": fault})  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.report["outcome"] == "failed", run.stderr
    sides = [row["side"] for row in run.state["steps"]]
    assert sides.count("validate") == 1
    found, plain = losses(run.stdout), train(device_env, *words)
    after = sides.index("validate") + 1
    assert len(found) == len(plain) > after
    assert found[after:] == plain[after:]
    assert run.stdout.splitlines()[-1] == "edited nothing left over []"


def without_a_derivative(program, device_env, *words):
    """Gemma's norm in float16, where its casts are operators too."""
    run = program("tune", "--dry-run", "--target", "torch_npu", "--only", "rms_norm_offset",
                  command=[sys.executable, NPU / "train.py", 8, "GemmaNorm", "half", *words],
                  env=device_env)  # fmt: skip
    assert run.returncode == 0, run.stderr
    (site,) = (site for site in run.report["sites"] if site["rule"] == "rms_norm_offset")
    return run, site


def test_an_operator_without_a_derivative_is_refused_in_training(program, device_env):
    run, site = without_a_derivative(program, device_env)
    assert run.report["outcome"] == "refused"
    assert "derivative" in site["refusal"]["reason"], site["refusal"]


def test_an_operator_without_a_derivative_is_taken_in_inference(program, device_env):
    run, site = without_a_derivative(program, device_env, "infer")
    assert run.report["outcome"] == "dry_run", run.stderr
    assert not site["refusal"]


def test_what_only_looks_like_an_operators_chain_stays(program, device_env):
    run = program("tune", "--dry-run", "--target", "torch_npu", "--allow", "E2",
                  command=[sys.executable, NPU / "train.py", 6, ",".join(LOOKALIKES)],
                  env=device_env)  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.report["outcome"] == "refused"
    assert all(site["refusal"] for site in run.report["sites"]), run.report["sites"]
    assert not (run.report_dir / "changes.diff").exists()


def test_a_version_outside_of_the_rules_range_is_refused(program, device_env, tmp_path: Path):
    rule = tmp_path / "later.rule"
    rule.write_text(
        "op later(x: T) -> T\n  composition\n    return tanh(x)\n"
        "  target npu.npu_silu(x) on npu\n    python torch_npu.npu_silu\n"
        '    needs torch_npu ">=3"\n'
    )
    command = [sys.executable, NPU / "train.py", 6, "Silu"]
    run = program("tune", "--dry-run", "--rules", rule, "--only", "later", command=command,
                  env=device_env)  # fmt: skip
    (site,) = (site for site in run.report["sites"] if site["rule"] == "later")
    assert site["refusal"]["reason"] == "npu.npu_silu is for torch_npu >=3, here is 2.13.0"


@pytest.mark.parametrize("device", ["cpu", "cuda", "npu"])
def test_the_program_says_what_is_chosen_on_a_device(device):
    done = subprocess.run([OPFUSE, "rules", "--device", device], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    table = done.stdout
    assert f"becomes on {device}" in table.splitlines()[0]
    assert ("torch_npu.npu_swiglu" in table) == (device == "npu")
    assert ("liger_rms_norm (written only, --target liger_kernel)" in table) == (device == "cuda")
    assert ("opfuse.functional.silu_mul (--levers ops,library)" in table) == (device == "cpu")
    if device == "npu":
        rows = [line.split() for line in table.splitlines()]
        said = {row[0] for row in rows if any(word.startswith("torch_npu.") for word in row)}
        assert len(said) >= 12
        assert re.search(r"silu +torch.nn.functional.silu +any +E1 +floating\n", table)
        assert re.search(
            r" torch_npu.npu_silu \(--target torch_npu\) +f16 f32 +E1 +floating +torch_npu >=2.1",
            table,
        )


def test_a_device_that_is_none_is_told():
    done = subprocess.run([OPFUSE, "rules", "--device", "tpu"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "expected cpu, cuda or npu, found 'tpu'" in done.stderr
