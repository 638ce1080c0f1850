"""The program with the real library, for tests: OPFUSE_LIBRARY names it, else it is looked for in
build/. The program itself is OPFUSE_BIN.

What a run decides depends on the machine; everything else that these tests assert does not.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "test" / "scripts"
OPFUSE = os.environ.get("OPFUSE_BIN", "")
MEASURED = ("tuned", "not_faster", "undecided")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPFUSE_PYTHON_DIR": str(ROOT / "python")}


@pytest.fixture(scope="session")
def library() -> str:
    named = os.environ.get("OPFUSE_LIBRARY")
    found = [named] if named else sorted(map(str, ROOT.glob("build/*/**/libopfuse_torch.so")))
    if not found:
        pytest.skip("libopfuse_torch.so is not built: make build, or set OPFUSE_LIBRARY")
    return found[0]


@dataclass
class Finished:
    """A command that ended under the program."""

    returncode: int
    stdout: str
    stderr: str
    report_dir: Path

    @property
    def report(self) -> dict:
        return json.loads((self.report_dir / "report.json").read_text())

    @property
    def states(self) -> list[dict]:
        files = sorted((self.report_dir / "state").glob("process-*.json"))
        return [json.loads(file.read_text()) for file in files]

    @property
    def state(self) -> dict:
        (state,) = [state for state in self.states if state["steps"]]
        return state


def kill_tree(pid: int) -> None:
    """Ends a process and everything that it started."""
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            kill_tree(int(child))
        os.kill(pid, signal.SIGKILL)


class Program:
    """`program("tune", "--once", command=[...])` runs the program in a folder of its own."""

    def __init__(self, folder: Path, library: str):
        assert OPFUSE, "expected the program's path in OPFUSE_BIN"
        self.folder = folder
        self.env = {**os.environ, **ONE_THREAD, "OPFUSE_LIBRARY": library}
        self.count = 0

    def start(self, *flags, command, env=None, cwd=None, **more):
        self.count += 1
        out = self.folder / f"report{self.count}"
        words = [OPFUSE, flags[0], "-o", str(out), *flags[1:], "--", *map(str, command)]
        process = subprocess.Popen(
            words, cwd=cwd or self.folder, env={**self.env, **(env or {})}, text=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more},
        )  # fmt: skip
        return process, out

    def __call__(self, *flags, timeout=240, **options) -> Finished:
        process, out = self.start(*flags, **options)
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            kill_tree(process.pid)  # ranks outlive their launcher otherwise
            raise
        return Finished(process.returncode, stdout, stderr, out)

    def apply(self, *words, cwd=None):
        return subprocess.run(
            [OPFUSE, "apply", *map(str, words)], cwd=cwd or self.folder, env=self.env,
            capture_output=True, text=True,
        )  # fmt: skip


@pytest.fixture
def program(tmp_path, library) -> Program:
    return Program(tmp_path, library)


def copy_of_swish(folder: Path) -> Path:
    """The two-file project: a custom Function and an inline chain."""
    return Path(shutil.copytree(SCRIPTS / "swish", folder, dirs_exist_ok=True))


@pytest.fixture(scope="session")
def project(tmp_path_factory) -> Path:
    return copy_of_swish(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="session")
def plain_output(project) -> list[str]:
    command = [sys.executable, "main.py", "60"]
    env = {**os.environ, **ONE_THREAD}
    done = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True)
    return done.stdout.splitlines(keepends=True)


@pytest.fixture(scope="session")
def tuned(tmp_path_factory, library, project) -> Finished:
    """One `tune --once` of the project, looked at by several tests."""
    program = Program(tmp_path_factory.mktemp("tuned"), library)
    command = [sys.executable, "main.py", 60]
    return program("tune", "--once", "--budget", "24", command=command, cwd=project)


@pytest.fixture(scope="session")
def device_env() -> dict:
    """An environment in which `import torch_npu` gives the stand-in."""
    library = Path(os.environ["OPFUSE_LIBRARY"]).parent / "libopfuse_test_npu.so"
    assert library.exists(), f"expected {library}, built by ninja opfuse_test_npu"
    path = f"{ROOT / 'test' / 'device'}:{ROOT / 'python'}"
    return {**os.environ, "OPFUSE_TEST_NPU": str(library), "PYTHONPATH": path}
