"""`with opfuse.tune():` in scripts and notebooks; commands that start the program elsewhere."""

import json
import os
import stat
import subprocess
import sys

import pytest
from conftest import ROOT
from live import MEASURED

MODEL = """
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 256), nn.Linear(256, 4)

    def forward(self, x):
        x = self.a(x)
        return self.b(x * torch.sigmoid(x))
"""
LOOP = """
torch.manual_seed(0)
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.01)

def train(steps):
    for _ in range(steps):
        opt.zero_grad()
        loss = net(torch.randn(256, 64)).square().mean()
        loss.backward()
        opt.step()
    return loss.item()
"""


@pytest.fixture
def python(program, tmp_path):
    """Runs Python code in a process of its own, in which opfuse can be imported."""

    def run(code, **environment):
        (tmp_path / "main.py").write_text(code)
        operators = os.path.join(os.path.dirname(program.env["OPFUSE_LIBRARY"]), "libopfuse_ops.so")
        env = {**os.environ, **program.env, "PYTHONPATH": str(ROOT / "python"),
               "OPFUSE_OPS_LIBRARY": operators, **environment}  # fmt: skip
        return subprocess.run([sys.executable, "main.py"], cwd=tmp_path, env=env,
                              capture_output=True, text=True, timeout=240)  # fmt: skip

    return run


def test_steps_in_a_block_are_tuned(python, tmp_path):
    code = (
        MODEL
        + LOOP
        + (
            "import json, opfuse\n"
            "forward = Net.forward.__code__\n"
            "with opfuse.tune(budget=24, output='report', exclude=['mish']) as tuning:\n"
            "    train(80)\n"
            "kept = Net.forward.__code__ is not forward\n"
            "train(2)\n"
            "tuning.undo()\n"
            "print(json.dumps([tuning.report['outcome'], kept, tuning.directory,\n"
            "                  Net.forward.__code__ is forward,\n"
            "                  opfuse.agent._agent.boundaries.registered()]))\n"
        )
    )
    done = python(code)
    assert done.returncode == 0, done.stderr
    outcome, kept, directory, undone, hooks = json.loads(done.stdout)
    assert outcome in MEASURED and kept == (outcome == "tuned")
    assert directory == str(tmp_path / "report") and undone and hooks == []
    assert (tmp_path / "report" / "report.html").is_file()
    assert "the switched step is what was planned" in done.stderr
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["run"]["command"] == ["python", "main.py"]


def test_a_block_without_steps_and_a_second_block(python):
    code = (
        MODEL
        + LOOP
        + (
            "import opfuse\n"
            "with opfuse.tune(output='a') as empty: pass\n"
            "with opfuse.tune(output='b', budget=24) as tuning:\n"
            "    train(8)\n"
            "    try:\n"
            "        with opfuse.tune(): pass\n"
            "    except RuntimeError as error: print(error)\n"
            "print(empty.report['outcome'], tuning.report['outcome'])\n"
        )
    )
    done = python(code)
    assert done.returncode == 0, done.stderr
    said, last = done.stdout.splitlines()
    assert said == "opfuse.tune: this process is tuned already"
    assert last == "ended_early undecided"


def test_what_the_block_raises_comes_out_of_it(python):
    code = (
        MODEL
        + LOOP
        + (
            "import opfuse\n"
            "try:\n"
            "    with opfuse.tune(output='a') as tuning:\n"
            "        train(3)\n"
            "        raise KeyError('mine')\n"
            "except KeyError as error: print(error, tuning.report['outcome'])\n"
        )
    )
    done = python(code)
    assert done.stdout == "'mine' undecided\n", done.stderr


def test_a_bad_flag_is_named(python):
    done = python("import opfuse\nwith opfuse.tune(levers='turbo'): pass\n")
    assert "ValueError: opfuse.tune: --levers: expected all, or of ops" in done.stderr
    done = python("import opfuse\nwith opfuse.tune(turbo=3): pass\n")
    assert "ValueError" in done.stderr and "--turbo=3" in done.stderr


def test_switched_off_it_does_nothing(python):
    code = "import opfuse\nwith opfuse.tune() as tuning: pass\nprint(tuning.directory == '')\n"
    assert python(code, OPFUSE_DISABLE="1").stdout == "True\n"
    done = python(code, OPFUSE_BIN="/nonexistent/opfuse")
    assert "expected the program opfuse at /nonexistent/opfuse, found none" in done.stderr


def test_a_cell_of_a_notebook_is_named_edited_and_shown(python, tmp_path):
    pytest.importorskip("IPython")
    cells = [
        MODEL,
        LOOP,
        "import opfuse",
        "with opfuse.tune(output='r', budget=24) as t:\n    train(80)",
    ]
    code = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "from IPython.utils.capture import capture_output\n"
        "shell = InteractiveShell.instance()\n"
        f"for cell in {cells!r}:\n"
        "    with capture_output() as captured:\n"
        "        done = shell.run_cell(cell, store_history=True)\n"
        "    assert done.success, done.error_in_exec\n"
        "print(captured.stderr)\n"
        "shown = captured.outputs[-1].data\n"
        "print('text/html' in shown and 'srcdoc' in shown['text/html'])\n"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "True"
    report = json.loads((tmp_path / "r" / "report.json").read_text())
    assert report["outcome"] in MEASURED, report["summary"]
    (site,) = report["sites"]
    assert (site["file"], site["line"]) == ("In[1]", 10), site
    assert "found silu at In[1]:10" in done.stdout
    assert report["run"]["command"] == ["notebook"]


def test_optimize_is_at_hand(python):
    code = MODEL + (
        "import opfuse, opfuse.backend\n"
        "net = opfuse.optimize(Net())\n"
        "for _ in range(2): net(torch.randn(8, 64))\n"
        "print(opfuse.backend.reports()[-1].replaced())\n"
    )
    done = python(code)
    assert done.stdout == "{'silu': 1}\n", done.stderr


@pytest.mark.parametrize("launcher", ["docker", "ssh", "sbatch"])
def test_a_launcher_is_told_apart(program, tmp_path, launcher):
    stand_in = tmp_path / launcher
    stand_in.write_text('#!/bin/sh\necho started "$@"\n')
    stand_in.chmod(stand_in.stat().st_mode | stat.S_IXUSR)
    run = program(
        "tune", cwd=tmp_path, command=[str(stand_in), "run", "image", "python", "main.py"]
    )
    assert run.returncode == 0 and run.stdout == "started run image python main.py\n"
    assert f"{launcher} starts the program elsewhere" in run.stderr
    assert f"`{launcher} … opfuse tune -- python main.py`" in run.stderr
