#!/bin/sh
# Power cuts from a running etcd (Debian: etcd-server, etcd-client): its data directory is a `weft crash mount`,
# and at each round the power is cut at a call of etcd itself, which is killed there. What etcdctl was told is written
# must be there when etcd runs again.
#
# usage: scripts/crash/live-etcd.sh [ROUNDS]   (WEFT: the command; MODEL: ext4-ordered, posix, ...)
for need in etcd etcdctl python3; do
    command -v "$need" >/dev/null || { echo "skipped: no $need (Debian: etcd-server, etcd-client)"; exit 0; }
done
# Work: `put` writes small keys, of which 40 make a snapshot; `big` keys of 1 MiB, of which 64 fill a file of the log,
# so that the next one gets its name; `new` makes a member of its own, with its directories.
ROUNDS='
put fdatasync:**/wal/*          10 random
put write:**/wal/*              17 torn
put fdatasync:**/snap/db         4 all
put write:**/snap/db             5 random
put any                         23 all
put creat:**/snap/*              1 all      # of a snapshot
put creat:**/snap/*              1 after
put fsync:**/snap/*              1 random
new mkdir:**                     1 after    # of the directory of the member
new mkdir:**                     3 after    # of its part for snapshots
new mkdir:**                     3 random
new rename:**                    1 all      # wal.tmp becomes wal
new rename:**                    1 after
new creat:**/snap/db             1 after
big rename:**/wal/*.wal          1 all      # the next file of the log
big rename:**/wal/*.wal          1 after
big creat:**/wal/*.tmp           1 after
big rename:**/wal/*.wal          1 random
put unlink:**                    1 all      # an old snapshot, or an old file of the log
put unlink:**                    1 random
'
. "$(dirname "$0")/live.sh"
etcd_pid=
end() {
    [ -z "$etcd_pid" ] || kill -9 "$etcd_pid" 2>/dev/null || true
    "$weft" --quiet umount "$work/mnt" || true
    rm -rf "$work"
}
trap end EXIT
trap 'exit 1' HUP INT TERM
"$weft" --quiet crash mount --background --model "${MODEL:-ext4-ordered}" "$work/data" "$work/mnt"

ETCDCTL_API=3
ETCDCTL_ENDPOINTS=http://127.0.0.1:23790
export ETCDCTL_API ETCDCTL_ENDPOINTS
launch() { # directory
    etcd --data-dir "$work/mnt/$1" --snapshot-count 40 --max-snapshots 1 --max-wals 1 --name one \
        --quota-backend-bytes 4294967296 --listen-peer-urls http://127.0.0.1:23800 \
        --initial-advertise-peer-urls http://127.0.0.1:23800 --initial-cluster one=http://127.0.0.1:23800 \
        --listen-client-urls "$ETCDCTL_ENDPOINTS" --advertise-client-urls "$ETCDCTL_ENDPOINTS" \
        >"$work/etcd.log" 2>&1 &
    etcd_pid=$!
}
healthy() {
    for _ in $(seq 300); do
        etcdctl --command-timeout=1s endpoint health >/dev/null 2>&1 && return 0
        kill -0 "$etcd_pid" 2>/dev/null || return 1
        sleep 0.1
    done
    return 1
}
stop() { # signal
    [ -z "$etcd_pid" ] || kill "-$1" "$etcd_pid" 2>/dev/null || true
    [ -z "$etcd_pid" ] || wait "$etcd_pid" 2>/dev/null || true
    etcd_pid=
}
head -c 1000000 /dev/zero | tr '\0' v >"$work/large"
put() { # directory, work: a key is promised once etcdctl was told so
    key="key$(wc -l <"$work/promised-$1")"
    if [ "$2" = big ]; then
        etcdctl --command-timeout=5s put "big" <"$work/large" >/dev/null 2>&1 || return 0
    fi
    if etcdctl --command-timeout=2s put "$key" "of $key" >/dev/null 2>&1; then
        echo "$key" >>"$work/promised-$1"
    fi
}
failed=0
: >"$work/promised-etcd"
rounds "${1:-}" >"$work/plan"
while read -r nr job call nth how; do
    dir=etcd
    if [ "$job" = new ]; then
        # Of the members before it all is durable.
        dir=etcd-$nr
        : >"$work/promised-$dir"
    else
        launch "$dir"
        healthy || { echo "etcd does not start:"; tail -5 "$work/etcd.log"; exit 1; }
    fi
    cut "$nr" "$call" "$nth" "$how"
    [ "$job" != new ] || launch "$dir"
    for _ in $(seq 400); do
        waits || break
        kill -0 "$etcd_pid" 2>/dev/null || break
        put "$dir" "$job"
    done
    wait "$losing" || true
    stop KILL
    launch "$dir"
    said=starts
    missing=-
    if healthy; then
        etcdctl get key --prefix --limit 0 >"$work/found"
        missing=$(while read -r key; do
            grep -qx "of $key" "$work/found" || echo "$key"
        done <"$work/promised-$dir" | wc -l)
        said="starts, $(wc -l <"$work/promised-$dir") keys promised"
    else
        said="does not start: $(grep -E 'panic|fatal|F \|' "$work/etcd.log" | tail -1 | cut -c 1-150)"
        failed=1
    fi
    stop TERM
    row "$nr" "$job" "$call" "$how" "$said" "$missing"
    [ "$missing" = 0 ] || failed=1
    # A member that does not start, or of which keys are missing, would be told in each later round.
    [ "$dir" != etcd ] || [ "$missing" = 0 ] || break
    [ "$dir" = etcd ] || rm -rf "$work/mnt/$dir"
done <"$work/plan"
table
exit $failed
