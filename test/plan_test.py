"""The diff and the plan that a run leaves, applied and run again."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, SCRIPTS
from live import MEASURED, copy_of_swish


@pytest.mark.parametrize("repository", [True, False], ids=["repository", "folder"])
def test_the_diff_applies_with_git_and_equals_what_apply_writes(
    repository, tuned, tmp_path, program
):
    by_git, by_us = copy_of_swish(tmp_path / "git"), copy_of_swish(tmp_path / "ours")
    if repository:
        subprocess.run(["git", "init", "-q", by_git], check=True)
    env = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path)}
    diff = str(tuned.report_dir / "changes.diff")
    subprocess.run(["git", "apply", diff], cwd=by_git, env=env, check=True)
    applied = program.apply("--root", by_us, tuned.report_dir)
    assert applied.returncode == 0, applied.stderr
    text = (by_us / "swish.py").read_text()
    assert text == (by_git / "swish.py").read_text()
    assert text.count("nn.functional.silu(x)") == 2 and "x * torch.sigmoid(x)" not in text
    again = program.apply("--root", by_us, tuned.report_dir)
    assert again.returncode == 5 and "already holds the edit" in again.stderr
    assert (by_us / "swish.py").read_text() == text


def test_apply_only_looks_when_asked_to(tuned, tmp_path, program):
    copy = copy_of_swish(tmp_path / "copy")
    before = (copy / "swish.py").read_text()
    checked = program.apply("--root", copy, "--check", tuned.report_dir)
    assert checked.returncode == 1 and "would change" in checked.stderr
    shown = program.apply("--root", copy, "--diff", tuned.report_dir)
    assert shown.returncode == 0 and "+        return nn.functional.silu(x)" in shown.stdout
    assert (copy / "swish.py").read_text() == before


def test_apply_refuses_a_file_that_changed(tuned, tmp_path, program):
    copy = copy_of_swish(tmp_path / "copy")
    changed = "import os\n" + (copy / "swish.py").read_text()
    (copy / "swish.py").write_text(changed)
    refused = program.apply("--root", copy, tuned.report_dir)
    assert refused.returncode == 5 and "changed since it was measured" in refused.stderr
    assert (copy / "swish.py").read_text() == changed


def test_a_plan_runs_from_the_first_step_on(tuned, program, project, plain_output):
    run = program("run", "--plan", str(tuned.report_dir / "plan.json"), cwd=project,
                  command=[sys.executable, "main.py", 6])  # fmt: skip
    assert run.returncode == 0 and run.stdout.count("\n") == 7
    assert run.report["outcome"] == "plan_applied"
    assert [row["side"] for row in run.state["steps"]][0] == "validate"
    assert run.state["result"]["verdict"]["validation"]["sites_replaced"] == 2
    assert [site["kept"] for site in run.report["sites"]] == [True, True]
    assert float.fromhex(run.stdout.split()[1]) == pytest.approx(
        float.fromhex(plain_output[0].split()[1]), rel=1e-5
    )


def test_a_plan_for_another_source_is_refused_and_the_script_runs(
    tuned, program, project, plain_output
):
    source = project / "swish.py"
    before = source.read_text()
    source.write_text(before + "# later\n")
    try:
        run = program("run", "--plan", str(tuned.report_dir / "plan.json"), cwd=project,
                      command=[sys.executable, "main.py", 6])  # fmt: skip
    finally:
        source.write_text(before)
    assert run.returncode == 0
    assert run.stdout.splitlines(keepends=True)[:6] == plain_output[:6]
    assert run.report["outcome"] == "refused"
    assert f"{source}: changed since the plan was made" in run.stderr


def test_a_damaged_plan_is_located_and_the_script_runs(tuned, program, project, plain_output):
    damaged = program.folder / "damaged.json"
    damaged.write_text((tuned.report_dir / "plan.json").read_text()[:200])
    run = program("run", "--plan", str(damaged), cwd=project,
                  command=[sys.executable, "main.py", 6])  # fmt: skip
    assert run.returncode == 0
    assert run.stdout.splitlines(keepends=True)[:6] == plain_output[:6]
    assert f"{damaged}: plan: byte 2" in run.stderr


def test_an_installed_package_gets_a_module_to_import_instead(program, tmp_path):
    site = tmp_path / "venv" / "lib" / "site-packages"
    info = site / "swishes-1.2.dist-info"
    info.mkdir(parents=True)
    (site / "swishes").mkdir()
    (site / "swishes" / "__init__.py").write_text("from .layers import *\n")
    layers = Path(shutil.copy(SCRIPTS / "swish" / "swish.py", site / "swishes" / "layers.py"))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: swishes\nVersion: 1.2\n")
    (info / "top_level.txt").write_text("swishes\n")
    main = (SCRIPTS / "swish" / "main.py").read_text().replace("from swish ", "from swishes ")
    (tmp_path / "main.py").write_text(main)
    env = {"PYTHONPATH": str(site)}
    run = program("tune", "--once", "--budget", "24", env=env,
                  command=[sys.executable, "main.py", 60])  # fmt: skip
    assert run.returncode == 0 and run.report["outcome"] in MEASURED
    assert not (run.report_dir / "changes.diff").exists() and "changes.diff" not in run.stderr
    (patch,) = run.report_dir.glob("opfuse_patch*.py")
    code = (
        f"import {patch.stem}, swishes\n"
        "print(swishes.InlineSwish.forward.__code__.co_names)\n"
    )  # fmt: skip
    paths = {"PYTHONPATH": f"{run.report_dir}{os.pathsep}{site}"}
    command = [sys.executable, "-c", code]
    patched = subprocess.run(command, env={**os.environ, **paths}, capture_output=True, text=True)
    assert patched.stdout == "('nn', 'functional', 'silu')\n", patched.stderr
    layers.write_text(layers.read_text() + "# later\n")
    other = subprocess.run(command, env={**os.environ, **paths}, capture_output=True, text=True)
    assert other.returncode == 1 and "is not the file that opfuse measured" in other.stderr


def test_the_published_edit_is_written_for_another_device(program):
    example = ROOT / "examples" / "imagenet"
    if not (example / "efficientnet_pytorch").is_dir():
        pytest.skip("efficientnet_pytorch is not unpacked: tools/get_efficientnet.py")
    command = [sys.executable, "main.py", "-b", 2, "--steps", 5, "-j", 0, "--image-size", 32]
    run = program("tune", "--target", "torch_npu", "--dry-run", command=command, cwd=example)
    assert run.returncode == 0, run.stderr
    diff = (run.report_dir / "changes.diff").read_text()
    assert diff.startswith("Not verified on this machine")
    assert "\n+import torch_npu\n" in diff
    assert (
        " class MemoryEfficientSwish(nn.Module):\n"
        "     def forward(self, x):\n"
        "-        return SwishImplementation.apply(x)\n"
        "+        return torch_npu.npu_silu(x)\n"
    ) in diff
    assert "not verified" in run.stderr
    assert [d["verified"] for d in run.report["diffs"]] == [False]
    (site,) = [site for site in run.report["sites"] if not site["refusal"]]
    assert (site["rule"], site["calls"]) == ("silu", 49)
