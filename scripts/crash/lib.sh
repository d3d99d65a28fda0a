# What the scripts in this directory share; they read it with `.`.
#
# Each script runs `weft crash run` on one released program, or on one of several by name:
#
#   scripts/crash/PROGRAM.sh [NAME] [OPTIONS OF weft crash run]
#
# WEFT is the weft command (default: weft), TOOLS a directory for what the script installs from the
# registry of its language (default: target/crash-tools). A script that misses a tool says so and
# exits with 77; else its exit code is that of weft: 0 no state fails, 3 some do, 1 nothing tested.
# Commands under test find the directory of the scripts in HERE, and TOOLS.
set -eu
HERE=$(cd "$(dirname "$0")" && pwd)
weft=$(command -v "${WEFT:-weft}") || { echo "$0: weft is not installed; set WEFT" >&2; exit 2; }
weft=$(realpath "$weft")
TOOLS=$(realpath -m "${TOOLS:-target/crash-tools}")
mkdir -p "$TOOLS"
export HERE TOOLS

skip() {
    echo "$0: skipped: $*" >&2
    exit 77
}

need() { # command, Debian package
    command -v "$1" >/dev/null || skip "$1 is not installed (Debian: $2)"
}

# Says what is tested, then tests it. SETUP, RUN, CHECK and PROMISE (may be empty) are the lines.
crash_test() { # what and its version, then options of weft
    [ "${QUIET:-}" ] || echo "== $1"
    shift
    set -- --setup "$SETUP" --run "$RUN" --check "$CHECK" "$@"
    [ "${PROMISE:-}" ] && set -- --stdout-is-promise "$PROMISE" "$@"
    exec "$weft" crash run "$@"
}
