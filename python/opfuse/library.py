"""Finds and loads libopfuse_ops.so, which registers `torch.ops.opfuse.*`."""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import sys
from functools import cache
from pathlib import Path

import torch

NAME = "libopfuse_ops.so"
PLACES: list[Path] = []  # further ones to look in, from whoever knows better


def find() -> Path:
    """The library: OPFUSE_OPS_LIBRARY, beside this file (installed), or the source tree's build."""
    given = os.environ.get("OPFUSE_OPS_LIBRARY")
    here = Path(__file__).resolve().parent
    places = [Path(given)] if given else [
        *PLACES, here / NAME, here.parents[1] / "build/release/lib" / NAME
    ]  # fmt: skip
    for place in places:
        if place.is_file():
            return place
    tried = " or ".join(map(str, places))
    raise ImportError(f"opfuse: expected {NAME} at {tried}, found none; `make build` builds it")


def look_beside(other: str) -> None:
    """Adds the folder of another library of opfuse to the places to look in."""
    place = Path(other).parent / NAME
    if other and place not in PLACES:
        PLACES.append(place)


def problem() -> str:
    """Why `opfuse.functional` cannot be used here; "" when it can."""
    try:
        importlib.import_module("opfuse.functional")
    except (ImportError, OSError, AttributeError) as error:  # absent, or an older one
        return str(error)
    return ""


def built_for(path: Path) -> str:
    """The torch version that the library names, read from the file without loading it."""
    found = re.search(rb"opfuse_ops built for torch ([0-9][0-9A-Za-z.+]*)", path.read_bytes())
    if not found:
        raise ImportError(f"opfuse: {path} is no {NAME}")
    return found[1].decode()


@cache
def load() -> ctypes.CDLL:
    """Loads the library once; an ImportError says what does not fit.

    Example: `load().opfuse_ops_isa.restype = ctypes.c_char_p`
    """
    path = find()
    built, running = built_for(path).partition("+")[0], torch.__version__.partition("+")[0]
    if built.split(".")[:2] != running.split(".")[:2]:
        raise ImportError(
            f"opfuse: {path} was built for torch {built}, this is torch {running}; build it again"
        )
    torch.ops.load_library(path)
    library = ctypes.CDLL(str(path))
    library.opfuse_ops_isa.restype = ctypes.c_char_p
    library.opfuse_ops_use_isa.restype = ctypes.c_char_p
    return library


def isa() -> str:
    """The instruction set level that the operators use here: "avx512bf16", "avx2", …

    Example: `opfuse.library.isa()`
    """
    return load().opfuse_ops_isa().decode()


def use_isa(name: str = "") -> None:
    """Holds the operators to one level from now on, or with "" to what OPFUSE_ISA says; for tests
    and benchmarks. A ValueError says why a level cannot be used.

    Example: `use_isa("generic")`
    """
    reason = load().opfuse_ops_use_isa(name.encode())
    if reason:
        raise ValueError(reason.decode())


def versions() -> dict[str, str]:
    """The versions of the packages that this process has imported, by name.

    Example: `library.versions()["torch"]` is "2.13.0+cpu".
    """
    found = {
        name: str(vars(module).get("__version__", ""))
        for name, module in list(sys.modules.items())
        if "." not in name and hasattr(module, "__dict__")
    }
    return {name: version for name, version in found.items() if version}
