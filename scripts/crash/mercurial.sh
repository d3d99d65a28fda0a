#!/bin/sh
# Mercurial: a commit in a repository that has one (Debian: mercurial).
#
#   scripts/crash/mercurial.sh [OPTIONS OF weft crash run]
#
# After a power cut the check does what Mercurial asks for: hg recover, where a transaction was left.
. "$(dirname "$0")/lib.sh"
need hg mercurial
export HGRCPATH=/dev/null HGUSER=a HGPLAIN=1
SETUP='hg init && echo 0 >f && hg commit -qAm c0 -d "0 0"'
RUN='echo 1 >f && hg commit -qm c1 -d "1 0"'
CHECK='rm -f .hg/wlock .hg/store/lock
    [ ! -e .hg/store/journal ] || hg recover -q --no-verify || exit 1
    text=$(hg cat -r tip f) && subject=$(hg log -r tip -T "{desc}") || exit 1
    [ "c$text" = "$subject" ] || { echo "the commit $subject has $text"; exit 1; }
    hg verify -q || exit 1'
crash_test "$(hg --version -q)" "$@"
