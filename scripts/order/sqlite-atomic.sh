#!/usr/bin/env bash
# SQLite with SQLITE_ENABLE_BATCH_ATOMIC_WRITE on volumes with a journal, beside SQLite without it: calls
# that write and sync, for 200 transactions of 40 pages, and whether a power cut leaves half of one.
#
#   WEFT=target/release/weft scripts/order/sqlite-atomic.sh DIR
#
# DIR has the amalgamation of SQLite (sqlite3.c and sqlite3.h, sqlite.org/download). Needs root, cc,
# strace and eatmydata. Fails if a state is damaged, or none is without fsync.
set -euo pipefail
[ $# -eq 1 ] || { sed -n '5s/^# *//p' "$0" >&2; exit 2; }
here=$(dirname "$(realpath "$0")")
source=$(realpath "$1")
weft=$(realpath "${WEFT:-target/release/weft}")
dir=$(mktemp -d)
clean() {
  ! mountpoint -q "$dir/m" || "$weft" umount "$dir/m"
  rm -rf "$dir"
}
trap clean EXIT
for kind in plain atomic; do
  flags=(-O1 -DSQLITE_THREADSAFE=0 -DSQLITE_OMIT_LOAD_EXTENSION "-I$source")
  [ "$kind" = plain ] || flags+=(-DSQLITE_ENABLE_BATCH_ATOMIC_WRITE)
  cc "${flags[@]}" "$here/sqlite-atomic/txn.c" "$source/sqlite3.c" -o "$dir/$kind" -lm
done
mkdir "$dir/m"
calls=pwrite64,fsync,fdatasync,unlink
for order in journal journal=ordered journal=full; do
  for kind in plain atomic; do
    "$weft" mkfs ext3 "$dir/v.img" --size 256M --quiet --force
    "$weft" mount "$dir/v.img" "$dir/m" --background --quiet --order "$order"
    mkdir "$dir/m/d"
    "$dir/$kind" "$dir/m/d/db" setup
    strace -c -e "trace=$calls" -o "$dir/calls" "$dir/$kind" "$dir/m/d/db" run 200 >/dev/null
    [ "$("$dir/$kind" "$dir/m/d/db" check)" = 200 ]
    "$weft" umount "$dir/m" --quiet
    counted=$(awk '$NF ~ /^(pwrite64|fsync|fdatasync|unlink)$/ { printf "%s %s  ", $NF, $4 }' "$dir/calls")
    echo "$order, $kind: $counted"
  done
  # shellcheck disable=SC2016
  kept='have=$($DIR/atomic d/db check) || exit 1
        want=$(sed -n "s/.*committed //p" "$WEFT_PROMISES" | tail -n 1); [ "$have" -ge "${want:-0}" ]'
  DIR=$dir "$weft" crash run --order "$order" --size 256M --states 2500 --quiet \
    --stdout-is-promise 'committed *' --setup "mkdir d; $dir/atomic d/db setup" \
    --run "$dir/atomic d/db run 12" --check "$kept"
done
code=0
"$weft" crash run --order journal=ordered --size 256M --states 500 --quiet \
  --setup "mkdir d; $dir/plain d/db setup" --run "eatmydata $dir/plain d/db run 12; sync" \
  --check "$dir/plain d/db check" || code=$?
[ "$code" = 3 ] || { echo "without fsync, no state fails: the check has no power" >&2; exit 1; }
