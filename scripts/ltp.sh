#!/usr/bin/env bash
# Runs the file-system tests of the Linux Test Project on weft mounts and on the kernel's ext3 and ext4,
# and demands of weft every test that the kernel passes. As root.
#
#   scripts/ltp.sh WEFT [TEST...]
#
# WEFT is the weft command, TEST the tag of a test in the LTP's lists (fcntl11, gf01, ...) or a pattern of
# the shell (default: all). The suite is cloned and built in TOOLS (default: target/tools), which needs
# autoconf, automake, m4, pkg-config and the headers of libacl, libaio, libattr and libcap. TARGETS lists
# the mounts (default: soft journal=ordered hostdir ringer hfs; scripts/suites/targets.sh says what they
# are), SHARD=K/N runs every Nth test from the Kth on, SECONDS_MAX is the longest that one test may take
# (default: 300), SECONDS_LOAD how long those run that go on for any time (growfiles and rwtest; default:
# 10), SECONDS_ALL the time after which none is begun. KEEP=DIR keeps all results there; tests with results
# are not run again. SIZE is that of each volume (default: 2G), RULE that of the network before hostdir
# (default: "* zstd"), SOURCE another copy of the suite's git repository. Tests that the kernel passes and
# weft does not are in ltp.exceptions beside this script, each with its reason.
#
# Tests that make and mount file systems of their own (rename01, utime01, ...) are told that weft is the
# exFAT of FUSE: the LTP formats and mounts that with programs, which are found first on the PATH.
#
# Status 0: nothing new, 1: weft fails tests, 2: it could not run, 3: SECONDS_ALL was not enough.
set -euo pipefail
version=20260529
limit=300
load=${SECONDS_LOAD:-10}
source "$(dirname "$(realpath "$0")")/suites/run.sh"

# System calls that files and directories answer: directories of testcases/kernel/syscalls. (Not fanotify,
# which the kernel answers and which takes a quarter of an hour.)
calls="access chdir chmod chown close copy_file_range creat execve execveat faccessat faccessat2 fadvise
  fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr file_attr
  flistxattr flock fpathconf fremovexattr fsetxattr fstat fstatat fstatfs fsync ftruncate futimesat getcwd
  getdents getxattr inotify io_submit landlock lchown lgetxattr link linkat listxattr llistxattr llseek
  lremovexattr lseek lstat mincore mkdir mkdirat mknod mknodat mmap mremap msync munmap name_to_handle_at
  nftw open open_by_handle_at openat openat2 pathconf pread preadv preadv2 pwrite pwritev pwritev2 read
  readahead readdir readlink readlinkat readv realpath remap_file_pages removexattr rename renameat
  renameat2 rmdir sendfile setxattr splice stat statfs statvfs statx symlink symlinkat sync
  sync_file_range syncfs truncate umask unlink unlinkat ustat utime utimensat utimes vmsplice write
  writev"
others="fs/doio fs/fs_di fs/fs_inod fs/fs_perms fs/ftest fs/inode fs/lftest fs/linktest
  fs/openfile fs/racer fs/stream io/aio io/direct_io io/ltp-aiodio io/writetest"
commands="cp du ln mkdir mv tar"
lists="syscalls fs fs_perms_simple dio fcntl-locktests commands"
# Tests of those lists that have nothing to do with a file system on disk, or with the mounts under test.
left_out="binfmt_misc* isofs proc* quota_remount* read_all_* squashfs* memfd* *_16 inotify09 fanotify* ar_sh nm01_sh which01_sh wc01_sh"

build() {
  local directory
  { make autotools && ./configure --prefix="$tree.bin" && make -C lib && make -C libs; } || return
  for directory in lib $(printf 'kernel/syscalls/%s ' $calls) $(printf 'kernel/%s ' $others) \
    $(printf 'commands/%s ' $commands); do
    { make -C "testcases/$directory" all && make -C "testcases/$directory" install; } || return
  done
}

# Programs whose tests are about a device of their own.
with_devices() {
  (cd "$tree/testcases" &&
    grep -rlE '\.(needs_device|mount_device|all_filesystems|format_device) =|tst_acquire_device|TST_(NEEDS|MOUNT|FORMAT)_DEVICE' \
      --include='*.c' --include='*.sh' .) | sed 's|.*/||; s|\.c$||'
}

