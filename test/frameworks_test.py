"""Training loops of others: the same chain is found, proved, switched and measured in each."""

import os
import re
import shutil
import sys

import pytest
from conftest import SCRIPTS
from live import MEASURED

FOLDER = SCRIPTS / "frameworks"


def tuned(program, tmp_path, command, *flags):
    for script in FOLDER.glob("*.py"):
        shutil.copy(script, tmp_path)
    env = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PL_DISABLE_FORK": "1"}
    run = program("tune", "--budget", "24", *flags, cwd=tmp_path, command=command, env=env)
    assert run.returncode == 0, run.stderr
    return run


def losses(text):
    return re.findall(r"^\d\.\d{6}$", text, flags=re.M)


def check(run):
    (site,) = [site for site in run.report["sites"] if not site["found_only"]]
    assert (site["rule"], os.path.basename(site["file"])) == ("silu", "model.py")
    assert run.report["verdict"]["validation"]["accepted"], run.report["reason"]
    assert run.report["outcome"] in MEASURED, run.report["reason"]


@pytest.mark.parametrize("name", ["hf_trainer", "accelerate_loop", "lightning_fit"])
def test_a_trainer_is_tuned(program, tmp_path, name):
    package = {"hf_trainer": "transformers", "lightning_fit": "lightning"}.get(name, "accelerate")
    pytest.importorskip(package)
    run = tuned(program, tmp_path, [sys.executable, f"{name}.py", "80"])
    check(run)
    assert losses(run.stdout)


def test_accelerate_launch_is_tuned(program, tmp_path):
    pytest.importorskip("accelerate")
    run = tuned(program, tmp_path, [
        sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1",
        "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no",
        "accelerate_loop.py", "80",
    ])  # fmt: skip
    check(run)


def test_batches_of_two_lengths_are_paired_by_length(program, tmp_path):
    pytest.importorskip("transformers")
    run = tuned(program, tmp_path, [sys.executable, "hf_trainer.py", "80"])
    check(run)
    (site,) = [site for site in run.report["sites"] if not site["found_only"]]
    assert len({row["side"] for row in run.state["steps"]} & {"old", "new"}) == 2
