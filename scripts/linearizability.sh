#!/bin/sh
# Histories of real mounts of one cell through an independent linearizability checker (porcupine):
# registers, names, links, renames, appends and mappings, first without faults, then with mounts and servers
# that are killed, stopped and cut off, from the server and from each other.
#
#   scripts/linearizability.sh WEFT [SECONDS [SEED]]
#
# SECONDS is how long each of the four runs takes (default 30). Needs root or fusermount3, and Go; porcupine
# comes through the Go module proxy, in the version that scripts/linearizability/go.sum names.
set -eu

weft=$(realpath "${1:?usage: $0 WEFT [SECONDS [SEED]]}")
seconds=${2:-30}
seed=${3:-$(date +%s)}
cd "$(dirname "$0")/linearizability"
dir=$(mktemp -d)
keep=
trap '[ -n "$keep" ] || rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
go build -o "$dir/histories" .

status=0
run() {
    work="$dir/$1-$2"
    mkdir "$work"
    echo "== $1 mounts, faults: ${2:-none}"
    if ! "$dir/histories" -weft "$weft" -dir "$work" -mounts "$1" -faults "$2" \
        -seconds "$seconds" -seed "$seed"; then
        keep=yes
        status=1
        echo "what there was of it is in $work"
    fi
}
run 2 ""
run 3 ""
run 2 "stop,cut,peers"
run 3 "kill,stop,cut,peers,server"
exit $status
