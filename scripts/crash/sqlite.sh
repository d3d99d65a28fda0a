#!/bin/sh
# SQLite, by its command sqlite3 (Debian: sqlite3).
#
#   scripts/crash/sqlite.sh NAME [OPTIONS OF weft crash run]
#
# NAME: rollback (a rollback journal with synchronous=EXTRA), wal (a write-ahead log with FULL), both
# of which promise durability; full (a rollback journal with FULL, the default, which may forget the
# last transaction); wal-normal (promises only that the database is whole); off (nothing).
. "$(dirname "$0")/lib.sh"
name=${1:?"usage: $0 NAME [OPTIONS]"}
shift
need sqlite3 sqlite3
need stdbuf coreutils
PROMISE='done*'
case $name in
rollback) mode=delete sync=extra ;;
full) mode=delete sync=full ;;
wal) mode=wal sync=full ;;
wal-normal) mode=wal sync=normal PROMISE= ;;
off) mode=delete sync=off PROMISE= ;;
*) echo "$0: no mode is called $name" >&2; exit 2 ;;
esac
export mode sync
SETUP='sqlite3 db "pragma journal_mode=$mode" "create table t(a integer primary key, b)" \
    "insert into t values(1, 1)" >/dev/null'
# sqlite3 would print all promises when it ends.
RUN='stdbuf -oL sqlite3 db "pragma synchronous=$sync" "pragma journal_mode=$mode" \
    "insert into t values(2, zeroblob(6000))" "select \"done 2\"" \
    "insert into t values(3, zeroblob(6000))" "select \"done 3\"" \
    "delete from t where a = 2" "select \"done 4\""'
# Which rows there may be after the last promise.
CHECK='rows=$(sqlite3 db "pragma integrity_check" "select group_concat(a) from t") || exit 1
    rows=$(echo $rows)
    promised=$(tail -n 1 "$WEFT_PROMISES")
    case $promised:$rows in
    :"ok 1" | :"ok 1,2" | "done 2:ok 1,2") ;;
    :"ok 1,2,3" | "done 2:ok 1,2,3" | "done 3:ok 1,2,3") ;;
    *:"ok 1,3") ;;
    *) echo "promised: $promised; found: $rows"; exit 1 ;;
    esac'
crash_test "SQLite $(sqlite3 --version | cut -d" " -f1), journal_mode=$mode, synchronous=$sync" "$@"
