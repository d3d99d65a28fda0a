#!/usr/bin/env bash
# The tests of the Macintosh volumes on machines unlike this one:
#
#   s390x   big-endian, 64 bits, under qemu-user. The linker, the C library and qemu are Debian
#           packages, which apt fetches to target/portability (some 85 MB); none is installed.
#   i686    32 bits, which an x86_64 kernel runs as it is.
#
# rustup gives the standard libraries for both.
#
#   portability.sh [s390x|i686 [ARGUMENT...]]
#
# Arguments are those of cargo test [default: -p weft-hfs]; without any, both machines.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO=${CARGO:-cargo}
root=$PWD/target/portability

if [ "$(uname -m)" != x86_64 ] || ! command -v apt-get rustup >/dev/null; then
  echo "portability: skipped, it needs Debian on x86_64 and rustup"
  exit 0
fi
machine=${1:-all}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- -p weft-hfs

# Fetches and unpacks what links and runs programs for s390x. Its programs are where they were
# unpacked, not where they think.
fetch_s390x() {
  local gcc debs=$root/debs
  [ ! -e "$root/ready" ] || return 0
  gcc=$(apt-cache depends gcc-$gnu | sed -n "s/.*Depends: gcc-\([0-9]*\)-$gnu\$/\1/p")
  rm -rf "$root"
  mkdir -p "$debs" "$tree"
  (cd "$debs" && apt-get -q -o APT::Sandbox::User=root download qemu-user-static \
    "gcc-$gcc-$gnu" "binutils-$gnu" "libgcc-$gcc-dev-s390x-cross" libgcc-s1-s390x-cross \
    libc6-dev-s390x-cross libc6-s390x-cross)
  for package in "$debs"/*.deb; do
    dpkg -x "$package" "$tree"
  done
  rm -r "$debs"
  cat >"$root/cc" <<END
#!/bin/sh
LD_LIBRARY_PATH=$tree/usr/lib/x86_64-linux-gnu exec $tree/usr/bin/$gnu-gcc-$gcc \\
  -B $tree/usr/bin/$gnu- -B $tree/usr/$gnu/lib -L $tree/usr/$gnu/lib --sysroot=$tree "\$@"
END
  chmod +x "$root/cc"
  touch "$root/ready"
}

run() {
  local target=$1
  shift
  rustup target list --installed | grep -qx "$target" || rustup target add "$target"
  echo "portability: $target"
  "$CARGO" test --locked --profile ci --target "$target" --target-dir "$root/build" "$@"
}

if [ "$machine" = s390x ] || [ "$machine" = all ]; then
  gnu=s390x-linux-gnu
  tree=$root/tree
  fetch_s390x
  export CARGO_TARGET_S390X_UNKNOWN_LINUX_GNU_LINKER=$root/cc
  export CARGO_TARGET_S390X_UNKNOWN_LINUX_GNU_RUNNER="$tree/usr/bin/qemu-s390x-static -L $tree/usr/$gnu"
  run s390x-unknown-linux-gnu "$@"
fi
if [ "$machine" = i686 ] || [ "$machine" = all ]; then
  # All that is linked comes with the target: no 32-bit C library is needed.
  export CARGO_TARGET_I686_UNKNOWN_LINUX_MUSL_LINKER=rust-lld
  run i686-unknown-linux-musl "$@"
fi
