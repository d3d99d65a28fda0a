#!/usr/bin/env bash
# Tortures the block cache: power cuts at every write and flush of recorded lives, each judged to the
# last byte, then caches in use, changed and failing, killed at any moment of that, and a model of long
# lives, with requests of every length.
#
#   scripts/torture-cache.sh [CUTS [SECONDS]]      by default 500000 power cuts, 3600 seconds, and a third
#                                                  of that for the model
#
# All is in memory, from seeds; WEFT_TORMENT_FIRST=N names the first. A failure prints the command that
# replays it. A case that does not end is a failure, too: the stacks of all threads are printed (gdb's,
# where it is installed), and no more is done. The log is target/torture-cache.log.
#
# Both campaigns are built with --profile ci: optimised, and with what a release build leaves out, the
# checks for overflow, the debug assertions and the check of the order of locks. A campaign of a release
# build did not see a fault that the same campaign of a ci build found.
set -euo pipefail
cd "$(dirname "$0")/.."
cuts=${1:-500000}
seconds=${2:-3600}
case "$cuts$seconds" in
*[!0-9]*) echo "torture-cache: CUTS and SECONDS must be numbers" >&2; exit 2 ;;
esac
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
log=$target/torture-cache.log
: >"$log"
campaign() {
    name=$1
    shift
    "${CARGO:-cargo}" test --locked --profile ci -p weft-cache "$@" -- \
        --ignored --exact --nocapture "$name" </dev/null 2>&1 | tee -a "$log"
}
WEFT_TORMENT_CUTS=$cuts campaign torment::long_campaign --test it
WEFT_TORTURE_SECONDS=$seconds campaign torture::long_torture --test it
WEFT_MODEL_SECONDS=$((seconds / 3)) campaign model::long_model --lib
grep -E '^[0-9]+ (power cuts|live kills|cuts of modelled)' "$log"
