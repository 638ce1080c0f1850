"""What opfuse gains on whole models, against the model as it is and against torch.compile.

    python bench/speedup/speedup.py [MODEL…] [--rounds 9] [--seconds 300] [--no-compile]
        [--json FILE]

For each model, in a process of its own and in turns within a round:
  stock     as it is, memory of the default allocator, the optimizer's default step
  opfuse    what `opfuse tune --levers all` can keep: opfuse.optimize(model), the caching allocator,
            channels_last where there are 2-d convolutions, the optimizer's fused step
  compile   torch.compile with the same layout, allocator and optimizer; left out where its first
            step, training or inference, takes longer than --seconds
Prints a Markdown table: the median of stock / opfuse and of compile / opfuse in the same round, the
interval of its ranks (95 %), first-step seconds. A row whose whole interval lies below 1 is marked.
Needs transformers, timm and the model source of tools/get_efficientnet.py.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "python")]

import networks  # noqa: E402

from opfuse import backend, memory  # noqa: E402

SIDES = ("stock", "opfuse", "compile")
HEAD = """\
| model | stock ms | opfuse ms | stock / opfuse | compile / opfuse | first steps s | replaced |
|---|---|---|---|---|---|---|"""


def use_memory_of(side: str) -> None:
    if side != "stock":
        memory.use_caching_allocator()
    elif memory.in_use():
        memory.stop()


def has_convolutions(network: torch.nn.Module) -> bool:
    return any(isinstance(module, torch.nn.Conv2d) for module in network.modules())


def build(side: str, network: torch.nn.Module, loss_of, training: bool):
    """One step without arguments: training (AdamW), or a forward without gradients."""
    network = copy.deepcopy(network).train(training)
    if side != "stock" and has_convolutions(network):
        network = network.to(memory_format=torch.channels_last)
    run = {
        "stock": lambda: network,
        "opfuse": lambda: backend.optimize(network),
        "compile": lambda: torch.compile(network),
    }[side]()
    if not training:

        def forward() -> None:
            with torch.no_grad():
                loss_of(run)

        return forward
    fused = {"fused": True} if side != "stock" else {}
    optimizer = torch.optim.AdamW(network.parameters(), 1e-4, **fused)

    def step() -> None:
        optimizer.zero_grad()
        loss_of(run).backward()
        optimizer.step()

    return step


def timed(step) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def interval(ratios: list[float]) -> list[float]:
    """Median and the order statistics around it: 95 % from 6 pairs on, extremes below."""
    ordered = sorted(ratios)
    n = len(ordered)
    skip = max(0, int((n - 1.96 * n**0.5) / 2))
    return [statistics.median(ordered), ordered[skip], ordered[n - 1 - skip]]


def measure(name: str, training: bool, options: argparse.Namespace) -> dict:
    torch.manual_seed(0)
    network, loss_of = networks.MODELS[name]()
    sides = [side for side in SIDES if side != "compile" or not options.no_compile]
    steps, first = {}, {}
    for side in list(sides):
        use_memory_of(side)
        torch.manual_seed(0)
        steps[side] = build(side, network, loss_of, training)
        first[side] = timed(steps[side])
        if side == "compile" and first[side] > options.seconds:
            sides.remove(side)
            continue
        for _ in range(3):
            steps[side]()
    times: dict[str, list[float]] = {side: [] for side in sides}
    for index in range(options.rounds):
        for side in random.Random(index).sample(sides, len(sides)):
            use_memory_of(side)
            steps[side]()  # another side has used cache and memory since
            times[side].append(timed(steps[side]))
    ratio = lambda a, b: interval([x / y for x, y in zip(times[a], times[b])])  # noqa: E731
    found = {"ms": {side: 1e3 * statistics.median(times[side]) for side in sides},
             "first_s": first, "stock": ratio("stock", "opfuse")}  # fmt: skip
    if "compile" in times:
        found["compile"] = ratio("compile", "opfuse")
    replaced: dict[str, int] = {}
    for report in backend.reports():
        for rule, count in report.replaced().items():
            replaced[rule] = max(replaced.get(rule, 0), count)
    return {**found, "replaced": replaced}


def cell(found: dict, against: str) -> str:
    if against not in found:
        return "not finished"
    middle, low, high = found[against]
    return f"{middle:.2f}x [{low:.2f}, {high:.2f}]" + (" *slower*" if high < 1 else "")


def line(name: str, found: dict) -> str:
    chains = ", ".join(f"{count} {rule}" for rule, count in sorted(found["replaced"].items()))
    first = ", ".join(f"{seconds:.1f}" for seconds in found["first_s"].values())
    return (
        f"| {name} | {found['ms']['stock']:.0f} | {found['ms']['opfuse']:.0f} | "
        f"{cell(found, 'stock')} | {cell(found, 'compile')} | {first} | {chains or 'nothing'} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--json")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--one", choices=("training", "inference"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.models or list(networks.MODELS)
    unknown = [name for name in names if name not in networks.MODELS]
    if unknown:
        known = ", ".join(networks.MODELS)
        print(f"speedup.py: expected of {known}, found {unknown[0]}", file=sys.stderr)
        return 2
    if options.one:
        print(json.dumps(measure(names[0], options.one == "training", options)))
        return 0
    results: dict[str, dict] = {}
    for kind in ("training", "inference"):
        threads = torch.get_num_threads()
        print(f"\n{kind.capitalize()}, {threads} threads, torch {torch.__version__}:\n")
        print(HEAD)
        for name in names:
            words = [sys.executable, __file__, name, "--one", kind, "--rounds",
                     str(options.rounds), "--seconds", str(options.seconds)]  # fmt: skip
            words += ["--no-compile"] if options.no_compile else []
            try:
                done = subprocess.run(
                    words, capture_output=True, text=True, timeout=3 * options.seconds
                )
            except subprocess.TimeoutExpired:
                print(
                    f"| {name} | | | not finished in {3 * options.seconds:.0f} s | | | |",
                    flush=True,
                )
                continue
            if done.returncode != 0:
                print(
                    f"| {name} | | | failed: {done.stderr.strip().splitlines()[-1]} | | | |",
                    flush=True,
                )
                continue
            found = json.loads(done.stdout.splitlines()[-1])
            results[f"{name} {kind}"] = found
            print(line(name, found), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
