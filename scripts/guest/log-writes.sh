#!/usr/bin/env bash
# `weft crash run --log-writes` on logs that the kernel's dm-log-writes has written: the kernel's ext3
# runs a small program in the guest, in a directory over the target, and weft searches the log. A
# program that syncs passes; one that promises without is found. Run by scripts/guest.sh log-writes.
#
# With REPLAY_LOG, the replay-log of xfstests (src/log-writes), it must see the same entries.
. "$(dirname "$(realpath "$0")")/scenario.sh"

volume=$scenario_dir/volume.img log=$scenario_dir/writes.log
cat >"$scenario_dir/logged" <<'END'
modprobe -a dm-mod dm-log-writes ext4 || exit 20
dmsetup create logged --noudevsync \
  --table "0 $(blockdev --getsz /dev/vda) log-writes /dev/vda /dev/vdb" || exit 21
dmsetup mknodes
mark() { dmsetup message logged 0 mark "$1"; }
mkfs.ext4 -q -t ext3 -b 1024 /dev/mapper/logged || exit 22
mark made
mount -t ext4 /dev/mapper/logged /mnt || exit 23
echo old >/mnt/f; sync
mark old
echo new >/mnt/t; sync; mv /mnt/t /mnt/f; sync
mark new
echo newer >/mnt/t; mv /mnt/t /mnt/f
mark newer
umount /mnt
dmsetup remove logged
sync
END

run() { # run CODE OPTION...: searches the log, and expects an exit code
  local code=$1
  shift
  "$weft" crash run --log-writes "$log" --after-mark old --states 3000 --time 60s "$@"
  [ $? = "$code" ]
}

echo "== the kernel's ext3 over dm-log-writes"
truncate -s 16M "$volume"
truncate -s 128M "$log"
guest_run --drive "$volume" --drive "$log" --seconds 300 "$scenario_dir/logged"
check "the guest has written the log" [ $? = 0 ]
"$weft" crash run --log-writes "$log" --after-mark old --list >"$scenario_dir/list"
echo "entries from the mark on: $(wc -l <"$scenario_dir/list")"
check "marks, writes and flushes are there" \
  sh -c 'grep -q "mark \"new\"" "$1" && grep -q "block write" "$1" && grep -q "block flush" "$1"' - "$scenario_dir/list"
check "the volume is whole in every state" run 0 --fsck
# shellcheck disable=SC2016 # the check's shell expands it
check "what was synced before a mark is there" \
  run 0 --check 'if grep -qx new "$WEFT_PROMISES"; then grep -q new f; else grep -q -e old -e new f; fi'
# shellcheck disable=SC2016
check "what was not is found" \
  run 3 --check 'if grep -qx newer "$WEFT_PROMISES"; then grep -qx newer f; fi'
if [ -n "${REPLAY_LOG:-}" ]; then
  # Ours counts a write that flushes first as two, and what precedes the mark not at all.
  truncate -s 16M "$scenario_dir/theirs.img"
  "$REPLAY_LOG" -vv --log "$log" --replay "$scenario_dir/theirs.img" >"$scenario_dir/theirs" 2>&1
  sed -n 's/^replaying .*: sector \([0-9]*\), size \([0-9]*\), flags 0x[0-9a-f]*(\([A-Z|]*\))$/\1 \2 \3/p' \
    "$scenario_dir/theirs" | awk '
      $3 ~ /MARK/ {print "mark"; next}
      $3 ~ /FLUSH/ {print "flush"}
      $3 ~ /DISCARD/ {print "discard", $1 * 512, $1 * 512 + $2; next}
      $2 > 0 {print "write", $1 * 512, $1 * 512 + $2}' >"$scenario_dir/their-entries"
  "$weft" crash run --log-writes "$log" --after-mark made --list | sed -n '
    s/^ *[0-9]* *mark .*/mark/p
    s/^ *[0-9]* *block flush.*/flush/p
    s/^ *[0-9]* *block \(write\|discard\)(bytes \([0-9]*\) to \([0-9]*\) .*/\1 \2 \3/p' \
    >"$scenario_dir/our-entries"
  ours=$(wc -l <"$scenario_dir/our-entries")
  check "replay-log sees the same $ours entries behind the first mark" \
    sh -c 'awk "seen; /^mark/ {seen = 1}" "$1" | diff - "$2"' - "$scenario_dir/their-entries" "$scenario_dir/our-entries"
  check "and leaves the same volume as the kernel" cmp "$volume" "$scenario_dir/theirs.img"
fi
exit $((checks_failed > 0))
