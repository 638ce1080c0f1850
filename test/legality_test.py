"""Every row of docs/legality.md that a user can meet, in running scripts with the real program.

scripts/legality holds the cases, each marked with what must be said of it beside a twin that
passes. A script runs once, with replacing on: one step validated, a few measured.
"""

import ast
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import ROOT, SCRIPTS

CASES = SCRIPTS / "legality"
_MARK = re.compile(r"#\s(planned|row (\d+): (.*?))(?:\s+#.*)?$")


@dataclass
class Mark:
    """What opfuse must say of the lines first..last."""

    script: str
    name: str
    first: int
    last: int
    row: int | None  # None: planned
    words: str


def marks_of(path: Path) -> list[Mark]:
    text = path.read_text()
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
    marks = []
    for number, line in enumerate(text.splitlines(), 1):
        found = _MARK.search(line)
        if not found:
            continue
        node = next(node for node in nodes if node.lineno == number)
        name = getattr(node, "name", ast.unparse(node)[:20])
        row = int(found[2]) if found[2] else None
        marks.append(Mark(path.name, name, number, node.end_lineno, row, found[3] or ""))
    return marks


MARKED = [
    "dataflow.py", "exported.py", "places.py", "toplevel.py", "loop.py", "functions.py",
    "modes.py", "odd_tensors.py", "derivatives.py",
]  # fmt: skip
MARKS = [mark for script in MARKED for mark in marks_of(CASES / script)]


@dataclass
class Run:
    """A script under opfuse, with its report and the functions whose code was exchanged."""

    stdout: list[str]
    stderr: str
    report: dict
    folder: Path
    changed: list[int]


class Program:
    """Runs `opfuse` and plain scripts."""

    def __init__(self, folder: Path):
        named = os.environ.get("OPFUSE_BIN")
        found = [named] if named else sorted(map(str, ROOT.glob("build/*/bin/opfuse")))
        if not found:
            pytest.skip("opfuse is not built: make build, or set OPFUSE_BIN")
        self.binary = found[0]
        self.folder = folder
        self.runs: dict[str, Run] = {}

    def plain(self, script: str, *arguments: str) -> list[str]:
        done = self._run([sys.executable, str(CASES / script), *arguments])
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def tune(self, script: str, *flags: str, arguments: tuple[str, ...] = ()) -> Run:
        folder = self.folder / f"{len(list(self.folder.iterdir()))}-{script}"
        changed = Path(f"{folder}.changed")
        command = [self.binary, "tune", *flags, "-o", str(folder), "--"]
        command += [sys.executable, str(CASES / script), *arguments]
        done = self._run(command, TEST_REPORT=str(changed))
        assert done.returncode == 0, done.stderr
        report = json.loads((folder / "report.json").read_text())
        lines = json.loads(changed.read_text())["changed"] if changed.exists() else []
        return Run(done.stdout.splitlines(), done.stderr, report, folder, lines)

    def tuned(self, script: str) -> Run:
        """The one run of a script that all of its cases are read from."""
        if script not in self.runs:
            self.runs[script] = self.tune(script)
        return self.runs[script]

    def explain(self, what: str, run: Run) -> str:
        done = self._run([self.binary, "explain", what, "--report", str(run.folder)])
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _run(self, command: list[str], **environment: str) -> subprocess.CompletedProcess:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        return subprocess.run(
            command, capture_output=True, text=True, timeout=240, env=environment, cwd=self.folder
        )


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Program:
    return Program(tmp_path_factory.mktemp("legality"))


def sites_in(report: dict, mark: Mark) -> list[dict]:
    def inside(file: str, lines: list[int]) -> bool:
        return file.endswith("/" + mark.script) and any(
            mark.first <= line <= mark.last for line in lines
        )

    return [s for s in report["sites"] if inside(s["file"], [s["line"]])] + [
        m for m in report["near_misses"] if inside(m["file"], [m["line"]])
    ]


def refusal_of(site: dict) -> tuple[int, str] | None:
    """Row and reason of a refused site or a near miss."""
    found = site.get("refusal", site)
    return (found["row"], found["reason"]) if found is not None else None


@pytest.mark.parametrize("mark", MARKS, ids=lambda mark: f"{mark.script[:-3]}-{mark.name}")
def test_a_case_is_judged_as_marked(mark, program):
    run = program.tuned(mark.script)
    refusals = [refusal_of(site) for site in sites_in(run.report, mark)]
    assert refusals, f"nothing was said of {mark}"
    if mark.row is None:
        assert None in refusals, refusals
    else:
        assert None not in refusals, "a site is planned that must be refused"
        assert any(row == mark.row and mark.words in reason for row, reason in refusals), refusals


