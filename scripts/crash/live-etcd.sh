#!/bin/sh
# Power cuts from a running etcd (Debian: etcd-server, etcd-client): its data directory is a `weft crash mount`,
# and at each round the power is cut at a call of etcd itself, which is killed there. What etcdctl was told is written
# must be there when etcd runs again.
#
# usage: scripts/crash/live-etcd.sh [ROUNDS]   (WEFT: the command; MODEL: ext4-ordered, posix, ...)
set -eu
rounds=${1:-12}
weft=${WEFT:-weft}
for need in etcd etcdctl; do
    command -v "$need" >/dev/null || { echo "skipped: no $need (Debian: etcd-server, etcd-client)"; exit 0; }
done
work=$(mktemp -d)
mkdir "$work/data" "$work/mnt"
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
start() {
    etcd --data-dir "$work/mnt/etcd" --snapshot-count 40 --name one --listen-peer-urls http://127.0.0.1:23800 \
        --initial-advertise-peer-urls http://127.0.0.1:23800 --initial-cluster one=http://127.0.0.1:23800 \
        --listen-client-urls "$ETCDCTL_ENDPOINTS" --advertise-client-urls "$ETCDCTL_ENDPOINTS" \
        >"$work/etcd.log" 2>&1 &
    etcd_pid=$!
    for _ in $(seq 300); do
        etcdctl --command-timeout=1s endpoint health >/dev/null 2>&1 && return
        kill -0 "$etcd_pid" 2>/dev/null || { echo "etcd does not start:"; tail -5 "$work/etcd.log"; exit 1; }
        sleep 0.1
    done
    echo "etcd is not healthy"; tail -5 "$work/etcd.log"; exit 1
}

# The calls at which the power is cut: of the log, of the database, of snapshots and names.
calls='fdatasync:**/wal/* fdatasync:**/snap/db write:**/snap/db fsync any'
next=0
for round in $(seq "$rounds"); do
    start
    set -- $calls
    shift $(( (round - 1) % $# ))
    call=$1
    how=$(( round % 3 ))
    # Before a call that cuts the power there may be no write that could be torn.
    case $how in 0) how= ;; 1) how=--random ;; 2) how='--torn --after' call='write:**/wal/*' ;; esac
    # shellcheck disable=SC2086
    "$weft" --json crash lose "$work/mnt" --at "$call" --nth $(( 3 + round * 7 % 20 )) --kill $how --seed "$round" \
        --timeout 30s >"$work/lost" 2>"$work/lose.err" &
    losing=$!
    sleep 0.5
    for _ in $(seq 400); do
        if etcdctl --command-timeout=2s put "key$next" "value$next" >/dev/null 2>&1; then
            next=$((next + 1))
        fi
        kill -0 $losing 2>/dev/null || break
    done
    if wait $losing; then
        wait "$etcd_pid" || true
    elif grep -q "nothing is lost\|could be torn" "$work/lose.err"; then
        echo "round $round: $call: nothing to tear"
        kill -9 "$etcd_pid" 2>/dev/null || true
        wait "$etcd_pid" || true
    else
        echo "round $round: $call: $(cat "$work/lose.err")"
        kill -9 "$etcd_pid" 2>/dev/null || true
        wait "$etcd_pid" || true
    fi
    etcd_pid=
    start
    missing=0
    for key in $(seq 0 $((next - 1))); do
        echo "key$key"
        echo "value$key"
    done >"$work/expected"
    etcdctl get key --prefix --limit 0 >"$work/found"
    while read -r key; do
        read -r value
        grep -qx "$key" "$work/found" && grep -qx "$value" "$work/found" || missing=$((missing + 1))
    done <"$work/expected"
    at=$(sed -n 's/.*"at": *"\(.*\)",$/\1/p' "$work/lost" | head -1 | tr -d '\\')
    bytes=$(sed -n 's/^    "bytes": *\([0-9]*\).*/\1/p' "$work/lost" | head -1)
    echo "round $round: cut at ${at:-nothing} ${how:-all}: ${bytes:-0} bytes lost; $next keys promised, $missing missing"
    [ "$missing" = 0 ] || exit 1
    kill "$etcd_pid"
    wait "$etcd_pid" || true
    etcd_pid=
done
