"""`opfuse ops` and `opfuse bench`."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = sorted(p.parent.name for p in (ROOT / "opfuse/ops").glob("*/*.json"))


def opfuse(*words: str) -> subprocess.CompletedProcess:
    program = os.environ.get("OPFUSE_BIN") or pytest.skip("OPFUSE_BIN is not set")
    return subprocess.run([program, *words], capture_output=True, text=True, timeout=300)


def test_ops_prints_every_operator_with_its_class():
    lines = opfuse("ops").stdout.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == FOLDERS
    assert all("[E" in line for line in lines if not line.startswith(" "))


def test_ops_refuses_a_name_that_is_none():
    done = opfuse("ops", "no_such_operator")
    assert done.returncode == 2
    assert "expected an operator, found 'no_such_operator'" in done.stderr


def test_bench_measures_the_operators_that_were_named():
    done = opfuse(
        "bench", "rope", "--python", sys.executable, "--threads", "1", "--seconds", "0.02",
        "--dtypes", "f32", "--memory", "recycled", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    machine, *rows = map(json.loads, done.stdout.splitlines())
    assert machine["memory"] == "recycled" and machine["threads"] == 1
    assert {row["operator"] for row in rows} == {"rope"}
    assert all(row["both"]["low"] <= row["both"]["ratio"] <= row["both"]["high"] for row in rows)


def test_bench_refuses_an_unknown_memory_setting():
    done = opfuse("bench", "--memory", "infinite")
    assert done.returncode == 2
    assert "expected default, recycled or both, found 'infinite'" in done.stderr


def test_the_speed_up_table_has_a_row_for_each_model_and_kind(tmp_path):
    """bench/speedup, with a model of its own in the place of the large ones."""
    (tmp_path / "run.py").write_text(
        f"import sys; sys.path.insert(0, {str(ROOT / 'bench' / 'speedup')!r})\n"
        "import argparse, torch, types\n"
        "networks = types.ModuleType('networks')\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.conv, self.norm = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)\n"
        "    def forward(self, x):\n"
        "        x = self.norm(self.conv(x))\n"
        "        return x * torch.sigmoid(x)\n"
        "x = torch.randn(2, 3, 16, 16)\n"
        "networks.MODELS = {'small': lambda: (Net(), lambda net: net(x).square().mean())}\n"
        "sys.modules['networks'] = networks\n"
        "import speedup\n"
        "options = argparse.Namespace(rounds=6, seconds=60, no_compile=True)\n"
        "for training in (True, False):\n"
        "    print(speedup.line('small', speedup.measure('small', training, options)))\n"
    )
    done = subprocess.run([sys.executable, "run.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    training, inference = done.stdout.splitlines()
    for row in (training, inference):
        name, stock, ours, ratio, compiled, first, replaced = row.strip("| ").split(" | ")
        assert name == "small" and float(stock) >= 0 and compiled == "not finished"
        middle, low, high = map(float, re.findall(r"\d+\.\d+", ratio))
        assert low <= middle <= high
    assert "1 batch_norm_silu" in training
