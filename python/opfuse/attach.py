"""`with opfuse.tune():` in a script or notebook.

The program `opfuse tune --attach` runs beside this process: it makes a report directory, watches
the state file in it and writes the report.
"""

from __future__ import annotations

import html
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from opfuse import agent

_FRAME = '<iframe srcdoc="{}" style="width:100%;height:640px;border:1px solid #ccc"></iframe>'


class Tuning:
    """One block of tuned steps; see opfuse.tune.

    `directory` is where report.html lies; `report` is report.json after the block, empty when no
    step ran. A notebook shows the report in its cell.
    """

    def __init__(self, flags: dict[str, Any]) -> None:
        self._arguments = _arguments_of(flags)
        self._agent: agent.Agent | None = None
        self.directory = ""
        self.report: dict[str, Any] = {}

    def __enter__(self) -> Tuning:
        if self._agent is not None:
            raise RuntimeError("opfuse.tune: expected a new block, found one that was entered")
        if os.environ.get("OPFUSE_DISABLE", "0") not in ("", "0"):
            return self
        agent.check_free()
        self._program = subprocess.Popen(
            [find_program(), "tune", "--attach", *self._arguments, "--", *_command()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip
        self.directory = self._program.stdout.readline().rstrip("\n")
        if not self.directory:
            said = self._program.stderr.read().strip()
            self._program.wait()
            raise ValueError(
                said.replace("opfuse: ", "opfuse.tune: ", 1) or "opfuse.tune: no answer"
            )
        self._teller = threading.Thread(target=self._tell, daemon=True)
        self._teller.start()
        try:
            self._agent = agent.attach(self.directory)
        except BaseException:  # without torch, or without its configuration: the program ends too
            self._end_program()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._agent is None:
            return
        self._agent.detach()
        self._end_program()
        try:
            text = Path(self.directory, "report.json").read_text(encoding="utf-8")
            self.report = json.loads(text)
        except OSError:
            return  # no step ran, and the program has said so
        if kind is None and _in_notebook():
            from IPython.display import display

            display(self)

    def _end_program(self) -> None:
        """It writes the report when its input ends."""
        self._program.stdin.close()
        self._program.wait()
        self._teller.join()

    def undo(self) -> None:
        """Puts the original code back and takes back every lever."""
        if self._agent is not None:
            self._agent.undo()

    def _tell(self) -> None:
        """What the program says, where this process's own words go: a notebook's cell."""
        for line in self._program.stderr:
            print(line, end="", file=sys.stderr, flush=True)

    def _repr_html_(self) -> str:
        try:
            text = Path(self.directory, "report.html").read_text(encoding="utf-8")
        except OSError:
            return "<p>opfuse: no step was tuned</p>"
        return _FRAME.format(html.escape(text))


def find_program() -> str:
    """The program `opfuse`: OPFUSE_BIN, beside this Python, in PATH, or the source tree's build.

    Raises RuntimeError with the places that were looked at.
    """
    given = os.environ.get("OPFUSE_BIN")
    here = Path(__file__).resolve().parents[2]
    places = [given] if given else [
        os.path.join(sysconfig.get_path("scripts"), "opfuse"), shutil.which("opfuse"),
        str(here / "build" / "release" / "bin" / "opfuse"),
    ]  # fmt: skip
    for place in places:
        if place and os.access(place, os.X_OK):
            return place
    tried = " or ".join(place for place in places if place)
    raise RuntimeError(f"opfuse.tune: expected the program opfuse at {tried}, found none")


def _arguments_of(flags: dict[str, Any]) -> list[str]:
    """`budget=128` -> `--budget=128`; True is the flag alone, a list is repeated."""
    arguments: list[str] = []
    for name, value in flags.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            arguments.append(flag)
        elif isinstance(value, list | tuple):
            arguments += [f"{flag}={item}" for item in value]
        elif value is not False and value is not None:
            arguments.append(f"{flag}={value}")
    return arguments


def _command() -> list[str]:
    """What the report calls this program: its script, or what it is typed into."""
    script = sys.argv[0] if sys.argv else ""
    if _in_notebook() or not os.path.isfile(script):
        return ["notebook"]
    return ["python", *sys.argv]


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None