# What the LTP takes for the programs of exFAT: each mount is one of the target's own. What is no volume
# has a directory, or the whole cell, in place of the device.
write_helpers() {
  local target=$1 helpers=$dir/${1//=/-}.helpers place options mkfs mount
  place=$(place_of "$target")
  options=allow_other
  # Of the options of mkfs the size of blocks is heeded; the device is the argument that is one.
  # shellcheck disable=SC2016
  case $target in
    hfs)
      options=$(volume_options "$target")
      mkfs='"$weft" --quiet mkfs hfs "$device" --force'
      mount='"$weft" --quiet mount "$1" "$2"'
      ;;
    hostdir)
      mkfs='rm -rf "$place.below/device" && mkdir "$place.below/device"'
      mount='"$weft" --quiet mount "hostdir:$place.below/device" "$2" --transform "$place.rules"'
      ;;
    ringer)
      mkfs='find "$place" -mindepth 1 -delete'
      mount='"$weft" --quiet ringer mount "unix:$place.socket" "$2" --store "$place.below/store.device"'
      ;;
    *)
      options=$(volume_options "$target")
      mkfs="\"\$weft\" --quiet mkfs $(volume_kind "$target") \"\$device\" --force \$block_size"
      mount='"$weft" --quiet mount "$1" "$2"'
      ;;
  esac
  mkdir -p "$helpers"
  # The daemon of the mount before may go on for a moment after its unmount.
  cat >"$helpers/mkfs.exfat" <<END
#!/bin/bash
weft='$weft' place='$place'
block_size=
while [ \$# -gt 0 ]; do
  # The LTP hands "-b 1024" over as one word.
  case \$1 in -b*) block_size="--block-size \${1#-b}" ;; esac
  if [ -b "\$1" ]; then device=\$1; fi
  shift
done
[ -n "\${device:-}" ] || exit 1
for try in {1..100}; do
  $mkfs && exit
  sleep 0.1
done
exit 1
END
  cat >"$helpers/mount.exfat" <<END
#!/bin/bash
weft='$weft' place='$place' options='$options'
if [ "\$1" = -o ]; then options=\$options,\$2; shift 2; fi
for try in {1..100}; do
  $mount -o "\$options" --background && exit
  sleep 0.1
done
exit 1
END
  chmod +x "$helpers"/*
}

run_unit() {
  local target=$1 unit=$2 place=$3 out=$4 status=0 why program path settings=()
  local command=${command_of[$unit]}
  program=${command%% *}
  path=$tree.bin/testcases/bin:$PATH
  if [ -n "${has_device[${program%_64}]:-}" ]; then
    # Forced: the LTP would leave out what the real exFAT cannot do.
    case $target in
      kernel-*) settings=(LTP_SINGLE_FS_TYPE="${target#kernel-}" LTP_DEV_FS_TYPE="${target#kernel-}") ;;
      *)
        settings=(LTP_FORCE_SINGLE_FS_TYPE=exfat LTP_DEV_FS_TYPE=exfat)
        path=$dir/${target//=/-}.helpers:$path
        ;;
    esac
    settings+=(LTP_DEV="$device")
    place=$dir/tmp
  fi
  # The LTP multiplies its own limits by LTP_TIMEOUT_MUL: ours is the one that decides.
  (cd "$place" && limited env PATH="$path" LTPROOT="$tree.bin" TMPDIR="$place" TMP="$place" \
    LTP_COLORIZE_OUTPUT=n LTP_TIMEOUT_MUL=4 LTP_REPRODUCIBLE_OUTPUT=0 KCONFIG_SKIP_CHECK=1 \
    "${settings[@]}" bash -c "$command") >"$out" 2>&1 || status=$?
  why=$(grep -aE 'T(FAIL|BROK|CONF)' "$out" | head -n 1 | tr -s ' \t' ' ' | cut -c 1-200) || true
  case $status in
    0) echo "$unit ok" ;;
    32) echo "$unit not-run $why" ;;
    124 | 137) echo "$unit failed: it took longer than $limit s" ;;
    *) echo "$unit failed: status $status: $why" ;;
  esac
}

start "$@"
fetch_suite ltp "$version" https://github.com/linux-test-project/ltp.git
built_once build
declare -A has_device=() command_of=()
for program in $(with_devices); do has_device[$program]=1; done
units=()
while read -r tag command; do
  for pattern in $left_out; do
    # shellcheck disable=SC2053
    [[ $tag == $pattern ]] && continue 2
  done
  # Some begin with settings: the program is the first word that is one.
  for program in $command; do
    [ -x "$tree.bin/testcases/bin/$program" ] && break
    program=
  done
  [ -n "$program" ] && [ -z "${command_of[$tag]:-}" ] && want "$tag" || continue
  case $command in
    *growfiles* | *rwtest*) command=$(sed -E "s/ -L [0-9]+/ -L $load/; s/ -i [0-9]+s/ -i ${load}s/" <<<"$command") ;;
  esac
  command_of[$tag]=$command
  units+=("$tag")
done < <(for list in $lists; do sed -E '/^#|^[[:space:]]*$/d; s/[[:space:]]+/ /g' "$tree/runtest/$list"; done)

mkdir "$dir/tmp"
chmod 1777 "$dir/tmp"
truncate -s 512M "$dir/device.img"
device=$(losetup -f --show "$dir/device.img")
trap 'clean; losetup -d "$device"' EXIT
for target in $targets; do write_helpers "$target"; done
whole_units=1
run_all
