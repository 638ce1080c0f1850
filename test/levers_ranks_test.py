"""Levers and --search under torchrun: tried, measured, kept and refused by all ranks together."""

import sys
from pathlib import Path

import pytest
from live import MEASURED

DDP = """
import os, sys, time, torch, torch.distributed as dist, torch.nn as nn, torch.nn.functional as F
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 256), nn.Linear(256, 64)
    def forward(self, x):
        x = self.first(x)
        x = self.second(x * torch.sigmoid(x))
        return x * F.relu6(x + 3) / 6
dist.init_process_group("gloo")
rank = dist.get_rank()
if os.environ.get("OWN_MEMORY") == str(rank):
    import opfuse.memory
    opfuse.memory.use_caching_allocator()
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
torch.manual_seed(1 + rank)
for step in range(int(sys.argv[1])):
    x, y = torch.randn(64, 64), torch.randn(64, 64)
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
sums = torch.stack([p.double().sum() for p in model.parameters()])
sys.stdout.write(" ".join([str(rank), *(v.item().hex() for v in sums)]) + "\\n")  # one write
sys.stdout.flush()
dist.barrier()
time.sleep(0.5)  # torch 2.13 joins gloo's threads with the GIL held, which they may still want
dist.destroy_process_group()
"""


@pytest.fixture
def ranks(program, project):
    """Runs the script under torchrun; gives the run and the states of both ranks."""

    def run(*flags, steps, env=None):
        (project / "ranks.py").write_text(DDP)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone",
                   "--nproc_per_node=2", "ranks.py", steps]  # fmt: skip
        done = program("tune", "--budget", "24", *flags, command=command, cwd=project, env=env,
                       timeout=280)  # fmt: skip
        assert done.returncode == 0, done.stderr
        states = sorted((s for s in done.states if s["steps"]), key=lambda s: s["rank"])
        first, second = sorted(line.split()[1:] for line in done.stdout.splitlines())
        assert first == second  # the ranks still hold the same parameters
        return done, states

    return run


def sides_of(state):
    return [row["side"] for row in state["steps"]]


def in_step(first, second):
    """Both ran the same code in every step that both report."""
    return all(a == b for a, b in zip(sides_of(first), sides_of(second)))


@pytest.mark.timeout(300)
def test_levers_are_tried_by_all_ranks_together(ranks):
    run, (first, second) = ranks("--levers", "ops,graph,layout,optimizer,memory", steps=500)
    assert first["trouble"] == second["trouble"] == []
    assert in_step(first, second) and {"optimizer_on", "memory_on"} <= set(sides_of(first))
    rows = [{row["name"]: row for row in s["result"]["levers"]} for s in (first, second)]
    for name in ("optimizer", "memory"):
        assert rows[0][name]["outcome"] == rows[1][name]["outcome"] in MEASURED, rows
        assert rows[0][name]["kept"] == rows[1][name]["kept"]
    for name in ("graph", "layout"):
        assert rows[0][name]["outcome"] == "refused"
        assert rows[0][name]["reason"] == rows[1][name]["reason"]
        assert "DistributedDataParallel" in rows[0][name]["reason"]


@pytest.mark.timeout(300)
def test_what_one_rank_refuses_is_tried_by_none(ranks, library):
    operators = Path(library).parent / "libopfuse_ops.so"
    env = {"OWN_MEMORY": "1", "OPFUSE_OPS_LIBRARY": str(operators)}
    run, (first, second) = ranks("--levers", "memory,optimizer", steps=250, env=env)
    assert in_step(first, second) and "memory_on" not in sides_of(first)
    for state in (first, second):
        optimizer, memory = state["result"]["levers"]
        assert memory["outcome"] == "refused"
        assert memory["reason"] == "rank 1: the script uses opfuse.memory already"
        assert optimizer["outcome"] in MEASURED


@pytest.mark.timeout(300)
def test_a_search_measures_the_same_kinds_in_all_ranks(ranks):
    run, (first, second) = ranks("--search", steps=400)
    assert first["trouble"] == second["trouble"] == []
    assert in_step(first, second)
    one, other = (state["result"]["search"] for state in (first, second))
    assert [row["name"] for row in one] == [row["name"] for row in other]
    assert {row["name"] for row in one} == {"silu", "hardswish"}
    assert [row["outcome"] for row in one] == [row["outcome"] for row in other]
    assert first["outcome"] == second["outcome"] in MEASURED
    assert first["result"]["plan"]["hash"] == second["result"]["plan"]["hash"]
