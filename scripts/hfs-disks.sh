#!/usr/bin/env bash
# Has weft read, check, repair and write the HFS and MFS volumes of real Macintosh disks: the verdicts of
# weft fsck and of Apple's checker (scripts/apple-fsck.sh) are compared, exports are compared byte for
# byte with a reader that is not weft's and with hcopy; then, on a copy, a volume is repaired where it
# fails and written to where it passes, judged again, and its own files compared. As root, for loop
# devices; needs hfsutils.
#
#   scripts/hfs-disks.sh WEFT DISK...
#
# WEFT is the weft command. A DISK is an image of a floppy or a hard disk, bare, of DiskCopy or with
# Apple's partitions; it is only read. Images of disks that Macs have written, with classic software,
# are found with emulators and their projects and in collections of old software; none is in this tree.
# Notes do not count: damage that both checkers see, an image that is cut (it is
# exported in part and stays as it is, see docs/hfs.md), or a disk too small for hfsutils. Status 0: no
# finding, 1: findings, 2: it could not run, 77: Apple's checker is not at hand.
set -euo pipefail
if [ $# -lt 2 ]; then
  echo "usage: $0 WEFT DISK..." >&2
  exit 2
fi
here=$(dirname "$(realpath "$0")")
weft=$(realpath "$1")
shift
[ -x "$weft" ] || { echo "$0: $weft is not there: build it, or name the weft command" >&2; exit 2; }
for tool in python3 hmount hcopy; do
  command -v "$tool" >/dev/null || { echo "$0: $tool is not installed" >&2; exit 2; }
done
for path in "$@"; do
  [ -f "$path" ] || { echo "$0: $path is no image of a disk" >&2; exit 2; }
done
source "$here/hfs/need-checker.sh"
export PYTHONDONTWRITEBYTECODE=1
exec nice -n 10 python3 "$here/hfs/disks.py" "$weft" "$@"
