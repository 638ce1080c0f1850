"""torch.compile(backend="opfuse") where models do more than call modules in turn: checkpoints, DDP,
subclasses, parametrizations, shared modules, views that are written later."""

import copy
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT
from torch import nn
from torch.utils.checkpoint import checkpoint

from opfuse import backend


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


class Cell(nn.Module):
    def __init__(self, channels=8):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        x = self.norm(self.conv(x))
        return x * torch.sigmoid(x)


def images():
    generator = torch.Generator().manual_seed(7)
    return torch.randn(4, 8, 12, 12, generator=generator)


def trained(model, run, steps=3):
    """Losses, then the parameters and buffers."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = run(images()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: value.detach().clone() for name, value in model.state_dict().items()}


def trains_alike(model):
    twin = copy.deepcopy(model)
    expected, expected_state = trained(twin, twin)
    found, state = trained(model, backend.optimize(model))
    assert found == pytest.approx(expected, rel=1e-5)
    for name, value in expected_state.items():
        assert torch.allclose(state[name], value, rtol=1e-4, atol=1e-5), name
    return sum(sum(report.replaced().values()) for report in backend.reports()[-4:])


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_cell_trains_alike(reentrant):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.one, self.two = nn.Conv2d(8, 8, 1), Cell(), Cell()

        def forward(self, x):
            return self.two(checkpoint(self.one, self.stem(x), use_reentrant=reentrant))

    trains_alike(Net())


def test_a_module_in_two_places_trains_alike():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = Cell()
            self.again = self.cell

        def forward(self, x):
            return self.again(self.cell(x))

    assert trains_alike(Net()) >= 2


def test_a_parametrized_weight_trains_alike():
    model = nn.Sequential(Cell(), Cell())
    nn.utils.parametrizations.weight_norm(model[0].conv)
    assert trains_alike(model) >= 1


def test_a_norm_of_another_class_trains_alike():
    class Norm(nn.BatchNorm2d):
        def forward(self, x):
            return super().forward(x) * 2

    model = nn.Sequential(Cell(), Cell())
    model[0].norm = Norm(8)
    trains_alike(model)


def test_a_norm_that_became_the_identity_is_the_identity():
    model = Cell()
    run = backend.optimize(model)
    run(images())
    model.norm = nn.Identity()
    found = run(images())
    y = model.conv(images())
    assert torch.allclose(found, y * torch.sigmoid(y), atol=1e-6)


def test_sync_batch_norm_of_one_process_stays():
    model = nn.SyncBatchNorm.convert_sync_batchnorm(Cell()).eval()
    expected = model(images())
    assert torch.allclose(backend.optimize(model)(images()), expected, atol=1e-6)


class Tagged(torch.Tensor):
    """A subclass that counts what is called on it."""

    calls = 0

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        Tagged.calls += 1
        return super().__torch_function__(function, types, args, kwargs or {})


def test_a_subclass_keeps_its_type_and_values():
    model = Cell()
    twin = copy.deepcopy(model)
    run = backend.optimize(model)
    for _ in range(2):
        found, expected = run(images().as_subclass(Tagged)), twin(images().as_subclass(Tagged))
        assert type(found) is type(expected)
        assert torch.allclose(found.as_subclass(torch.Tensor), expected.as_subclass(torch.Tensor),
                              atol=1e-6)  # fmt: skip


def test_a_result_that_is_written_later_is_the_caller_s_own():
    model = Cell()
    twin = copy.deepcopy(model)
    run = backend.optimize(model)
    for _ in range(3):
        found, expected = run(images()), twin(images())
        found, expected = found + 0, expected + 0
        found.mul_(2), expected.mul_(2)
        assert torch.allclose(found, expected, atol=1e-5)
        assert torch.allclose(model.norm.running_mean, twin.norm.running_mean, atol=1e-6)


def test_batches_of_changing_length_are_right():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

        def forward(self, x):
            h = self.up(x)
            return self.down(h * torch.sigmoid(h))

    model = Net()
    twin, run = copy.deepcopy(model), backend.optimize(model)
    for length in (5, 9, 3, 9, 12, 5):
        x = torch.randn(2, length, 16)
        F.mse_loss(run(x), x).backward()
        F.mse_loss(twin(x), x).backward()
    for mine, theirs in zip(model.parameters(), twin.parameters()):
        assert torch.allclose(mine.grad, theirs.grad, rtol=1e-4, atol=1e-6)


DDP = """
import os, sys, time, torch, torch.distributed as dist
sys.path.insert(0, os.path.dirname({file!r}))
from backend_places_test import Cell, images
import opfuse.backend
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(Cell(), Cell()))
run = opfuse.backend.optimize(model) if sys.argv[1] == "opfuse" else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(4):
    optimizer.zero_grad()
    loss = run(images() * (rank + 1)).square().mean()
    loss.backward()
    optimizer.step()
total = sum(p.detach().double().abs().sum().item() for p in model.parameters())
replaced = sum(sum(r.replaced().values()) for r in opfuse.backend.reports())
sys.stdout.write(f"{{rank}} {{total:.6f}} {{replaced}}\\n")  # one write: both ranks share the pipe
time.sleep(0.5)  # torch 2.13 joins gloo's threads with the GIL held, which they may still want
dist.destroy_process_group()
"""


def test_two_ranks_train_alike(tmp_path):
    (tmp_path / "main.py").write_text(DDP.format(file=__file__))
    env = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}

    def run(side):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone",
                   "--nproc-per-node", "2", "main.py", side]  # fmt: skip
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True,
                              timeout=300)  # fmt: skip
        assert done.returncode == 0, done.stderr
        return sorted(line.split() for line in done.stdout.splitlines())

    plain, ours = run("plain"), run("opfuse")
    totals = [float(total) for _, total, _ in plain + ours]
    assert totals == pytest.approx([totals[0]] * 4, rel=1e-6)
    assert all(int(replaced) >= 1 for _, _, replaced in ours), ours
