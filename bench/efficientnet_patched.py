"""EfficientNet-B0 training with the operators of opfuse.functional patched in by hand.

    python bench/efficientnet_patched.py [--batch 16] [--size 224] [--rounds 6] [--threads 2]
        [--variants stock,base,patched] [--table] [--no-peak]

Compares, in turns and in one process,
  stock     efficientnet_pytorch 0.7.1 as it is
  base      what an expert does by hand: channels_last, F.silu, and memory that is recycled (the
            caching allocator of opfuse.memory: no page faults)
  captured  channels_last, recycled memory and opfuse.backend.optimize(model): the unchanged
            source, chains found and replaced in the graph that Dynamo captures
  patched   base with the operators of opfuse.functional; single ones of them by name, joined by
            "+": norm, depthwise, gate, se (norm, activation, squeeze-and-excitation in one),
            norm_depthwise (norm, activation and depthwise convolution in one)
and prints milliseconds a step, ratios of the same round (median, extremes), page faults, losses,
and the peak memory of each in a process of its own. --table adds where the time of base and patched
goes, by operator. Needs the model's source: tools/get_efficientnet.py.
"""

from __future__ import annotations

import argparse
import json
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

from opfuse import backend, functional, memory  # noqa: E402

EVERYTHING = "norm+depthwise+se+norm_depthwise"


def counted(bn):
    """Counts the batch, as nn.BatchNorm2d does; what functional.batch_norm_act takes of it."""
    if bn.training:
        bn.num_batches_tracked.add_(1)
    return (bn.running_mean, bn.running_var, bn.weight, bn.bias, bn.training, bn.momentum, bn.eps)


def norm(parts, bn, x, activation="none", scale=None, residual=None):
    """Norm, activation, drop_connect and sum in one."""
    if "norm" in parts:
        return functional.batch_norm_act(x, *counted(bn), activation, scale, residual)
    y = F.silu(bn(x)) if activation == "silu" else bn(x)
    if scale is not None:
        y = y * scale.view(-1, 1, 1, 1)
    return y if residual is None else y + residual


def depthwise(parts, conv, x):
    if "depthwise" not in parts:
        return conv(x)
    return functional.depthwise_conv2d(
        x, conv.weight, conv.bias, tuple(conv.stride), tuple(conv.static_padding.padding)
    )


def excited(parts, block, x, statistics=None):
    """Norm, activation, squeeze-and-excitation: what lies before the projection."""
    if "se" in parts:
        reduce, expand = block._se_reduce, block._se_expand
        return functional.batch_norm_act_se(
            x, *counted(block._bn1), "silu", reduce.weight, reduce.bias, expand.weight, expand.bias,
            statistics=statistics,
        )  # fmt: skip
    x = norm(parts, block._bn1, x, "silu")
    squeezed = block._se_expand(F.silu(block._se_reduce(F.adaptive_avg_pool2d(x, 1))))
    return functional.sigmoid_gate(x, squeezed) if "gate" in parts else torch.sigmoid(squeezed) * x


def patched_block(block, inputs, drop_connect_rate=None):
    """MBConvBlock.forward of efficientnet_pytorch 0.7.1."""
    parts, args, statistics = block.parts, block._block_args, None
    if args.expand_ratio == 1:
        x = depthwise(parts, block._depthwise_conv, inputs)
    elif "norm_depthwise" in parts:
        conv = block._depthwise_conv
        x, *statistics = functional.batch_norm_act_depthwise(
            block._expand_conv(inputs), *counted(block._bn0), "silu", conv.weight,
            tuple(conv.stride), tuple(conv.static_padding.padding),
        )  # fmt: skip
    else:
        x = norm(parts, block._bn0, block._expand_conv(inputs), "silu")
        x = depthwise(parts, block._depthwise_conv, x)
    x = block._project_conv(excited(parts, block, x, statistics))
    if not (block.id_skip and args.stride == 1 and args.input_filters == args.output_filters):
        return norm(parts, block._bn2, x)
    scale = None
    if drop_connect_rate and block.training:
        keep = 1 - drop_connect_rate
        scale = torch.floor(keep + torch.rand(x.shape[0])) / keep
    return norm(parts, block._bn2, x, "none", scale, inputs)


def patched_features(model, inputs):
    x = norm(model.parts, model._bn0, model._conv_stem(inputs), "silu")
    for index, block in enumerate(model._blocks):
        rate = model._global_params.drop_connect_rate
        x = block(x, drop_connect_rate=rate * index / len(model._blocks) if rate else rate)
    return norm(model.parts, model._bn1, model._conv_head(x), "silu")


