"""Training scripts in many habits: `train.py HABIT[,HABIT…] [STEPS]`. They know nothing of opfuse.

Losses go to stdout as exact hexadecimal numbers. With TEST_REPORT set, what is registered and which
code runs at the end goes to that file.
"""

import json
import os
import sys

import models
import torch
import torch.nn.functional as F
from models import Inline, mlp
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 20


def show(loss):
    """A line in one write: ranks share the pipe."""
    sys.stdout.write(float(loss.detach()).hex() + "\n")
    sys.stdout.flush()


def data(batch=4):
    return torch.randn(batch, 8), torch.randn(batch, 8)


def one_step(model, optimizer, batch=4):
    x, y = data(batch)
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    show(loss)


def plain():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(STEPS):
        one_step(model, optimizer)
    return model


def full_disk():
    """After its first step no file can grow any more: torch itself writes a few before."""
    import resource

    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for i in range(STEPS):
        one_step(model, optimizer)
        if i == 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    os.environ["TEST_REPORT"] = ""
    return model


def fails_first():
    mlp()
    raise ValueError("the user's own mistake")


def fails_in_the_middle():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(8):
        one_step(model, optimizer)
    raise ValueError("the user's own mistake")


def own_hook_raises():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def hook(*_):
        if hook.calls == 7:
            raise ValueError("the user's own hook")
        hook.calls += 1

    hook.calls = 0
    optimizer.register_step_post_hook(hook)
    for _ in range(STEPS):
        one_step(model, optimizer)


def global_hook_after_ours():
    """A global hook that stands behind ours in torch's table, for the whole run."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    seen = []
    register_optimizer_step_post_hook(lambda *_: seen.append(1))
    model = plain()
    assert len(seen) == STEPS
    return model


def inference():
    model = mlp().eval()
    with torch.no_grad():
        for _ in range(STEPS):
            show(model(data()[0]).sum())
    return model


def inference_then_training():
    model = inference()
    assert Inline.forward.__code__ is not models.ORIGINAL_CODE
    y = model(data()[0])
    assert Inline.forward.__code__ is models.ORIGINAL_CODE
    y.sum().backward()
    return model


def by_hand():
    """No optimizer, gradients wanted: the update is written out."""
    model = mlp()
    for _ in range(STEPS + 20):
        x, y = data()
        loss = F.mse_loss(model(x), y)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient
        show(loss)
    return model


def gan():
    generator, critic = mlp(), mlp()
    first = torch.optim.Adam(critic.parameters(), lr=1e-3)
    second = torch.optim.Adam(generator.parameters(), lr=1e-3)
    for _ in range(STEPS):
        real, noise = data()
        first.zero_grad()
        fake = generator(noise)
        loss = critic(fake.detach()).mean() - critic(real).mean()
        loss.backward()
        first.step()
        second.zero_grad()
        (-critic(fake).mean()).backward()
        second.step()
        show(loss)
    return generator


def in_backward():
    model = mlp()
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.05)

        def step(_, optimizer=optimizer):
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(STEPS):
        x, y = data()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        show(loss)
    return model


def accumulation():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(3 * STEPS):
        x, y = data()
        loss = F.mse_loss(model(x), y) / 3
        loss.backward()
        if i % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
            show(loss)
    return model


def scaler():
    """bf16 autocast and a GradScaler that skips some steps."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    grad_scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for i in range(STEPS + 10):
        x, y = data()
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.mse_loss(model(x).float(), y)
        if i % 5 == 4:
            loss = loss * float("inf")
        grad_scaler.scale(loss).backward()
        grad_scaler.step(optimizer)
        grad_scaler.update()
        show(loss)
    return model


def variable_batch():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(STEPS + 10):
        one_step(model, optimizer, batch=2 + i % 3)
    return model


def adam(kind, **options):
    """With a schedule: the learning rate is another one in every step."""
    model = mlp()
    optimizer = kind(model.parameters(), lr=1e-3, **options)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        one_step(model, optimizer)
        scheduler.step()
    return model


def fused_adam():
    return adam(torch.optim.Adam, fused=True)


def foreach_adamw():
    return adam(torch.optim.AdamW, foreach=True)


def profiles_itself():
    """torch.profiler is on during steps 2 to 6, and its trace holds the script's own operators."""
    import tempfile

    from torch.profiler import ProfilerActivity, profile

    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    one_step(model, optimizer)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=True) as prof:
        for _ in range(5):
            one_step(model, optimizer)
            prof.step()
    with tempfile.TemporaryDirectory() as folder:
        prof.export_chrome_trace(f"{folder}/trace.json")
        with open(f"{folder}/trace.json") as file:
            events = json.load(file)["traceEvents"]
    assert sum(e.get("name") == "aten::addmm" for e in events) == 10
    assert not any("opfuse" in str(e.get("name")) for e in events if e.get("cat") == "cpu_op")
    for _ in range(STEPS - 6):
        one_step(model, optimizer)
    return model


