#!/usr/bin/env bash
# Promises of age on real mounts: steady loads at several rates on ext2, ext3 and HFS in every order,
# each mount killed at the end; what is older than promised must be on the volume.
#
#   scripts/ages.sh [SECONDS [WEFT]]
#
# SECONDS (default: 40) is how long the loads run, all at once; WEFT is the weft command (default:
# target/ci/weft). Needs python3 and /dev/fuse. Status 0: nothing is missing.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
weft=$(realpath "${2:-$here/../target/ci/weft}")
[ -x "$weft" ] || { echo "$0: $weft is not there: build it, or name the weft command" >&2; exit 2; }
[ -e /dev/fuse ] || { echo "$0: needs /dev/fuse" >&2; exit 2; }
command -v python3 >/dev/null || { echo "$0: python3 is not installed" >&2; exit 2; }
export PYTHONDONTWRITEBYTECODE=1
exec python3 "$here/soak/ages.py" "${1:-40}" "$weft"
