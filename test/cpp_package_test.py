"""The installed CMake package: examples/cpp built against it, and run."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent


def run(*command: object, **more) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **more)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    library = os.environ.get("OPFUSE_OPS_LIBRARY") or pytest.skip("OPFUSE_OPS_LIBRARY is not set")
    build, prefix = Path(library).resolve().parent.parent, tmp_path_factory.mktemp("package")
    run("cmake", "--install", build, "--component", "cpp", "--prefix", prefix)
    return prefix


def configure(package: Path, build: Path, *more: str) -> subprocess.CompletedProcess:
    prefixes = f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path};{package}"
    command = ["cmake", "-S", ROOT / "examples/cpp", "-B", build, prefixes, *more]
    return subprocess.run([str(c) for c in command], capture_output=True, text=True)


def test_an_example_builds_against_the_package_and_runs(package, tmp_path):
    done = configure(package, tmp_path / "build", "-DCMAKE_BUILD_TYPE=Release")
    assert done.returncode == 0, done.stderr[-3000:]
    run("cmake", "--build", tmp_path / "build")
    printed = run(tmp_path / "build" / "swiglu", env={**os.environ, "OPFUSE_ISA": "generic"})
    assert printed == "opfuse::silu_mul on level generic: as the small operators\n"


def test_a_package_for_another_torch_is_refused(package, tmp_path):
    config = package / "lib/cmake/opfuse/opfuseConfig.cmake"
    text = config.read_text()
    try:
        config.write_text(re.sub(r'TORCH_VERSION "[0-9.+a-z]*"', 'TORCH_VERSION "1.9.0"', text))
        done = configure(package, tmp_path / "build")
    finally:
        config.write_text(text)
    assert done.returncode != 0
    message = " ".join(done.stderr.split())
    assert f"opfuse was built for torch 1.9.0, found {torch.__version__.split('+')[0]}" in message


def test_every_function_of_the_header_has_the_signature_of_its_operator(package, tmp_path):
    # A wrong one throws at the first call, which the program makes.
    place = Path(torch.__file__).parent
    includes = [f"-isystem{place}/include", f"-I{package}/include"]
    libraries = [f"-L{place}/lib", "-ltorch_cpu", "-lc10", f"-L{package}/lib", "-lopfuse_ops"]
    paths = [f"-Wl,-rpath,{place}/lib:{package}/lib"]
    source, program = ROOT / "test/cpp/every_function.cc", tmp_path / "every_function"
    run("c++", "-std=c++20", *includes, source, *libraries, *paths, "-o", program)
    called = set(run(program).split())
    assert called == set(
        re.findall(r'"opfuse::(\w+)"', (package / "include/opfuse/torch.h").read_text())
    )
