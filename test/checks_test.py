"""The repository's own checks refuse what they are there to refuse."""

import importlib.util
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / "tools"


def run(tool: str, *arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, str(TOOLS / tool), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def load_tool(name: str):
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


REFUSED = {
    "upward": ("opfuse/graph/a.cc", '#include "opfuse/match/rule.h"', "graph may not use match"),
    "upward with a space": (
        "opfuse/base/a.h",
        '# include "opfuse/cli/x.h"',
        "base may not use cli",
    ),
    "operators in the analyser": ("opfuse/match/a.cc", '#include "opfuse/ops/x.h"', "use ops"),
    "analyser in the operators": ("opfuse/ops/x/a.cc", '#include "opfuse/graph/x.h"', "use graph"),
    "torch in the program": ("opfuse/cli/a.cc", '#include "opfuse/torch/x.h"', "may not use torch"),
    "pipeline in report": ("opfuse/report/a.cc", '#include "opfuse/pipeline.h"', "use pipeline"),
    "torch header": (
        "opfuse/verify/a.cc",
        "#include <ATen/core/Tensor.h>",
        "belong to opfuse/torch",
    ),
    "c10 header": ("opfuse/base/a.h", "#include <c10/util/Half.h>", "belong to opfuse/torch"),
    "heavy torch header": ("opfuse/torch/a.cc", "#include <torch/extension.h>", "the one header"),
    "relative path": ("opfuse/graph/a.cc", '#include "../torch/x.h"', '"opfuse/folder/file.h"'),
    "neighbour by name": ("opfuse/graph/a.cc", '#include "graph.h"', '"opfuse/folder/file.h"'),
    "torch in quotes": ("opfuse/graph/a.cc", '#include "torch/library.h"', "own headers"),
    "a macro's path": ("opfuse/graph/a.cc", "#include SOME_HEADER", "must name its file"),
    "unknown folder": ("opfuse/misc/a.cc", "int x;", "'misc' has no place"),
    "fmt in torch": ("opfuse/torch/a.cc", "#include <fmt/format.h>", "an fmt of its own"),
    "CLI11 elsewhere": ("opfuse/report/a.cc", "#include <CLI/CLI.hpp>", "opfuse/cli/"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_a_wrong_include_is_refused_with_its_line(tmp_path: Path, case: tuple[str, str, str]):
    file, line, reason = case
    done = run("check_layers.py", tree(tmp_path, {file: f"// first line\n{line}\n"}))
    assert done.returncode == 1
    assert file in done.stdout and reason in done.stdout


def test_right_includes_pass(tmp_path: Path):
    files = {
        "opfuse/base/a.h": "#include <vector>\n",
        "opfuse/match/a.cc": '#include "opfuse/graph/g.h"\n#include <fmt/format.h>\n',
        "opfuse/pipeline.cc": '#include "opfuse/pipeline.h"\n#include "opfuse/report/r.h"\n',
        "opfuse/torch/a.cc": '#include <torch/library.h>\n#include "opfuse/pipeline.h"\n',
        "opfuse/cli/a.cc": '#include "opfuse/pipeline.h"\n#include <CLI/CLI.hpp>\n',
    }
    done = run("check_layers.py", tree(tmp_path, files))
    assert (done.returncode, done.stdout) == (0, "check_layers: 5 files, 0 wrong includes\n")


def test_fmt_reached_through_our_own_headers_is_refused_in_torch(tmp_path: Path):
    files = {
        "opfuse/torch/a.cc": '#include "opfuse/graph/outer.h"\n',
        "opfuse/graph/outer.h": '#include "opfuse/base/inner.h"\n',
        "opfuse/base/inner.h": "#include <fmt/format.h>\n",
    }
    done = run("check_layers.py", tree(tmp_path, files))
    assert done.returncode == 1
    assert "opfuse/base/inner.h includes fmt" in done.stdout


def test_json_stays_inside_the_folder_whose_header_includes_it(tmp_path: Path):
    files = {
        "opfuse/graph/internal.h": "#include <nlohmann/json.hpp>\n",
        "opfuse/graph/a.cc": '#include "opfuse/graph/internal.h"\n',
    }
    assert run("check_layers.py", tree(tmp_path, files)).returncode == 0
    done = run(
        "check_layers.py",
        tree(tmp_path, {"opfuse/match/a.cc": '#include "opfuse/graph/internal.h"\n'}),
    )
    assert done.returncode == 1
    assert "opfuse/match/a.cc:1" in done.stdout and "keep it inside its folder" in done.stdout


def test_a_tree_without_code_does_not_pass(tmp_path: Path):
    assert run("check_layers.py", tree(tmp_path, {"opfuse/README": "x"})).returncode == 1


def commit(root: Path) -> Path:
    for command in (["git", "init", "-q"], ["git", "add", "-A"]):
        subprocess.run(command, cwd=root, check=True)
    return root


@pytest.mark.parametrize("folder", ["work", "root", "tmp" + "/v", "home" + "/alice"])
def test_a_path_of_one_machine_is_refused(tmp_path: Path, folder: str):
    done = run("check_paths.py", commit(tree(tmp_path, {"a.md": f"see\n`/{folder}/x.py`\n"})))
    assert done.returncode == 1
    assert f"a.md:2: /{folder}" in done.stdout


def test_paths_that_mean_something_to_everybody_pass(tmp_path: Path):
    text = "/usr/lib /data/imagenet/ examples/imagenet/.work/x https://host/work/x $ROOT/work/\n"
    done = run("check_paths.py", commit(tree(tmp_path, {"a.md": text, "b.sh": "cd /tmp/venv\n"})))
    assert (done.returncode, done.stdout) == (0, "check_paths: 2 files, 0 machine paths\n")


def test_the_copies_interval_is_wilcoxons():
    interval = load_tool("compare_copies").interval
    six = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    centre, low, high = interval(six)  # of six pairs only the two ends are sure enough
    assert (centre, low, high) == pytest.approx((math.exp(0.35), math.exp(0.1), math.exp(0.6)))
    random.seed(1)
    inside = 0
    for _ in range(400):
        _, low, high = interval([math.log(1.2) + random.gauss(0, 0.1) for _ in range(14)])
        inside += low <= 1.2 <= high
    assert 365 <= inside <= 395  # 95 %
