#!/usr/bin/env python3
"""Times one training step of two copies of the example against each other, by themselves.

Each copy's efficientnet_pytorch is imported afresh into this process, and steps of the two models
alternate in random pairs, so that both see the same machine. Prints exp(median log(old/new)) with
its interval, beside the live ratio of a report.
"""

import argparse
import importlib
import json
import math
import random
import statistics
import sys
import time
from pathlib import Path


def load_copy(folder: Path):
    """Imports `folder`/efficientnet_pytorch afresh and returns the EfficientNet class."""
    for name in [n for n in sys.modules if n.split(".")[0] == "efficientnet_pytorch"]:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("efficientnet_pytorch").EfficientNet
    finally:
        sys.path.remove(str(folder))


def make_step(efficientnet, batch: int, image_size: int):
    """A closure that runs one SGD step on fixed generated images and returns the loss."""
    import torch

    torch.manual_seed(0)
    model = efficientnet.from_name("efficientnet-b0").train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(batch, 3, image_size, image_size)
    labels = torch.randint(0, 1000, (batch,))

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def interval(log_ratios: list[float]) -> tuple[float, float, float]:
    """exp(median) with a 95 % interval from Wilcoxon's signed rank test, as opfuse's live ratio:
    order statistics of the averages of all pairs of values (Hodges and Lehmann)."""
    n = len(log_ratios)
    ranks = [1] + [0] * (n * (n + 1) // 2)  # ways to reach each sum of ranks
    for rank in range(1, n + 1):
        for total in range(len(ranks) - 1, rank - 1, -1):
            ranks[total] += ranks[total - rank]
    cut, tail = 0, ranks[0]
    while (tail + ranks[cut + 1]) <= 0.025 * 2**n:
        cut += 1
        tail += ranks[cut]
    averages = sorted((a + b) / 2 for i, a in enumerate(log_ratios) for b in log_ratios[i:])
    centre = statistics.median(log_ratios)
    return tuple(math.exp(v) for v in (centre, averages[cut], averages[-1 - cut]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--original", type=Path, required=True)
    parser.add_argument("--edited", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--pairs", type=int, default=14)
    parser.add_argument("--report", type=Path, help="report.json to print the live ratio from")
    args = parser.parse_args()

    copies = (args.original, args.edited)
    steps = [make_step(load_copy(copy), args.batch, args.image_size) for copy in copies]
    for step in steps:
        step()
    order, logs = random.Random(0), []
    for pair in range(args.pairs):
        seconds = [0.0, 0.0]
        for side in order.sample([0, 1], 2):
            start = time.perf_counter()
            steps[side]()
            seconds[side] = time.perf_counter() - start
        logs.append(math.log(seconds[0] / seconds[1]))
        print(
            f"pair {pair + 1:2d}/{args.pairs}: "
            f"original {seconds[0]:.3f} s, edited {seconds[1]:.3f} s",
            flush=True,
        )
    ratio, low, high = interval(logs)
    print(f"committed copy, by itself: {ratio:.2f}x [{low:.2f}, {high:.2f}], {args.pairs} pairs")
    if args.report:
        speed = json.loads(args.report.read_text()).get("speed", {})
        live = speed.get("headline_wall") or {}
        if live.get("ratio"):
            print(
                f"live, measured by opfuse tune: {live['ratio']:.2f}x "
                f"[{live['low']:.2f}, {live['high']:.2f}], {live['pairs']} pairs"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
