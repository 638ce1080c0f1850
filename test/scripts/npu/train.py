"""Trains, or only runs, modules of chains.py on a device: train.py STEPS NAMES [infer] [cpu]
[still] [half] [KERNEL=SECONDS].

A line a step: its number, the loss, and the peak of the device's memory since the last step, in
bytes. still: the learning rate is 0, so that a step's loss tells nothing of the steps before it.
half: all of it in float16. KERNEL=SECONDS: kernels of this name take so long on the device.
"""

import inspect
import sys

import chains
import torch
import torch_npu
from torch import nn

STEPS, NAMES, WORDS = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3:]
DTYPE = torch.float16 if "half" in WORDS else torch.float32
DEVICE = "cpu" if "cpu" in WORDS else "npu"
WIDTH = 16


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        chosen = [getattr(chains, name) for name in NAMES]
        self.parts = nn.ModuleList(
            part(WIDTH) if "width" in inspect.signature(part).parameters else part()
            for part in chosen
        )
        self.mixers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in chosen)

    def forward(self, x):
        for part, mixer in zip(self.parts, self.mixers):
            x = torch.tanh(mixer(part(mixer(x))))
        return x


def report(step, loss):
    print(step, loss.item().hex(), torch.npu.max_memory_allocated(), flush=True)
    torch.npu.reset_peak_memory_stats()


torch.set_num_threads(1)
for kernel, seconds in (word.split("=") for word in WORDS if "=" in word):
    torch_npu.set_duration(kernel, float(seconds))
originals = {name: getattr(chains, name).forward.__code__ for name in NAMES}
names = set(vars(chains))
torch.manual_seed(1)
model = Net().to(DEVICE, DTYPE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0 if "still" in WORDS else 0.05)
for step in range(STEPS):
    x = torch.randn(12, WIDTH).to(DEVICE, DTYPE)
    if "infer" in WORDS:
        with torch.no_grad():
            report(step + 1, model(x).pow(2).mean())
        continue
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    report(step + 1, loss.detach())
edited = [name for name in NAMES if getattr(chains, name).forward.__code__ is not originals[name]]
print("edited", ",".join(edited) or "nothing", "left over", sorted(set(vars(chains)) - names))
