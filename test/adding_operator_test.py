"""The operator of docs/adding-an-operator.md, built from the text of that page and run."""

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from opfuse import cases, library

ROOT = Path(__file__).resolve().parent.parent
TORCH = Path(torch.__file__).parent
BLOCK = re.compile(r"^```\w+ (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

LEVELS = {"generic": []}
if platform.machine() == "x86_64":  # the flags of cmake/OpfuseOps.cmake
    LEVELS["avx2"] = ["-mavx2", "-mfma", "-mf16c"]
    wide = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
    LEVELS["avx512"] = [*LEVELS["avx2"], *wide]
    LEVELS["avx512bf16"] = [*LEVELS["avx512"], "-mavx512bf16"]


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A library with this one operator; its folder holds the page's files."""
    folder = tmp_path_factory.mktemp("operator")
    for name, text in BLOCK.findall((ROOT / "docs/adding-an-operator.md").read_text()):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    binding = folder / "binding.cc"
    binding.write_text('#include "opfuse/torch/ops/squared_relu.h"\n')
    compiler = shutil.which("c++") or pytest.skip("no C++ compiler")
    common = [compiler, "-std=c++20", "-fPIC", "-DNDEBUG", f"-I{folder}", f"-I{ROOT}"]
    sources = ["opfuse/ops/isa.cc", "opfuse/torch/ops/runtime.cc"]
    include = [f"-isystem{TORCH}/include", f"-isystem{TORCH}/include/torch/csrc/api/include"]
    result, kernels = folder / "libsquared_relu.so", []
    text = folder / "opfuse/ops/squared_relu/squared_relu.cc"
    for level, flags in LEVELS.items():
        kernels.append(folder / f"{level}.o")
        only = ["-O1", f"-DOPFUSE_LEVEL={level}", "-Wall", "-Wextra", "-Wno-psabi", *flags]
        subprocess.run([*common, *only, "-c", text, "-o", kernels[-1]], check=True)
    rest = ["-O0", '-DOPFUSE_TORCH_VERSION="test"', "-fvisibility=hidden", *include]
    subprocess.run(
        [*common, *rest, "-shared", binding, *(ROOT / s for s in sources), *kernels,
         f"-L{TORCH}/lib", "-ltorch_cpu", "-lc10", "-o", result],
        check=True,
    )  # fmt: skip
    torch.ops.load_library(result)
    return folder


def test_the_operator_of_the_page_works(built):
    operator = torch.ops.opfuse.squared_relu.default
    described = cases.read_folder(built / "opfuse" / "ops")[0]
    for case in described.cases:
        x = case.arguments(torch.float64)["x"]
        torch.testing.assert_close(operator(x), torch.relu(x) ** 2)
        if x.numel():
            assert torch.autograd.gradcheck(operator, (x,))
            assert torch.autograd.gradgradcheck(operator, (x,))
    torch.library.opcheck(operator, (torch.randn(3, 5, requires_grad=True),))
    assert library.isa()  # the library proper is untouched
