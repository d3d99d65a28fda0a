#!/usr/bin/env bash
# Asks a weft command, as a user who owns nothing of them, for private files and for every name that is
# derived from them (views, archives as directories, links, snapshots, query folders), on mounts of a
# directory of the host, of ext2, ext3 and HFS, and of a cell; and mounts trees whose rules files,
# attributes, links, names and archives mean harm. As root; a quarter of an hour on two cores.
#
#   scripts/hostile.sh WEFT DIR [SEED]
#
# WEFT is the weft command. DIR is a new directory, on a file system with POSIX ACLs and below
# directories that all users may search; it is left behind, as the command that each finding is
# printed with uses it. SEED chooses pairs of stages and the noise in files (default: 1). Status 0: no
# violation of a promise, and every control passed; 1: a finding; 2: wrong usage, or something is
# missing here.
set -euo pipefail
if [ $# -lt 2 ] || [ $# -gt 3 ]; then
  echo "usage: $0 WEFT DIR [SEED]" >&2
  exit 2
fi
here=$(dirname "$(realpath "$0")")
weft=$(realpath --canonicalize-missing "$1")
dir=$(realpath --canonicalize-missing "$2")
seed=${3:-1}
export PATH="$PATH:/usr/sbin:/sbin"
case "$seed" in
  *[!0-9]*) echo "$0: SEED must be a number, not '$seed'" >&2; exit 2 ;;
esac
[ -x "$weft" ] || { echo "$0: $weft is not there: build it, or name the weft command" >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "$0: needs root, to act as several users on one mount" >&2; exit 2; }
[ -e /dev/fuse ] || { echo "$0: needs /dev/fuse" >&2; exit 2; }
for tool in python3 setfacl unshare; do
  command -v "$tool" >/dev/null || { echo "$0: $tool is not installed" >&2; exit 2; }
done
[ ! -e "$dir" ] || { echo "$0: $dir exists: name a new directory" >&2; exit 2; }
mkdir -p "$dir" || exit 2
chmod 755 "$dir"
if ! setfacl --modify u:65534:--- "$dir" || ! setfacl --remove-all "$dir"; then
  echo "$0: the file system of $dir has no POSIX ACLs" >&2
  rmdir "$dir"
  exit 2
fi
export PYTHONDONTWRITEBYTECODE=1
# In a mount namespace of its own: what a run that is killed leaves mounted goes with it.
exec unshare --mount --propagation private -- python3 "$here/hostile/hostile.py" "$weft" "$dir" "$seed"