def build(variant: str, batch: int, size: int):
    """A training step without arguments, that returns its loss."""
    from efficientnet_pytorch import EfficientNet

    torch.manual_seed(0)
    model = EfficientNet.from_name("efficientnet-b0")
    x, y = torch.randn(batch, 3, size, size), torch.randint(0, 1000, (batch,))
    if variant != "stock":
        model = model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    if variant not in ("stock", "captured"):
        model.set_swish(memory_efficient=False)
        for module in model.modules():
            if hasattr(module, "_swish"):
                module._swish = torch.nn.SiLU()
    if variant not in ("stock", "base", "captured"):
        model.parts = set((EVERYTHING if variant == "patched" else variant).split("+"))
        model.extract_features = types.MethodType(patched_features, model)
        for block in model._blocks:
            block.parts = model.parts
            block.forward = types.MethodType(patched_block, block)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    run = backend.optimize(model) if variant == "captured" else model

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(run(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def use_memory_of(variant: str) -> None:
    if variant != "stock":
        memory.use_caching_allocator()
    elif memory.in_use():
        memory.stop()


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def measure(variants: list[str], options: argparse.Namespace) -> dict:
    """All variants in turns: seconds and page faults of each round, and first losses."""
    steps, found = {}, {}
    for name in variants:
        use_memory_of(name)
        steps[name] = build(name, options.batch, options.size)
        torch.manual_seed(1)
        found[name] = {"losses": [steps[name](), steps[name]()], "times": [], "faults": []}
    for index in range(options.rounds):
        for name in random.Random(index).sample(variants, len(variants)):
            use_memory_of(name)
            steps[name]()  # another variant has used cache and memory since
            before, start = faults(), time.perf_counter()
            steps[name]()
            steps[name]()
            found[name]["times"].append((time.perf_counter() - start) / 2)
            found[name]["faults"].append((faults() - before) // 2)
    return found


def high_water() -> int:
    """The most memory that this process has had, in KiB. Not ru_maxrss, which a child inherits."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def peak(options: argparse.Namespace) -> float:
    """The peak memory of one variant, in MiB, beyond what it had before its first step."""
    use_memory_of(options.peak)
    step = build(options.peak, options.batch, options.size)
    before = high_water()
    step()
    step()
    return (high_water() - before) / 1024


def again(*words: str):
    """This script in a process of its own; its answer."""
    command = [sys.executable, __file__, *sys.argv[1:], *words]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def report(found: dict) -> None:
    for name, row in found.items():
        line = f"  {name:8} {1e3 * statistics.median(row['times']):8.0f} ms a step"
        for other in ("stock", "base"):
            if other in found:
                ratios = sorted(a / b for a, b in zip(found[other]["times"], row["times"]))
                middle = statistics.median(ratios)
                line += f"   x {other} {middle:5.2f} [{ratios[0]:.2f} {ratios[-1]:.2f}]"
        losses = " ".join(f"{loss:.6f}" for loss in row["losses"])
        print(f"{line}   faults {statistics.median(row['faults']):8.0f}   losses {losses}")


def table(variant: str, options: argparse.Namespace, rows: int = 18, steps: int = 3) -> None:
    """Where the time goes, by operator: milliseconds a step and calls, of torch's profiler."""
    use_memory_of(variant)
    step = build(variant, options.batch, options.size)
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(steps):
            step()
    print(f"\n{variant}: milliseconds a step, calls a step, operator")
    events = sorted(profile.key_averages(), key=lambda e: -e.self_cpu_time_total)
    for event in events[:rows]:
        print(
            f"  {event.self_cpu_time_total / 1e3 / steps:8.1f} {event.count // steps:6d}"
            f"  {event.key[:70]}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--variants", default="stock,base,patched", help="with commas between them")
    parser.add_argument("--table", action="store_true", help="where the time goes, by operator")
    parser.add_argument("--no-peak", action="store_true", help="leave out the peak memory")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    variants = options.variants.split(",")
    if options.peak:
        return print(json.dumps(peak(options)))
    report(measure(variants, options))
    if options.table:
        for name in variants:
            if name != "stock":
                table(name, options)
    if not options.no_peak:
        peaks = {name: again("--peak", name) for name in variants}
        for name, value in peaks.items():
            share = f"   {value / peaks['stock']:.2f} of stock" if "stock" in peaks else ""
            print(f"  {name:8} peak memory {value:7.0f} MiB{share}")


if __name__ == "__main__":
    main()
