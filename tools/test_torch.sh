#!/usr/bin/env bash
# Builds against another version of torch, in a virtual environment of its own, and runs the quick tests
# there: the recorder and the proofs in C++, a tuning from end to end, the stand-in device.
#   tools/test_torch.sh VERSION          e.g. 2.14.1; `make test-torch VERSION=2.14.1`
# Honoured: PYTHON, PIP_INDEX_URL and pip's other settings, TORCH_INDEX_URL (PyTorch's CPU wheels:
# https://download.pytorch.org/whl/cpu). OPFUSE_TORCH_PYTHON=/path/python uses an environment that has it.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:?usage: tools/test_torch.sh VERSION}
[[ $version =~ ^[0-9]+(\.[0-9]+)+$ ]] || { echo "tools/test_torch.sh: expected a version such as 2.14.1, found '$version'" >&2; exit 2; }
entries() { sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$@"; }

python=${OPFUSE_TORCH_PYTHON:-$PWD/.venv/torch-$version/bin/python}
if [ -z "${OPFUSE_TORCH_PYTHON:-}" ] && ! [ -e ".venv/torch-$version/stamp" ]; then
  "${PYTHON:-python3}" -m venv ".venv/torch-$version"
  index=()
  [ -z "${TORCH_INDEX_URL:-}" ] || index=(--index-url "$TORCH_INDEX_URL" --extra-index-url "${PIP_INDEX_URL:-https://pypi.org/simple}")
  "$python" -m pip install -q "${index[@]}" "torch==$version"
  entries deps/pip.txt deps/pip-test.txt | xargs "$python" -m pip install -q
  touch ".venv/torch-$version/stamp"
fi
found=$("$python" -c 'import torch; print(torch.__version__.partition("+")[0])')
[ "$found" = "$version" ] || { echo "tools/test_torch.sh: expected torch $version at $python, found $found" >&2; exit 1; }

build=build/torch-$version
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE="$python" >/dev/null
cmake --build "$build" --target opfuse opfuse_torch opfuse_torch_ops opfuse_test_npu opfuse_torch_test
OMP_NUM_THREADS=1 "$(find "$build" -name opfuse_torch_test -type f)" --gtest_brief=1

export OPFUSE_BIN=$PWD/$build/bin/opfuse OPFUSE_LIBRARY=$PWD/$build/lib/libopfuse_torch.so
export OPFUSE_OPS_LIBRARY=$PWD/$build/lib/libopfuse_ops.so OPFUSE_PYTHON_DIR=$PWD/python
export OPFUSE_EFFICIENTNET=$PWD/examples/imagenet/efficientnet_pytorch
"$OPFUSE_BIN" doctor --python "$python"
exec "$python" -m pytest -q -ra --reruns 1 test/device_test.py test/npu_rules_test.py test/replaced_test.py test/agent_test.py
