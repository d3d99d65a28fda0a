#!/bin/sh
# Runs every crash test of this directory and writes a table in Markdown: what was tested, how many
# different states were judged under each model, how many failed, and the first cause.
#
#   WEFT=target/release/weft scripts/crash/all.sh [OPTIONS OF weft crash run]
#
# ONLY="python.sh lmdb:go.sh bbolt" runs some of them. With --each-sync among the options the table
# says of each call that makes something durable whether leaving it out is noticed.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
all='sqlite.sh rollback:sqlite.sh wal:sqlite.sh full:sqlite.sh wal-normal:sqlite.sh off
postgres.sh
python.sh lmdb:python.sh rocksdb:python.sh leveldb:python.sh zodb:python.sh diskcache
rust.sh redb:rust.sh sled:rust.sh fjall:rust.sh persy
go.sh bbolt:go.sh pebble:go.sh badger:go.sh goleveldb:go.sh goleveldb-mended
python.sh atomicwrites:go.sh renameio:go.sh atomic:node.sh write-file-atomic:node.sh atomically
python.sh dumb:python.sh gdbm:python.sh old-leveldb
python.sh tinydb:python.sh dotenv:python.sh dotenv-mended:python.sh configobj:python.sh keyring:python.sh joblib
node.sh conf:node.sh lowdb:node.sh fs:go.sh writefile
git.sh default:git.sh none:git.sh all:git.sh committed
mercurial.sh:subversion.sh:dpkg.sh safe-io:dpkg.sh unsafe-io'
case " $* " in *" --each-sync "*) table=each-sync ;; *) table=states ;; esac
python3 "$here/table.py" "$table" head
echo "${ONLY:-$all}" | tr ':' '\n' | while read -r line; do
    # shellcheck disable=SC2086
    set -- $line -- "$@"
    script=$1
    shift
    name=
    [ "$1" = -- ] || { name=$1 && shift; }
    shift
    answer=$("$here/$script" $name --quiet --json "$@" </dev/null) && code=0 || code=$?
    printf '%s' "$answer" | python3 "$here/table.py" "$table" "$script $name" "$code"
done
