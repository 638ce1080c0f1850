"""Cells of a notebook: their names and their text, which no file holds."""

from __future__ import annotations

import linecache
import re
import sys


def shown_file(path: str) -> str:
    """ "In[3]" for the file name that IPython gives code typed into its third cell; else `path`."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    named = getattr(getattr(shell, "compile", None), "format_code_name", None)
    found = named(path) if named is not None else None
    if found is None:
        return path
    kind, name = found
    return str(name) if kind == "Cell" else path


def is_name(path: str) -> bool:
    """Is this what `shown_file` calls a cell?"""
    return re.fullmatch(r"In\[\d+\]", path) is not None


def text_of(path: str) -> str | None:
    """What was typed in, as linecache keeps it for tracebacks; None for anything else."""
    entry = linecache.cache.get(path)
    if entry is None or len(entry) < 3 or entry[1] is not None:  # from a file, or not yet read
        return None
    return "".join(entry[2])
