#!/bin/sh
# Go modules: stores that promise durability (bbolt badger pebble goleveldb), and savers of files that
# promise a whole file and nothing more (renameio atomic; writefile, of the standard library, promises
# not even that). goleveldb-mended is a copy with what is in mended/.
#
#   scripts/crash/go.sh NAME [OPTIONS OF weft crash run]
. "$(dirname "$0")/lib.sh"
name=${1:?"usage: $0 NAME [OPTIONS]"}
shift
need go golang
program=$TOOLS/go-subjects mod=
if [ "$name" = goleveldb-mended ]; then
    need patch patch
    name=goleveldb program=$program-mended
    from=$(cd "$HERE/go" && go mod download && go list -m -f '{{.Dir}}' github.com/syndtr/goleveldb)
    rm -rf "$TOOLS/mended-goleveldb"
    cp -r "$from" "$TOOLS/mended-goleveldb"
    chmod -R u+w "$TOOLS/mended-goleveldb"
    patch --quiet -d "$TOOLS/mended-goleveldb" -p1 <"$HERE/mended/goleveldb.patch"
    cp "$HERE/go/go.mod" "$TOOLS/mended.mod"
    cp "$HERE/go/go.sum" "$TOOLS/mended.sum"
    go mod edit -replace "github.com/syndtr/goleveldb=$TOOLS/mended-goleveldb" "$TOOLS/mended.mod"
    mod=$TOOLS/mended.mod
fi
(cd "$HERE/go" && go build -modfile "${mod:-go.mod}" -o "$program" .)
case $name in
renameio | atomic | writefile) PROMISE= ;;
*) PROMISE='done*' ;;
esac
export name program
subject='"$program" "$name"'
SETUP="$subject setup" RUN="$subject run" CHECK="$subject check"
version=$(grep -i "/$name\(/v[0-9]*\)\? v" "$HERE/go/go.mod") || version="$name, $(go version)"
crash_test "${mod:+mended }$version" "$@"
