#!/usr/bin/env bash
# Fuzzes every reader of trace files, one on each core at a time, with libFuzzer and the address and
# undefined behaviour sanitizers. Needs clang++. New inputs stay in build/fuzz/corpus; a finding ends
# it, and is kept as build/fuzz/finding-*.
#   tools/fuzz.sh [SECONDS each, default 600]
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-600}
command -v clang++ >/dev/null || { echo 'tools/fuzz.sh: expected clang++ in PATH, found none' >&2; exit 1; }
cmake -G Ninja -S . -B build/fuzz -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_COMPILER=clang \
  -DCMAKE_CXX_COMPILER=clang++ -DOPFUSE_FUZZ=ON -DOPFUSE_SANITIZE=ON -DOPFUSE_TORCH=OFF >/dev/null
readers=$(cd fuzz/corpus && ls)
# shellcheck disable=SC2086
ninja -C build/fuzz $(printf 'opfuse_fuzz_%s ' $readers)
one() {
  mkdir -p "build/fuzz/corpus/$1"
  "build/fuzz/bin/opfuse_fuzz_$1" "build/fuzz/corpus/$1" "fuzz/corpus/$1" \
    -max_total_time="$2" -max_len=20000 -rss_limit_mb=4096 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/finding-$1-" 2>"build/fuzz/$1.log" ||
    { tail -40 "build/fuzz/$1.log" >&2; return 255; }  # 255: xargs begins no other
  echo "$1: $(sed -n 's/^stat::number_of_executed_units: *//p' "build/fuzz/$1.log") runs in $2 s"
}
export -f one
printf '%s\n' $readers | xargs -P "$(nproc)" -I READER bash -c 'one READER "$0"' "$seconds"
