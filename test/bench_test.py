"""`opfuse ops` and `opfuse bench`."""

import json
import os
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
