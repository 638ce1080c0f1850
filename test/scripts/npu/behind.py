"""Steps that never wait for the device: behind.py STEPS SECONDS_OF_NPU_SILU [HABIT].

HABIT: `stream` runs the gate beside the default stream; `holds_graph` keeps a captured graph;
`captures` captures each step from the eighth on, optimizer and all.
"""

import sys
from contextlib import nullcontext

import torch
import torch_npu
from torch import nn

STEPS, SECONDS = int(sys.argv[1]), float(sys.argv[2])
HABIT = sys.argv[3] if len(sys.argv) > 3 else ""
ASIDE = torch.Stream(device="npu")


class Gate(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)


class Aside(Gate):
    def forward(self, x):
        with ASIDE:
            return super().forward(x)


torch_npu.set_duration("npu_silu", SECONDS)
torch.manual_seed(1)
gate = Aside() if HABIT == "stream" else Gate()
model = nn.Sequential(nn.Linear(8, 8), gate, nn.Linear(8, 4)).to("npu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(4, 8).to("npu")
kept = torch.npu.NPUGraph() if HABIT == "holds_graph" else None
for step in range(STEPS):
    captured = HABIT == "captures" and step >= 7
    with torch.npu.graph(torch.npu.NPUGraph()) if captured else nullcontext():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
print("waits", torch_npu.synchronizations())
