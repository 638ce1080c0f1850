import sys

import torch
import torch.nn.functional as F
from swish import InlineSwish, MemoryEfficientSwish
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 60
torch.set_num_threads(1)
torch.manual_seed(1)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), MemoryEfficientSwish(), nn.BatchNorm2d(16),
    nn.Conv2d(16, 16, 3, padding=1), InlineSwish(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4),
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for step in range(STEPS):
    x, y = torch.randn(8, 3, 48, 48), torch.randint(4, (8,))
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    print(step + 1, float(loss.detach()).hex(), flush=True)
print("end")
