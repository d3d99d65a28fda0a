#!/usr/bin/env bash
# What needs a kernel of its own, in a QEMU guest in software emulation (see guest/rig.sh).
#
#   guest.sh build                    kernel and initramfs only, under target/guest
#   guest.sh run [OPTION...] SCRIPT   boots, runs a shell script, returns its exit code
#   guest.sh nbd-ext4 [WEFT]          ext4 on `weft serve nbd` through the kernel's client, reset at
#                                     work, then recovered
#   guest.sh dm-cache [WEFT]          the kernel's dm-cache and weft's cache after a reset, counted
#   guest.sh hfs [WEFT]               the kernel's hfs driver on weft's volumes
#   guest.sh log-writes [WEFT]        `weft crash run --log-writes` on a log of the kernel's dm-log-writes
#   guest.sh all [WEFT]               the four above
#
# WEFT is the weft command [default: target/release/weft or target/ci/weft, the newer]. Scenarios
# print "pass" or "FAIL" for each line that is checked, and end with status 1 if any failed.
set -uo pipefail
here=$(dirname "$(realpath "$0")")
. "$here/guest/rig.sh"

what=${1:-}
shift || true
case $what in
  build) guest_ready && guest_build ;;
  run) guest_ready && guest_run "$@" ;;
  nbd-ext4 | dm-cache | hfs | log-writes) exec bash "$here/guest/$what.sh" "$@" ;;
  all)
    status=0
    for scenario in nbd-ext4 dm-cache hfs log-writes; do
      bash "$here/guest/$scenario.sh" "$@" || status=1
    done
    exit $status
    ;;
  *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
