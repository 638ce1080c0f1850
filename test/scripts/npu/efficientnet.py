"""EfficientNet-B0 of efficientnet_pytorch on the stand-in device: python efficientnet.py STEPS."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(os.environ["OPFUSE_EFFICIENTNET"]).parent))

import torch
import torch_npu  # noqa: F401
from efficientnet_pytorch import EfficientNet

torch.set_num_threads(1)
torch.manual_seed(1)
model = EfficientNet.from_name("efficientnet-b0", num_classes=10, drop_connect_rate=0.0).to("npu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for step in range(int(sys.argv[1])):
    x, y = torch.randn(2, 3, 32, 32).to("npu"), torch.randint(10, (2,)).to("npu")
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    print(step + 1, loss.item().hex(), flush=True)
