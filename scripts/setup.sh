#!/usr/bin/env bash
# Installs the system packages that are missing, and only those; says so when it cannot.
#   setup.sh          what building, the demo and the tests need
#   setup.sh bench    and what the measurements run beside weft
#   setup.sh guest    and what scripts/guest.sh boots a kernel of its own with
set -euo pipefail

say() { printf 'setup: %s\n' "$*" >&2; }

# A command (or a file) that shows that a package is there, the package, and whether weft can do
# without it.
needs=(
  "cc                              gcc         required"
  "/usr/include/stdlib.h           libc6-dev   required"
  "e2fsck                          e2fsprogs   required"
  "fusermount3                     fuse3       required"
  "mount                           mount       required"
  "diff                            diffutils   required"
  "setfattr                        attr        optional"
  "hformat                         hfsutils    optional"
  "hexbin                          macutils    optional"
  "unar                            unar        optional"
  "genisoimage                     genisoimage optional"
  "qemu-img                        qemu-utils  optional"
  "nbdinfo                         libnbd-bin  optional"
  "nbdkit                          nbdkit      optional"
  "fio                             fio         optional"
  "tgtd                            tgt         optional"
  "qemu-storage-daemon             qemu-system-common  optional"
  "/usr/share/doc/qemu-block-extra qemu-block-extra    optional"
  "dmg2img                         dmg2img     optional"
  "7zz                             7zip        optional"
  "xorriso                         xorriso     optional"
  "etcd                            etcd-server optional"
)
if [ "${1:-}" = bench ]; then
  needs+=(
    "fuse2fs                           fuse2fs           optional"
    "xz                                xz-utils          optional"
    "taskset                           util-linux        optional"
    "sshfs                             sshfs             optional"
    "sshd                              openssh-server    optional"
    "ip                                iproute2          optional"
    "/usr/src/linux-source-6.1.tar.xz  linux-source-6.1  optional"
  )
fi
if [ "${1:-}" = bench ] || [ "${1:-}" = guest ]; then
  needs+=(
    "qemu-system-x86_64  qemu-system-x86  optional"
    "busybox             busybox-static   optional"
    "cpio                cpio             optional"
    "depmod              kmod             optional"
    "nbd-client          nbd-client       optional"
    "dmsetup             dmsetup          optional"
    "getfattr            attr             optional"
    "nbdkit              nbdkit           optional"
    "hformat             hfsutils         optional"
    "tgtd                tgt              optional"
    "/usr/lib/x86_64-linux-gnu/qemu/block-iscsi.so  qemu-block-extra  optional"
    "python3             python3          optional"
  )
fi

export PATH="$PATH:/usr/sbin:/sbin"

missing() {
  case "$1" in
    /*) [ ! -e "$1" ] ;;
    *) ! command -v "$1" >/dev/null 2>&1 ;;
  esac
}

packages=()
for line in "${needs[@]}"; do
  read -r probe package _ <<<"$line"
  if missing "$probe"; then packages+=("$package"); fi
done

if [ "${#packages[@]}" -gt 0 ]; then
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then as_root=(sudo -n); fi
  if ! command -v apt-get >/dev/null 2>&1; then
    say "this is not a Debian: please install by hand: ${packages[*]}"
  elif [ "${#as_root[@]}" -gt 0 ] && ! command -v sudo >/dev/null 2>&1; then
    say "not root and no sudo: please install by hand: ${packages[*]}"
  else
    say "installing ${packages[*]}"
    if ! { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -q </dev/null >/dev/null &&
      "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y --no-install-recommends "${packages[@]}" </dev/null >/dev/null; }; then
      say "apt-get failed; going on with what is there"
    fi
  fi
fi

lacking=0
for line in "${needs[@]}"; do
  read -r probe package need <<<"$line"
  if missing "$probe"; then
    if [ "$need" = required ]; then
      say "$probe is missing (Debian package $package), and weft cannot be built or tested without it"
      lacking=1
    else
      say "$probe is missing (Debian package $package): what needs it is skipped, and says so"
    fi
  fi
done

if ! command -v "${CARGO:-cargo}" >/dev/null 2>&1; then
  say "no cargo on the PATH: install Rust first (https://rustup.rs), then run this again"
  lacking=1
elif command -v rustup >/dev/null 2>&1; then
  # Lints are part of make test. A machine that cannot get them still builds and tests.
  for tool in fmt clippy; do
    if ! cargo "$tool" --version >/dev/null 2>&1; then
      component=$([ "$tool" = fmt ] && echo rustfmt || echo clippy)
      rustup component add "$component" >/dev/null 2>&1 ||
        say "rustup cannot add $component: its check is skipped, and says so"
    fi
  done
fi
exit "$lacking"