def holds_nothing():
    """Looks into our part from outside, as no user would: what does it still hold at the end?"""
    model = plain()
    agent = sys.modules["opfuse.agent"]._agent
    tuner = agent.tuner
    print(json.dumps({"records": len(tuner._records), "codes": len(tuner.planner.codes)}))
    return model


class Counting(nn.Module):
    """A forward that counts its calls and keeps a queue, as MoCo does."""

    def __init__(self):
        super().__init__()
        self.inner, self.calls = mlp(), 0
        self.register_buffer("queue", torch.randn(16, 8))
        self.place = 0

    def forward(self, x):
        self.calls += 1
        out = self.inner(x)
        with torch.no_grad():
            self.queue[self.place : self.place + 4] = out
        self.place = (self.place + 4) % 16
        return out + 0.01 * self.queue.mean(0)


def counting():
    model = Counting()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        one_step(model, optimizer)
    assert model.calls == STEPS
    print(model.calls, model.place, float(model.queue.sum()).hex())
    return model


def compiled(in_place=False):
    model = mlp()
    if in_place:
        model.compile(backend="eager", fullgraph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    runs = model if in_place else torch.compile(model, backend="eager", fullgraph=True)
    for _ in range(STEPS):
        one_step(runs, optimizer)
    return model


def saves_itself():
    """Copies and pickles the model in every step, as some checkpoints and averages do."""
    import copy
    import io

    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        one_step(model, optimizer)
        file = io.BytesIO()
        torch.save(copy.deepcopy(model), file)
        assert b"opfuse" not in file.getvalue()
        file.seek(0)
        torch.load(file, weights_only=False)(data()[0])
    return model


class Noise(Dataset):
    def __len__(self):
        return 4 * STEPS

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        with torch.no_grad():
            return Inline()(torch.randn(8, generator=generator)), torch.ones(8)


def loader(start):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = DataLoader(
        Noise(), batch_size=4, num_workers=1, multiprocessing_context=start, shuffle=True
    )
    for x, y in batches:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        show(loss)
    return model


def ddp():
    import datetime
    import time

    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    rank = dist.get_rank()
    model = nn.parallel.DistributedDataParallel(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(STEPS):
        if os.environ.get("TEST_DIE_AT") == str(i) and rank == 1:
            os._exit(9)
        x, y = data()
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if rank == 0:
            show(loss)
    dist.barrier()  # the rank that holds the store must not leave first
    time.sleep(0.5)  # torch 2.13 joins gloo's threads with the GIL held, which they may still want
    dist.destroy_process_group()
    return model


def report(model):
    """What is left of anybody's hooks, and whose code runs."""
    from torch.nn.modules import module
    from torch.optim import optimizer

    if not os.environ.get("TEST_REPORT"):
        return
    tables = [module._global_forward_pre_hooks, module._global_forward_hooks]
    tables += [m._forward_pre_hooks for m in model.modules()]
    tables += [m._forward_hooks for m in model.modules()]
    content = {
        "module_hooks": sum(map(len, tables)),
        "optimizer_hooks": len(optimizer._global_optimizer_post_hooks),
        "original": Inline.forward.__code__ is models.ORIGINAL_CODE,
        "globals": [name for name in vars(models) if "opfuse" in name],
        "path": [p for p in sys.path if "_shim" in p or p.endswith("python")],
        "finders": [type(f).__name__ for f in sys.meta_path if "TorchFinder" in type(f).__name__],
        "sitecustomize": getattr(sys.modules.get("sitecustomize"), "__file__", ""),
        "threads": torch.get_num_threads(),
    }
    with open(os.environ["TEST_REPORT"], "w") as file:
        json.dump(content, file)


def fork_trainer():
    """The training runs in a forked child."""
    process = torch.multiprocessing.get_context("fork").Process(target=lambda: report(plain()))
    process.start()
    process.join()
    return mlp()


HABITS = {
    name: value
    for name, value in list(globals().items())
    if callable(value) and getattr(value, "__module__", "") == "__main__"
} | {
    "loader_fork": lambda: loader("fork"),
    "loader_spawn": lambda: loader("spawn"),
    "compiled_in_place": lambda: compiled(in_place=True),
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1].split(","):
        torch.manual_seed(7)
        report(HABITS[name]())
        print("done", name)
