"""A tiny training in which every case gets a fresh activation and adds to one loss.

A case is marked on its first line with what opfuse must say of it: `# planned`, or
`# row 5: written` (refused for that row, with these words in the reason). With TEST_REPORT set, the
functions of the script that ever ran with another code object than their own go to that file.
"""

import inspect
import json
import os
import sys

import torch
from torch import nn


class Cases(nn.Module):
    def __init__(self, cases):
        super().__init__()
        self.cases = cases
        self.parts = nn.ModuleList([c for c in cases if isinstance(c, nn.Module)])
        self.mix = nn.ModuleList([nn.Linear(8, 8) for _ in cases])

    def forward(self, x):
        loss = 0.0
        for mix, case in zip(self.mix, self.cases, strict=True):
            loss = loss + case(mix(x)).square().mean()
        return loss


class Watch:
    """Whose code was exchanged, by the line where the function begins."""

    def __init__(self):
        self.own = {}
        for found in list(vars(sys.modules["__main__"]).values()):
            methods = vars(found).values() if inspect.isclass(found) else [found]
            for method in methods:
                method = getattr(method, "__func__", method)
                if inspect.isfunction(method) and method.__module__ == "__main__":
                    self.own[method] = method.__code__
        self.changed = set()

    def look(self):
        self.changed |= {
            code.co_firstlineno for f, code in self.own.items() if f.__code__ is not code
        }

    def write(self):
        if os.environ.get("TEST_REPORT"):
            with open(os.environ["TEST_REPORT"], "w") as file:
                json.dump({"changed": sorted(self.changed)}, file)


def show(loss):
    print(float(loss.detach()).hex(), flush=True)


def train(*cases, steps=8, later=None):
    """`later(model, step)` runs after each step."""
    torch.set_num_threads(1)
    torch.manual_seed(7)
    model = Cases(cases)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = Watch()
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8))
        loss.backward()
        optimizer.step()
        show(loss)
        watch.look()
        if later is not None:
            later(model, step)
    watch.write()
    return model
