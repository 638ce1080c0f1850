"""Trains, or only runs, modules of chains.py on a device: train.py STEPS NAMES [infer] [cpu]."""

import inspect
import sys

import chains
import torch
import torch_npu  # noqa: F401
from torch import nn

STEPS, NAMES, WORDS = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3:]
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


torch.set_num_threads(1)
torch.manual_seed(1)
model = Net().to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(STEPS):
    x = torch.randn(12, WIDTH).to(DEVICE)
    if "infer" in WORDS:
        with torch.no_grad():
            print(step + 1, model(x).pow(2).mean().item().hex(), flush=True)
        continue
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(step + 1, float(loss.detach()).hex(), flush=True)
