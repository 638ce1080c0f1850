"""The way into an unmodified script: Python runs this file at start because it is on PYTHONPATH.

It arms opfuse when `torch` has been imported, then runs the user's own sitecustomize. Apart from
that it leaves no trace: not on sys.path, not in sys.modules. It never raises, and only modules
that Python has loaded by now are used.
"""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))


def _run_dir():
    """The run directory, or "" when opfuse is not to do anything in this process."""
    if os.environ.get("OPFUSE_DISABLE", "0") not in ("", "0"):
        return ""
    return os.environ.get("OPFUSE_RUN_DIR", "")


def _quoted(text):
    """`text` as a JSON string, for a process in which json may never be imported."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if " " <= c < "\x7f" else "?" for c in escaped) + '"'


def _note(run_dir, phase, trouble=""):
    """Leaves a note that a Python started here: without it, `python -E` looks like no Python."""
    arguments = list(getattr(sys, "argv", None) or [""])
    started = list(getattr(sys, "orig_argv", arguments))
    if any("multiprocessing" in argument for argument in started[1:]):
        return  # workers of a process that has its own note
    path = os.path.join(run_dir, "state", f"process-{os.getpid()}.json")
    fields = {
        "version": "1",
        "pid": str(os.getpid()),
        "argv": "[" + ",".join(map(_quoted, arguments)) + "]",
        "script": _quoted(os.path.basename(arguments[0])),
        "rank": "null",
        "world_size": "1",
        "python": _quoted(".".join(map(str, sys.version_info[:3]))),
        "phase": _quoted(phase),
        "finished": "false",
        "events": "[]",
        "progress": "null",
        "steps": "[]",
        "outcome": "null",
        "reason": '""',
        "trouble": f"[{_quoted(trouble) if trouble else ''}]",
        "result": "{}",
    }
    text = "{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}\n"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path + ".tmp", "w") as file:
            file.write(text)
        os.replace(path + ".tmp", path)
    except OSError:
        pass


def _arm(run_dir):
    try:
        import importlib.util

        if "opfuse" not in sys.modules:
            package = os.path.join(os.path.dirname(_here), "__init__.py")
            spec = importlib.util.spec_from_file_location("opfuse", package)
            module = importlib.util.module_from_spec(spec)
            sys.modules["opfuse"] = module
            spec.loader.exec_module(module)
        agent = importlib.import_module("opfuse.agent")
        agent.arm(run_dir)
    except Exception as error:
        _note(run_dir, "off", f"not armed: {type(error).__name__}: {error}")


class _TorchFinder:
    """Finds `torch` as it would be found without us, and arms when it has been executed."""

    def __init__(self, run_dir):
        self.run_dir = run_dir
        self.armed = False

    def find_spec(self, name, path=None, target=None):
        if name != "torch" or self.armed:
            return None
        for finder in list(sys.meta_path):
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self.watch(spec)
                return spec
        return None

    def watch(self, spec):
        """Shadows exec_module on this one loader object; gone before the real one runs."""
        loader = spec.loader
        real = getattr(loader, "exec_module", None)
        if real is None or spec.origin is None:
            return  # a namespace package: no torch

        def exec_module(module):
            del loader.exec_module
            real(module)
            if not self.armed:
                self.armed = True
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                _arm(self.run_dir)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            pass


def _forget_shim():
    """Takes this folder off sys.path, so that the rest sees the path it would see without us."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _here]
    sys.path_importer_cache.pop(_here, None)


def _run_users_own():
    """Becomes the user's sitecustomize, or, if there is none, the import that fails quietly."""
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import PathFinder

    spec = PathFinder.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError("No module named 'sitecustomize'", name="sitecustomize")
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


try:
    _forget_shim()
    _directory = _run_dir()
    if _directory:
        _note(_directory, "seen")
        sys.meta_path.insert(0, _TorchFinder(_directory))
except Exception:
    pass
_run_users_own()
