"""Times each operator against its composition, in one process and in turns, for `opfuse bench`.

    python -m opfuse.bench FOLDER|FILE.json… [--threads N] [--seconds S] [--dtypes f32,bf16]

Prints a line for the machine and one for each case, with --json as JSON objects. Ratios are medians
over rounds of (small operators / fused) of the same round, with the quartiles. With 1 thread the
clock is the thread's CPU time, which a busy machine disturbs least; with more it is wall time.
Memory is the allocator's that the process was started with: `opfuse bench` runs it with both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from opfuse import cases, compositions, functional, library

_made: dict[tuple, torch.Tensor] = {}


def call(function: Callable, arguments: dict, backward: bool) -> None:
    """One forward, and with `backward` one backward with a cotangent of ones."""
    result = function(**arguments)
    if not backward:
        return
    results = result if isinstance(result, tuple) else (result,)
    results = tuple(r for r in results if r.requires_grad)  # statistics have no gradient
    trained = [v for v in arguments.values() if isinstance(v, torch.Tensor) and v.requires_grad]
    torch.autograd.grad(results, trained, ones_like(results))


def ones_like(results: tuple) -> list:
    """Cotangents laid out as the results, made once for each shape: they are not what is timed."""
    keys = [(r.shape, r.stride(), r.dtype) for r in results]
    for key, r in zip(keys, results):
        if key not in _made:
            _made[key] = torch.ones_like(r)
    return [_made[key] for key in keys]


def clock(threads: int) -> Callable[[], float]:
    return time.thread_time if threads == 1 else time.perf_counter


def timed(function: Callable[[], None], repeats: int, now: Callable[[], float]) -> float:
    start = now()
    for _ in range(repeats):
        function()
    return (now() - start) / repeats


def repeats_for(function: Callable[[], None], seconds: float, now: Callable[[], float]) -> int:
    """How many calls take about `seconds`, after one call to warm up."""
    function()
    once = max(timed(function, 1, now), 1e-7)
    if once < seconds / 20:
        once = max(timed(function, max(1, int(seconds / 20 / once)), now), 1e-7)
    return max(1, int(seconds / once))


def compare(
    old: Callable[[], None], new: Callable[[], None], rounds: int, seconds: float, threads: int
) -> dict:
    """`rounds` rounds of both in turns, each about `seconds` / (2 * rounds) long."""
    now, share = clock(threads), seconds / (2 * rounds)
    counts = [repeats_for(f, share, now) for f in (old, new)]
    ratios, times = [], []
    for index in range(rounds):
        pair = [0.0, 0.0]
        for side in (0, 1) if index % 2 else (1, 0):
            pair[side] = timed((old, new)[side], counts[side], now)
        ratios.append(pair[0] / pair[1])
        times.append(pair)
    quartiles = statistics.quantiles(ratios, n=4)
    return {
        "ratio": statistics.median(ratios),
        "low": quartiles[0],
        "high": quartiles[2],
        "old_us": 1e6 * statistics.median(t[0] for t in times),
        "new_us": 1e6 * statistics.median(t[1] for t in times),
    }


def moved_bytes(arguments: dict, results: tuple, backward: bool) -> int:
    """Bytes that a perfect operator reads and writes once: inputs and results, and backward the
    inputs again, the cotangents and the gradients.
    """

    def size(tensors) -> int:
        return sum(t.numel() * t.element_size() for t in tensors)

    inputs = [v for v in arguments.values() if isinstance(v, torch.Tensor)]
    trained = [t for t in inputs if t.requires_grad]
    total = size(inputs) + size(results)
    return total + (size(inputs) + size(results) + size(trained) if backward else 0)


def copy_rate(threads: int, megabytes: int = 256) -> float:
    """Bytes a second, read and written, of copying between two buffers beyond the cache."""
    source = torch.ones(megabytes << 18)
    target = torch.empty_like(source)
    target.copy_(source)
    best = min(timed(lambda: target.copy_(source), 1, clock(threads)) for _ in range(5))
    return 2 * source.numel() * 4 / best


def bench_case(case: cases.Case, dtype: str, options: argparse.Namespace, rate: float) -> dict:
    old, new = getattr(compositions, case.operator), getattr(functional, case.operator)
    arguments = case.arguments(cases.DTYPES[dtype])
    row = {"case": case.title, "operator": case.operator, "dtype": dtype}
    for name, backward in (("forward", False), ("both", True)):
        with torch.set_grad_enabled(backward):
            result = new(**arguments)
            results = result if isinstance(result, tuple) else (result,)
            row["elements"] = results[0].numel()
            measured = compare(
                lambda b=backward: call(old, arguments, b),
                lambda b=backward: call(new, arguments, b),
                options.rounds, options.seconds, options.threads,
            )  # fmt: skip
        moved = moved_bytes(arguments, results, backward)
        measured["of_copy_rate"] = moved / (measured["new_us"] * 1e-6) / rate
        row[name] = measured
    return row


def line_of(row: dict) -> str:
    """One row as text: ratio with quartiles, time and share of the copy rate, both directions."""
    parts = [f"{row['case'][:66]:66} {row['dtype']:4}"]
    for name in ("forward", "both"):
        m = row[name]
        parts.append(
            f"{m['ratio']:6.2f} [{m['low']:5.2f} {m['high']:5.2f}] {m['new_us']:10.1f} us"
            f" {m['of_copy_rate']:5.2f}"
        )
    return "  ".join(parts)


def heading(machine: dict) -> str:
    words = "{memory} memory, {threads} thread(s), level {isa}, torch {torch}".format(**machine)
    rate = machine["copy_bytes_per_s"] / 1e9
    columns = "x small  [quartiles]      fused   of copy"
    return (
        f"{words}, copy {rate:.1f} GB/s\n{'':66} {'':4}  forward: {columns}    forward + backward"
    )


def operators_of(places: list[Path]) -> list[cases.Operator]:
    found = []
    for place in places:
        found += (
            cases.read_folder(place) if place.is_dir() else [cases.read_operator(place.read_text())]
        )
    return found


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m opfuse.bench")
    parser.add_argument("places", nargs="+", type=Path)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=1.0, help="for each comparison")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--memory", default="unknown", help="a name for the allocator in use")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)
    torch.set_num_threads(options.threads)
    rate = copy_rate(options.threads)
    machine = {
        "isa": library.isa(),
        "threads": options.threads,
        "torch": torch.__version__,
        "memory": options.memory,
        "copy_bytes_per_s": rate,
    }
    print(json.dumps(machine) if options.json else heading(machine), flush=True)
    for operator in operators_of(options.places):
        for case in operator.bench:
            for dtype in options.dtypes.split(","):
                row = bench_case(case, dtype, options, rate)
                print(json.dumps(row) if options.json else line_of(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
