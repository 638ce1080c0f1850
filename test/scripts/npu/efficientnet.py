"""EfficientNet-B0 of efficientnet_pytorch on the stand-in device: efficientnet.py STEPS [SECONDS].

SECONDS: npu_silu takes so long on the device. Started by torchrun, the gradients are averaged over
the ranks by gloo, over copies in host memory.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(os.environ["OPFUSE_EFFICIENTNET"]).parent))

import torch
import torch.distributed as dist
import torch_npu
from efficientnet_pytorch import EfficientNet
from efficientnet_pytorch.utils import MemoryEfficientSwish

RANKS = int(os.environ.get("WORLD_SIZE", "1"))


def average(parameters):
    """Gradients of all ranks in one buffer: to the host, summed, back."""
    gradients = [p.grad for p in parameters]
    flat = torch.cat([g.reshape(-1) for g in gradients]).cpu()
    dist.all_reduce(flat)
    flat = (flat / RANKS).to("npu")
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients])):
        gradient.copy_(part.view_as(gradient))


torch.set_num_threads(1)
torch_npu.set_duration("npu_silu", float(sys.argv[2]) if len(sys.argv) > 2 else 0.0)
if RANKS > 1:
    dist.init_process_group("gloo")
rank = dist.get_rank() if RANKS > 1 else 0
code = MemoryEfficientSwish.forward.__code__.co_code
torch.manual_seed(1)
model = EfficientNet.from_name("efficientnet-b0", num_classes=10, drop_connect_rate=0.0).to("npu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
torch.manual_seed(1 + rank)
for step in range(int(sys.argv[1])):
    x, y = torch.randn(2, 3, 32, 32).to("npu"), torch.randint(10, (2,)).to("npu")
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    if RANKS > 1:
        average(model.parameters())
    optimizer.step()
    print(rank, step + 1, loss.item().hex(), flush=True)
print(rank, "original code" if MemoryEfficientSwish.forward.__code__.co_code == code else "edited")
if RANKS > 1:
    dist.destroy_process_group()
