#!/usr/bin/env bash
# The ends of mounts, over and over: unmounted in order; the process of the mount killed in the midst of
# requests; a program killed in the midst of its own. Nobody may hang, and nothing may stay in the kernel.
# As root.
#
#   scripts/mount-ends.sh WEFT [ROUNDS] [OPTIONS]
#
# OPTIONS are those of the mount (default: io_uring=on). Needs fusectl at /sys/fs/fuse/connections, and
# mounts it in a namespace of its own.
set -euo pipefail

weft=$(realpath "${1:?usage: $0 WEFT [ROUNDS] [OPTIONS]}")
rounds=${2:-1000}
options=${3:-io_uring=on}
if [ -z "${IN_NAMESPACE:-}" ]; then
  here=$(dirname "$(realpath "$0")")
  case $options in
  *io_uring=on*) IN_NAMESPACE=1 exec "$here/io-uring.sh" unshare --mount --propagation private "$0" "$weft" "$rounds" "$options" ;;
  *) IN_NAMESPACE=1 exec unshare --mount --propagation private "$0" "$weft" "$rounds" "$options" ;;
  esac
fi
control=/sys/fs/fuse/connections
mount -t fusectl none "$control" 2>/dev/null || true
dir=$(mktemp -d)
trap 'umount -l "$dir/m" 2>/dev/null || true; rm -rf "$dir"' EXIT
mkdir "$dir/m"
requests() { awk '$1 == "fuse_request" { print $2 }' /proc/slabinfo; }
connections() { find "$control" -mindepth 1 -maxdepth 1 | wc -l; }
fail() { echo "round $round: $*" >&2; exit 1; }

# Waits for a process, ten seconds at most.
ends() { # process, name
  for _ in $(seq 200); do
    kill -0 "$1" 2>/dev/null || return 0
    sleep 0.05
  done
  fail "$2 hangs: $(cat "/proc/$1/wchan")"
}

# Requests of every kind, until one fails.
work() { # number
  local at=$dir/m/work$1
  while mkdir "$at" && head -c 300000 /dev/zero >"$at/file" && sync "$at/file" && cat "$at/file" >/dev/null &&
    ls -l "$at" >/dev/null && rm -r "$at"; do :; done 2>/dev/null
}

before=$(requests)
connected=$(connections)
for round in $(seq "$rounds"); do
  if [ $((round % 50)) = 1 ]; then
    rm -f "$dir/v.img"
    "$weft" mkfs ext2 "$dir/v.img" --size 64M --quiet
  fi
  "$weft" mount "$dir/v.img" "$dir/m" --background --quiet -o "$options"
  daemon=$(pgrep -f "mount --detached .* $dir/m\$" || true)
  [ -n "$daemon" ] || fail "no process serves the mount"
  case $((round % 4)) in
  0 | 1)
    echo "$round" >"$dir/m/round"
    [ "$(cat "$dir/m/round")" = "$round" ] || fail "the file has not what was written"
    "$weft" umount "$dir/m" || fail "unmounting failed"
    ;;
  2)
    workers=()
    for nr in 1 2 3; do work "$nr" & workers+=($!); done
    sleep 0.0$((round % 10))
    kill -9 "$daemon"
    for worker in "${workers[@]}"; do ends "$worker" "a program"; done
    umount -l "$dir/m"
    "$weft" fsck --yes "$dir/v.img" >/dev/null || [ $? = 1 ] || fail "the volume cannot be repaired"
    ;;
  3)
    head -c 200M /dev/zero >"$dir/m/long" 2>/dev/null & client=$!
    sleep 0.0$((round % 10))
    kill -9 "$client" 2>/dev/null || true
    ends "$client" "the killed program"
    # A client that was killed at once has not made it.
    rm -f "$dir/m/long"
    "$weft" umount "$dir/m" || fail "unmounting failed"
    ;;
  esac
  ends "$daemon" "the process of the mount"
done
wait
# Both counts are of the whole machine: other mounts may be busy for a moment.
for _ in $(seq 60); do
  sleep 1
  [ "$(connections)" -gt "$connected" ] || [ "$(requests)" -gt $((before + 64)) ] || break
done
[ "$(connections)" -le "$connected" ] || fail "$(connections) connections stay, there were $connected"
after=$(requests)
[ "$after" -le $((before + 64)) ] || fail "$after requests stay in the kernel, there were $before"
echo "$rounds mounts ended; requests in the kernel: $before before, $after after"
