"""The whole training is module-level code."""

import torch
from harness import show
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(7)
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    x = model(torch.randn(4, 8))
    loss = (x * torch.sigmoid(x)).mean()  # row 43: module-level
    loss.backward()
    optimizer.step()
    show(loss)
