"""Steps that never wait for the device: python behind.py STEPS SECONDS_OF_NPU_SILU."""

import sys

import torch
import torch_npu
from torch import nn


class Gate(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)


torch_npu.set_duration("npu_silu", float(sys.argv[2]))
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 8), Gate(), nn.Linear(8, 4)).to("npu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(4, 8).to("npu")
for _ in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
print("waits", torch_npu.synchronizations())
