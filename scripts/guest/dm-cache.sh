#!/usr/bin/env bash
# The kernel's dm-cache in the guest, counted: metadata writes for each block that a read brings in,
# and what a reset costs. The guest caches a virtio disk on another, reads until all is cached, is
# reset with nothing dirty, and activates the cache again. Run by scripts/guest.sh dm-cache.
#
# With weft that can serve a cache, the same is done with `weft serve nbd ORIGIN --cache`: the guest
# reads through the kernel's NBD client, the server is killed with SIGKILL and started again.
#
# Prints a line "dm-cache NAME VALUE" or "weft NAME VALUE" for each count, then the checks.
set -uo pipefail
here=$(dirname "$(realpath "$0")")
. "$here/rig.sh"
. "$here/checks.sh"
find_weft "${1:-}"
guest_ready || exit 0

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
# Sectors and requests written to a disk so far.
written() { awk '{print \$7}' /sys/block/\$1/stat; }
writes() { awk '{print \$5}' /sys/block/\$1/stat; }
# Fields after "cache" in the status: metadata block size, used/total, block size, used/total, read
# hits, read misses, write hits, write misses, demotions, promotions, dirty.
field() { dmsetup status cached | awk -v n="\$1" '{print \$(3 + n)}'; }
activate() {
  dmsetup create cached --table "0 131072 cache /dev/vdc /dev/vdb /dev/vda \$block_sectors 1 writeback smq 2 migration_threshold 204800" ||
    exit 20
  [ -b /dev/mapper/cached ] || dmsetup mknodes
  cached=/dev/mapper/cached
}
read_all() { dd if=\$cached of=/dev/null bs=\$((block_sectors * 512)) count=\$blocks iflag=direct 2>/dev/null || dd if=\$cached of=/dev/null bs=\$((block_sectors * 512)) count=\$blocks 2>/dev/null; echo 3 >/proc/sys/vm/drop_caches; }
END
cat >"$scenario_dir/fill" <<'END'
. /put/activate
activate
before=$(writes vdc) before_sectors=$(written vdc)
# Its policy promotes what is read again; how soon is its own affair.
i=0
while [ $i -lt 60 ]; do
  read_all
  [ "$(field 11)" -ge "$blocks" ] && break
  i=$((i + 1))
done
sync; sleep 2
echo "dm-cache passes $((i + 1))"
echo "dm-cache promotions $(field 11)"
echo "dm-cache metadata-writes $(($(writes vdc) - before))"
echo "dm-cache metadata-sectors $(($(written vdc) - before_sectors))"
echo "dm-cache dirty-before $(field 12)"
echo "dm-cache status $(dmsetup status cached)"
sleep 0.5
echo b >/proc/sysrq-trigger
sleep 30
END
cat >"$scenario_dir/again" <<'END'
. /put/activate
before=$(written vda)
activate
echo "dm-cache dirty-after $(field 12)"
hits=$(field 7) misses=$(field 8)
read_all
echo "dm-cache hits-after $(($(field 7) - hits))"
echo "dm-cache misses-after $(($(field 8) - misses))"
i=0
while [ "$(field 12)" -gt 0 ] && [ $i -lt 60 ]; do sleep 1; i=$((i + 1)); done
sleep 1
echo "dm-cache rewritten $(($(written vda) - before))"
dmsetup remove cached
END

echo "== dm-cache: the kernel's, $blocks blocks of $((block_sectors / 2)) KiB, through a reset"
guest_run "${drives[@]}" --put "$scenario_dir/activate" "$scenario_dir/fill" | tee "$scenario_dir/fill.out"
check "the guest was reset" [ "${PIPESTATUS[0]}" = 125 ]
guest_run "${drives[@]}" --put "$scenario_dir/activate" "$scenario_dir/again" | tee "$scenario_dir/again.out"
check "the cache is active again" [ "${PIPESTATUS[0]}" = 0 ]
