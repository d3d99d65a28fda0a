#!/bin/sh
# Power cuts from a running PostgreSQL (Debian: postgresql): its data directory is a `weft crash mount`, and at each
# round the power is cut at a call of one of its processes, all of which are killed there. What was answered - rows,
# databases, tablespaces, a dump - must be there when it runs again, and pg_amcheck must find nothing.
#
# usage: scripts/crash/live-postgresql.sh [ROUNDS]   (WEFT: the command; MODEL: ext4-ordered, posix, ...;
# PG_FSYNC=off shows that it can fail)
bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -1)
[ -n "$bin" ] && command -v python3 >/dev/null || { echo "skipped: no PostgreSQL (Debian: postgresql)"; exit 0; }
# Work beside inserts of rows: `log` fills files of the log, which checkpoints rename to be used again; `database`
# makes and removes databases, which are directories; `space` tablespaces, which are directories with a symbolic link
# to each; `rewrite` writes a table anew (VACUUM FULL), whose old files are removed; `dump` runs pg_dump into a
# directory of the mount.
ROUNDS='
rows     fdatasync:pg/pg_wal/*          16 random
rows     write:pg/pg_wal/*              27 torn
rows     fsync                           8 all
rows     any                            49 random
log      rename:pg/pg_wal/*              1 all     # a file of the log is used again, or gets its name
log      rename:pg/pg_wal/*              2 after
log      rename:pg/pg_wal/*              3 random
log      fsync:pg/pg_wal                 1 random  # the directory
database mkdir:pg/base/*                 1 after
database creat:pg/base/*/PG_VERSION      1 all
database creat:pg/base/**               90 random
database rmdir:pg/base/*                 1 after
database unlink:pg/base/**              40 random
space    mkdir:space*/**                 1 after
space    symlink:pg/pg_tblspc/*          1 all
space    symlink:pg/pg_tblspc/*          1 after
space    rmdir:space*/**                 1 random
rewrite  creat:pg/base/**                1 after
rewrite  unlink:pg/base/**               1 all
rewrite  rename:pg/**                    1 after   # pg_internal.init and others
dump     creat:dump*/*                   4 after
dump     fsync:dump*/*                  25 random
dump     fsync:dump*                     1 all
'
CUT_MAX=${CUT_MAX:-40s}
. "$(dirname "$0")/live.sh"
user=$(id -un)
as=
if [ "$(id -u)" = 0 ]; then
    # PostgreSQL does not run as root.
    user=postgres
    as="setpriv --reuid=postgres --regid=postgres --clear-groups"
fi
chmod 755 "$work"
chown "$user" "$work/data" "$work/mnt" "$work"
end() {
    $as "$bin/pg_ctl" -D "$work/mnt/pg" stop -m immediate >/dev/null 2>&1 || true
    kill_rest
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
    $as "$bin/psql" -h "$work" -q -A -t -d "${database:-postgres}" -v ON_ERROR_STOP=1 "$@"
}
start() {
    $as "$bin/pg_ctl" -D "$work/mnt/pg" -w -t 60 -l "$work/log" start >/dev/null
}
start
sql -c 'create extension amcheck' -c 'create table t (a integer primary key, b text)' -c 'create table r (a text)' \
    -c "insert into r select repeat('y', 500) from generate_series(1, 1000)"
# The configuration above is not fsynced.
"$weft" --quiet crash sync "$work/mnt"
next=0
made=0
# The names of what was answered to be there: databases, tablespaces, and dumps.
: >"$work/databases"
: >"$work/spaces"
: >"$work/dumps"

step() { # work
    made=$((made + 1))
    case $1 in
        log) sql -c "insert into t select -a - 1000 * $made, repeat('z', 1000) from generate_series(1, 1000) a" \
                -c 'select pg_switch_wal()' -c checkpoint >/dev/null 2>&1 ;;
        database)
            sql -c "create database d$made" >/dev/null 2>&1 && echo "d$made" >>"$work/databases"
            old=$(head -1 "$work/databases")
            if [ "$(wc -l <"$work/databases")" -gt 2 ]; then
                # A database whose CREATE or DROP was not answered may be there or not.
                sed -i 1d "$work/databases"
                sql -c "drop database $old" >/dev/null 2>&1
            fi ;;
        space)
            $as mkdir "$work/mnt/space$made" 2>/dev/null && $as sync "$work/mnt/space$made" "$work/mnt"
            sql -c "create tablespace s$made location '$work/mnt/space$made'" \
                -c "create table in_s$made (a integer) tablespace s$made" -c "insert into in_s$made values ($made)" \
                >/dev/null 2>&1 && echo "$made" >>"$work/spaces"
            old=$(head -1 "$work/spaces")
            if [ "$(wc -l <"$work/spaces")" -gt 2 ]; then
                sed -i 1d "$work/spaces"
                sql -c "drop table in_s$old" -c checkpoint -c "drop tablespace s$old" >/dev/null 2>&1
            fi ;;
        rewrite) sql -c 'vacuum full r' -c checkpoint >/dev/null 2>&1 ;;
        dump)
            $as "$bin/pg_dump" -h "$work" -Fd -f "$work/mnt/dump$made" postgres >/dev/null 2>&1 &&
                echo "dump$made" >>"$work/dumps" ;;
    esac || true
    for _ in 1 2 3 4 5; do
        waits || return 0
        sql -c "insert into t values ($next, repeat('x', 500))" >/dev/null 2>&1 && next=$((next + 1)) || return 0
    done
    [ $(( next % 50 )) -lt 45 ] || sql -c checkpoint >/dev/null 2>&1 || true
}

# Acknowledged rows, databases and dumps that are missing.
missing() {
    # The server may end when it meets a damaged page.
    found=$(sql -c "select count(*) from t where a >= 0 and a < $next and b = repeat('x', 500)") || found=0
    [ "$found" = "$next" ] || echo "$((next - found)) rows"
    while read -r name; do
        database=$name sql -c 'select count(*) from pg_class' >/dev/null 2>&1 </dev/null || echo "database $name"
    done <"$work/databases"
    while read -r nr; do
        [ "$(sql -c "select a from in_s$nr" 2>/dev/null </dev/null)" = "$nr" ] || echo "tablespace s$nr"
    done <"$work/spaces"
    while read -r name; do
        $as "$bin/pg_restore" -f /dev/null "$work/mnt/$name" >/dev/null 2>&1 </dev/null || echo "$name"
    done <"$work/dumps"
}
failed=0
rounds "${1:-}" >"$work/plan"
while read -r nr job call nth how; do
    cut "$nr" "$call" "$nth" "$how"
    for _ in $(seq 200); do
        waits || break
        step "$job"
    done </dev/null
    if ! wait "$losing"; then
        pid=$(head -1 "$work/mnt/pg/postmaster.pid")
        kill -9 "$pid" || true
        sleep 1
    fi
    kill_rest
    # Of a killed postmaster, whose number may still be taken (by a zombie, where nothing reaps it).
    rm -f "$work/mnt/pg/postmaster.pid" "$work"/.s.PGSQL.*
    if ! start </dev/null; then
        row "$nr" "$job" "$call" "$how" "does not start: $(tail -1 "$work/log")" -
        failed=1
        break
    fi
    gone=$(missing)
    # A row may be there of which the answer was not heard.
    more=$(sql -c "select coalesce(max(a) + 1, 0) from t where a >= 0" </dev/null) || more=$next
    checked=ok
    $as "$bin/pg_amcheck" -h "$work" -d postgres </dev/null >"$work/amcheck" 2>&1 || checked=$(head -1 "$work/amcheck")
    kept="$next rows, $(wc -l <"$work/databases") databases, $(wc -l <"$work/spaces") spaces, $(wc -l <"$work/dumps") dumps"
    row "$nr" "$job" "$call" "$how" "starts, $kept promised; pg_amcheck $checked" \
        "$(printf '%s\n' "${gone:-0}" | paste -s -d ';' )"
    [ -z "$gone" ] && [ "$checked" = ok ] || { failed=1; break; }
    next=$more
done <"$work/plan"
table
exit $failed
