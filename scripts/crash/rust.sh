#!/bin/sh
# Stores from crates.io that promise durability: redb sled fjall persy.
#
#   scripts/crash/rust.sh NAME [OPTIONS OF weft crash run]
. "$(dirname "$0")/lib.sh"
name=${1:?"usage: $0 NAME [OPTIONS]"}
shift
need cargo cargo
cargo build --quiet --locked --release --manifest-path "$HERE/rust/Cargo.toml" \
    --target-dir "$TOOLS/rust"
export name
subject='"$TOOLS/rust/release/crash-subjects" "$name"'
SETUP="$subject setup" RUN="$subject run" CHECK="$subject check" PROMISE='done*'
crash_test "$(grep "^$name " "$HERE/rust/Cargo.toml")" "$@"
