#!/usr/bin/env bash
# Builds TARGETs of a preset of CMakePresets.json in build/PRESET; configures only when it must.
#   tools/build.sh PRESET TARGET...
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 2 ] || { echo "usage: tools/build.sh PRESET TARGET..." >&2; exit 2; }
preset=$1
shift

# ninja configures again when a CMake file changes; another torch is what it cannot see. A folder
# that was moved or copied with its build starts afresh.
ninja_file=build/$preset/build.ninja
if ! grep -qsxF "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" "build/$preset/CMakeCache.txt"; then
  rm -rf "build/$preset"
fi
if [ ! -e "$ninja_file" ] || [ .venv/stamp-torch -nt "$ninja_file" ]; then
  mkdir -p "build/$preset"
  log=build/$preset/configure.log
  cmake --preset "$preset" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
  grep -- '-- torch ' "$log" || true
fi

# One line when nothing is to do; ninja's progress otherwise, its errors always.
cmake --build --preset "$preset" --target "$@"
