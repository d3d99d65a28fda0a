#!/bin/sh
# Go modules: stores that promise durability (bbolt badger pebble goleveldb), and savers of files that
# promise a whole file and nothing more (renameio atomic; writefile, of the standard library, promises
# not even that).
#
#   scripts/crash/go.sh NAME [OPTIONS OF weft crash run]
. "$(dirname "$0")/lib.sh"
name=${1:?"usage: $0 NAME [OPTIONS]"}
shift
need go golang
(cd "$HERE/go" && go build -o "$TOOLS/go-subjects" .)
case $name in
renameio | atomic | writefile) PROMISE= ;;
*) PROMISE='done*' ;;
esac
export name
subject='"$TOOLS/go-subjects" "$name"'
SETUP="$subject setup" RUN="$subject run" CHECK="$subject check"
crash_test "$name of $(grep -i "/$name\(/v[0-9]*\)\? v" "$HERE/go/go.mod" | head -n 1 || go version)" "$@"
