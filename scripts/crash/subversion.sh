#!/bin/sh
# Subversion: two commits to a repository of the kind FSFS (Debian: subversion).
#
#   scripts/crash/subversion.sh [OPTIONS OF weft crash run]
. "$(dirname "$0")/lib.sh"
need svnadmin subversion
SETUP='svnadmin create r && svn -q mkdir -m c1 "file://$PWD/r/d"'
RUN='for n in 2 3; do
        svn -q mkdir -m c$n "file://$PWD/r/d$n" && echo done $n || exit 1
    done'
CHECK='youngest=$(svnlook youngest r) && svnadmin verify -q r || exit 1
    promised=$(tail -n 1 "$WEFT_PROMISES")
    [ -z "$promised" ] || [ "$youngest" -ge "${promised#done }" ] ||
        { echo "promised: $promised; found: $youngest"; exit 1; }'
PROMISE='done*'
crash_test "$(svn --version -q)" "$@"
