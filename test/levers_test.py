"""Levers: what is tried beside the operators."""

import sys
from pathlib import Path

from conftest import ROOT
from live import MEASURED


def test_a_lever_alone_is_measured_and_changes_no_bit(program, project, plain_output):
    run = program("tune", "--levers", "memory", "--budget", "24", cwd=project,
                  command=[sys.executable, "main.py", 60])  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines(keepends=True) == plain_output
    (lever,) = run.report["levers"]
    assert lever["name"] == "memory" and lever["outcome"] in MEASURED, lever
    assert lever["kept"] == (lever["outcome"] == "tuned")
    assert run.report["outcome"] == ("tuned" if lever["kept"] else "nothing_found")
    assert run.report["sites"] == [] and lever["speed"]["choosing"]["pairs"] > 0
    sides = {row["side"] for row in run.state["steps"]}
    assert {"memory_off", "memory_on", "warm"} <= sides and not sides & {"old", "new", "record"}
    assert "lever  memory" in run.stderr


def test_levers_are_tried_after_the_operators(program, project, plain_output):
    run = program("tune", "--levers", "all", "--once", "--budget", "24", cwd=project,
                  command=[sys.executable, "main.py", 400])  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines(keepends=True)[:3] == plain_output[:3]
    sides = [row["side"] for row in run.state["steps"]]
    assert sides.index("memory_on") > sides.index("new")
    assert run.report["verdict"]["validation"]["accepted"]
    levers = {lever["name"]: lever for lever in run.report["levers"]}
    assert list(levers) == ["graph", "layout", "optimizer", "memory"]
    kept = [name for name, lever in levers.items() if lever["kept"]]
    several = len(kept) + (run.report["speed"]["outcome"] == "tuned") > 1 and bool(kept)
    assert (run.report["together"]["choosing"]["pairs"] > 0) == several
    assert ("all_on" in sides) == several


CNN = """
import sys, torch, torch.nn as nn, torch.nn.functional as F
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.fc = nn.Linear(16 * 16, 10)
    def forward(self, x):
        x = self.norm(self.conv(x))
        x = F.adaptive_avg_pool2d(x * torch.sigmoid(x), 4)
        return self.fc(x.view(x.size(0), -1) if "view" in sys.argv else x.flatten(1))
torch.manual_seed(0)
net = Net()
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
x, y = torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))
for step in range(400):
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
    print(f"{loss.item():.6f}", flush=True)
"""


def tuned_cnn(program, project, *arguments):
    (project / "cnn.py").write_text(CNN)
    run = program("tune", "--levers", "graph,layout,optimizer", "--once", "--budget", "24",
                  cwd=project, command=[sys.executable, "cnn.py", *arguments])  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run, {lever["name"]: lever for lever in run.report["levers"]}


def test_graph_layout_and_optimizer_are_tried_live(program, project):
    run, levers = tuned_cnn(program, project)
    for name, lever in levers.items():
        assert lever["outcome"] in MEASURED, (name, lever["reason"])
        assert lever["kept"] == (lever["outcome"] == "tuned")
    assert "1 batch_norm_silu" in levers["graph"]["what"]
    assert "times as far from fp64" in levers["layout"]["what"]
    sides = {row["side"] for row in run.state["steps"]}
    assert {"capture", "replayed", "graph_on", "layout_on", "optimizer_off"} <= sides
    losses = [float(line) for line in run.stdout.splitlines()]
    assert losses[-1] < losses[0]


def test_a_view_that_channels_last_does_not_have_is_found_in_the_replay(program, project):
    run, levers = tuned_cnn(program, project, "view")
    assert levers["layout"]["outcome"] == "refused"
    assert "aten.view at" in levers["layout"]["reason"], levers["layout"]["reason"]
    assert "Traceback" not in run.stderr and levers["optimizer"]["outcome"] in MEASURED


def test_a_lever_that_cannot_be_tried_says_why(program, project):
    code = "import opfuse.memory; opfuse.memory.use_caching_allocator(); import runpy, sys;"
    code += "sys.argv = ['main.py', '20']; runpy.run_path('main.py', run_name='__main__')"
    operators = Path(program.env["OPFUSE_LIBRARY"]).parent / "libopfuse_ops.so"
    env = {"OPFUSE_OPS_LIBRARY": str(operators), "PYTHONPATH": f"{ROOT / 'python'}:{project}"}
    run = program("tune", "--levers", "memory", cwd=project, env=env,
                  command=[sys.executable, "-c", code])  # fmt: skip
    assert run.returncode == 0, run.stderr
    (lever,) = run.report["levers"]
    assert (lever["outcome"], lever["kept"]) == ("refused", False)
    assert lever["reason"] == "the script uses opfuse.memory already"
