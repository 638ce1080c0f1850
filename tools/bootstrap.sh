#!/usr/bin/env bash
# Sets up this folder: Debian packages, a private .venv, PyTorch. Says what is missing and how big
# it is, then installs it; a second run finds everything there and takes a moment.
#   tools/bootstrap.sh [test] [check]    further sets of deps/ beside what the demo needs
# Honoured: PYTHON (python3), PIP_INDEX_URL and pip's other settings, proxies,
#   TORCH_INDEX_URL  where torch comes from, e.g. https://download.pytorch.org/whl/cpu
#   OPFUSE_SKIP_APT=1  the libraries of deps/apt.txt come from elsewhere: do not ask apt
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*"; }
fail() { printf 'opfuse set-up: %s\n' "$*" >&2; exit 1; }
entries() { sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$@"; }

apt_files=(deps/apt.txt)
pip_files=(deps/pip.txt)
for set in "$@"; do
  case "$set" in
    test) apt_files+=(deps/apt-test.txt); pip_files+=(deps/pip-test.txt) ;;
    check) pip_files+=(deps/pip-check.txt) ;;
    *) fail "expected test or check, found '$set'" ;;
  esac
done

# --- Debian packages -------------------------------------------------------------------------
missing_apt() {
  local wanted installed
  wanted=$(entries "${apt_files[@]}" | sort -u)
  # shellcheck disable=SC2086
  installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' $wanted 2>/dev/null |
    sed -n 's/^installed //p' | sort -u) || true
  comm -23 <(printf '%s\n' "$wanted") <(printf '%s\n' "$installed") | tr '\n' ' '
}

install_apt() {
  local missing sudo=() prefix size
  missing=$(missing_apt)
  missing=${missing% }
  [ -n "$missing" ] || return 0
  say "missing Debian packages: $missing"
  if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
      sudo=(sudo -n)
    else
      command -v sudo >/dev/null && prefix="sudo " || prefix=""
      say "They need root, which this script does not ask for. As root, run this, then make again:" >&2
      say "    ${prefix}apt-get update && ${prefix}apt-get install -y --no-install-recommends $missing" >&2
      exit 1
    fi
  fi
  "${sudo[@]}" apt-get update -qq
  # shellcheck disable=SC2086
  size=$(LC_ALL=C "${sudo[@]}" apt-get install --assume-no --no-install-recommends $missing \
    2>/dev/null | sed -n -e 's/^\(Need to get .*\) of archives\./\1,/p' \
    -e 's/^After this operation, \(.*\) of additional.*/\1 on disk/p' | tr '\n' ' ') || true
  say "installing them by apt: ${size:-size unknown}"
  mkdir -p .cache
  # shellcheck disable=SC2086
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 $missing >.cache/apt.log 2>&1 ||
    { cat .cache/apt.log >&2; fail "apt-get could not install: $missing"; }
  tr ' ' '\n' <<<"$missing" >>.cache/apt-installed.txt
}

if [ "${OPFUSE_SKIP_APT:-}" != 1 ]; then
  if command -v dpkg-query >/dev/null; then
    install_apt
  else
    say "not a Debian system: expecting the libraries of deps/apt.txt to be there"
  fi
fi

# --- Python ----------------------------------------------------------------------------------
python=${PYTHON:-python3}
command -v "$python" >/dev/null || fail "expected a Python at PYTHON=$python, found none"
host=$("$python" -c 'import sys; print(sys.version_info >= (3, 10), *sys.version_info[:2], sys.base_prefix)')
[[ $host == True* ]] || fail "expected Python 3.10 or newer at PYTHON=$python, found ${host#False }"

if ! [ -x .venv/bin/python ] || [ "$(cat .venv/host 2>/dev/null)" != "$host" ]; then
  say "making .venv from $python"
  rm -rf .venv
  "$python" -m venv .venv || fail "$python -m venv failed (on Debian: apt-get install python3-venv)"
  printf '%s\n' "$host" >.venv/host
fi

# Nothing outside this folder: pip's cache too, unless the caller has set another.
export PIP_CACHE_DIR=${PIP_CACHE_DIR:-$PWD/.cache/pip} PIP_DISABLE_PIP_VERSION_CHECK=1
# A person sees how far a download of gigabytes is; a log needs no lines from pip.
quiet=(--quiet)
[ -t 1 ] && quiet=()
pip_install() { .venv/bin/python -m pip install "${quiet[@]}" "$@"; }

# A stamp holds what was asked for; the set is installed again when that changes.
up_to_date() { [ "$(cat ".venv/stamp-$1" 2>/dev/null)" = "$2" ]; }

torch=$(entries deps/torch.txt)
torch_key="$torch ${TORCH_INDEX_URL:-}"
if ! up_to_date torch "$torch_key"; then
  if [ -n "${TORCH_INDEX_URL:-}" ]; then
    say "installing $torch from $TORCH_INDEX_URL"
    pip_install --index-url "$TORCH_INDEX_URL" \
      --extra-index-url "${PIP_INDEX_URL:-https://pypi.org/simple}" "$torch"
  else
    say "installing $torch from pip's index: up to 3 GB to fetch where that is a CUDA build"
    say "  (TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu: 0.2 GB, 0.8 GB on disk)"
    pip_install "$torch"
  fi
  printf '%s\n' "$torch_key" >.venv/stamp-torch
  say "  .venv is now $(du -sh .venv | cut -f1)"
fi

for file in "${pip_files[@]}"; do
  name=$(basename "$file" .txt)
  wanted=$(entries "$file")
  if ! up_to_date "$name" "$torch_key $wanted"; then
    say "installing $(tr '\n' ' ' <<<"$wanted")"
    pip_install "$torch" -r "$file"
    printf '%s\n' "$torch_key $wanted" >".venv/stamp-$name"
  fi
done

# --- The model that the example trains --------------------------------------------------------
if [ ! -e examples/imagenet/efficientnet_pytorch/model.py ]; then
  .venv/bin/python tools/get_efficientnet.py
fi
