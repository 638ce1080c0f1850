"""EfficientNet-B0 of efficientnet_pytorch on the stand-in: efficientnet.py STEPS [WORD=VALUE].

A line a step: rank, step, loss, launches of npu_silu in it, and the peak of the device's memory
since the last step, in bytes. KERNEL=SECONDS: kernels of this name take so long on the device.
moved=STEP: from there on the parameters are one unit in the last place off, which shows how far
rounding alone leads. Started by torchrun, the gradients are averaged over the ranks by gloo, over
copies in host memory.
"""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(os.environ["OPFUSE_EFFICIENTNET"]).parent))

import torch
import torch.distributed as dist
import torch_npu
from efficientnet_pytorch import EfficientNet
from efficientnet_pytorch.utils import MemoryEfficientSwish

RANKS = int(os.environ.get("WORLD_SIZE", "1"))
WORDS = dict(word.split("=") for word in sys.argv[2:])
# Two images of 32 x 32 leave BatchNorm two values in the last blocks: rounding alone then moves the
# gradients by a tenth of their norm and more, and no two runs could be compared.
SIZE = 64


def say(*words):
    """A line in one write: the ranks share the pipe, and print writes word by word."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def average(parameters):
    """Gradients of all ranks in one buffer: to the host, summed, back."""
    gradients = [p.grad for p in parameters]
    flat = torch.cat([g.reshape(-1) for g in gradients]).cpu()
    dist.all_reduce(flat)
    flat = (flat / RANKS).to("npu")
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients])):
        gradient.copy_(part.view_as(gradient))


def move(parameters):
    with torch.no_grad():
        for p in parameters:
            host = p.cpu()
            p.copy_(torch.nextafter(host, torch.full_like(host, torch.inf)))


torch.set_num_threads(1)
moved = int(WORDS.pop("moved", 0))
for kernel, seconds in WORDS.items():
    torch_npu.set_duration(kernel, float(seconds))
if RANKS > 1:
    dist.init_process_group("gloo")
rank = dist.get_rank() if RANKS > 1 else 0
code = MemoryEfficientSwish.forward.__code__.co_code
torch.manual_seed(1)
model = EfficientNet.from_name("efficientnet-b0", num_classes=10, drop_connect_rate=0.0).to("npu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
torch.manual_seed(1 + rank)
for step in range(1, int(sys.argv[1]) + 1):
    if step == moved:
        move(model.parameters())
    x, y = torch.randn(2, 3, SIZE, SIZE).to("npu"), torch.randint(10, (2,)).to("npu")
    launches = torch_npu.launches("npu_silu")
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    if RANKS > 1:
        average(model.parameters())
    optimizer.step()
    launched = torch_npu.launches("npu_silu") - launches
    say(rank, step, loss.item().hex(), launched, torch.npu.max_memory_allocated())
    torch.npu.reset_peak_memory_stats()
say(rank, "original code" if MemoryEfficientSwish.forward.__code__.co_code == code else "edited")
if RANKS > 1:
    time.sleep(0.5)  # torch 2.13 joins gloo's threads with the GIL held, which they may still want
    dist.destroy_process_group()
