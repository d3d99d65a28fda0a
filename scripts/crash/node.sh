#!/bin/sh
# npm packages that save a file, and promise that it is whole: write-file-atomic atomically conf lowdb
# (fs, of Node.js itself, promises nothing).
#
#   scripts/crash/node.sh NAME [OPTIONS OF weft crash run]
. "$(dirname "$0")/lib.sh"
name=${1:?"usage: $0 NAME [OPTIONS]"}
shift
need npm npm
mkdir -p "$TOOLS/node"
cp "$HERE/node/package.json" "$HERE/node/subjects.js" "$TOOLS/node/"
[ -d "$TOOLS/node/node_modules" ] || (cd "$TOOLS/node" && npm install --silent --no-audit --no-fund)
export name
subject='node "$TOOLS/node/subjects.js" "$name"'
SETUP="$subject setup" RUN="$subject run" CHECK="$subject check"
crash_test "$(grep "\"$name\":" "$HERE/node/package.json" || node --version)" "$@"
