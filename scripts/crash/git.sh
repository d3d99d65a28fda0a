#!/bin/sh
# git: a commit in a repository that has one (Debian: git).
#
#   scripts/crash/git.sh NAME [OPTIONS OF weft crash run]
#
# NAME is the value of core.fsync: default, none, all, committed, ...; with +batch behind it,
# core.fsyncMethod is batch. With PROMISES=1 a commit that has ended is taken for a promise, which git
# does not give: it never makes directories durable.
. "$(dirname "$0")/lib.sh"
name=${1:?"usage: $0 NAME [OPTIONS]"}
shift
need git git
config=core.fsync=${name%+batch}
[ "$name" != "${name%+batch}" ] && config="$config -c core.fsyncMethod=batch"
[ "${name%+batch}" = default ] && config=gc.auto=0
[ "$name" = "default+batch" ] && config=core.fsyncMethod=batch
PROMISE=
[ -z "${PROMISES:-}" ] || PROMISE='done*'
# No settings of the user who runs this, and the same names of objects in each run.
export config HOME=/nonexistent GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.com
export GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.com
export GIT_AUTHOR_DATE='1700000000 +0000' GIT_COMMITTER_DATE='1700000000 +0000'
SETUP='git init -q -b main . && git config gc.auto 0 && echo 0 >f && git add f && git commit -qm c0'
RUN='for n in 1 2; do
        echo $n >f && git -c $config commit -qam c$n && echo done $n || exit 1
    done'
# The history of HEAD and its files can be read, and belong together. (git fsck would demand more:
# that no object is damaged, not even one that nothing refers to.)
CHECK='subject=$(git log --format=%s -n 1) && text=$(git show HEAD:f) || exit 1
    [ "$subject" = "c$text" ] || { echo "the commit $subject has $text"; exit 1; }
    git archive HEAD >/dev/null && git archive HEAD~"$text" >/dev/null || exit 1
    promised=$(tail -n 1 "$WEFT_PROMISES")
    [ "$text" -ge "${promised#done }" ] 2>/dev/null || [ -z "$promised" ] ||
        { echo "promised: $promised; found: $text"; exit 1; }'
crash_test "$(git --version), core.fsync: $name" "$@"
