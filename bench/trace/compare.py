"""Readers of one trace file against each other, interleaved; prints medians and ratios.

    python bench/trace/compare.py opfuse_read_speed TRACE [ROUNDS]

One thread and two threads of opfuse, simdjson On-Demand on the whole file where the program was
built with it, and Python's json (once: it takes long). CPU seconds and wall seconds; a busy machine
makes wall seconds of two threads meaningless.
"""

import json
import statistics
import subprocess
import sys
import time

PYTHON_READER = """
import gzip, json, resource, sys, time
begin = time.process_time()
with (gzip.open if sys.argv[1].endswith("gz") else open)(sys.argv[1], "rb") as file:
    data = json.load(file)
events = data["traceEvents"] if isinstance(data, dict) else data
columns = [[], [], []]
for event in events:
    columns[0].append(event.get("name"))
    columns[1].append(event.get("ts"))
    columns[2].append(event.get("dur"))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
seconds = time.process_time() - begin
print(json.dumps({"wall_s": seconds, "cpu_s": seconds, "events": len(events), "peak_mb": peak}))
"""


def run(command: list[str]) -> dict:
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    program, trace = sys.argv[1], sys.argv[2]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    readers = {
        "opfuse, 1 thread": [program, trace, "opfuse", "1"],
        "opfuse, 2 threads": [program, trace, "opfuse", "2"],
    }
    simdjson = [program, trace, "simdjson"]
    if not trace.endswith("gz") and subprocess.run(simdjson, capture_output=True).returncode == 0:
        readers["simdjson On-Demand"] = simdjson
    results: dict[str, list[dict]] = {name: [] for name in readers}
    for _ in range(rounds):
        for name, command in readers.items():
            results[name].append(run(command))
    results["Python json"] = [run([sys.executable, "-c", PYTHON_READER, trace])]
    print(time.strftime("%Y-%m-%d %H:%M"), trace)
    base = statistics.median(r["cpu_s"] for r in results["opfuse, 1 thread"])
    for name, runs in results.items():
        cpu = statistics.median(r["cpu_s"] for r in runs)
        wall = statistics.median(r["wall_s"] for r in runs)
        print(
            f"{name:20} cpu {cpu:8.3f} s  wall {wall:8.3f} s  {cpu / base:6.2f}x  "
            f"peak {max(r['peak_mb'] for r in runs):7.0f} MB  columns "
            f"{runs[0].get('column_mb', 0):6.0f} MB  {runs[0]['events']} events"
        )


if __name__ == "__main__":
    main()
