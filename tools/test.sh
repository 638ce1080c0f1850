#!/usr/bin/env bash
# Runs the tests of a built preset: C++ through ctest, then test/*.py through pytest.
#   tools/test.sh PRESET [pytest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:?usage: tools/test.sh PRESET [pytest arguments]}
shift

# ctest runs two programs at once, so one thread each.
OMP_NUM_THREADS=1 ctest --preset "$preset" --progress

export OPFUSE_BIN=$PWD/build/$preset/bin/opfuse
export OPFUSE_LIBRARY=$PWD/build/$preset/lib/libopfuse_torch.so
export OPFUSE_OPS_LIBRARY=$PWD/build/$preset/lib/libopfuse_ops.so
export OPFUSE_EFFICIENTNET=$PWD/examples/imagenet/efficientnet_pytorch
for file in "$OPFUSE_BIN" "$OPFUSE_LIBRARY" "$OPFUSE_OPS_LIBRARY" "$OPFUSE_EFFICIENTNET/model.py"; do
  [ -e "$file" ] || { echo "tools/test.sh: expected $file, found none" >&2; exit 1; }
done
# Most tests wait for processes of one thread: two at a time, a file each, unless told otherwise.
jobs=${OPFUSE_TEST_JOBS:-2}
# Several tests run ranks, signals and a browser against the clock of a machine that others may use: one
# that fails is run once more, and the summary lists it as RERUN.
exec .venv/bin/python -m pytest test -ra --reruns 1 --durations=20 \
  -n "$jobs" --dist loadfile --no-loadscope-reorder "$@"
