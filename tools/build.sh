#!/usr/bin/env bash
# Builds TARGETs of a preset of CMakePresets.json in build/PRESET; configures only when it must.
#   tools/build.sh PRESET TARGET...
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 2 ] || { echo "usage: tools/build.sh PRESET TARGET..." >&2; exit 2; }
preset=$1
shift

# ninja configures again when a CMake file changes; another torch is what it cannot see.
ninja_file=build/$preset/build.ninja
if [ ! -e "$ninja_file" ] || { [ -e .venv/stamp-torch ] && [ .venv/stamp-torch -nt "$ninja_file" ]; }; then
  mkdir -p "build/$preset"
  cmake --preset "$preset" >"build/$preset/configure.log" 2>&1 || { cat "build/$preset/configure.log" >&2; exit 1; }
  grep -- '-- torch ' "build/$preset/configure.log" || true
fi

# One line when nothing is to do; ninja's progress otherwise, its errors always.
cmake --build --preset "$preset" --target "$@"
