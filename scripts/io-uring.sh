#!/usr/bin/env bash
# Runs a command while the kernel offers FUSE over io_uring to new mounts, and puts the switch back.
#
#   scripts/io-uring.sh COMMAND...
#
# Needs root and Linux 6.14; says so, and succeeds without running the command, where either is missing.
set -euo pipefail

[ $# -gt 0 ] || { echo "usage: $0 COMMAND..." >&2; exit 2; }
switch=/sys/module/fuse/parameters/enable_uring
if ! [ -w "$switch" ]; then
  echo "not here: $switch, to be written by root"
  exit 0
fi
before=$(cat "$switch")
trap 'echo "$before" >"$switch"' EXIT
trap 'exit 130' INT TERM
echo Y >"$switch"
"$@"
