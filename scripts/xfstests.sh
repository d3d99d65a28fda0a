#!/usr/bin/env bash
# Runs xfstests (a built tree of it) on the kernel's ext2 and on weft mounts, e2fsck after each test,
# and demands of weft every test that the kernel passes. As root.
#
#   scripts/xfstests.sh DIR [TEST...]
#
# DIR is a built xfstests (git.kernel.org/pub/scm/fs/xfs/xfstests-dev.git; its README says what to
# install), TEST generic/003 and the like (default: all of the groups quick and auto in generic/,
# which takes hours). WEFT is the weft command (default: target/release/weft), ORDERS the commit
# policies (default: "soft journal=ordered"), SIZE that of each volume (default: 2G), SECONDS_MAX the
# longest that one test may take (default: 600). KEEP=DIR keeps the results of all tests there; tests
# with results are not run again. Tests that the kernel passes and weft does not are in
# xfstests.exceptions beside this script, each with its reason.
#
# The helpers of mount(8) and umount(8) and the users that xfstests wants exist in a mount namespace
# of this script only: nothing of the machine is changed.
set -euo pipefail

[ $# -ge 1 ] || { sed -n '5s/^# *//p' "$0" >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "$0: needs root, to mount and to act as other users" >&2; exit 2; }
if [ -z "${WEFT_XFSTESTS_NAMESPACE:-}" ]; then
  WEFT_XFSTESTS_NAMESPACE=1 exec unshare --mount --propagation private -- bash "$0" "$@"
fi
here=$(dirname "$(realpath "$0")")
source "$here/suites/limits.sh"
suite=$(realpath "$1")
shift
weft=$(realpath -s "${WEFT:-target/release/weft}")
orders=${ORDERS:-soft journal=ordered}
size=${SIZE:-2G}
limit=${SECONDS_MAX:-600}
[ -x "$suite/check" ] && [ -x "$suite/ltp/fsstress" ] || {
  echo "$0: $suite is no xfstests that is built (make)" >&2
  exit 2
}

dir=$(mktemp -d)
chmod 755 "$dir"
loops=()
clean() {
  for place in "$dir/test" "$dir/scratch"; do
    while mountpoint -q "$place"; do umount "$place" || umount -l "$place"; done
  done
  for loop in "${loops[@]}"; do losetup -d "$loop" || true; done
  umount /etc/passwd /etc/group /etc/shadow /usr/sbin "$suite/common/rc" 2>/dev/null || true
  rm -rf "$dir"
}
trap clean EXIT
trap 'exit 130' INT TERM
mkdir -p "$dir"/{test,scratch,helpers}
keep=${KEEP:-$dir/results}
mkdir -p "$keep"

for helper in mount.fuse.weft umount.fuse.weft; do ln -s "$weft" "$dir/helpers/$helper"; done
# xfstests goes by df(1) and knows no subtypes of fuse.
cat >"$dir/helpers/df" <<'END'
#!/bin/bash
set -o pipefail
/usr/bin/df "$@" | sed 's/ fuse\.weft / fuse      /'
END
chmod +x "$dir/helpers/df"
mount -t overlay overlay -o "lowerdir=$dir/helpers:/usr/sbin" /usr/sbin
for file in passwd group shadow; do cp -p "/etc/$file" "$dir/$file"; done
id=61000
for user in fsgqa fsgqa2 123456-fsgqa; do
  grep -q "^$user:" /etc/passwd || echo "$user:x:$id:$id::/tmp:/bin/bash" >>"$dir/passwd"
  grep -q "^$user:" /etc/shadow || echo "$user:*:19000:0:99999:7:::" >>"$dir/shadow"
  grep -q "^$user:" /etc/group || echo "$user:x:$id:" >>"$dir/group"
  id=$((id + 1))
done
for file in passwd group shadow; do mount --bind "$dir/$file" "/etc/$file"; done

# Of fuse xfstests believes that no volume can be made and that names are no bytes. In this namespace it
# knows better.
bytes=$(numfmt --from=iec "$size")
# A file has the size of the volume in it: by that a smaller volume of an earlier test is known.
cat >"$dir/mkfs" <<END
#!/bin/bash
truncate --size "\$2" "\$1"
exec "$weft" mkfs ext3 "\$1" --size "\$2" --block-size "\$3" --force --quiet
END
chmod +x "$dir/mkfs"
awk -v mkfs="$dir/mkfs" -v bytes="$bytes" '
  /^[a-z_]+\(\)/ { name = $1 }
  { line = $0 }
  name ~ /^_scratch_mkfs\(/ && /^\tcase / {
    print "\tif [ $FSTYP = fuse ] && [ $(stat -c %s $SCRATCH_DEV) != " bytes " ]; then"
    print "\t\t" mkfs " $SCRATCH_DEV " bytes " 4096; return; fi"
    taught++
  }
  name ~ /^_try_scratch_mkfs_sized\(/ && /^\tcase / && ++cases == 2 {
    print "\tif [ $FSTYP = fuse ]; then " mkfs " $SCRATCH_DEV $fssize $blocksize; return; fi"
    taught++
  }
  name ~ /^_require_names_are_bytes\(/ && sub(/ext2\|/, "ext2|fuse|", line) { taught++ }
  { print line }
  END { exit taught != 3 }
' "$suite/common/rc" >"$dir/rc" || {
  echo "$0: $suite/common/rc is not as this script knows it" >&2
  exit 1
}
mount --bind "$dir/rc" "$suite/common/rc"

cd "$suite"
if [ $# -gt 0 ]; then
  tests=("$@")
else
  mapfile -t tests < <(awk '/^[0-9]+ / && (/ auto( |$)/ || / quick( |$)/) {print "generic/" $1}' \
    tests/generic/group.list)
fi

# run NAME TEST: one test; its result is a line in $keep/NAME.
run() {
  local name=$1 test=$2 out="$keep/$1.d/${2//\//-}" result
  [ -f "$keep/$name" ] && grep -q "^$test " "$keep/$name" && return
  mkdir -p "$keep/$name.d"
  rm -rf "$dir/out"
  limited env PATH="/usr/sbin:$PATH" HOST_OPTIONS="$dir/config.$name" RESULT_BASE="$dir/out" \
    ./check "$test" </dev/null >"$out" 2>&1 || true
  end_leftovers
  if grep -q '^Not run: ' "$out"; then
    result="not-run $(cat "$dir/out/$test.notrun" 2>/dev/null | tr '\n' ' ')"
  elif grep -q '^Passed all [1-9]' "$out"; then
    result=ok
  else
    result=failed
    cp "$dir/out/$test.out.bad" "$out.bad" 2>/dev/null || true
  fi
  for volume in test scratch; do
    while mountpoint -q "$dir/$volume"; do umount "$dir/$volume" || umount -l "$dir/$volume"; done
    case $name in kernel) continue ;; esac
    # The daemon holds a lock until all is written.
    if ! flock -w "$limit" "$dir/$volume.img" true; then
      # The daemon goes on with a file that has no name any more, and the next test has a new one.
      result="failed: $dir/$volume.img was still written $limit s after the unmount"
      rm "$dir/$volume.img"
      "$weft" mkfs ext3 "$dir/$volume.img" --size "$size" --quiet
      continue
    fi
    if ! e2fsck -fn "$dir/$volume.img" >"$out.e2fsck-$volume" 2>&1; then
      result="$result, and e2fsck finds errors on the $volume volume"
      # The next test begins on a good one.
      "$weft" mkfs ext3 "$dir/$volume.img" --size "$size" --force --quiet
    else
      rm "$out.e2fsck-$volume"
    fi
  done
  echo "$test $result" >>"$keep/$name"
  echo "$name: $test $result"
}

for volume in test scratch; do
  truncate -s "$size" "$dir/$volume.kernel"
  mke2fs -q -F -t ext2 "$dir/$volume.kernel"
  loops+=("$(losetup -f --show "$dir/$volume.kernel")")
done
cat >"$dir/config.kernel" <<END
export FSTYP=ext2 TEST_DIR=$dir/test SCRATCH_MNT=$dir/scratch
export TEST_DEV=${loops[0]} SCRATCH_DEV=${loops[1]}
END
for test in "${tests[@]}"; do run kernel "$test"; done

status=0
sed -n 's/^\(generic[^ ]*\).*/\1/p' "$here/xfstests.exceptions" >"$dir/excepted"
sed -n 's/^not-run: \(.*[^ ]\) *#.*/\1/p' "$here/xfstests.exceptions" >"$dir/excepted-not-run"
for order in $orders; do
  for volume in test scratch; do
    rm -f "$dir/$volume.img"
    "$weft" mkfs ext3 "$dir/$volume.img" --size "$size" --quiet
  done
  options="-oallow_other,order=$order"
  cat >"$dir/config.$order" <<END
export FSTYP=fuse FUSE_SUBTYP=.weft TEST_DIR=$dir/test SCRATCH_MNT=$dir/scratch
export TEST_DEV=$dir/test.img SCRATCH_DEV=$dir/scratch.img
export MOUNT_OPTIONS=$options TEST_FS_MOUNT_OPTS=$options
END
  for test in "${tests[@]}"; do
    grep -q "^$test ok" "$keep/kernel" || grep -q "^$test failed" "$keep/kernel" || continue
    run "$order" "$test"
    grep -q "^$test .*e2fsck" "$keep/$order" || {
      grep -q "^$test ok" "$keep/kernel" || continue
      grep -qx "$test ok" "$keep/$order" && continue
      grep -qx "$test" "$dir/excepted" && continue
      grep "^$test not-run" "$keep/$order" | grep -qFf "$dir/excepted-not-run" && continue
    }
    echo "order=$order: $(grep "^$test " "$keep/$order")"
    status=1
  done
done
count() { grep -c "^generic/[0-9]* $2" "$keep/$1" || true; }
for name in kernel $orders; do
  echo "$name: $(count "$name" ok) passed, $(count "$name" failed) failed, $(count "$name" not-run) not run"
done
[ $status = 0 ] && echo "weft passes every test that the kernel passes, but for the exceptions"
exit $status
