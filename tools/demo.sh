#!/usr/bin/env bash
# The case from end to end, after the set-up: tunes EfficientNet-B0 training on generated images, then
# applies the diff to a copy of the sources and runs the copy by itself against the original.
# Then everything at once: --levers all.
#   DEMO_BATCH, DEMO_SIZE, DEMO_STEPS change the size of the run; DEMO_LEVERS=0 leaves out the last part.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${OPFUSE_DEMO_PYTHON:-$root/.venv/bin/python}
opfuse=${OPFUSE_BIN:-$root/build/release/bin/opfuse}
example=$root/examples/imagenet
batch=${DEMO_BATCH:-16} size=${DEMO_SIZE:-224} steps=${DEMO_STEPS:-90}
report=$root/opfuse-report/demo
levers=$root/opfuse-report/demo-levers
parts=4; [ "${DEMO_LEVERS:-1}" = 0 ] && parts=3

say() { printf '\n== %s\n' "$*"; }

say "1 of $parts: opfuse tune -- python main.py (EfficientNet-B0, batch $batch, $size px, generated images)"
cd "$example"
"$opfuse" tune --once -f -o "$report" -- \
  "$python" main.py --arch efficientnet-b0 -b "$batch" --image-size "$size" --epochs 1 --steps "$steps" -j 0 --lr 0.01

say "2 of $parts: the edit, as a diff to commit"
cat "$report/changes.diff"
copy=$(mktemp -d "${TMPDIR:-/tmp}/opfuse-demo.XXXXXX")
trap 'rm -rf "$copy"' EXIT
mkdir "$copy/examples"
cp -r "$example" "$copy/examples/"
edited=$copy/examples/imagenet
# Paths in the diff start at the repository, or at the example where this folder is no repository.
grep -q '^+++ b/examples/' "$report/changes.diff" && base=$copy || base=$edited
(cd "$base" && GIT_DIR=/nonexistent git apply --verbose "$report/changes.diff")

say "3 of $parts: the edited copy by itself against the original, alternating"
# Nothing tunes it; but an edit to an operator of opfuse.functional imports opfuse, which is
# not installed.
PYTHONPATH="$root/python${PYTHONPATH:+:$PYTHONPATH}" OPFUSE_OPS_LIBRARY="$(dirname "$opfuse")/../lib/libopfuse_ops.so" \
  "$python" "$root/tools/compare_copies.py" --original "$example" --edited "$edited" \
  --batch "$batch" --image-size "$size" --report "$report/report.json"
if [ "$parts" = 4 ]; then
  say "4 of 4: opfuse tune --levers all -- python main.py (operators of opfuse.functional, captured graph, layout, optimizer, allocator)"
  cd "$example"
  "$opfuse" tune --levers all --budget 48 --once -f -o "$levers" -- \
    "$python" main.py --arch efficientnet-b0 -b "$batch" --image-size "$size" --epochs 1 --steps 400 -j 0 --lr 0.01
  say "the reports: $report/report.html and $levers/report.html"
else
  say "the report: $report/report.html"
fi
