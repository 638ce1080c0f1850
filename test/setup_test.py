"""tools/bootstrap.sh on machines that lack something; each machine is a PATH of small stand-ins."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ALL_INSTALLED = 'shift 2; for p in "$@"; do echo "installed $p"; done'
# Python as the script sees it: its version, and `-m venv`, which makes a python that logs its use.
PYTHON = """
case "$1" in
  -c) echo "True 3 11 /usr" ;;
  -m) mkdir -p "$3/bin"; printf '#!/bin/sh\\necho "$@" >>pip.log\\n' >"$3/bin/python"
      chmod +x "$3/bin/python" ;;
esac
"""


class Machine:
    """A copy of what bootstrap.sh reads, with commands of its own before the real ones."""

    def __init__(self, root: Path):
        self.root, self.bin = root / "opfuse", root / "bin"
        shutil.copytree(ROOT / "deps", self.root / "deps")
        (self.root / "tools").mkdir()
        shutil.copy(ROOT / "tools/bootstrap.sh", self.root / "tools")
        model = self.root / "examples/imagenet/efficientnet_pytorch/model.py"
        model.parent.mkdir(parents=True)
        model.touch()
        self.bin.mkdir()
        self.command("dpkg-query", ALL_INSTALLED)
        self.command("apt-get", f'echo "$@" >>{self.root}/apt.log')
        self.command("python3", PYTHON)

    def command(self, name: str, body: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{body}\n")
        (self.bin / name).chmod(0o755)

    def set_up(self, *sets: str, **variables: str) -> subprocess.CompletedProcess:
        unset = {"PYTHON", "TORCH_INDEX_URL", "OPFUSE_SKIP_APT", "PIP_CACHE_DIR"}
        inherited = {name: value for name, value in os.environ.items() if name not in unset}
        path = f"{self.bin}:{os.environ['PATH']}"
        return subprocess.run(
            ["bash", "tools/bootstrap.sh", *sets],
            cwd=self.root,
            env={**inherited, "PATH": path, **variables},
            capture_output=True,
            text=True,
            timeout=60,
        )

    def log(self, name: str) -> str:
        file = self.root / f"{name}.log"
        return file.read_text() if file.exists() else ""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def lacks(machine: Machine, package: str) -> None:
    machine.command("dpkg-query", f"({ALL_INSTALLED}) | grep -v ' {package}$'; exit 1")


def test_a_user_without_root_gets_the_exact_command_and_nothing_is_done(machine: Machine):
    lacks(machine, "zlib1g-dev")
    machine.command("id", "echo 1000")
    machine.command("sudo", "exit 1")
    done = machine.set_up()
    assert done.returncode == 1
    command = "sudo apt-get update && sudo apt-get install -y --no-install-recommends zlib1g-dev"
    assert done.stderr.endswith(f"    {command}\n")
    assert machine.log("apt") == "" and not (machine.root / ".venv").exists()


@pytest.mark.parametrize("user", ["root", "sudo without a password"])
def test_missing_packages_and_only_those_are_installed(machine: Machine, user: str):
    lacks(machine, "ccache")
    machine.command("id", "echo 0" if user == "root" else "echo 1000")
    machine.command("sudo", 'shift; exec "$@"' if user != "root" else "exit 1")
    done = machine.set_up()
    assert done.returncode == 0, done.stderr
    assert "missing Debian packages: ccache\n" in done.stdout
    update, *_, install = machine.log("apt").splitlines()
    assert update.startswith("update") and install.endswith(" ccache")
    assert (machine.root / ".cache/apt-installed.txt").read_text() == "ccache\n"


def test_an_apt_that_fails_shows_its_own_words(machine: Machine):
    lacks(machine, "ccache")
    machine.command("id", "echo 0")
    machine.command("apt-get", 'case "$*" in *"-y"*) echo "E: no space left"; exit 100;; esac')
    done = machine.set_up()
    assert done.returncode == 1
    assert "E: no space left" in done.stderr and "could not install: ccache" in done.stderr


def test_torch_comes_first_and_a_second_run_installs_nothing(machine: Machine):
    assert machine.set_up().returncode == 0
    first, second = machine.log("pip").splitlines()
    torch = (machine.root / "deps/torch.txt").read_text().splitlines()[-1]
    assert first.endswith(f" {torch}") and second.endswith("-r deps/pip.txt")
    done = machine.set_up()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(machine.log("pip").splitlines()) == 2


def test_a_changed_list_is_installed_again(machine: Machine):
    machine.set_up()
    with (machine.root / "deps/pip.txt").open("a") as file:
        file.write("tqdm\n")
    assert "tqdm" in machine.set_up().stdout
    assert len(machine.log("pip").splitlines()) == 3


def test_torch_index_url_is_asked_for_torch_alone(machine: Machine):
    machine.set_up(TORCH_INDEX_URL="https://torch.example/cpu")
    first, second = machine.log("pip").splitlines()
    assert "--index-url https://torch.example/cpu" in first and "torch.example" not in second


def test_a_pip_that_fails_is_asked_again_the_next_time(machine: Machine):
    machine.set_up()
    (machine.root / ".venv/stamp-pip").unlink()
    python = machine.root / ".venv/bin/python"
    works = python.read_text()
    python.write_text("#!/bin/sh\nexit 1\n")
    assert machine.set_up().returncode == 1
    python.write_text(works)
    assert machine.set_up().returncode == 0
    assert [line.split()[-1] for line in machine.log("pip").splitlines()[1:]] == 2 * [
        "deps/pip.txt"
    ]


def test_another_interpreter_makes_another_environment(machine: Machine):
    machine.set_up()
    machine.command("python3.12", PYTHON.replace("3 11", "3 12"))
    assert "making .venv from python3.12" in machine.set_up(PYTHON="python3.12").stdout


def test_an_interpreter_that_is_not_there_or_too_old_is_named(machine: Machine):
    done = machine.set_up(PYTHON="python9")
    assert done.returncode == 1 and "expected a Python at PYTHON=python9" in done.stderr
    machine.command("python3.8", 'echo "False 3 8 /usr"')
    done = machine.set_up(PYTHON="python3.8")
    assert done.returncode == 1 and "expected Python 3.10 or newer" in done.stderr


def test_the_sets_for_tests_and_checks_are_added(machine: Machine):
    machine.set_up("test", "check")
    assert [line.split()[-1] for line in machine.log("pip").splitlines()[1:]] == [
        "deps/pip.txt",
        "deps/pip-test.txt",
        "deps/pip-check.txt",
    ]
