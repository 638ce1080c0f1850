"""Bad input and trouble: whatever happens, the run keeps its status, its stdout, its losses."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import SCRIPTS, SHIM, Runner, base_config

# Before the first switch the losses are those of an untouched run, whatever fails.
BEFORE_SWITCH = ("arm", "record_start", "record_stop", "find", "facts", "plan", "prove", "switch")
AFTER_SWITCH = ("validate", "measure", "report")


@pytest.fixture(scope="session")
def untouched(tmp_path_factory) -> str:
    """stdout of the plain habit when everything is switched off."""
    runner = Runner(tmp_path_factory.mktemp("untouched"))
    return runner.habit("plain", env={"OPFUSE_DISABLE": "1"}).stdout


# Failures of ours


# One handler takes both kinds: allocation failures at three stages are enough.
FAULTS = [f"{stage}:raise" for stage in (*BEFORE_SWITCH, *AFTER_SWITCH)]
FAULTS += ["find:alloc", "switch:alloc", "measure:alloc"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failure_of_ours_leaves_the_run_unharmed(fault, runner, untouched):
    stage = fault.partition(":")[0]
    run = runner.habit("plain", double={}, env={"OPFUSE_FAULT": fault})
    assert (run.returncode, run.stderr) == (0, "")
    if stage in BEFORE_SWITCH:
        assert run.stdout == untouched
    assert run.stdout.splitlines()[:3] == untouched.splitlines()[:3]
    assert len(run.losses) == len(untouched.splitlines()) - 1
    assert run.report["original"] and run.report["globals"] == []
    assert (run.report["module_hooks"], run.report["optimizer_hooks"]) == (0, 0)
    (trouble,) = run.state["trouble"]
    assert f"injected at {stage}" in trouble
    if stage != "arm":
        assert run.state["outcome"] == "failed"
        assert sum("stopped after a failure" in e["text"] for e in run.state["events"]) == 1


def test_a_missing_library_is_said_once_and_the_run_goes_on(runner, untouched):
    run = runner.habit("plain", config={"library": "/no/such/libopfuse_torch.so"})
    assert (run.returncode, run.stderr, run.stdout) == (0, "", untouched)
    assert run.state["phase"] == "off" and run.state["outcome"] == "failed"
    assert "/no/such/libopfuse_torch.so: expected the library" in run.state["trouble"][0]


def test_a_file_that_is_no_library_is_said_too(runner, untouched, tmp_path):
    wrong = tmp_path / "libopfuse_torch.so"
    wrong.write_text("not a library")
    run = runner.habit("plain", config={"library": str(wrong)})
    assert (run.returncode, run.stderr, run.stdout) == (0, "", untouched)
    assert "the library does not load" in run.state["trouble"][0]


@pytest.mark.parametrize("content", [None, "{ damaged"])
def test_a_run_directory_without_a_good_config_arms_nothing(content, untouched, tmp_path):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    env = {**os.environ, "PYTHONPATH": str(SHIM), "OPFUSE_RUN_DIR": str(tmp_path)}
    command = [sys.executable, SCRIPTS / "train.py", "plain"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", untouched)
    (state,) = (tmp_path / "state").glob("process-*.json")
    content = json.loads(state.read_text())
    assert content["phase"] == "off" and content["trouble"][0].startswith("not armed: ")


def test_a_full_disk_costs_the_report_and_nothing_else(runner, untouched):
    run = runner.habit("full_disk", double={})
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.splitlines()[:3] == untouched.splitlines()[:3]
    assert run.stdout.count("\n") == untouched.count("\n")
    assert run.state["phase"] == "armed" and run.state["events"] == []


def test_a_run_directory_that_cannot_be_written_costs_the_report_and_nothing_else(
    tmp_path, untouched
):
    (tmp_path / "config.json").write_text(json.dumps(base_config(tmp_path)))
    (tmp_path / "state").write_text("a file where a folder was expected")
    env = {**os.environ, "PYTHONPATH": str(SHIM), "OPFUSE_RUN_DIR": str(tmp_path)}
    command = [sys.executable, SCRIPTS / "train.py", "plain"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", untouched)


# Failures of the user's


@pytest.mark.parametrize(
    ("habit", "message", "steps"),
    [
        ("fails_first", "ValueError: the user's own mistake", 0),
        ("fails_in_the_middle", "ValueError: the user's own mistake", 8),
        ("own_hook_raises", "ValueError: the user's own hook", 7),
    ],
)
def test_the_users_own_error_is_what_the_user_sees(habit, message, steps, runner):
    run = runner.habit(habit, double={})
    bare = runner.habit(habit, env={"OPFUSE_DISABLE": "1"})
    assert run.returncode == bare.returncode == 1
    assert run.stderr == bare.stderr
    assert run.stderr.endswith(message + "\n")
    assert len(run.losses) == len(bare.losses) == steps
    assert run.state["finished"] and run.state["trouble"] == []
    assert len(run.state["steps"]) == steps
    assert run.state["outcome"] == ("undecided" if steps else None)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_run_as_always_and_the_results_are_kept(sent, tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "config.json").write_text(json.dumps(base_config(tmp_path)))
    path = os.pathsep.join([str(SHIM), str(SCRIPTS.parent / "doubles")])
    env = {**os.environ, "PYTHONPATH": path, "OPFUSE_RUN_DIR": str(tmp_path),
           "OPFUSE_PYTHON_DIR": str(SHIM.parent.parent), "OPFUSE_DOUBLE": "{}"}  # fmt: skip
    command = [sys.executable, SCRIPTS / "train.py", "plain", "10000000"]
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while "tuned" not in read_outcomes(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(sent)
    stderr = process.communicate(timeout=60)[1].decode()
    assert process.returncode == -sent
    assert ("KeyboardInterrupt" in stderr) == (sent == signal.SIGINT)
    assert "python/opfuse/" not in stderr and "opfuse:" not in stderr
    assert read_outcomes(tmp_path) == ["tuned"]


def read_outcomes(run_dir):
    return [json.loads(f.read_text())["outcome"] for f in run_dir.glob("state/process-*.json")]


# Pythons that are not to be touched


@pytest.mark.parametrize("option", ["-E", "-I"])
def test_python_that_ignores_its_environment_leaves_no_note(option, runner):
    code = "import torch; print(torch.ones(1).item())"
    run = runner(sys.executable, option, "-c", code)
    assert (run.returncode, run.stdout, run.stderr) == (0, "1.0\n", "")
    assert run.states == []


def test_a_script_without_torch_is_noted_and_sees_what_it_always_sees(runner, tmp_path):
    run = runner(sys.executable, SCRIPTS / "no_torch.py", "argument")
    bare = subprocess.run(
        [sys.executable, SCRIPTS / "no_torch.py", "argument"],
        capture_output=True, text=True, cwd=run.run_dir,
    )  # fmt: skip
    assert (run.returncode, run.stdout, run.stderr) == (0, bare.stdout, "")
    assert run.state["phase"] == "seen" and run.state["script"] == "no_torch.py"


def test_disabled_means_nothing_at_all(runner):
    env = {"OPFUSE_DISABLE": "1"}
    run = runner(sys.executable, SCRIPTS / "no_torch.py", env=env)
    assert run.returncode == 0 and run.states == []


def test_loader_workers_leave_no_notes_of_their_own(runner):
    run = runner.habit("loader_spawn", double={})
    assert run.returncode == 0, run.stderr
    assert len(run.states) == 1


# The shim


def test_the_users_own_sitecustomize_runs_and_is_the_one_in_sys_modules(runner, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('mine', __name__)\nvalue = 3\n")
    code = "import sys, sitecustomize as s; print(s.value, s.__file__, s.__spec__.name)"
    run = runner(sys.executable, "-c", code, path=[tmp_path])
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == f"mine sitecustomize\n3 {tmp_path}/sitecustomize.py sitecustomize\n"


def test_an_error_in_the_users_own_sitecustomize_is_reported_as_always(runner, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("raise ValueError('mine')\n")
    run = runner(sys.executable, "-c", "print(1)", path=[tmp_path])
    assert (run.returncode, run.stdout) == (0, "1\n")
    assert "Error in sitecustomize" in run.stderr and "ValueError: mine" in run.stderr
    assert "opfuse" not in run.stderr


def fake_torch(folder):
    package = folder / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import os\ncount = globals().get('count', 0) + 1\n"
        "if os.environ.get('BREAK'):\n    raise ImportError('no')\n"
    )
    return folder


def test_the_real_loader_is_kept_also_when_torch_is_loaded_again(runner, tmp_path):
    code = (
        "import importlib, importlib.util, sys\n"
        "assert importlib.util.find_spec('torch') is not None\n"
        "import torch\n"
        "assert 'exec_module' not in vars(torch.__spec__.loader)\n"
        "assert type(torch.__loader__).__name__ == 'SourceFileLoader'\n"
        "importlib.reload(torch)\n"
        "print(torch.count, [type(f).__name__ for f in sys.meta_path if 'Torch' in str(f)])\n"
    )
    run = runner(sys.executable, "-c", code, path=[fake_torch(tmp_path)])
    assert (run.returncode, run.stdout, run.stderr) == (0, "2 []\n", "")
    assert run.state["phase"] == "off" and "not armed" in run.state["trouble"][0]


def test_a_torch_that_does_not_import_fails_as_always_and_can_be_tried_again(runner, tmp_path):
    code = (
        "import os\n"
        "os.environ['BREAK'] = '1'\n"
        "try:\n    import torch\nexcept ImportError as error:\n    print(error)\n"
        "del os.environ['BREAK']\nimport torch\nprint(torch.count)\n"
    )
    run = runner(sys.executable, "-c", code, path=[fake_torch(tmp_path)])
    assert (run.returncode, run.stdout, run.stderr) == (0, "no\n1\n", "")


def test_a_missing_torch_is_missing(runner, tmp_path):
    code = (
        "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]\nimport torch"
    )
    run = runner(sys.executable, "-c", code)
    assert run.returncode == 1
    assert run.stderr.endswith("ModuleNotFoundError: No module named 'torch'\n")
    assert "sitecustomize" not in run.stderr
