"""Other versions of torch: told, checked by the library itself, and not kept from working."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT
from live import OPFUSE

sys.path.insert(0, str(ROOT / "python"))
from opfuse import torchversion

# Python runs these at its start. The first: torch is as it is, but calls itself something else.
RENAMED = """
import importlib.util, pathlib, sys
where = pathlib.Path(importlib.util.find_spec("torch").origin).with_name("version.py")
spec = importlib.util.spec_from_file_location("torch.version", where)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.__version__ = "2.12.1+cpu"
sys.modules["torch.version"] = module
"""
# The second: the tests ran on some other torch than this one.
UNTESTED = f"""
import sys
sys.path.insert(0, {str(ROOT / "python")!r})
import opfuse.torchversion
opfuse.torchversion.TESTED = ("2.10",)
"""


def environment(folder, code: str) -> dict:
    (folder / "sitecustomize.py").write_text(code)
    return {**os.environ, "PYTHONPATH": str(folder)}


def doctor(env) -> subprocess.CompletedProcess:
    return subprocess.run(
        [OPFUSE, "doctor", "--python", sys.executable], env=env, capture_output=True, text=True
    )


@pytest.mark.parametrize("version", ["2.13.0", "2.13.1+cpu"])
def test_a_tested_version_needs_no_word(version):
    assert torchversion.note(version) == ""


@pytest.mark.parametrize(
    "version, word",
    [
        ("2.12.1", "not tested (tested: 2.13); the self-check is run"),
        ("2.15.0a0+git1234", "not tested"),
        ("3.0", "not tested"),
        ("2.9.1+cpu", "older than 2.10, the oldest that this is meant to work with"),
        ("1.13.1", "older than 2.10"),
        ("unknown", "torch unknown is not tested"),
    ],
)
def test_another_version_is_told(version, word):
    assert word in torchversion.note(version)


def told(done) -> dict[str, str]:
    rows = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    return {row[0]: row[1] for row in reversed(rows) if len(row) == 2}


def test_doctor_tells_an_untested_version_and_runs_the_self_check(tmp_path):
    done = doctor(environment(tmp_path, UNTESTED))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is not tested (tested: 2.10); the self-check is run" in told(done)["note"]
    assert told(done)["self-check"].startswith("passed")


def test_a_tuning_tells_an_untested_version_and_goes_on(tmp_path, program, project):
    run = program("tune", "--dry-run", command=[sys.executable, "main.py", 8], cwd=project,
                  env=environment(tmp_path, UNTESTED))  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "is not tested (tested: 2.10); the self-check is run" in run.stderr
    assert run.report["outcome"] == "dry_run"


def test_a_library_that_was_built_for_another_torch_is_not_used(tmp_path, program, project):
    env = environment(tmp_path, RENAMED)
    done = doctor(env)
    assert done.returncode == 1
    assert told(done)["note"] == torchversion.note("2.12.1+cpu")
    assert "this is torch 2.12.1" in told(done)["self-check"]
    assert "build opfuse against this torch" in done.stdout
    run = program("tune", command=[sys.executable, "main.py", 8], cwd=project, env=env)
    assert run.returncode == 0 and run.report["outcome"] == "failed"
    assert "this is torch 2.12.1" in run.stderr


def test_doctor_says_what_was_never_run_on_the_silicon():
    rows = doctor(os.environ).stdout.splitlines()
    for device, silicon in (("cuda", "a GPU"), ("npu", "an NPU")):
        (at,) = (i for i, row in enumerate(rows) if row.split()[:1] == [device])
        assert rows[at].split(maxsplit=1)[1] == "none here"
        assert rows[at + 1].strip().startswith(f"not run on {silicon}: ")
        assert rows[at + 2].strip().startswith("not run at all: ")
    assert "HCCL" in rows[at + 2]
    for package in ("torch_npu", "liger_kernel"):
        (row,) = (row for row in rows if row.startswith(package))
        assert "not installed" in row or "opfuse rules --device" in row
