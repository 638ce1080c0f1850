"""The borders of the binaries, and `pip install .` in an environment that has torch."""

import os
import re
import subprocess
import venv
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent


def output(*command: object) -> str:
    return subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture
def library() -> Path:
    return Path(os.environ["OPFUSE_LIBRARY"])


def test_the_library_shows_only_its_c_functions(library: Path):
    symbols = output("nm", "--dynamic", "--defined-only", "--format=posix", library).split("\n")
    linker_made = {"__bss_start", "_edata", "_end", "_init", "_fini"}
    shown = {line.split()[0] for line in symbols if line} - linker_made
    assert shown == {"opfuse_call", "opfuse_free"}


def test_the_library_links_torch_but_neither_python_nor_openmp(library: Path):
    needed = set(re.findall(r"NEEDED.*\[(.*?)\]", output("readelf", "-d", library)))
    assert {"libtorch_cpu.so", "libc10.so"} <= needed
    assert not [name for name in needed if re.search("python|gomp|iomp", name)]


def test_the_program_links_neither_torch_nor_python():
    needed = re.findall(r"NEEDED.*\[(.*?)\]", output("readelf", "-d", os.environ["OPFUSE_BIN"]))
    assert needed and not [name for name in needed if re.search("torch|c10|python", name)]


@pytest.mark.timeout(1800)  # it builds everything
def test_pip_install_without_isolation_builds_against_the_torch_that_is_there(tmp_path: Path):
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    site = Path(output(python, "-c", "import site; print(site.getsitepackages()[0])").strip())
    # torch and scikit-build-core of this environment, seen from the new one.
    (site / "host.pth").write_text(f"{Path(torch.__file__).parent.parent}\n")
    pip = [python, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--no-index", ROOT]
    # The compiler and options of `make build`, so that its compiler cache is of use.
    pip += ["--config-settings=cmake.define.OPFUSE_WERROR=ON"]
    env = {**os.environ, "CXX": "c++"}
    done = subprocess.run([str(c) for c in pip], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]

    version = re.search(r"opfuse VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
    assert version in output(tmp_path / "venv/bin/opfuse", "--version")
    assert (site / "opfuse/_shim/sitecustomize.py").is_file()
    load = "import torch, ctypes, sys; ctypes.CDLL(sys.argv[1]).opfuse_call"
    output(python, "-c", load, site / "opfuse/libopfuse_torch.so")

    compiled = (
        "import torch, opfuse.backend; x = torch.randn(64, requires_grad=True)\n"
        "run = torch.compile(lambda x: x * torch.sigmoid(x), backend='opfuse')\n"
        "run(x), run(x); print(opfuse.backend.reports()[-1])"
    )
    assert "replaced: 1 silu" in output(python, "-c", compiled)
