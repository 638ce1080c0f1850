"""Steps that never wait for the device: behind.py STEPS SECONDS_OF_NPU_SILU [HABIT].

A line a step: how often the device was waited for inside it, and at its end. The gate's sigmoid
takes a third of SECONDS to launch and next to nothing on the device; npu_silu is the other way
round.

HABIT: `stream` runs the gate beside the default stream; `holds_graph` keeps a captured graph;
`captures` captures each step from the eighth on, optimizer and all; `unwaited` lets opfuse measure
without waiting for the device.
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


if HABIT == "unwaited":
    import opfuse.boundary

    opfuse.boundary.synchronize_devices = lambda: None
torch_npu.set_duration("npu_silu", SECONDS)
torch_npu.set_launch_time("sigmoid", SECONDS / 3)
torch.manual_seed(1)
gate = Aside() if HABIT == "stream" else Gate()
model = nn.Sequential(nn.Linear(8, 8), gate, nn.Linear(8, 4)).to("npu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(4, 8).to("npu")
kept = torch.npu.NPUGraph() if HABIT == "holds_graph" else None
for step in range(STEPS):
    begin = torch_npu.synchronizations()
    captured = HABIT == "captures" and step >= 7
    with torch.npu.graph(torch.npu.NPUGraph()) if captured else nullcontext():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        inside = torch_npu.synchronizations()
        optimizer.step()
    print("waits", inside - begin, torch_npu.synchronizations() - inside, flush=True)
print("its own allocator", torch_npu.allocates())
