#!/usr/bin/env bash
# Runs the cases of nbd-tester-client, the tester of the reference implementation of NBD, against
# weft serve nbd: plain, written, flushed, huge and oversized requests, read-only, over TCP and a
# Unix socket, and the same behind a write-back cache.
#
#   scripts/nbd-tester.sh [NBD_SOURCE]
#
# NBD_SOURCE is a source tree of nbd (https://github.com/NetworkBlockDevice/nbd); without one, the
# source package is asked for with apt-get source, which needs a deb-src line. It is built outside of
# the tree (autoconf, autoconf-archive, automake, bison, flex and libglib2.0-dev). WEFT names the weft to test;
# without it, one is built.
set -euo pipefail
root="$(cd "$(dirname "$0")/.." && pwd)"
work="$(mktemp -d)"
server=
stop() {
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
        server=
    fi
}
trap 'stop; rm -rf "$work"' EXIT

if [ -n "${1:-}" ]; then
    cp -r "$1" "$work/nbd"
else
    (cd "$work" && apt-get source -qq nbd >/dev/null && mv nbd-*/ nbd)
fi
weft="${WEFT:-}"
if [ -z "$weft" ]; then
    (cd "$root" && "${CARGO:-cargo}" build --locked --profile ci -p weft-cli)
    weft="$root/target/ci/weft"
fi
weft="$(realpath "$weft")"

# The tester is one file with two helpers; what configure would say of the rest is not asked.
cd "$work/nbd"
touch support/genver.sh 2>/dev/null || true
if ! { autoreconf -fi && ./configure --disable-manpages --without-gnutls; } >"$work/configure.log" 2>&1; then
    tail -n 20 "$work/configure.log" >&2
    exit 1
fi
cc -O1 -w -I. -DHAVE_CONFIG_H $(pkg-config --cflags glib-2.0) -o "$work/tester" \
    tests/run/nbd-tester-client.c cliserv.c nbd-debug.h $(pkg-config --libs glib-2.0) 2>"$work/cc.log" ||
    { cat "$work/cc.log" >&2; exit 1; }

export WEFT_RUNTIME_DIR="$work/run"
failed=0
port=10870

# case NAME SERVER_ARGUMENTS -- TESTER_ARGUMENTS
run_case() {
    local name="$1"
    shift
    local serve=() test=()
    while [ "$1" != -- ]; do serve+=("$1"); shift; done
    shift
    test=("$@")
    rm -f "$work/disk"
    case "$name" in
    *integrity | huge) truncate -s 50M "$work/disk" ;;
    *) truncate -s 4M "$work/disk" ;;
    esac
    case "$name" in
    *cached*)
        rm -f "$work/c.img"
        "$weft" cache create "$work/c.img" --size 32M --quiet
        serve+=(--cache "$work/c.img" --cache-mode write-back)
        ;;
    esac
    port=$((port + 1))
    if [ "$name" = unix ]; then
        serve+=(--socket "$work/sock")
    else
        serve+=(--listen "127.0.0.1:$port")
        test+=(127.0.0.1 "$port")
    fi
    "$weft" serve nbd "$work/disk" --export export "${serve[@]}" >"$work/serve.log" 2>&1 &
    server=$!
    for _ in $(seq 100); do
        if [ "$name" = unix ]; then [ -S "$work/sock" ] && break; fi
        if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then break; fi
        sleep 0.1
    done
    if timeout 300 "$work/tester" "${test[@]}" >"$work/test.log" 2>&1; then
        echo "ok      $name"
    else
        echo "FAILED  $name"
        tail -n 5 "$work/test.log" "$work/serve.log"
        failed=1
    fi
    stop
    rm -f "$work/sock"
}

traces="$work/nbd/tests/run"
run_case plain -- -N export
run_case oversized -- -o -N export
run_case write -- -N export -w
run_case flush -- -N export -w -f
run_case read-only --read-only -- -N export
run_case read-only-write --read-only -- -N export -w -F
run_case unix -- -N export -u "$work/sock"
run_case handshake -- -h -N export
run_case integrity -- -N export -i -t "$traces/integrity-test.tr"
run_case huge -- -N export -i -t "$traces/integrityhuge-test.tr"
run_case cached -- -N export
run_case cached-write -- -N export -w
run_case cached-flush -- -N export -w -f
run_case cached-integrity -- -N export -i -t "$traces/integrity-test.tr"
exit "$failed"
