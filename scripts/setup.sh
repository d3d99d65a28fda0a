#!/usr/bin/env bash
# Installs the system packages that are missing, and only those; says so when it cannot.
#   setup.sh build    what building and installing weft needs: a C compiler and linker
#   setup.sh demo     and what the demo runs: e2fsck, fusermount3, mount, diff
#   setup.sh test     and other people's tools that tests compare weft with (the default)
#   setup.sh bench    and what the measurements run beside weft
#   setup.sh guest    and what scripts/guest.sh boots a kernel of its own with
#   setup.sh soak     and the programs that scripts/soak.sh runs on mounts
#   setup.sh suites   and what the suites of other projects need (scripts/ltp.sh, stress-ng.sh, git-suite.sh)
set -euo pipefail

say() { printf 'setup: %s\n' "$*" >&2; }

level=${1:-test}

# A command (or a file, or a pattern of files) that shows that a package is there, the package, and
# whether the level can do without it.
needs=(
  "cc                              gcc         required"
  "/usr/include/stdlib.h           libc6-dev   required"
)
demo=(
  "e2fsck                          e2fsprogs   required"
  "fusermount3                     fuse3       required"
  "mount                           mount       required"
  "diff                            diffutils   required"
)
tests=(
  "pgrep                           procps      required"
  "setfattr                        attr        optional"
  "getfacl                         acl         optional"
  "git                             git         optional"
  "python3                         python3     optional"
  "pkg-config                      pkg-config  optional"
  "cbindgen                        cbindgen    optional"
  "strip                           binutils    optional"
  "/usr/bin/pytest-3               python3-pytest      optional"
  "rsync                           rsync       optional"
  "script                          bsdutils    optional"
  "setpriv                         util-linux  optional"
  "systemd-socket-activate         systemd     optional"
  "openssl                         openssl     optional"
  "bsdtar                          libarchive-tools    optional"
  "sqlite3                         sqlite3     optional"
  "bzip2                           bzip2       optional"
  "zip                             zip         optional"
  "lz4                             lz4         optional"
  "xz                              xz-utils    optional"
  "zstd                            zstd        optional"
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
bench=(
  "fuse2fs                           fuse2fs           optional"
  "taskset                           util-linux        optional"
  "sshfs                             sshfs             optional"
  "sshd                              openssh-server    optional"
  "ip                                iproute2          optional"
  "/usr/src/linux-source-6.1.tar.xz  linux-source-6.1  optional"
)
guest=(
  "qemu-system-x86_64  qemu-system-x86  optional"
  "busybox             busybox-static   optional"
  "cpio                cpio             optional"
  "depmod              kmod             optional"
  "nbd-client          nbd-client       optional"
  "dmsetup             dmsetup          optional"
  "/usr/lib/x86_64-linux-gnu/qemu/block-iscsi.so  qemu-block-extra  optional"
)
soak=(
  "/usr/lib/postgresql/*/bin/initdb  postgresql  optional"
)
suites=(
  "stress-ng                    stress-ng     optional"
  "autoconf                     autoconf      optional"
  "automake                     automake      optional"
  "m4                           m4            optional"
  "make                         make          optional"
  "/usr/include/sys/acl.h       libacl1-dev   optional"
  "/usr/include/attr/libattr.h  libattr1-dev  optional"
  "/usr/include/libaio.h        libaio-dev    optional"
  "/usr/include/sys/capability.h  libcap-dev  optional"
  "/usr/include/zlib.h          zlib1g-dev    optional"
)
case "$level" in
  build) ;;
  demo) needs+=("${demo[@]}") ;;
  test) needs+=("${demo[@]}" "${tests[@]}") ;;
  bench) needs+=("${demo[@]}" "${tests[@]}" "${bench[@]}" "${guest[@]}") ;;
  guest) needs+=("${demo[@]}" "${tests[@]}" "${guest[@]}") ;;
  soak) needs+=("${demo[@]}" "${tests[@]}" "${soak[@]}") ;;
  suites) needs+=("${demo[@]}" "${tests[@]}" "${suites[@]}") ;;
  *) say "'$level' is no level; it is one of: build, demo, test, bench, guest, soak, suites"; exit 2 ;;
esac

# Packages whose servers Debian starts at once and at every boot. Tests start their own.
servers=(etcd-server tgt openssh-server postgresql)

export PATH="$PATH:/usr/sbin:/sbin"

missing() {
  case "$1" in
    /*) ! compgen -G "$1" >/dev/null ;;
    *) ! type -P "$1" >/dev/null 2>&1 ;;
  esac
}

packages=()
for line in "${needs[@]}"; do
  read -r probe package _ <<<"$line"
  if missing "$probe" && [[ " ${packages[*]:-} " != *" $package "* ]]; then packages+=("$package"); fi
done

# Installs packages without starting any server of theirs: /usr/sbin/policy-rc.d says no while it
# runs, and what would start at the next boot is disabled.
install_packages() {
  local policy=/usr/sbin/policy-rc.d ours=
  if [ ! -e "$policy" ]; then
    ours=1
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
    "${as_root[@]}" chmod 755 "$policy"
  fi
  local status=0
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -q </dev/null >/dev/null &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get install -q -y --no-install-recommends "${packages[@]}" </dev/null >/dev/null || status=$?
  [ -z "$ours" ] || "${as_root[@]}" rm -f "$policy"
  if type -P systemctl >/dev/null 2>&1; then
    local server
    for server in "${servers[@]}"; do
      if [[ " ${packages[*]} " = *" $server "* ]]; then
        local unit=${server%-server}
        [ "$unit" != openssh ] || unit=ssh
        "${as_root[@]}" systemctl disable "$unit" >/dev/null 2>&1 || true
      fi
    done
  fi
  return "$status"
}

if [ "${#packages[@]}" -gt 0 ]; then
  as_root=(env)
  # On a terminal sudo may ask for a password; elsewhere there is nobody to type it.
  if [ "$(id -u)" -ne 0 ]; then as_root=(sudo); [ -t 0 ] || as_root+=(-n); fi
  by_hand="apt-get install --no-install-recommends ${packages[*]}"
  if ! type -P apt-get >/dev/null 2>&1; then
    say "this is not a Debian: please install by hand: ${packages[*]}"
  elif [ "${as_root[0]}" = sudo ] && ! type -P sudo >/dev/null 2>&1; then
    say "not root and no sudo: please install as root: $by_hand"
  elif [ "${as_root[0]}" = sudo ] && ! "${as_root[@]}" true; then
    say "sudo refuses: please install as root, then run this again: sudo $by_hand"
  else
    say "installing ${packages[*]}"
    install_packages || say "apt-get failed; what is there is used. To install by hand: $by_hand"
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

if ! type -P "${CARGO:-cargo}" >/dev/null 2>&1; then
  say "no cargo on the PATH: install Rust first (https://rustup.rs), then run this again"
  lacking=1
elif [ "$level" != build ] && [ "$level" != demo ] && type -P rustup >/dev/null 2>&1; then
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