def function_around(path: Path, line: int) -> int:
    """The first line of the innermost function that holds `line`."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]
    return max(node.lineno for node in nodes if node.lineno <= line <= node.end_lineno)


@pytest.mark.parametrize("script", MARKED)
def test_only_planned_code_is_ever_exchanged(script, program):
    run = program.tuned(script)
    planned = [mark for mark in MARKS if mark.script == script and mark.row is None]
    kept = [site["line"] for site in run.report["sites"] if site["refusal"] is None]
    assert len(kept) == len(planned)
    assert set(run.changed) == {function_around(CASES / script, line) for line in kept}
    if planned:
        validation = run.report["verdict"]["validation"]
        assert validation["accepted"] and validation["sites_replaced"] == len(planned)
        assert run.report["verdict"]["step"]["accepted"]


@pytest.mark.parametrize("script", MARKED)
def test_the_script_computes_what_it_computes_alone(script, program):
    """Bitwise up to the first switch; for the whole run where nothing may be switched."""
    run, plain = program.tuned(script), program.plain(script)
    switched = any(site["refusal"] is None for site in run.report["sites"])
    exact = 3 if switched else len(plain)
    assert run.stdout[:exact] == plain[:exact] and len(run.stdout) == len(plain) == 8
    for a, b in zip(run.stdout, plain, strict=True):
        assert float.fromhex(a) == pytest.approx(float.fromhex(b), rel=1e-4)
    assert "Warning" not in run.stderr and "failed" not in run.stderr


def test_a_domain_is_said_loudly_and_strict_keeps_to_total_operators(program):
    loud = program.tune("integers_later.py", "--dry-run")
    assert loud.report["sites"][0]["refusal"] is None
    assert loud.report["sites"][0]["domain"] == "floating"
    assert "takes floating only and raises otherwise" in loud.stderr
    strict = program.tune("integers_later.py", "--strict")
    row, reason = refusal_of(strict.report["sites"][0])
    assert row == 14 and "--strict" in reason and "floating" in reason
    assert strict.changed == [] and strict.stdout == loud.stdout
    assert strict.stdout[-1].startswith("[0.0, 0.73")


def test_exchanging_the_activation_after_the_switch_is_right(program):
    """Code objects are edited, not modules: what set_swish() puts in runs as it stands there."""
    run = program.tune("swaps.py", arguments=("60",))
    plain = program.plain("swaps.py", "60")
    (mark,) = marks_of(CASES / "swaps.py")
    assert [refusal_of(site) for site in sites_in(run.report, mark)] == [None]
    assert run.changed == [mark.first + 1]
    assert run.report["verdict"]["validation"]["accepted"]
    assert run.stdout[:3] == plain[:3]
    for a, b in zip(run.stdout, plain, strict=True):
        assert float.fromhex(a) == pytest.approx(float.fromhex(b), rel=1e-4)


def test_the_users_objects_stay_what_they_are(program):
    """Hooks, copies, pickles, traces, exports and names while the edited code is in place."""
    run = program.tune("identity.py")
    for mark in marks_of(CASES / "identity.py"):
        refusals = [refusal_of(site) for site in sites_in(run.report, mark)]
        if mark.row is None:
            assert None in refusals, (mark, refusals)
        else:
            assert any(r and r[0] == mark.row for r in refusals), (mark, refusals)
    in_three = [s for s in run.report["sites"] if s["rule"] == "silu" and s["refusal"] is None]
    assert len(in_three) == 4  # that of the module, and three that follow one another
    facts = json.loads(run.stdout[-1])
    assert len(facts) > 10 and all(facts.values()), facts


def test_once_ends_the_script_after_the_decision(program):
    run = program.tune("swaps.py", "--once", arguments=("100000",))
    assert run.report["outcome"] in ("tuned", "not_faster", "undecided")
    assert run.report["verdict"]["validation"]["accepted"] and len(run.stdout) < 100000


def test_explain_names_the_near_miss_and_why(program):
    run = program.tuned("dataflow.py")
    by_name = {mark.name: mark for mark in MARKS if mark.script == "dataflow.py"}
    everything = program.explain("silu", run)
    for words in ("squeeze-and-excitation gate", "QuickGELU", "Hardswish", "gate (GLU)", "row 5"):
        assert words in everything, words
    for name, words in (
        ("gate_of_chunks", "the multiplied value is another tensor"),
        ("quick_gelu", "quick_gelu has no Python name"),
        ("written", "is written by aten.add_"),
        ("also_read", "is also read by aten.add"),
        ("shown", "an inner value is kept"),
    ):
        mark = by_name[name if name != "shown" else "Shown"]
        said = [program.explain(f"dataflow.py:{line}", run) for line in lines_of(run, mark)]
        assert said and all(words in text for text in said), said


def lines_of(run: Run, mark: Mark) -> set[int]:
    return {site["line"] for site in sites_in(run.report, mark)}
