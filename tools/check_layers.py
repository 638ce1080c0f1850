"""Refuses includes that break the layers of opfuse/. There is no list of exceptions.

    python tools/check_layers.py [ROOT]

A folder may include itself and the folders that ALLOWED gives it; a folder that is not in ALLOWED
is refused, and so is an include that does not name its file from the root. torch headers belong to
opfuse/torch/ alone; fmt does not reach them, and json.hpp does not leave its folder. Prints one
line per wrong include; the exit status is 1 when there is one.
"""

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

CHAIN = ["base", "trace", "graph", "match", "price", "rewrite", "verify", "report", "pipeline"]
# The analyser works without the operators and the operators without the analyser.
ALLOWED = {layer: set(CHAIN[: i + 1]) for i, layer in enumerate(CHAIN)}
ALLOWED["ops"] = {"base", "ops"}
ALLOWED["torch"] = {*CHAIN, "ops", "torch"}
ALLOWED["cli"] = {*CHAIN, "cli"}  # the program runs where there is no torch

TORCH = re.compile(r"(torch|ATen|c10|caffe2)/")
# Each pulls in most of torch (11 to 17 s a file) or the CPython API.
HEAVY = {"torch/extension.h", "torch/torch.h", "torch/all.h", "torch/python.h", "Python.h"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include(?:_next)?[ \t]*([<"])([^>"\n]+)[>"]', re.MULTILINE)
# A path that a macro makes up cannot be checked.
MACRO_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+[^<"\s]', re.MULTILINE)
SUFFIXES = {".h", ".hpp", ".cc", ".cpp", ".cxx", ".inl", ".cu", ".cuh"}


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def layer_of(path: Path) -> str:
    """opfuse/graph/text.cc -> graph; opfuse/pipeline_trace_test.cc -> pipeline."""
    return path.parts[1] if len(path.parts) > 2 else path.stem.split("_")[0]


def includes(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, quote and path of each include."""
    for found in INCLUDE.finditer(text):
        yield text.count("\n", 0, found.start()) + 1, found[1], found[2]


def why_not(layer: str, quote: str, path: str) -> str | None:
    """The reason why a file of `layer` may not include `path`; None when it may."""
    if path.startswith("opfuse/"):
        other = layer_of(Path(path))
        if other not in ALLOWED.get(layer, set()):
            return f"{layer} may not use {other}"
        return None
    if quote == '"':
        return 'write own headers as "opfuse/folder/file.h"'
    if path in HEAVY:
        return "include the one header that is needed instead"
    if TORCH.match(path) and layer != "torch":
        return "torch headers belong to opfuse/torch/"
    if path.startswith("fmt/") and layer == "torch":
        return "torch brings an fmt of its own"
    if path.startswith("CLI/") and layer != "cli":
        return "the command line belongs to opfuse/cli/"
    return None


def carrier(root: Path, header: str, wanted: str, seen: set[str]) -> str | None:
    """The first own header, reached from `header`, that includes a path starting with `wanted`."""
    if header in seen or not (root / header).is_file():
        return None
    seen.add(header)
    for _, _, path in includes(text_of(root / header)):
        if path.startswith(wanted):
            return header
        if path.startswith("opfuse/") and (found := carrier(root, path, wanted, seen)):
            return found
    return None


def carried(root: Path, layer: str, header: str) -> str | None:
    """The reason why `layer` may not have what our own `header` brings along."""
    if layer == "torch" and (found := carrier(root, header, "fmt/", set())):
        return f"{found} includes fmt, and torch brings an fmt of its own"
    if layer_of(Path(header)) == layer:
        return None
    if found := carrier(root, header, "nlohmann/json.hpp", set()):
        return f"{found} includes json.hpp: 1.1 s for every file; keep it inside its folder"
    return None


def check_file(root: Path, file: Path) -> list[str]:
    layer, text, wrong = layer_of(file), text_of(root / file), []
    if layer not in ALLOWED:
        wrong.append(f"{file}: the folder '{layer}' has no place in the order of this script")
    if found := MACRO_INCLUDE.search(text):
        line = text.count("\n", 0, found.start()) + 1
        wrong.append(f"{file}:{line}: an include must name its file")
    for line, quote, path in includes(text):
        reason = why_not(layer, quote, path)
        if not reason and path.startswith("opfuse/"):
            reason = carried(root, layer, path)
        if reason:
            wrong.append(f"{file}:{line}: {path}: {reason}")
    return wrong


def check(root: Path) -> tuple[int, list[str]]:
    """Number of files read under ROOT/opfuse, and the complaints."""
    files = [p.relative_to(root) for p in (root / "opfuse").rglob("*") if p.suffix in SUFFIXES]
    files.sort()
    return len(files), [line for file in files for line in check_file(root, file)]


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    count, wrong = check(root)
    for line in wrong:
        print(line)
    if count == 0:
        print(f"{root}: expected C++ files under opfuse/, found none")
        return 1
    print(f"check_layers: {count} files, {len(wrong)} wrong includes")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
