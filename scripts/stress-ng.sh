#!/usr/bin/env bash
# Runs the file-system stressors of stress-ng, with its checks, on weft mounts and on the kernel's ext3
# and ext4, and demands of weft every stressor that the kernel passes. As root.
#
#   scripts/stress-ng.sh WEFT [STRESSOR...]
#
# WEFT is the weft command, STRESSOR the name of one (copy-file, dentry, ...) or a pattern of the shell
# (default: all that work with files). stress-ng is that of the system: Debian 12's package has 0.15.06.
# TARGETS lists the mounts (default: soft journal=ordered hostdir ringer; scripts/suites/targets.sh says
# what they are; HFS has no room for the names of its files), SHARD=K/N runs every Nth stressor from the
# Kth on, SECONDS_LOAD is how long each runs (default: 10), with two processes, SECONDS_MAX the longest that
# it may take to end (default: 120), SECONDS_ALL the time after which none is begun. KEEP=DIR keeps all
# results there; stressors with results are not run again. SIZE is that of each volume (default: 2G), RULE
# that of the network before hostdir (default: "* zstd"). Stressors that the kernel passes and weft does not
# are in stress-ng.exceptions beside this script, each with its reason.
#
# Status 0: nothing new, 1: weft fails, 2: it could not run, 3: SECONDS_ALL was not enough.
set -euo pipefail
limit=120
default_targets="soft journal=ordered hostdir ringer"
load=${SECONDS_LOAD:-10}
source "$(dirname "$(realpath "$0")")/suites/run.sh"

# Those that work with files in the directory that they are given. Left out are those of its class
# filesystem that do not (bind-mount, binderfs, dup, eventfd, ioprio, procfs).
stressors="access aio aiol chattr chdir chmod chown copy-file dentry dir dirdeep dirmany dnotify fallocate
  fanotify fault fcntl fiemap file-ioctl filename flock fpunch fsize fstat getdent handle hdd inode-flags
  inotify io iomix io-uring lease link locka lockf lockofd madvise mknod mmap msync open readahead rename
  revio seek sendfile splice symlink sync-file touch utime verity xattr"

run_unit() {
  local unit=$2 place=$3 out=$4 status=0 why
  mkdir -p "$place/$unit"
  (cd "$place/$unit" && limited stress-ng "--$unit" 2 --timeout "${load}s" --verify --oomable \
    --temp-path "$place/$unit" --hdd-bytes 64m --iomix-bytes 64m --fallocate-bytes 64m \
    --copy-file-bytes 128m --readahead-bytes 64m) >"$out" 2>&1 || status=$?
  why=$(grep -aE 'fail:|error:|skipp|not ' "$out" | sed -E 's/^stress-ng: [a-z]+: +\[[0-9]+\] //' | head -n 1 | cut -c 1-200) || true
  case $status in
    0) if grep -qaE 'skipp(ed|ing)' "$out"; then echo "$unit not-run $why"; else echo "$unit ok"; fi ;;
    3 | 4) echo "$unit not-run $why" ;;
    124 | 137) echo "$unit failed: it took longer than $limit s" ;;
    *) echo "$unit failed: status $status: $why" ;;
  esac
}

start "$@"
command -v stress-ng >/dev/null || { echo "$0: stress-ng is not installed" >&2; exit 2; }
units=()
for stressor in $stressors; do want "$stressor" && units+=("$stressor"); done
whole_units=1
run_all
