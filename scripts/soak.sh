#!/usr/bin/env bash
# Runs real programs (git, SQLite, PostgreSQL, tar, rsync, cp, a churn of names, writers through
# fsync and mmap) on weft mounts in each order of writes, kills the mount, stops it, or cuts the power
# of its disk at random moments, and judges what is left. As root, at the lowest priority.
#
#   scripts/soak.sh SECONDS [WEFT]
#
# SECONDS are for all orders together; WEFT is the weft command (default: target/ci/weft). ORDERS,
# PROGRAMS, SEED, SOAK_DIR and GO_ON are told in scripts/soak/soak.py. What a program of the soak needs
# and lacks is skipped with a line "skipped: ..."; `scripts/setup.sh soak` installs it all. Status 0:
# no finding.
set -euo pipefail
usage="usage: $0 SECONDS [WEFT]"
# In a mount namespace of its own: one that another program makes meanwhile, from a copy of this one,
# would keep the mounts of the soak alive after they are unmounted here.
if [ -z "${WEFT_SOAK_NAMESPACE:-}" ] && [ "$(id -u)" = 0 ]; then
  WEFT_SOAK_NAMESPACE=1 exec unshare --mount --propagation private -- bash "$0" "$@"
fi
here=$(dirname "$(realpath "$0")")
seconds=${1:?$usage}
case "$seconds" in
  *[!0-9]*) echo "$0: SECONDS must be a number of seconds, not '$seconds'" >&2; exit 2 ;;
esac
weft=$(realpath "${2:-$here/../target/ci/weft}")
export PATH="$PATH:/usr/sbin:/sbin"
[ -x "$weft" ] || { echo "$0: $weft is not there: build it, or name the weft command" >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "$0: needs root, to act as several users on one mount" >&2; exit 2; }
[ -e /dev/fuse ] || { echo "$0: needs /dev/fuse" >&2; exit 2; }
for tool in python3 e2fsck umount; do
  command -v "$tool" >/dev/null || { echo "$0: $tool is not installed (scripts/setup.sh soak)" >&2; exit 2; }
done
export PYTHONDONTWRITEBYTECODE=1
exec nice -n 19 python3 "$here/soak/soak.py" "$seconds" "$weft"
