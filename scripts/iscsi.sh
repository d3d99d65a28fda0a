#!/usr/bin/env bash
# An iSCSI volume as a source of weft: weft speaks NBD, qemu-storage-daemon translates. A target of
# tgt is served on the loopback, made a volume by weft through the bridge, filled, checked, and read
# back from the target's own file. With a cache before it, too.
#
#   scripts/iscsi.sh [WEFT]
#
# Needs Debian's tgt, qemu-system-common (qemu-storage-daemon) and qemu-block-extra, and root for
# tgtd. Users write the two lines that begin with qemu-storage-daemon and $weft.
set -uo pipefail
here=$(dirname "$(realpath "$0")")
export PATH="$PATH:/usr/sbin:/sbin"
. "$here/guest/checks.sh"
find_weft "${1:-}"
for tool in tgtd tgtadm qemu-storage-daemon e2fsck; do
  command -v "$tool" >/dev/null || { echo "skipped: no $tool"; exit 0; }
done
[ "$(id -u)" = 0 ] || { echo "skipped: tgtd needs root"; exit 0; }

lun=$scenario_dir/lun.img
socket=$scenario_dir/nbd.sock
name=iqn.2026-01.example:disk
port=$(free_port)
control=$((port % 30000))
truncate -s 64M "$lun"
mkdir -p "$scenario_dir/tree/deep"
for i in $(seq 1 50); do head -c $((i * 1777)) /dev/urandom >"$scenario_dir/tree/deep/file-$i"; done

tgtd -f -C "$control" --iscsi "portal=127.0.0.1:$port" >"$scenario_dir/tgtd.log" 2>&1 &
tgtd=$!
bridge=
# tgtd does not end on SIGTERM while it has a session.
trap '{ kill -KILL "$tgtd" $bridge; wait "$tgtd" $bridge; } 2>/dev/null; end_scenario' EXIT
admin() { tgtadm -C "$control" --lld iscsi "$@"; }
tries=0
until admin --op show --mode target >/dev/null 2>&1; do
  tries=$((tries + 1))
  [ "$tries" -lt 50 ] || { cat "$scenario_dir/tgtd.log"; exit 1; }
  sleep 0.1
done
admin --op new --mode target --tid 1 -T "$name" &&
  admin --op new --mode logicalunit --tid 1 --lun 1 -b "$lun" &&
  admin --op bind --mode target --tid 1 -I ALL || exit 1

qemu-storage-daemon \
  --blockdev "driver=iscsi,node-name=disk,transport=tcp,portal=127.0.0.1:$port,target=$name,lun=1" \
  --nbd-server "addr.type=unix,addr.path=$socket" \
  --export type=nbd,id=disk,node-name=disk,name=disk,writable=on >"$scenario_dir/bridge.log" 2>&1 &
bridge=$!
tries=0
until [ -S "$socket" ]; do
  tries=$((tries + 1))
  [ "$tries" -lt 50 ] || { cat "$scenario_dir/bridge.log"; exit 1; }
  sleep 0.1
done
source="nbd+unix:///disk?socket=$socket"

echo "== iscsi: a target of tgt through qemu-storage-daemon"
check "weft makes a volume on it" "$weft" mkfs ext2 "$source" --root-owner 0:0
check "weft fills it" "$weft" import "$scenario_dir/tree" "$source:/"
check "weft finds it whole" "$weft" fsck "$source"
check "weft reads it back" "$weft" export "$source:/" "$scenario_dir/out"
check "and it is the same" diff -r -x lost+found "$scenario_dir/tree" "$scenario_dir/out"
check "e2fsck finds the target's file whole" e2fsck -fn "$lun"

# The same behind a cache, through a mount.
check "weft makes a cache" "$weft" cache create "$scenario_dir/cache.img" --size 32M
mkdir "$scenario_dir/mnt"
check "weft mounts it behind the cache" "$weft" mount "$source" "$scenario_dir/mnt" --background \
  --cache "$scenario_dir/cache.img" --cache-mode write-back
if mountpoint -q "$scenario_dir/mnt"; then
  check "the tree is there" diff -r "$scenario_dir/tree/deep" "$scenario_dir/mnt/deep"
  check "it can be written" cp -r "$scenario_dir/tree" "$scenario_dir/mnt/copy"
  check "weft unmounts it" "$weft" umount "$scenario_dir/mnt"
  check "the cache is written back" "$weft" cache flush "$scenario_dir/cache.img" "$source"
  check "e2fsck finds the target's file whole" e2fsck -fn "$lun"
  check "the target has the copy" "$weft" cat "$lun:/copy/deep/file-50"
fi
exit $((checks_failed > 0))
