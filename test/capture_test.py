"""opfuse.capture and `opfuse match`: chains of a model without a training step."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODEL = """
import torch
import torch.nn.functional as F
from opfuse.capture import graph_texts
from torch import nn


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, i):
        ctx.save_for_backward(i)
        return i * torch.sigmoid(i)

    @staticmethod
    def backward(ctx, g):
        (i,) = ctx.saved_tensors
        s = torch.sigmoid(i)
        return g * (s * (1 + i * (1 - s)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x):
        h = self.linear(x)
        h = h * torch.sigmoid(h)
        h = Swish.apply(self.norm(h))
        v = h.pow(2).mean(-1, keepdim=True)
        h = self.weight * (h * torch.rsqrt(v + 1e-6))
        a, b = h.chunk(2, -1)
        return F.dropout(torch.cat([a * F.silu(b), b], 1), 0.1)
"""


def capture(folder: Path, code: str) -> list[Path]:
    """Runs MODEL and `code`, which makes a list `texts`; gives the files with them."""
    script = folder / "net.py"
    write = "\nfor k, text in enumerate(texts):\n    open(f'graph{k}.txt', 'w').write(text)\n"
    script.write_text(MODEL + code + write)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    done = subprocess.run(
        [sys.executable, script], cwd=folder, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return sorted(folder.glob("graph*.txt"))


def match(*words) -> subprocess.CompletedProcess:
    command = [os.environ["OPFUSE_BIN"], "match", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> Path:
    (path,) = capture(
        tmp_path_factory.mktemp("capture"), "texts = graph_texts(Net(), torch.randn(4, 8))"
    )
    return path


def test_chains_are_found_with_their_lines(graph):
    found = match(graph)
    assert found.returncode == 0, found.stderr
    line = {n: i + 1 for i, n in enumerate(MODEL.splitlines())}
    inline = line["        h = h * torch.sigmoid(h)"]
    function = line["        return i * torch.sigmoid(i)"]
    norm = line["        h = self.weight * (h * torch.rsqrt(v + 1e-6))"]
    for rule, at in (("silu", inline), ("silu", function), ("rms_norm", norm)):
        assert f"net.py:{at}: {rule} (composition)" in found.stdout, found.stdout
    assert re.search(r": silu_mul(_packed(_last)?)? \(", found.stdout), found.stdout


def test_the_operators_are_those_of_a_recorded_step(graph):
    text = graph.read_text()
    for operator in (
        "aten.addmm",
        "aten.native_batch_norm",
        "aten.split.Tensor",
        "aten.bernoulli_",
    ):
        assert operator in text
    (scope,) = [line for line in text.splitlines() if line.startswith("function ")]
    assert scope == "function Swish #1 {"
    assert "requires_grad leaf parameter" in text


def test_the_model_is_left_as_a_run_leaves_it(tmp_path):
    code = """
net = Net()
x = torch.randn(4, 8)
torch.manual_seed(3)
texts = graph_texts(net, x)
once = {k: v.clone() for k, v in net.state_dict().items()}
other = Net()
fresh = {"norm.running_mean": torch.zeros(8), "norm.running_var": torch.ones(8),
         "norm.num_batches_tracked": torch.tensor(0)}
other.load_state_dict({**once, **fresh})
torch.manual_seed(3)
other(x)
assert all(torch.equal(v, once[k]) for k, v in other.state_dict().items())
"""
    assert len(capture(tmp_path, code)) == 1


def test_code_that_cannot_be_captured_splits_the_graph(tmp_path):
    code = """
class Broken(Net):
    def forward(self, x):
        y = x * torch.sigmoid(x)
        print(float(y.sum()))
        return super().forward(y)
texts = graph_texts(Broken(), torch.randn(4, 8))
"""
    files = capture(tmp_path, code)
    assert len(files) >= 2
    found = match(*files)
    assert found.stdout.count("silu (composition)") == 3


def test_a_function_of_tensors_is_captured_too(tmp_path):
    code = "texts = graph_texts(lambda x: x / (1 + torch.exp(-x)), torch.randn(4))"
    (path,) = capture(tmp_path, code)
    assert "silu (quotient)" in match(path).stdout


def test_only_and_exit_statuses(graph, tmp_path):
    assert match(graph, "--only", "mish").returncode == 3
    assert "1 rules" in match(graph, "--only", "silu").stdout
    unknown = match(graph, "--only", "sillu")
    assert (unknown.returncode, "found 'sillu'" in unknown.stderr) == (2, True)
    assert match().returncode == 2
    damaged = tmp_path / "damaged.txt"
    damaged.write_text("%x: f32[4]\n%y: f32[4] = aten.sigmoid(%z)\n")
    bad = match(damaged, graph)
    assert bad.returncode == 6
    assert f"{damaged}:2" in bad.stderr
    assert "silu" in bad.stdout  # the good file is read
