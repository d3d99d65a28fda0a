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
SETUP='. "$HERE/postgres/setup.sh"'
RUN='socket=$(mktemp -d /tmp/pgXXXXXX) && chmod 777 "$socket"
    $as "$bin/pg_ctl" -D data -s -w -o "-k $socket -c listen_addresses=" -l "$socket/log" start || { cat "$socket/log"; exit 1; }
    export PGHOST="$socket"
    for a in 2 3; do
        psql -qc "insert into t values ($a, repeat(chr(48 + $a), 6000))" || exit 1
        echo done $a
        [ $a = 3 ] || psql -qc checkpoint
    done
    $as "$bin/pg_ctl" -D data -s -w stop; rm -r "$socket"'
CHECK='. "$HERE/postgres/check.sh"'
PROMISE='done*'
export TMPDIR=${TMPDIR:-/tmp}
crash_test "$("$bin/postgres" --version), fsync = $fsync" "$@"
