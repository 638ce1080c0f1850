"""EfficientNet-B0 training with the operators of opfuse.functional patched in by hand.

    python bench/efficientnet_patched.py [--batch 16] [--size 224] [--rounds 6] [--threads 2]

Compares, in turns and in one process of each memory setting,
  stock     efficientnet_pytorch 0.7.1 as it is
  base      what an expert does by hand: channels_last and F.silu
  patched   base with batch_norm_act, depthwise_conv2d and sigmoid_gate
and prints milliseconds a step, ratios of the same round (median, extremes), page faults, and the
peak memory of each in a process of its own. Memory is "recycled" (kept by malloc, no page faults)
or "default". Needs the model's source: tools/get_efficientnet.py.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
import types
from pathlib import Path

import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "examples" / "imagenet")]
VARIANTS = ("stock", "base", "patched")
RECYCLED = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "9000000000000",
    "MALLOC_TOP_PAD_": "67108864",
}


def norm(bn, x, activation="none", scale=None, residual=None):
    """Norm, activation, drop_connect and sum in one; counts the batch as nn.BatchNorm2d does."""
    from opfuse import functional

    if bn.training:
        bn.num_batches_tracked.add_(1)
    return functional.batch_norm_act(
        x, bn.running_mean, bn.running_var, bn.weight, bn.bias, bn.training, bn.momentum, bn.eps,
        activation, scale, residual,
    )  # fmt: skip


def depthwise(conv, x):
    from opfuse import functional

    return functional.depthwise_conv2d(
        x, conv.weight, conv.bias, tuple(conv.stride), tuple(conv.static_padding.padding)
    )


def patched_block(block, inputs, drop_connect_rate=None):
    """MBConvBlock.forward of efficientnet_pytorch 0.7.1."""
    from opfuse import functional

    args = block._block_args
    x = inputs
    if args.expand_ratio != 1:
        x = norm(block._bn0, block._expand_conv(x), "silu")
    x = norm(block._bn1, depthwise(block._depthwise_conv, x), "silu")
    squeezed = block._se_expand(F.silu(block._se_reduce(F.adaptive_avg_pool2d(x, 1))))
    x = block._project_conv(functional.sigmoid_gate(x, squeezed))
    if not (block.id_skip and args.stride == 1 and args.input_filters == args.output_filters):
        return norm(block._bn2, x)
    scale = None
    if drop_connect_rate and block.training:
        keep = 1 - drop_connect_rate
        scale = torch.floor(keep + torch.rand(x.shape[0])) / keep
    return norm(block._bn2, x, "none", scale, inputs)


def patched_features(model, inputs):
    x = norm(model._bn0, model._conv_stem(inputs), "silu")
    for index, block in enumerate(model._blocks):
        rate = model._global_params.drop_connect_rate
        x = block(x, drop_connect_rate=rate * index / len(model._blocks) if rate else rate)
    return norm(model._bn1, model._conv_head(x), "silu")


def build(variant: str, batch: int, size: int):
    """A training step without arguments, that returns its loss."""
    from efficientnet_pytorch import EfficientNet

    torch.manual_seed(0)
    model = EfficientNet.from_name("efficientnet-b0")
    x, y = torch.randn(batch, 3, size, size), torch.randint(0, 1000, (batch,))
    if variant != "stock":
        model = model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
        model.set_swish(memory_efficient=False)
        for module in model.modules():
            if hasattr(module, "_swish"):
                module._swish = torch.nn.SiLU()
    if variant == "patched":
        model.extract_features = types.MethodType(patched_features, model)
        for block in model._blocks:
            block.forward = types.MethodType(patched_block, block)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def measure(options: argparse.Namespace) -> None:
    """All variants in turns; one JSON object on stdout."""
    torch.set_num_threads(options.threads)
    steps = {name: build(name, options.batch, options.size) for name in VARIANTS}
    losses = {name: [] for name in VARIANTS}
    for name, step in steps.items():
        torch.manual_seed(1)
        losses[name] = [step(), step()]
    times = {name: [] for name in VARIANTS}
    fault = {name: [] for name in VARIANTS}
    for index in range(options.rounds):
        for name in random.Random(index).sample(VARIANTS, len(VARIANTS)):
            steps[name]()  # another variant has used cache and memory since
            before, start = faults(), time.perf_counter()
            steps[name]()
            steps[name]()
            times[name].append((time.perf_counter() - start) / 2)
            fault[name].append((faults() - before) // 2)
    print(json.dumps({"times": times, "faults": fault, "losses": losses}))


def peak(options: argparse.Namespace) -> None:
    """The peak memory of one variant, in MiB, beyond what it had before its first step."""
    torch.set_num_threads(options.threads)
    step = build(options.peak, options.batch, options.size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step()
    step()
    print(json.dumps((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024))


def again(environment: dict, *words: str):
    """This script in a process of its own; its answer."""
    done = subprocess.run(
        [sys.executable, __file__, *sys.argv[1:], *words],
        env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def report(memory: str, found: dict) -> None:
    times = found["times"]
    print(f"{memory} memory", flush=True)
    for name in VARIANTS:
        line = f"  {name:8} {1e3 * statistics.median(times[name]):8.0f} ms a step"
        for other in ("stock", "base"):
            ratios = sorted(a / b for a, b in zip(times[other], times[name]))
            line += (
                f"   x {other} {statistics.median(ratios):5.2f} [{ratios[0]:.2f} {ratios[-1]:.2f}]"
            )
        losses = " ".join(f"{loss:.6f}" for loss in found["losses"][name])
        print(f"{line}   faults {statistics.median(found['faults'][name]):8.0f}   losses {losses}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--peak", choices=VARIANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        return measure(options)
    if options.peak:
        return peak(options)
    report("recycled", again(RECYCLED, "--measure"))
    report("default", again({}, "--measure"))
    peaks = {name: again({}, "--peak", name) for name in VARIANTS}
    for name, value in peaks.items():
        print(f"  {name:8} peak memory {value:7.0f} MiB   {value / peaks['stock']:.2f} of stock")


if __name__ == "__main__":
    main()
