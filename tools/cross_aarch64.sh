#!/bin/sh
# Cross-compiles the core and the kernels for aarch64 and runs their C++ tests under qemu-user.
#   tools/cross_aarch64.sh [ctest arguments]        as -R ops/
# Needs Debian's g++-aarch64-linux-gnu and qemu-user. The arm64 builds of the libraries are fetched by
# apt with lists of its own below build/aarch64: nothing is installed and no architecture is added.
set -eu
cd "$(dirname "$0")/.."
build=build/aarch64
sysroot=$PWD/$build/sysroot
packages='zlib1g-dev libsqlite3-dev libgtest-dev libgmock-dev nlohmann-json3-dev libfmt-dev libcli11-dev'

for program in aarch64-linux-gnu-g++ qemu-aarch64 cmake ninja apt-get dpkg-deb; do
  command -v $program >/dev/null || {
    echo "cross_aarch64: $program is missing: apt-get install g++-aarch64-linux-gnu qemu-user" >&2
    exit 1
  }
done

if [ ! -e "$sysroot/complete" ]; then
  apt=$PWD/$build/apt
  mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial" "$apt/debs" "$sysroot"
  apt_get() {
    apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root \
      -o Dir::State="$apt/state" -o Dir::State::status=/dev/null -o Dir::Cache="$apt/cache" \
      -o Acquire::Languages=none "$@"
  }
  apt_get update
  cd "$apt/debs"
  apt_get download $packages
  # fmt's CMake files want the library that its headers do without; its name changes with versions.
  apt_get download "$(dpkg-deb -f libfmt-dev_*.deb Depends | sed 's/ .*//')"
  cd - >/dev/null
  for deb in "$apt"/debs/*.deb; do dpkg-deb -x "$deb" "$sysroot"; done
  touch "$sysroot/complete"
fi

cmake -G Ninja -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DOPFUSE_TORCH=OFF \
  -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/aarch64-linux-gnu.cmake" -DOPFUSE_SYSROOT="$sysroot"
ninja -C "$build" ${OPFUSE_TARGETS:-}
ctest --test-dir "$build" --output-on-failure -j "$(nproc)" "$@"
