"""Runs scripts as `opfuse` does: a run directory with config.json, the shim on PYTHONPATH."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from live import device_env, library, plain_output, program, project, tuned  # noqa: F401

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "test" / "scripts"
DOUBLES = ROOT / "test" / "doubles"
SHIM = ROOT / "python" / "opfuse" / "_shim"


@dataclass
class Run:
    """A script that ran: what it printed, and what the agent wrote."""

    returncode: int
    stdout: str
    stderr: str
    states: list[dict]
    report: dict
    run_dir: Path

    @property
    def state(self) -> dict:
        """The state of the process that made steps, or of the only one."""
        stepped = [state for state in self.states if state["steps"]]
        chosen = stepped or self.states
        assert len(chosen) == 1, [s["argv"] for s in chosen]
        return chosen[0]

    @property
    def losses(self) -> list[str]:
        return [line for line in self.stdout.splitlines() if "0x" in line]

    @property
    def sides(self) -> list[str]:
        return [row["side"] for row in self.state["steps"]]

    def said(self, text: str) -> bool:
        return any(text in event["text"] for event in self.state["events"])


def base_config(run_dir: Path) -> dict:
    return {
        "version": 1, "verb": "tune", "run_dir": str(run_dir), "library": "",
        "python_dir": str(ROOT / "python"), "once": False, "dry_run": False, "live": True,
        "strict": False, "source": True, "allow": "E1", "only": [], "exclude": [], "target": "",
        "rules": [], "budget_steps": 64, "budget_seconds": 180, "headline_pairs": 12,
        "verify_memory_bytes": -1, "batch": -1, "record_step": 2, "plan": "", "verbose": 0,
    }  # fmt: skip


class Runner:
    """`runner(command, config=…, double=…, env=…)` runs a command under the shim."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.count = 0

    def __call__(self, *command, config=None, double=None, env=None, path=(), timeout=240) -> Run:
        self.count += 1
        run_dir = self.folder / f"run{self.count}"
        (run_dir / "state").mkdir(parents=True)
        (run_dir / "config.json").write_text(json.dumps({**base_config(run_dir), **(config or {})}))
        report = run_dir / "report.json"
        paths = [str(SHIM), *map(str, path)]
        environment = {
            **os.environ,
            "OPFUSE_RUN_DIR": str(run_dir),
            "TEST_REPORT": str(report),
            "OMP_NUM_THREADS": "1",
        }
        if double is not None:
            paths.append(str(DOUBLES))
            environment["OPFUSE_PYTHON_DIR"] = str(ROOT / "python")
            environment["OPFUSE_DOUBLE"] = json.dumps(double)
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        environment.update(env or {})
        done = subprocess.run(
            [str(part) for part in command],
            capture_output=True, text=True, env=environment, timeout=timeout, cwd=run_dir,
        )  # fmt: skip
        files = sorted((run_dir / "state").glob("process-*.json"))
        states = [json.loads(file.read_text()) for file in files]
        content = json.loads(report.read_text()) if report.exists() else {}
        return Run(done.returncode, done.stdout, done.stderr, states, content, run_dir)

    def habit(self, *arguments, **options) -> Run:
        """Runs scripts/train.py with a habit."""
        return self(sys.executable, SCRIPTS / "train.py", *arguments, **options)


@pytest.fixture
def runner(tmp_path) -> Runner:
    return Runner(tmp_path)
