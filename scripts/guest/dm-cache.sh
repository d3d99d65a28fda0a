#!/usr/bin/env bash
# The kernel's dm-cache in the guest, counted: metadata writes for each block that a read brings in,
# and what a reset costs. The guest caches a virtio disk on another, reads until all is cached, is
# reset with nothing dirty, and activates the cache again. Run by scripts/guest.sh dm-cache.
#
# Then the same with `weft serve nbd ORIGIN --cache` on the host: the guest reads through the kernel's
# NBD client, the server is killed with SIGKILL and started again.
#
# Prints a line "dm-cache NAME VALUE" or "weft NAME VALUE" for each count, then the checks.
. "$(dirname "$(realpath "$0")")/scenario.sh"

# 16 MiB of cached data in blocks of 32 KiB, as users of dm-cache have them.
blocks=512 block_sectors=64
origin=$scenario_dir/origin.img
truncate -s 64M "$origin"
truncate -s 24M "$scenario_dir/fast.img"
truncate -s 8M "$scenario_dir/meta.img"
drives=(--drive "$origin" --drive "$scenario_dir/fast.img" --drive "$scenario_dir/meta.img")

cat >"$scenario_dir/activate" <<END
modprobe -a dm-cache dm-cache-smq
blocks=$blocks block_sectors=$block_sectors
# Write requests to a disk so far, and sectors (kernel, Documentation/admin-guide/iostats.rst).
writes() { awk '{print \$5}' "/sys/block/\$1/stat"; }
written() { awk '{print \$7}' "/sys/block/\$1/stat"; }
# The fields of the status line after the target's name (kernel, device-mapper/cache.rst).
field() { dmsetup status cached | awk -v n="\$1" '{print \$(3 + n)}'; }
hits() { field 5; }
misses() { field 6; }
promotions() { field 10; }
dirty() { field 11; }
activate() {
  dmsetup create cached --noudevsync --table "0 131072 cache /dev/vdc /dev/vdb /dev/vda \
    \$block_sectors 1 writeback smq 2 migration_threshold 204800" || exit 20
  dmsetup mknodes
}
read_all() {
  dd if=/dev/mapper/cached of=/dev/null bs=\$((block_sectors * 512)) count=\$blocks 2>/dev/null || exit 21
  echo 3 >/proc/sys/vm/drop_caches
}
END
cat >"$scenario_dir/fill" <<'END'
. /put/activate
activate
writes_before=$(writes vdc) written_before=$(written vdc)
# The policy brings in what is read again and again; how soon is its own affair.
i=0
while [ $i -lt 25 ] && [ "$(promotions)" -lt "$blocks" ]; do
  read_all
  i=$((i + 1))
done
# Its metadata is committed each second.
sleep 3
echo "dm-cache passes $i"
echo "dm-cache fills $(promotions)"
echo "dm-cache metadata-writes $(($(writes vdc) - writes_before))"
echo "dm-cache metadata-sectors $(($(written vdc) - written_before))"
echo "dm-cache dirty-before-reset $(dirty)"
sleep 0.5
echo b >/proc/sysrq-trigger
sleep 30
END
cat >"$scenario_dir/again" <<'END'
. /put/activate
written_before=$(written vda)
activate
echo "dm-cache dirty-after-reset $(dirty)"
hits_before=$(hits) misses_before=$(misses)
read_all
echo "dm-cache hits-after-reset $(($(hits) - hits_before))"
echo "dm-cache misses-after-reset $(($(misses) - misses_before))"
i=0
while [ "$(dirty)" -gt 0 ] && [ $i -lt 60 ]; do sleep 1; i=$((i + 1)); done
echo "dm-cache sectors-rewritten $(($(written vda) - written_before))"
dmsetup remove cached
END
# The value of a count.
count() { awk -v name="$1" '$1 == "dm-cache" && $2 == name {print $3}' "$scenario_dir/counts"; }

