"""tune on an accelerator: recorded, proved with the truth on the CPU, switched to the vendor's
operator and measured with the device waited for, on the stand-in of test/device."""

import subprocess
import sys

import pytest
from conftest import SCRIPTS
from live import MEASURED, ONE_THREAD, OPFUSE, Program

NPU = SCRIPTS / "npu"


@pytest.fixture(scope="module")
def efficientnet(tmp_path_factory, device_env, library):
    """One tuning of EfficientNet-B0, to torch_npu's operator."""
    program = Program(tmp_path_factory.mktemp("npu"), library)
    return program(
        "tune", "--once", "--budget", "24", "--target", "torch_npu",
        command=[sys.executable, NPU / "efficientnet.py", 60], env=device_env,
    )  # fmt: skip


def test_every_swish_becomes_the_vendors_operator(efficientnet):
    assert efficientnet.returncode == 0, efficientnet.stderr
    (site,) = [site for site in efficientnet.report["sites"] if not site["refusal"]]
    assert (site["rule"], site["calls"]) == ("silu", 49)
    verdict = efficientnet.state["result"]["verdict"]
    (proof,) = [v for v in verdict["sites"] if v["site"] == site["id"]]
    assert proof["accepted"] and proof["captured_calls"] == 49
    assert {error["what"] for error in proof["captured"]} == {"output", "d/dx"}
    validation = verdict["validation"]
    assert validation["accepted"], validation["reason"]
    assert (validation["sites_replaced"], validation["backward_replaced"]) == (49, 49)
    assert efficientnet.report["outcome"] in MEASURED


def test_the_diff_is_the_published_edit(efficientnet):
    diff = (efficientnet.report_dir / "changes.diff").read_text()
    assert "Not verified" not in diff  # it ran here
    edit = [
        line for line in diff.splitlines() if line[:1] in "+-" and line[1:3] not in ("--", "++")
    ]
    assert edit == [
        "+import torch_npu",
        "-        return SwishImplementation.apply(x)",
        "+        return torch_npu.npu_silu(x)",
    ]


def losses(text: str, rank: int = 0) -> list[float]:
    rows = [line.split() for line in text.splitlines() if "0x" in line]
    return [float.fromhex(row[2]) for row in rows if row[0] == str(rank)]


def plain(env: dict, steps: int) -> list[float]:
    command = [sys.executable, NPU / "efficientnet.py", str(steps)]
    done = subprocess.run(command, env={**env, **ONE_THREAD}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return losses(done.stdout)


def test_losses_are_those_of_the_script_within_the_floor(efficientnet, device_env):
    found, own = losses(efficientnet.stdout), plain(device_env, 60)
    sides = [row["side"] for row in efficientnet.state["steps"]]
    switched = sides.index("validate")
    assert found[:switched] == own[:switched]
    assert found[switched] == pytest.approx(own[switched], rel=1e-5)
    step = efficientnet.state["result"]["verdict"]["step"]
    assert step["accepted"], step["reason"]


def test_without_asking_for_a_vendor_it_is_torchs_own(program, device_env):
    run = program("tune", "--dry-run", command=[sys.executable, NPU / "behind.py", 6, 0],
                  env=device_env)  # fmt: skip
    (site,) = run.report["sites"]
    assert site["target"] == "aten.silu" and not site["refusal"]


def test_the_device_is_waited_for_when_steps_are_timed(program, device_env):
    """The new operator is launched as fast as the old ones and runs for 20 ms: who does not wait
    would call it faster."""
    run = program(
        "tune", "--once", "--budget", "24", "--target", "torch_npu",
        command=[sys.executable, NPU / "behind.py", 60, 0.02], env=device_env,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.report["outcome"] == "not_faster", run.stderr
    speed = run.report["speed"]
    assert speed["new_step_s"] > 0.015 > speed["old_step_s"]


def test_no_wait_is_added_to_a_step_that_is_not_measured(program, device_env):
    command = [sys.executable, str(NPU / "behind.py"), "20", "0"]
    env = {**device_env, **ONE_THREAD}
    plain = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    run = program("record", command=command, env=device_env)
    assert run.returncode == 0, run.stderr
    assert run.stdout == plain.stdout


@pytest.mark.parametrize(
    "habit, reason",
    [
        ("stream", "another stream than the device's default one"),
        ("holds_graph", "holds a captured graph of npu"),
        ("captures", "captures its steps into a graph of npu"),
    ],
)
def test_streams_and_graphs_stay_as_they_are(habit, reason, program, device_env):
    run = program("tune", command=[sys.executable, NPU / "behind.py", 40, 0, habit],
                  env=device_env)  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.report["outcome"] == "refused"
    told = run.state["reason"] + " ".join(
        site["refusal"]["reason"] for site in run.report["sites"] if site["refusal"]
    )
    assert reason in told


def test_rules_name_the_vendors_operator():
    done = subprocess.run([OPFUSE, "rules", "silu"], capture_output=True, text=True)
    assert "torch_npu.npu_silu on npu" in done.stdout
