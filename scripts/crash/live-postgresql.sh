#!/bin/sh
# Power cuts from a running PostgreSQL (Debian: postgresql): its data directory is a `weft crash mount`, and at each
# round the power is cut at a call of one of its processes, all of which are killed there. Rows whose commit was
# answered must be there when it runs again, and pg_amcheck must find nothing.
#
# usage: scripts/crash/live-postgresql.sh [ROUNDS]   (WEFT: the command; MODEL: ext4-ordered, posix, ...;
# PG_FSYNC=off shows that it can fail)
set -eu
rounds=${1:-8}
weft=${WEFT:-weft}
bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -1)
[ -n "$bin" ] || { echo "skipped: no PostgreSQL (Debian: postgresql)"; exit 0; }
work=$(mktemp -d)
user=$(id -un)
as=
if [ "$(id -u)" = 0 ]; then
    # PostgreSQL does not run as root.
    user=postgres
    as="setpriv --reuid=postgres --regid=postgres --clear-groups"
fi
chmod 755 "$work"
mkdir "$work/data" "$work/mnt"
chown "$user" "$work/data" "$work/mnt" "$work"
end() {
    $as "$bin/pg_ctl" -D "$work/mnt/pg" stop -m immediate >/dev/null 2>&1 || true
    "$weft" --quiet umount "$work/mnt" || true
    rm -rf "$work"
}
trap end EXIT
trap 'exit 1' HUP INT TERM
"$weft" --quiet crash mount --background --allow-other --model "${MODEL:-ext4-ordered}" "$work/data" "$work/mnt"
chown "$user" "$work/mnt"
$as "$bin/initdb" -D "$work/mnt/pg" -A trust >"$work/init.log" 2>&1 || { cat "$work/init.log"; exit 1; }
cat >>"$work/mnt/pg/postgresql.conf" <<CONF
unix_socket_directories = '$work'
listen_addresses = ''
shared_buffers = 16MB
checkpoint_timeout = 30s
min_wal_size = 32MB
max_wal_size = 32MB
fsync = ${PG_FSYNC:-on}
autovacuum_naptime = 5s
CONF
sql() {
    $as "$bin/psql" -h "$work" -q -A -t -d postgres -v ON_ERROR_STOP=1 "$@"
}
start() {
    $as "$bin/pg_ctl" -D "$work/mnt/pg" -w -t 60 -l "$work/log" start >/dev/null || {
        echo "PostgreSQL does not start:"; tail -5 "$work/log"; exit 1; }
}
start
sql -c 'create extension amcheck' -c 'create table t (a integer primary key, b text)'
# The configuration above is not fsynced.
"$weft" --quiet crash sync "$work/mnt"
calls='fdatasync:pg/pg_wal/* write:pg/base/** fsync any fdatasync'
next=0
for round in $(seq "$rounds"); do
    set -- $calls
    shift $(( (round - 1) % $# ))
    call=$1
    how=$(( round % 3 ))
    # Before a call that cuts the power there may be no write that could be torn.
    case $how in 0) how= ;; 1) how=--random ;; 2) how='--torn --after' call='write:pg/pg_wal/*' ;; esac
    # shellcheck disable=SC2086
    "$weft" --json crash lose "$work/mnt" --at "$call" --nth $(( 5 + round * 11 % 30 )) --kill $how --seed "$round" \
        --timeout 60s >"$work/lost" 2>"$work/lose.err" &
    losing=$!
    sleep 0.3
    for _ in $(seq 400); do
        sql -c "insert into t values ($next, repeat('x', 500))" >/dev/null 2>&1 && next=$((next + 1))
        [ $(( next % 50 )) != 49 ] || sql -c checkpoint >/dev/null 2>&1 || true
        kill -0 $losing 2>/dev/null || break
    done
    if ! wait $losing; then
        echo "round $round: $call: $(cat "$work/lose.err")"
        pid=$(head -1 "$work/mnt/pg/postmaster.pid")
        kill -9 "$pid" || true
        sleep 1
    fi
    # Of a killed postmaster, whose number may still be taken (by a zombie, where nothing reaps it).
    rm -f "$work/mnt/pg/postmaster.pid" "$work"/.s.PGSQL.*
    start
    # A row may be there of which the answer was not heard.
    found=$(sql -c "select count(*) from t where a < $next and b = repeat('x', 500)")
    more=$(sql -c "select coalesce(max(a) + 1, 0) from t")
    checked=ok
    $as "$bin/pg_amcheck" -h "$work" -d postgres >"$work/amcheck" 2>&1 || checked=$(head -3 "$work/amcheck")
    at=$(sed -n 's/.*"at": *"\(.*\)",$/\1/p' "$work/lost" | head -1 | tr -d '\\')
    bytes=$(sed -n 's/^    "bytes": *\([0-9]*\).*/\1/p' "$work/lost" | head -1)
    killed=$(sed -n '/"killed"/,/]/p' "$work/lost" | grep -c '[0-9]' || true)
    echo "round $round: cut at ${at:-nothing} ${how:-all}: ${bytes:-0} bytes lost, $killed processes killed; $next rows promised, $((next - found)) missing; pg_amcheck $checked"
    [ "$found" = "$next" ] && [ "$checked" = ok ] || exit 1
    next=$more
done