echo "== dm-cache: the kernel's, $blocks blocks of $((block_sectors / 2)) KiB, through a reset"
guest_run "${drives[@]}" --put "$scenario_dir/activate" "$scenario_dir/fill" | tee "$scenario_dir/counts"
check "the guest was reset with a cache of clean blocks" [ "${PIPESTATUS[0]}" = 125 ]
guest_run "${drives[@]}" --put "$scenario_dir/activate" "$scenario_dir/again" | tee -a "$scenario_dir/counts"
check "the cache is active again" [ "${PIPESTATUS[0]}" = 0 ]
# How many blocks it brings in differs from run to run.
check "it cached blocks by itself" [ "$(count fills)" -ge $((blocks / 4)) ]
check "nothing was dirty before the reset" [ "$(count dirty-before-reset)" = 0 ]
# What weft must do better, and the proof that this measures it.
check "dm-cache rewrites every clean block ($(count sectors-rewritten) sectors)" \
  [ "$(count sectors-rewritten)" = $(($(count fills) * block_sectors)) ]

# weft's cache: write-back too, so that what it has not written to the origin would show.
head -c 64M /dev/urandom >"$origin"
port=$(free_port) metrics=$(free_port)
echo "$port" >"$scenario_dir/port"
cat >"$scenario_dir/read" <<END
modprobe nbd
nbd-client 10.0.2.2 \$(cat /put/port) /dev/nbd0 -N "" -t 60 >/tmp/nbd.log 2>&1 || { cat /tmp/nbd.log; exit 20; }
for pass in 1 2; do
  dd if=/dev/nbd0 of=/dev/null bs=$((block_sectors * 512)) count=$blocks 2>/dev/null || exit 21
  echo 3 >/proc/sys/vm/drop_caches
done
nbd-client -d /dev/nbd0 >/dev/null 2>&1
exit 0
END
start_cached() {
  serve "$port" "$weft" serve nbd "$origin" --listen "127.0.0.1:$port" \
    --cache "$scenario_dir/cache.img" --cache-mode write-back --metrics "127.0.0.1:$metrics"
}
# What the server counts, read where Prometheus would.
weft_count() {
  exec 3<>"/dev/tcp/127.0.0.1/$metrics"
  printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
  awk -v name="weft_cache_$1" '{sub(/[{].*[}]/, ""); if ($1 == name) print $2}' <&3
  exec 3>&-
}
echo "== weft's cache, the same reads, through a SIGKILL of its server"
check "weft makes a cache" "$weft" cache create "$scenario_dir/cache.img" --size 32M
start_cached
guest_run --put "$scenario_dir/port" "$scenario_dir/read"
check "the guest reads through it" [ $? = 0 ]
# The group commit's second.
sleep 2
{
  echo "weft fills $(weft_count fills_total)"
  echo "weft metadata-writes $(weft_count log_writes_total)"
  echo "weft metadata-sectors $(($(weft_count log_blocks_total) * 8))"
  echo "weft dirty-before-reset $(weft_count dirty_bytes)"
} | tee -a "$scenario_dir/counts"
stop_server KILL
start_cached
guest_run --put "$scenario_dir/port" "$scenario_dir/read"
check "the guest reads through it again" [ $? = 0 ]
{
  echo "weft hits-after-reset $(weft_count hits_total)"
  echo "weft misses-after-reset $(weft_count misses_total)"
  echo "weft sectors-rewritten $(($(weft_count writeback_bytes_total) / 512))"
} | tee -a "$scenario_dir/counts"
stop_server
weft_says() { awk -v name="$1" '$1 == "weft" && $2 == name {print $3}' "$scenario_dir/counts"; }
fills=$(weft_says fills) misses=$(weft_says misses-after-reset)
check "every block was filled in ($fills)" [ "$fills" -ge $((blocks * block_sectors / 8)) ]
check "at most 0.05 metadata writes a fill" [ $(($(weft_says metadata-writes) * 20)) -le "$fills" ]
check "at least 99 of 100 blocks are hits after the kill" [ $((misses * 100)) -le "$fills" ]
check "not a sector is rewritten to the origin" [ "$(weft_says sectors-rewritten)" = 0 ]
exit $((checks_failed > 0))
