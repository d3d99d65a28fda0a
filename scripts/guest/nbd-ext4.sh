#!/usr/bin/env bash
# A real kernel on `weft serve nbd`: the guest attaches over four connections, makes ext4, works,
# and is reset (sysrq b) in the middle; after the second boot the journal is replayed and every file
# that was fsynced is there. Run by scripts/guest.sh nbd-ext4.
#
# SERVER=nbdkit serves the image with nbdkit in weft's place, to tell the rig's faults from weft's.
# CACHE=SIZE puts weft's cache of that size (as 64M) in front of the served image, MODE=... its mode.
. "$(dirname "$(realpath "$0")")/scenario.sh"

image=$scenario_dir/origin.img
port=$(free_port)
truncate -s 256M "$image"
if [ "${SERVER:-weft}" = nbdkit ]; then
  start() { serve "$port" nbdkit -f -i 127.0.0.1 -p "$port" file "$image"; }
elif [ -n "${CACHE:-}" ]; then
  "$weft" cache create "$scenario_dir/cache.img" --size "$CACHE" || exit 1
  start() {
    serve "$port" "$weft" serve nbd "$image" --listen "127.0.0.1:$port" \
      --cache "$scenario_dir/cache.img" --cache-mode "${MODE:-write-back}"
  }
else
  start() { serve "$port" "$weft" serve nbd "$image" --listen "127.0.0.1:$port"; }
fi

cat >"$scenario_dir/attach" <<'END'
modprobe -a nbd ext4
# "the default export" has an empty name.
nbd-client 10.0.2.2 "$(cat /put/port)" /dev/nbd0 -N "" -C 4 -t 60 >/tmp/nbd.log 2>&1 ||
  { cat /tmp/nbd.log; exit 20; }
[ "$(blockdev --getsize64 /dev/nbd0)" -gt 0 ] || { echo "/dev/nbd0 is empty"; exit 21; }
END
echo "$port" >"$scenario_dir/port"

cat >"$scenario_dir/work" <<'END'
. /put/attach
mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 /dev/nbd0 || exit 22
mount -t ext4 /dev/nbd0 /mnt || exit 23
# A tree unpacked and synced whole.
tar -C / -cf /tmp/tree.tar bin lib64
mkdir /mnt/tree && tar -C /mnt/tree -xf /tmp/tree.tar && sync
(cd /mnt && find tree -type f | sort | xargs md5sum) | sed 's/^/@synced /'
# Somebody else dirties the volume all the time and never syncs.
(i=0; while :; do
  head -c 3000000 /tmp/tree.tar >/mnt/noise.$((i % 5)); rm -f /mnt/noise.$(((i + 2) % 5)); i=$((i + 1)); sleep 0.2
done) &
# Small files, each synced before it is promised: new ones, and some written over.
i=0
while [ $i -lt 40 ]; do
  name=file-$((i % 30))
  dd if=/dev/urandom of=/tmp/content bs=1000 count=$((1 + i * 7 % 50)) 2>/dev/null
  dd if=/tmp/content of=/mnt/$name.new bs=64k conv=fsync 2>/dev/null && mv /mnt/$name.new /mnt/$name || exit 24
  # The rename is durable once the directory is: syncing a new file commits both.
  dd if=/tmp/content of=/mnt/.barrier bs=512 count=1 conv=fsync 2>/dev/null || exit 25
  echo "@synced $(md5sum </tmp/content | cut -d ' ' -f 1)  $name"
  i=$((i + 1))
done
sleep 0.5
echo b >/proc/sysrq-trigger
sleep 30
END

cat >"$scenario_dir/recover" <<'END'
. /put/attach
mount -t ext4 /dev/nbd0 /mnt || exit 30
dmesg | grep -o 'EXT4-fs (nbd0): .*' | sed 's/^/@kernel /'
cd /mnt
echo "@files $(wc -l </put/synced)"
md5sum -c /put/synced 2>&1 | grep -v ': OK$' | sed 's/^/@lost /'
# And it goes on working.
dd if=/dev/urandom of=/mnt/after bs=64k count=64 conv=fsync 2>/dev/null || exit 31
rm -rf /mnt/tree || exit 32
cd / && umount /mnt || exit 33
e2fsck -fn /dev/nbd0 >/tmp/fsck.log 2>&1 || { sed 's/^/@fsck /' /tmp/fsck.log; exit 34; }
nbd-client -d /dev/nbd0 >/dev/null 2>&1 || exit 35
END

options=(--put "$scenario_dir/attach" --put "$scenario_dir/port" --seconds 240)
echo "== nbd-ext4: ext4 on NBD through a reset (${SERVER:-weft}${CACHE:+, cache $CACHE ${MODE:-write-back}})"
start
guest_run "${options[@]}" "$scenario_dir/work" >"$scenario_dir/work.out"
code=$?
# The last promise made for a name holds.
sed -n 's/^@synced //p' "$scenario_dir/work.out" | awk '{last[$2] = $0} END {for (f in last) print last[f]}' \
  | sort -k 2 >"$scenario_dir/synced"
check "the guest made ext4 over four connections and was reset at work (status $code)" [ "$code" = 125 ]
check "files were fsynced before the reset ($(wc -l <"$scenario_dir/synced"))" \
  [ "$(grep -c ' file-' "$scenario_dir/synced")" -eq 30 ]
[ "$checks_failed" -eq 0 ] || { grep -v '^@synced' "$scenario_dir/work.out"; cat "$scenario_dir/server.log"; exit 1; }

# The server is killed too (kill -9): what FLUSH promised is not in its memory.
stop_server KILL
start
guest_run "${options[@]}" --put "$scenario_dir/synced" "$scenario_dir/recover" >"$scenario_dir/recover.out"
code=$?
check "after the reset ext4 mounts, works, and e2fsck finds nothing (status $code)" [ "$code" = 0 ]
check "the kernel replayed the journal" grep -q '@kernel.*recovery complete' "$scenario_dir/recover.out"
check "every file was looked at" grep -q "^@files $(wc -l <"$scenario_dir/synced")$" "$scenario_dir/recover.out"
lost=$(grep -c '^@lost' "$scenario_dir/recover.out")
check "nothing fsynced is lost ($lost)" [ "$lost" -eq 0 ]
stop_server
if [ -n "${CACHE:-}" ]; then
  # What write-back still holds belongs into the origin before it is looked at alone.
  check "the cache is written back" "$weft" cache flush "$scenario_dir/cache.img" "$image"
fi
check "e2fsck on the host finds nothing" e2fsck -fn "$image"
[ "$checks_failed" -eq 0 ] || cat "$scenario_dir/work.out" "$scenario_dir/recover.out" | grep -v '^@synced'
exit $((checks_failed > 0))
