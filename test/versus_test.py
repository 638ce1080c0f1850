"""tune --versus compile: torch.compile on the same script, in a run of its own."""

import sys

from live import MEASURED

COMPILE = "compile:aot_eager"  # Dynamo and AOTAutograd without a C++ compiler's minutes


def test_torch_compile_is_measured_after_the_tuning(program, project, plain_output):
    run = program("tune", "--once", "--budget", "24", "--versus", COMPILE, cwd=project,
                  command=[sys.executable, "main.py", 80])  # fmt: skip
    assert run.returncode == 0, run.stderr
    versus = run.report["versus"]
    assert (versus["name"], versus["backend"]) == ("torch.compile", "aot_eager")
    assert versus["outcome"] in MEASURED, run.stderr
    assert versus["speed"]["choosing"]["pairs"] >= 3
    assert versus["first_step_s"] > versus["plain_step_s"] > 0
    assert versus["sentence"].startswith("torch.compile (aot_eager): ")
    assert "versus torch.compile (aot_eager): " in run.stderr
    assert "runs the command once more" in run.stderr
    # The tuning itself is what it is without the flag.
    rules = [site["rule"] for site in run.report["sites"]]
    assert [rule for rule in rules if rule != "sgd_step"] == ["silu", "silu"]
    assert run.stdout.splitlines(keepends=True)[:3] == plain_output[:3]


def test_a_run_that_ends_before_it_is_measured_is_said(program, project):
    run = program("tune", "--once", "--budget", "24", "--versus", "compile:nonsense", cwd=project,
                  command=[sys.executable, "main.py", 80])  # fmt: skip
    assert run.returncode == 0, run.stderr
    versus = run.report["versus"]
    assert versus["speed"]["choosing"]["pairs"] == 0
    assert "not measured" in versus["sentence"]
    assert run.report["outcome"] in MEASURED


def test_another_word_is_refused_before_anything_runs(program, project):
    run = program("tune", "--versus", "jit", cwd=project, command=[sys.executable, "main.py", 3])
    assert run.returncode == 2
    assert "--versus: expected compile or compile:BACKEND, found 'jit'" in run.stderr
    assert run.stdout == ""
