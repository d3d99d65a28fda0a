#!/usr/bin/env bash
# Writes 115 HFS volumes with the weft command, of all sizes and options, crowded, fragmented and full,
# through mounts that are unmounted or killed, and has Apple's checker (scripts/apple-fsck.sh) and weft
# fsck judge each. As root, for loop devices and mounts; needs /dev/fuse, a few gigabytes of space and,
# for trees to import, the headers of Linux and of the C library and Debian's documentation of bash.
#
#   scripts/hfs-volumes.sh WEFT DIR [SEED]
#
# WEFT is the weft command. The images stay in DIR, what a kill left before its repair in DIR.crashed;
# DIR.tmp is removed. SEED (default: 1) settles what is done to a volume, all but the moment of a kill.
# With ONLY, a regular expression, only volumes whose names match are written (ONLY=kill- for example);
# all images in DIR are judged. Status 0: no finding, 1: findings, 2: it could not run, 77: Apple's
# checker is not at hand.
set -euo pipefail
if [ $# -lt 2 ] || [ $# -gt 3 ]; then
  echo "usage: $0 WEFT DIR [SEED]" >&2
  exit 2
fi
# In a mount namespace of its own: one that another program makes meanwhile, from a copy of this one,
# would keep the mounts alive after they are unmounted here.
if [ -z "${WEFT_HFS_NAMESPACE:-}" ] && [ "$(id -u)" = 0 ]; then
  WEFT_HFS_NAMESPACE=1 exec unshare --mount --propagation private -- bash "$0" "$@"
fi
here=$(dirname "$(realpath "$0")")
weft=$(realpath "$1")
[ -x "$weft" ] || { echo "$0: $weft is not there: build it, or name the weft command" >&2; exit 2; }
for tool in python3 fusermount3 fallocate; do
  command -v "$tool" >/dev/null || { echo "$0: $tool is not installed" >&2; exit 2; }
done
for path in /dev/fuse /usr/include/linux /usr/share/doc/bash; do
  [ -e "$path" ] || { echo "$0: needs $path" >&2; exit 2; }
done
mkdir -p "$2"
directory=$(realpath "$2")
source "$here/hfs/need-checker.sh"
export PYTHONDONTWRITEBYTECODE=1
exec nice -n 10 python3 "$here/hfs/volumes.py" "$weft" "$directory" "${3:-1}"
