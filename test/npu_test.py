"""tune on an accelerator: recorded, proved with the truth on the CPU, switched to the vendor's
operator and measured with the device waited for, on the stand-in of test/device."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SCRIPTS
from live import MEASURED, ONE_THREAD, OPFUSE, Program

NPU = SCRIPTS / "npu"


def efficientnet_py(*words) -> list:
    return [sys.executable, NPU / "efficientnet.py", *words]


def copy_of_efficientnet(folder: Path) -> Path:
    """A package to be edited; a script finds it by OPFUSE_EFFICIENTNET."""
    package = Path(os.environ["OPFUSE_EFFICIENTNET"])
    return Path(shutil.copytree(package, folder / package.name))


@pytest.fixture(scope="module")
def efficientnet(tmp_path_factory, device_env, library):
    """One tuning of EfficientNet-B0, to torch_npu's operator."""
    folder = tmp_path_factory.mktemp("npu")
    env = {**device_env, "OPFUSE_EFFICIENTNET": str(copy_of_efficientnet(folder))}
    return Program(folder, library)(
        "tune", "--once", "--budget", "24", "--target", "torch_npu",
        command=efficientnet_py(60), env=env,
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


def rows(text: str, rank: int = 0) -> list[tuple[float, int]]:
    """Loss and launches of npu_silu, step by step."""
    words = [line.split() for line in text.splitlines() if "0x" in line]
    own = [row for row in words if row[0] == str(rank)]
    assert [int(row[1]) for row in own] == list(range(1, len(own) + 1)), "a torn line"
    return [(float.fromhex(row[2]), int(row[3])) for row in own]


def losses(text: str, rank: int = 0) -> list[float]:
    return [loss for loss, _ in rows(text, rank)]


def plain(env: dict, *words, launcher=()) -> str:
    """What the script prints without opfuse."""
    command = [*map(str, (sys.executable, *launcher, NPU / "efficientnet.py", *words))]
    done = subprocess.run(command, env={**env, **ONE_THREAD}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def furthest(some: list[float], others: list[float]) -> float:
    return max(abs(one - other) for one, other in zip(some, others, strict=True))


def test_losses_are_those_of_the_script_within_the_floor(efficientnet, device_env):
    """The floor: the script itself with its parameters one unit in the last place off."""
    found = losses(efficientnet.stdout)
    switched = [row["side"] for row in efficientnet.state["steps"]].index("validate")
    own = losses(plain(device_env, len(found)))
    moved = losses(plain(device_env, len(found), f"moved={switched + 1}"))
    assert found[:switched] == own[:switched] == moved[:switched]
    assert len(found) > switched + 6
    assert 0 < furthest(found, own) <= 8 * furthest(moved, own)
    step = efficientnet.state["result"]["verdict"]["step"]
    assert step["accepted"], step["reason"]


def test_the_patched_file_is_the_program_that_was_switched(efficientnet, program, device_env):
    package = copy_of_efficientnet(program.folder)
    applied = program.apply(efficientnet.report_dir, "--root", program.folder)
    assert applied.returncode == 0, applied.stderr
    assert "torch_npu.npu_silu(x)" in (package / "utils.py").read_text()
    patched = rows(plain({**device_env, "OPFUSE_EFFICIENTNET": str(package)}, 6))
    original = efficientnet.report_dir.parent / package.name
    live = program(
        "run", "--plan", efficientnet.report_dir / "plan.json", command=efficientnet_py(6),
        env={**device_env, "OPFUSE_EFFICIENTNET": str(original)}, cwd=original.parent,
    )  # fmt: skip
    assert live.report["outcome"] == "plan_applied", live.stderr
    assert [launches for _, launches in patched] == [49] * 6
    assert patched == rows(live.stdout)


@pytest.mark.parametrize(
    "megabytes, reason",
    [(4, "snapshots need more than the 4194304 bytes allowed"), (40, "bytes of tensors, found")],
)
def test_the_proof_keeps_to_its_share_of_the_devices_memory(megabytes, reason, program, device_env):
    run = program(
        "tune", "--dry-run", "--target", "torch_npu", "--verify-memory", f"{megabytes}M",
        command=efficientnet_py(6), env=device_env,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.report["outcome"] == "refused" and reason in run.state["reason"]
    peaks = [int(line.split()[4]) for line in run.stdout.splitlines() if "0x" in line]
    proof = peaks.pop([row["side"] for row in run.state["steps"]].index("values"))
    assert proof <= max(peaks) + megabytes * 2**20


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")


@pytest.mark.timeout(600)
def test_two_ranks_decide_together(program, device_env):
    run = program(
        "tune", "--once", "--budget", "24", "--target", "torch_npu", env=device_env, timeout=300,
        command=[sys.executable, *TORCHRUN, NPU / "efficientnet.py", 60, "sigmoid=0.005"],
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    states = sorted((s for s in run.states if s["steps"]), key=lambda state: state["rank"])
    assert [state["trouble"] for state in states] == [[], []]
    first, second = states
    assert first["outcome"] == second["outcome"] in MEASURED, run.stderr
    assert first["result"]["plan"] == second["result"]["plan"]
    sides = [row["side"] for row in first["steps"]]
    assert sides == [row["side"] for row in second["steps"]]
    switched = sides.index("validate")
    for state in states:
        validation = state["result"]["verdict"]["validation"]
        assert validation["accepted"], validation["reason"]
        assert (validation["sites_replaced"], validation["backward_replaced"]) == (49, 49)
    steps = switched + 4
    own = plain(device_env, steps, launcher=TORCHRUN)
    moved = plain(device_env, steps, f"moved={switched + 1}", launcher=TORCHRUN)
    for rank in (0, 1):
        found = rows(run.stdout, rank)
        assert len(found) > steps
        for side, (_, launches) in zip(sides, found):
            if side != "values":  # its proof launches the operator too
                assert launches == (49 if side in ("validate", "new") else 0), side
        found = [loss for loss, _ in found[:steps]]
        assert found[:switched] == losses(own, rank)[:switched]
        floor = furthest(losses(moved, rank), losses(own, rank))
        assert furthest(found, losses(own, rank)) <= 8 * floor


def test_without_asking_for_a_vendor_it_is_torchs_own(program, device_env):
    run = program("tune", "--dry-run", command=[sys.executable, NPU / "behind.py", 6, 0],
                  env=device_env)  # fmt: skip
    (site,) = run.report["sites"]
    assert site["target"] == "aten.silu" and not site["refusal"]


def behind(program, device_env, *words):
    return program(
        "tune", "--once", "--budget", "24", "--target", "torch_npu",
        command=[sys.executable, NPU / "behind.py", *words], env=device_env,
    )  # fmt: skip


def test_the_device_is_waited_for_when_steps_are_timed(program, device_env):
    """The old operators take 0.1 s to launch, the new one runs for 0.3 s."""
    run = behind(program, device_env, 60, 0.3)
    assert run.returncode == 0, run.stderr
    assert run.report["outcome"] == "not_faster", run.stderr
    speed = run.report["speed"]
    assert speed["new_step_s"] > 0.3 > speed["old_step_s"] > 0.1


def test_who_does_not_wait_takes_the_slow_operator_for_the_faster(program, device_env):
    """What the test before this one would find if the device were not waited for."""
    run = behind(program, device_env, 60, 0.3, "unwaited")
    assert run.report["outcome"] == "tuned", run.stderr
    assert run.report["speed"]["new_step_s"] < 0.3


def waits(text: str) -> list[tuple[int, int]]:
    """How often a step waited for the device, and its end."""
    rows = [line.split() for line in text.splitlines() if line.startswith("waits")]
    return [(int(row[1]), int(row[2])) for row in rows]


def test_no_wait_is_added_to_a_step_that_is_not_measured(program, device_env):
    command = [sys.executable, str(NPU / "behind.py"), "20", "0"]
    env = {**device_env, **ONE_THREAD}
    plain = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert waits(plain.stdout) == [(0, 0)] * 20
    run = program("record", command=command, env=device_env)
    assert run.returncode == 0, run.stderr
    assert run.stdout == plain.stdout


def test_a_tuning_waits_at_boundaries_only(program, device_env):
    """But in the step that is recorded with values: its values are copied to the host."""
    run = program(
        "tune", "--budget", "24", "--target", "torch_npu",
        command=[sys.executable, NPU / "behind.py", 60, 0.3], env=device_env,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.report["outcome"] == "not_faster", run.stderr
    found = waits(run.stdout)
    sides = [row["side"] for row in run.state["steps"]]
    assert {"record", "values", "validate", "old", "new"} <= set(sides)
    for side, (inside, _) in zip(sides, found):
        assert (inside > 0) == (side == "values"), (side, inside)
    assert len(found) == 60 and len(sides) < 60
    assert set(found[len(sides) :]) == {(0, 0)}  # when it is decided nobody waits any more
    assert "its own allocator True" in run.stdout


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
