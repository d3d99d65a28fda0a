#!/usr/bin/env bash
# Runs git's own tests on weft mounts and on the kernel's ext3 and ext4, as an ordinary user, and demands
# of weft every test that the kernel passes. As root.
#
#   scripts/git-suite.sh WEFT [TEST...]
#
# WEFT is the weft command, TEST a script of the suite (t0001), a range of them (0000-1999) or a pattern
# of the shell (t5[34]*); all take hours on each mount. The suite is cloned and built in TOOLS (default:
# target/tools), which needs make, a C compiler, the headers of zlib, and perl. TARGETS lists the mounts
# (default: soft journal=ordered hostdir ringer; scripts/suites/targets.sh says what they are; HFS has no
# room for the names of objects), SHARD=K/N runs every Nth script from the Kth on, SECONDS_MAX is the
# longest that one script may take (default: 900), SECONDS_ALL that after which none is begun. KEEP=DIR
# keeps all results there; scripts with results are not run again. SIZE is that of each volume (default:
# 2G), RULE that of the network before hostdir (default: "* zstd"), SOURCE another copy of git's
# repository. Tests that the kernel passes and weft does not are in git-suite.exceptions beside this
# script, each with its reason.
#
# A test's name is t0001.12: the script, and the number in it. git finds out for itself what a file system
# can do; a test that is left out for lack of that does not run, which is an exception, too.
#
# Status 0: nothing new, 1: weft fails tests, 2: it could not run, 3: SECONDS_ALL was not enough.
set -euo pipefail
version=v2.39.5
limit=900
# The user that as-user.sh acts as.
owner=61234
default_targets="soft journal=ordered hostdir ringer"
source "$(dirname "$(realpath "$0")")/suites/run.sh"

build() {
  make NO_OPENSSL=1 NO_CURL=1 NO_EXPAT=1 NO_GETTEXT=1 NO_TCLTK=1 NO_PYTHON=1 all
}

# want_script NAME: whether it was asked for, by name, pattern or range of numbers.
want_script() {
  local asked
  ! want "$1" || return 0
  for asked in "${wanted[@]}"; do
    [[ $asked =~ ^t?([0-9]{4})-t?([0-9]{4})$ ]] || continue
    ((10#${1#t} >= 10#${BASH_REMATCH[1]} && 10#${1#t} <= 10#${BASH_REMATCH[2]})) && return 0
  done
  return 1
}

run_unit() {
  local unit=$2 place=$3 out=$4 status=0
  # Messages of git are compared with the English ones; what the tests say goes to $out.verbose.
  (cd "$tree/t" && limited "$here/as-user.sh" env LC_ALL=C TEST_OUTPUT_DIRECTORY="$place/out" \
    GIT_TEST_CHAIN_LINT=0 TEST_NO_MALLOC_CHECK=1 GIT_TEST_MAINT_SCHEDULER="none:exit 1" \
    sh "$(basename "${script_of[$unit]}")" --verbose-log) >"$out" 2>&1 || status=$?
  if [ "$status" != 0 ]; then
    find "$place/out/test-results" -name '*.out' -exec cat {} + >"$out.verbose" 2>/dev/null || true
  fi
  awk -v unit="$unit" -v status="$status" -v limit="$limit" '
    /^ok [0-9]+ # skip / { $1 = $3 = $4 = ""; n = $2; $2 = ""; print unit "." n " not-run " substr($0, 5); last++; next }
    /^ok [0-9]+ .* # TODO known breakage vanished/ { print unit "." $2 " ok"; last++; next }
    /^not ok [0-9]+ .* # TODO known breakage/ { print unit "." $3 " known"; last++; next }
    /^ok [0-9]+/ { print unit "." $2 " ok"; last++; next }
    /^not ok [0-9]+/ { n = $3; sub(/^not ok [0-9]+ - /, ""); print unit "." n " failed: " $0; last++; next }
    /^1\.\.0 # SKIP/ { sub(/^1\.\.0 # SKIP /, ""); print unit " not-run " $0; skipped = 1; next }
    /^1\.\.[0-9]+/ { split($1, plan, /\.\./) }
    END {
      if (skipped) exit
      if (status == 124 || status == 137) print unit " failed: it took longer than " limit " s"
      else if (plan[2] != last) print unit " failed: it ended early, after " last + 0 " tests, with status " status
      else print unit " ok"
    }' "$out"
}

start "$@"
fetch_suite git "$version" https://github.com/git/git.git
built_once build
declare -A script_of=()
units=()
for script in "$tree"/t/t[0-9][0-9][0-9][0-9]-*.sh; do
  name=$(basename "$script")
  name=${name%%-*}
  want_script "$name" || continue
  script_of[$name]=$script
  units+=("$name")
done
run_all
