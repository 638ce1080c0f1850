"""The program as a user meets it: status, stdout, signals, messages. No training here."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

OPFUSE = os.environ.get("OPFUSE_BIN", "")


def opfuse(*words, cwd, env=None, **more):
    assert OPFUSE, "expected the program's path in OPFUSE_BIN"
    environment = {**os.environ, **(env or {})}
    return subprocess.run(
        [OPFUSE, *words], cwd=cwd, env=environment, capture_output=True, timeout=240, **more
    )


def test_help_teaches_the_first_command(tmp_path):
    done = opfuse("--help", cwd=tmp_path)
    assert done.returncode == 0
    assert b"opfuse tune -- python main.py" in done.stdout
    for verb in (b"tune", b"run", b"apply", b"record", b"compare", b"rules", b"explain", b"doctor"):
        assert verb in done.stdout


def test_each_verb_explains_itself(tmp_path):
    for verb in ("tune", "run", "apply", "record", "compare", "rules", "explain", "doctor"):
        done = opfuse(verb, "--help", cwd=tmp_path)
        assert done.returncode == 0 and f"Usage: opfuse {verb}".encode() in done.stdout, verb


def test_no_command_is_a_usage_error(tmp_path):
    done = opfuse("tune", cwd=tmp_path)
    assert done.returncode == 2
    assert b"expected a command" in done.stderr


def test_unknown_flag_is_named(tmp_path):
    done = opfuse("tune", "--budgte", "3", "--", "true", cwd=tmp_path)
    assert done.returncode != 0
    assert b"budgte" in done.stderr


def test_command_not_found_is_127_and_leaves_no_directory(tmp_path):
    done = opfuse("tune", "--", "no-such-program", cwd=tmp_path)
    assert done.returncode == 127
    assert b"cannot start 'no-such-program'" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_file_that_is_not_executable_is_126(tmp_path):
    (tmp_path / "plain").write_text("text")
    done = opfuse("tune", "--", "./plain", cwd=tmp_path)
    assert done.returncode == 126


@pytest.mark.parametrize("code", [0, 1, 3, 77])
def test_exit_status_is_the_commands_own(tmp_path, code):
    done = opfuse("tune", "--", sys.executable, "-c", f"raise SystemExit({code})", cwd=tmp_path)
    assert done.returncode == code


def test_death_by_a_signal_is_128_plus_its_number(tmp_path):
    script = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    done = opfuse("tune", "--", sys.executable, "-c", script, cwd=tmp_path)
    assert done.returncode == 128 + signal.SIGKILL


def test_stdin_and_stdout_pass_through_byte_for_byte(tmp_path):
    data = bytes(range(256)) * 40
    script = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())"
    done = opfuse("tune", "--", sys.executable, "-c", script, cwd=tmp_path, input=data)
    assert done.stdout == data


def test_sigterm_reaches_the_command(tmp_path):
    script = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *a: sys.exit(9))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [OPFUSE, "tune", "--", sys.executable, "-c", script],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 9


def test_ctrl_c_is_the_commands_to_handle(tmp_path):
    script = (
        "import sys, time\n"
        "print('ready', flush=True)\n"
        "try: time.sleep(60)\n"
        "except KeyboardInterrupt: sys.exit(11)\n"
    )
    process = subprocess.Popen(
        [OPFUSE, "tune", "--", sys.executable, "-c", script],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdout.readline() == b"ready\n"
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=30) == 11


def test_a_script_without_torch_says_so_and_keeps_its_status(tmp_path):
    done = opfuse("tune", "--", sys.executable, "-c", "print('hello')", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, b"hello\n")
    assert b"torch was never imported" in done.stderr


@pytest.mark.parametrize("flag", ["-E", "-I"])
def test_a_python_that_ignores_the_environment_is_explained(tmp_path, flag):
    done = opfuse("tune", "--", sys.executable, flag, "-c", "raise SystemExit(4)", cwd=tmp_path)
    assert done.returncode == 4
    assert b"-E" in done.stderr and b"PYTHONPATH" in done.stderr


def test_disabled_is_the_plain_command(tmp_path):
    script = "import os; print('OPFUSE_RUN_DIR' in os.environ)"
    command = ("tune", "--", sys.executable, "-c", script)
    done = opfuse(*command, cwd=tmp_path, env={"OPFUSE_DISABLE": "1"})
    assert (done.stdout, done.stderr) == (b"False\n", b"")
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_is_not_empty_is_refused_without_force(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep")
    done = opfuse("tune", "-o", "out", "--", "true", cwd=tmp_path)
    assert done.returncode == 2
    assert b"not empty" in done.stderr and b"-f" in done.stderr
    assert (tmp_path / "out" / "mine.txt").read_text() == "keep"


def test_an_output_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "out").write_text("keep")
    done = opfuse("tune", "-o", "out", "--", "true", cwd=tmp_path)
    assert done.returncode == 2
    assert (tmp_path / "out").read_text() == "keep"


def test_run_needs_a_plan(tmp_path):
    done = opfuse("run", "--", "true", cwd=tmp_path)
    assert done.returncode == 2 and b"--plan" in done.stderr


def test_compare_names_the_damaged_report(tmp_path):
    (tmp_path / "a.json").write_text("{")
    done = opfuse("compare", "a.json", "a.json", cwd=tmp_path)
    assert done.returncode == 6
    assert b"a.json" in done.stderr


def test_apply_without_a_report_says_where_it_looked(tmp_path):
    done = opfuse("apply", cwd=tmp_path)
    assert done.returncode == 5
    assert b"opfuse-report/latest" in done.stderr


def test_explain_prints_the_rule(tmp_path):
    done = opfuse("explain", "silu", cwd=tmp_path)
    assert done.returncode == 0
    assert b"sigmoid" in done.stdout


def report_with_places() -> dict:
    site = {"id": 3, "rule": "silu", "calls": 2, "file": "/home/me/net/model.py", "line": 20,
            "chain_file": "/home/me/net/parts.py", "chain_line": 7, "now": "x*sigmoid(x)",
            "becomes": "F.silu(x)", "kept": True,
            "operators": [{"op": "aten.sigmoid", "line": 7, "column": 4},
                          {"op": "aten.mul.Tensor", "line": 9, "column": 4}]}  # fmt: skip
    refused = {**site, "id": 4, "line": 30, "chain_line": 30, "operators": [], "kept": None,
               "refusal": {"row": 3, "reason": "s is kept by Python", "node": ""}}  # fmt: skip
    miss = {"rule": "silu", "reason": "the constant is 1.702", "file": "/home/me/net/parts.py",
            "line": 40, "row": 29, "calls": 1, "operators": ["aten.sigmoid"]}  # fmt: skip
    unknown = {"operators": ["aten.sin", "aten.cos"], "file": "/home/me/net/parts.py", "line": 50,
               "calls": 6, "bytes_saved": 4096, "ms": 1.5, "share": 0.125}  # fmt: skip
    return {"schema_version": 1, "outcome": "tuned", "sites": [site, refused],
            "near_misses": [miss], "candidates": [unknown]}  # fmt: skip


@pytest.mark.parametrize(
    ("what", "words", "absent"),
    [
        ("3", b"site 3: silu at model.py:20, 2 calls: x*sigmoid(x) becomes F.silu(x)", b"site 4"),
        ("3", b"aten.mul.Tensor          parts.py:9:4", b"kept by Python"),
        ("4", b"not replaced (row 3 of docs/legality.md): s is kept by Python", b"site 3"),
        ("model.py:20", b"measured faster, kept", b"site 4"),
        ("net/parts.py:7", b"site 3", b"site 4"),
        ("parts.py:9", b"site 3", b"near miss"),
        ("parts.py:40", b"near miss of silu at parts.py:40, 1 calls (row 29 of", b"site"),
        ("parts.py:50", b"no rule knows: 12.5% of the operators' time: sin, cos (6 calls", b"site"),
        ("silu", b"the constant is 1.702", b"no rule knows"),
    ],
)
@pytest.mark.parametrize("as_directory", [True, False])
def test_explain_finds_rules_sites_and_places(tmp_path, what, words, absent, as_directory):
    (tmp_path / "run").mkdir()
    report = tmp_path / "run" / "report.json"
    report.write_text(json.dumps(report_with_places()))
    where = report.parent if as_directory else report
    done = opfuse("explain", what, "--report", str(where), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert words in done.stdout and absent not in done.stdout, done.stdout


@pytest.mark.parametrize("what", ["5", "parts.py:8", "arts.py:7", "parts.py", "model.py:x"])
def test_explain_of_a_place_that_is_not_in_the_report_says_what_is(tmp_path, what):
    report = tmp_path / "report.json"
    report.write_text(json.dumps(report_with_places()))
    done = opfuse("explain", what, "--report", str(report), cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == b""
    assert b"model.py:20" in done.stderr and b"parts.py:40" in done.stderr


def test_explain_of_nothing_known_says_what_there_is(tmp_path):
    done = opfuse("explain", "no-such-rule", cwd=tmp_path)
    assert done.returncode == 2 and b"no-such-rule" in done.stderr


@pytest.mark.parametrize("text", ["two", "5Q", "-1"])
def test_a_bad_size_is_named(tmp_path, text):
    command = ("tune", f"--verify-memory={text}", "--", sys.executable, "-c", "print(1)")
    done = opfuse(*command, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == b""
    assert b"--verify-memory" in done.stderr


@pytest.mark.parametrize(
    "flag",
    [
        "--allow=E9",
        "--levers=ops,turbo",
        "--levers=",
        "--color=blue",
        "--target=tpu",
        "--budget=1",
        "--rules=none.rule",
    ],
)
def test_a_flag_that_means_nothing_is_named(tmp_path, flag):
    done = opfuse("tune", flag, "--", sys.executable, "-c", "print(1)", cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == b""
    assert flag.split("=")[0].encode() in done.stderr


def test_doctor_finds_a_python_in_which_all_is_well(tmp_path):
    done = opfuse("doctor", "--python", sys.executable, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert b"self-check   passed" in done.stdout


def test_doctor_says_what_to_do_about_a_python_without_torch(tmp_path):
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    (tmp_path / "python").chmod(0o755)
    done = opfuse("doctor", "--python", "./python", cwd=tmp_path)
    assert done.returncode == 1
    assert b"cannot be imported" in done.stdout and b"make build" in done.stdout


@pytest.mark.parametrize(
    "variable, missing",
    [
        ("OPFUSE_PYTHON_DIR", "no opfuse/_shim/sitecustomize.py there"),
        ("OPFUSE_LIBRARY", "no such file"),
    ],
)
def test_a_variable_that_leads_nowhere_is_named_and_the_command_runs(tmp_path, variable, missing):
    nowhere = tmp_path / "nowhere"
    done = opfuse("tune", "--", "touch", "ran", cwd=tmp_path, env={variable: str(nowhere)})
    assert done.returncode == 0 and (tmp_path / "ran").exists()
    assert f"{variable}={nowhere}, found {missing}" in done.stderr.decode()
