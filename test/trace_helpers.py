"""Trace files made in tests, and what the program says of them."""

import json
from pathlib import Path

from traces_test import opfuse

DAMAGED = 6


def analyze(file: Path, text: str | bytes, status: int = 0) -> dict:
    """The report of a file with this content. It is strict JSON and UTF-8, whatever the content."""
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    done = opfuse("analyze", "--json", file.name, cwd=file.parent)
    assert done.returncode == status, (done.stdout[-2000:], done.stderr)
    return json.loads(done.stdout.decode("utf-8"), parse_constant=refuse_constant)


def refuse_constant(name: str):
    raise AssertionError(f"{name} is no JSON")


def losses(report: dict) -> dict[str, int]:
    return {loss["name"]: loss["count"] for loss in report["losses"]}


def printed(file: Path) -> str:
    return opfuse("analyze", file.name, cwd=file.parent).stdout.decode("utf-8")


def shown(file: Path) -> list[tuple[str, float, float]]:
    """(name, start, duration in us) of the slices that `view --trace` writes, as strict JSON."""
    out = file.parent / "shown.json"
    done = opfuse("view", file.name, "--trace", out, "-f", cwd=file.parent)
    assert out.exists(), done.stderr
    events = json.loads(out.read_bytes().decode("utf-8"), parse_constant=refuse_constant)
    return [
        (e["name"], float(e["ts"]), float(e["dur"]))
        for e in events["traceEvents"]
        if e["ph"] == "X"
    ]


def event(name: str, ts, dur, cat: str = "cpu_op", tid=1, **args) -> dict:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 1,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def listed(*events: dict | str) -> str:
    texts = [e if isinstance(e, str) else json.dumps(e) for e in events]
    return '{"traceEvents": [\n' + ",\n".join(texts) + "\n]}"
