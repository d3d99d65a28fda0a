#!/bin/sh
# PostgreSQL (Debian: postgresql-15): two commits by psql, a checkpoint between them, and a shutdown.
# The check starts it as a single user, which replays its log, and reads the table.
#
#   scripts/crash/postgres.sh [NAME] [OPTIONS OF weft crash run]
#
# NAME: on (the default) or off, the value of PostgreSQL's setting fsync.
. "$(dirname "$0")/lib.sh"
case ${1:-} in on | off) fsync=$1 && shift ;; *) fsync=on ;; esac
bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -n 1)
[ -n "$bin" ] || skip "PostgreSQL is not installed (Debian: postgresql-15)"
# PostgreSQL refuses to run as root.
as=
[ "$(id -u)" != 0 ] || as="setpriv --reuid=nobody --regid=nogroup --clear-groups"
export bin as fsync LC_ALL=C PGUSER=crash PGDATABASE=postgres
SETUP='mkdir data && { [ -z "$as" ] || chown nobody:nogroup data; }
    $as "$bin/initdb" -D data -U crash -A trust -E UTF8 --no-sync --wal-segsize=1 >/dev/null || exit 1
    $as sh -c "cat >>data/postgresql.conf" <<END
autovacuum = off
shared_buffers = 1MB
min_wal_size = 2MB
max_wal_size = 8MB
max_worker_processes = 0
max_logical_replication_workers = 0
bgwriter_lru_maxpages = 0
dynamic_shared_memory_type = mmap
logging_collector = off
fsync = $fsync
END
    echo "create table t (a int primary key, b text); insert into t values (1, repeat(chr(49), 6000));" |
        tr "\n" " " | $as "$bin/postgres" --single -D data postgres >/dev/null 2>&1'
RUN='socket=$(mktemp -d /tmp/pgXXXXXX) && chmod 777 "$socket"
    $as "$bin/pg_ctl" -D data -s -w -o "-k $socket -c listen_addresses=" -l "$socket/log" start || { cat "$socket/log"; exit 1; }
    export PGHOST="$socket"
    for a in 2 3; do
        psql -qc "insert into t values ($a, repeat(chr(48 + $a), 6000))" || exit 1
        echo done $a
        [ $a = 3 ] || psql -qc checkpoint
    done
    $as "$bin/pg_ctl" -D data -s -w stop; rm -r "$socket"'
# The number of the process in postmaster.pid may be that of a process of the check.
CHECK='rm -f data/postmaster.pid
    rows=$(echo "select string_agg(a || (b = repeat(chr(48 + a), 6000))::text, chr(32) order by a) as r from t" |
        $as "$bin/postgres" --single -D data postgres 2>"$TMPDIR/log" | sed -n "s/.*r = \"\(.*\)\".*typeid.*/\1/p")
    promised=$(tail -n 1 "$WEFT_PROMISES")
    case $promised:$rows in
    :1true | :"1true 2true" | "done 2:1true 2true" | *:"1true 2true 3true") ;;
    *) echo "promised: $promised; found: $rows"; tail -n 5 "$TMPDIR/log"; exit 1 ;;
    esac'
PROMISE='done*'
export TMPDIR=${TMPDIR:-/tmp}
crash_test "$("$bin/postgres" --version), fsync = $fsync" "$@"
