#!/bin/sh
# Works in a folder shared by two mounts as people do: a clone of this project made on one and checked
# on the other, a build of it there, SQLite's own source compiled, and one SQLite database changed
# from both at once.
#
#   scripts/shared-folder.sh WEFT [PACKAGE]
#
# PACKAGE is what is built (default: weft-cli, the whole command). Everything is in a temporary
# directory below TMPDIR; the crates come from Cargo's own cache.
set -eu

weft=$(realpath "${1:?usage: $0 WEFT [PACKAGE]}")
package=${2:-weft-cli}
project=$(realpath "$(dirname "$0")/..")
dir=$(mktemp -d)
clean() {
    for mounted in a b; do
        mountpoint -q "$dir/$mounted" && "$weft" umount "$dir/$mounted"
    done
    [ -s "$dir/server.pid" ] && kill "$(cat "$dir/server.pid")"
    rm -rf "$dir"
}
trap clean EXIT
trap 'exit 130' INT TERM

mkdir "$dir/a" "$dir/b"
"$weft" -q ringer serve "$dir/cell" --listen "unix:$dir/s" --background --pid-file "$dir/server.pid"
for mounted in a b; do
    "$weft" -q ringer mount "unix:$dir/s" "$dir/$mounted" --store "$dir/$mounted.store" --background
done

step() {
    echo "$(date +%T) $*"
}

step "clone on a, checked on b"
git clone -q --no-local "$project" "$dir/a/weft"
git -C "$dir/b/weft" fsck --no-progress --strict
[ -z "$(git -C "$dir/b/weft" status --porcelain)" ]

step "build of $package on b, run on a"
(cd "$dir/b/weft" && CARGO_TARGET_DIR=$dir/b/target cargo build -q --locked -p "$package")
if [ "$package" = weft-cli ]; then
    "$dir/a/target/debug/weft" --version
fi
[ -z "$(git -C "$dir/a/weft" status --porcelain)" ]

step "SQLite's source, compiled on a, linked on b"
sqlite=$(find "${CARGO_HOME:-$HOME/.cargo}/registry/src" -path '*libsqlite3-sys*/sqlite3/sqlite3.c' | sort | tail -n 1)
cp "$sqlite" "$(dirname "$sqlite")/sqlite3.h" "$dir/a/"
(cd "$dir/a" && cc -O1 -c sqlite3.c -o sqlite3.o)
cat > "$dir/b/writer.c" << 'END'
#include <stdio.h>
#include <stdlib.h>
#include "sqlite3.h"

/* Inserts rows, each with the sum of all before it: a lost or torn change is seen. */
int main(int argc, char **argv) {
    sqlite3 *db;
    char *why = 0, sql[400];
    int who = atoi(argv[2]), rows = atoi(argv[3]);
    if (argc != 4 || sqlite3_open(argv[1], &db) != SQLITE_OK) return 1;
    sqlite3_busy_timeout(db, 60000);
    for (int n = 0; n < rows; n++) {
        snprintf(sql, sizeof sql,
                 "BEGIN IMMEDIATE; INSERT INTO t SELECT %d, %d, coalesce(sum(n), 0) FROM t; COMMIT", who, n);
        if (sqlite3_exec(db, sql, 0, 0, &why) != SQLITE_OK) {
            fprintf(stderr, "writer %d, row %d: %s\n", who, n, why);
            return 1;
        }
    }
    return sqlite3_close(db) != SQLITE_OK;
}
END
(cd "$dir/b" && cc -O1 writer.c sqlite3.o -o writer -lpthread -ldl -lm)

step "one database, changed from both at once"
python3 - "$dir/a/db" << 'END'
import sqlite3, sys
sqlite3.connect(sys.argv[1]).execute("CREATE TABLE t (who, n, sum)").connection.commit()
END
"$dir/a/writer" "$dir/a/db" 1 300 &
one=$!
"$dir/b/writer" "$dir/b/db" 2 300 &
wait $!
wait $one
for mounted in a b; do
    python3 - "$dir/$mounted/db" << 'END'
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
rows = db.execute("SELECT who, n, sum FROM t ORDER BY rowid").fetchall()
assert len(rows) == 600, len(rows)
total = 0
for who, n, before in rows:
    assert before == total, (who, n, before, total)
    total += n
END
done
step "all is well"
