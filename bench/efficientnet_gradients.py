"""How far EfficientNet-B0's gradients are from fp64, as it is and as opfuse changes it.

    python bench/efficientnet_gradients.py [--batch 4] [--size 224] [--seeds 3]

For each random start: Euclidean norm of the difference to fp64 over all gradients, relative to
their norm, of the model in contiguous and channels_last layout, as it is and through
opfuse.optimize. Dropping of blocks is off: fp64 would draw other numbers. Needs the model's source:
tools/get_efficientnet.py.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "examples" / "imagenet")]

import opfuse  # noqa: E402


def gradients(network, x, y, dtype, layout, ours: bool):
    network = copy.deepcopy(network).to(dtype).to(memory_format=layout)
    x = x.to(dtype)
    if ours:
        torch._dynamo.reset()
        run = opfuse.optimize(network)
        state = {name: value.clone() for name, value in network.state_dict().items()}
        run(x)  # the first call proves
        network.load_state_dict(state)
    else:
        run = network
    F.cross_entropy(run(x), y).backward()
    return torch.cat([p.grad.double().flatten() for p in network.parameters()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    from efficientnet_pytorch import EfficientNet

    layouts = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
    errors: dict[str, list[float]] = {}
    for seed in range(options.seeds):
        torch.manual_seed(seed)
        network = EfficientNet.from_name(
            "efficientnet-b0", dropout_rate=0.0, drop_connect_rate=0.0
        ).train()
        x = torch.randn(options.batch, 3, options.size, options.size)
        y = torch.randint(0, 1000, (options.batch,))
        truth = gradients(network, x, y, torch.float64, torch.contiguous_format, False)
        for name, layout in layouts.items():
            for ours in (False, True):
                found = gradients(network, x, y, torch.float32, layout, ours)
                error = ((found - truth).norm() / truth.norm()).item()
                errors.setdefault(f"{name}{', opfuse' if ours else ''}", []).append(error)
    for name, found in errors.items():
        ratios = [a / b for a, b in zip(found, errors["contiguous"])]
        print(
            f"{name:24} {statistics.median(found):.2e} of the gradients' norm, "
            f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}] of eager's"
        )


if __name__ == "__main__":
    main()
