"""Which chains current models contain: one recorded training step each, every find counted.

`python census.py OPFUSE OUT [MODEL…]` runs `OPFUSE tune --dry-run` on models.py for each model and
writes OUT/census.json and a table. Where truth.json labels a model, misses and false finds are
listed. Its numbers come from reading the models' sources, before anything was matched; each piece
of work is counted once, under the longest chain. Needs the packages of models.py.
"""

import collections
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
FAMILIES = {
    "drop_connect_add": "drop_path_add", "batch_norm_drop_connect_add": "drop_path_add",
    "rope_interleaved": "rope",
}  # fmt: skip


def finds(report: dict) -> dict[str, int]:
    """Calls by rule, whatever became of them; an input of another shape is another function."""
    counts = collections.Counter()
    for site in report["sites"]:
        refusal = site.get("refusal")
        if not refusal or refusal["row"] != 19:
            counts[site["rule"]] += site["calls"]
    return dict(sorted(counts.items()))


def by_family(counts: dict[str, int]) -> collections.Counter:
    """The labels know one name where the rulebook has several for ways to write it."""
    family = collections.Counter()
    for rule, count in counts.items():
        family["attention" if rule.startswith("attention") else FAMILIES.get(rule, rule)] += count
    return family


def run(opfuse: str, model: str, out: Path) -> dict:
    command = [opfuse, "tune", "--dry-run", "-q", "-f", "-o", str(out / model), "--"]
    command += [sys.executable, str(HERE / "models.py"), model, "4"]
    done = subprocess.run(command, capture_output=True, text=True)
    report = out / model / "report.json"
    if done.returncode != 0 or not report.exists():
        lines = done.stderr.strip().splitlines()
        return {"error": lines[-1] if lines else f"exit status {done.returncode}"}
    found = json.loads(report.read_text())
    return {"operators": found.get("operators"), "finds": finds(found),
            "replaced": sum(site.get("refusal") is None for site in found["sites"])}  # fmt: skip


def judged(model: str, found: dict[str, int], truth: dict) -> list[str]:
    """Differences to the labels of this model; rules that the labels do not name are not judged."""
    said = []
    found = by_family(found)
    labels = by_family(truth.get(model, {}).get("counts", {}))
    for rule, count in labels.items():
        if found[rule] < count:
            said.append(f"misses {count - found[rule]} of {count} {rule}")
        # A norm inside add_rms_norm is found as both.
        held = labels["add_rms_norm"] if rule == "rms_norm" else 0
        if found[rule] > count + held:
            said.append(f"finds {found[rule] - count - held} {rule} too many")
    return said


def main() -> None:
    opfuse, out = sys.argv[1], Path(sys.argv[2])
    listing = subprocess.run([sys.executable, HERE / "models.py", "--list"],
                             capture_output=True, text=True, check=True)  # fmt: skip
    models = sys.argv[3:] or listing.stdout.split()
    truth = json.loads((HERE / "truth.json").read_text())
    results = {}
    for model in models:
        results[model] = one = run(opfuse, model, out)
        text = ", ".join(f"{rule} {count}" for rule, count in one.get("finds", {}).items())
        print(f"{model}: {one.get('error') or text or 'nothing'}", flush=True)
        for difference in judged(model, one.get("finds", {}), truth) if "finds" in one else []:
            print(f"  {difference}", flush=True)
        out.mkdir(parents=True, exist_ok=True)
        (out / "census.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
