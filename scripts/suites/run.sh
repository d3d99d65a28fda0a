# Runs the units of a suite (programs, stressors, scripts) on every target and its control, and judges
# the results. Sourced by a suite's script, which then
#
#   calls       start "$@"
#   sets        units=(...)   and, with whole_units=1, a unit is not run where its control failed
#   defines     run_unit TARGET UNIT PLACE OUT: runs it in the directory PLACE of a mount, with all output
#               in OUT, and prints lines "TEST ok|failed|not-run|known [WHY]"
#   calls       run_all
#
# Results are lines in $keep/TARGET; output is in $keep/TARGET.d, the units that are done in
# $keep/TARGET.done. Exceptions are lines "TEST TARGETS # REASON" in SCRIPT.exceptions beside the script, or
# "says: TEXT TARGETS # REASON" for all tests that fail or do not run with that TEXT in their WHY. TARGETS
# have commas between them; both they and TEST may be patterns of the shell. "skip: UNIT TARGETS # REASON"
# is for a unit that would only wait for its limit: it is not begun.
shopt -s inherit_errexit
here=$(dirname "$(realpath "$0")")
source "$here/suites/targets.sh"
source "$here/suites/limits.sh"
source "$here/suites/source.sh"

declare -A control=()

# start WEFT [TEST...]: options, and a mount namespace of this run only.
start() {
  local target
  [ $# -ge 1 ] || { sed -n '/^#   scripts/s/^# */usage: /p' "$0" >&2; exit 2; }
  [ "$(id -u)" = 0 ] || { echo "$0: needs root, to mount and to act as other users" >&2; exit 2; }
  if [ -z "${WEFT_SUITE_NAMESPACE:-}" ]; then
    WEFT_SUITE_NAMESPACE=1 exec unshare --mount --propagation private -- bash "$0" "$@"
  fi
  weft=$(realpath "$1")
  [ -x "$weft" ] || { echo "$0: $weft is not there: build it, or name the weft command" >&2; exit 2; }
  shift
  wanted=("$@")
  tools=$(realpath -m "${TOOLS:-target/tools}")
  targets=${TARGETS:-${default_targets:-soft journal=ordered hostdir ringer hfs}}
  size=${SIZE:-2G}
  rule=${RULE:-* zstd}
  owner=${owner:-0}
  limit=${SECONDS_MAX:-$limit}
  budget=${SECONDS_ALL:-0}
  shard=${SHARD:-1/1}
  exceptions=${0%.sh}.exceptions
  mapfile -t skips < <(grep '^skip: ' "$exceptions")
  controls=
  for target in $targets; do
    known_target "$target" || { echo "$0: $target is no target (scripts/suites/targets.sh)" >&2; exit 2; }
    control[$target]=$(control_of "$target")
    [[ " $controls " == *" ${control[$target]} "* ]] || controls+=" ${control[$target]}"
  done
  export PATH="$PATH:/usr/sbin:/sbin"
  umask 022
  dir=$(mktemp -d)
  chmod 755 "$dir"
  keep=$(realpath -m "${KEEP:-$dir/results}")
  mkdir -p "$keep"
  trap clean EXIT
  trap 'exit 130' INT TERM
}

clean() {
  local target
  end_leftovers
  for target in $controls $targets; do give_up "$target"; done
  # What a test has mounted itself: the daemons of such mounts end with them.
  awk -v below="$dir/" 'index($2, below) == 1 {print $2}' /proc/mounts | tac | xargs -r -n 1 umount -l || true
  rm -rf --one-file-system "$dir"
}

# want NAME: whether NAME is among the tests that were asked for.
want() {
  local pattern
  [ ${#wanted[@]} -gt 0 ] || return 0
  for pattern in "${wanted[@]}"; do
    # shellcheck disable=SC2053
    [[ $1 == $pattern ]] && return 0
  done
  return 1
}

# skipped TARGET UNIT: whether the exceptions say that it is not begun there.
skipped() {
  local line unit list target
  for line in "${skips[@]}"; do
    read -r _ unit list _ <<<"$line"
    # shellcheck disable=SC2053
    [[ $2 == $unit ]] || continue
    for target in ${list//,/ }; do
      # shellcheck disable=SC2053
      [[ $1 != $target ]] || return 0
    done
  done
  return 1
}

# note_passed TARGET FILE: the tests that passed, of result lines in FILE.
declare -A finished=() passed=()
note_passed() {
  local test status _
  while read -r test status _; do
    [ "$status" != ok ] || passed["$1 $test"]=yes
  done <"$2"
}

# One unit on one target.
run_one() {
  local target=$1 unit=$2 place out lines="$dir/lines"
  place=$(place_of "$target")
  out=$keep/$target.d/${unit//\//-}
  [ -z "${finished["$target $unit"]:-}" ] || return 0
  mkdir -p "$keep/$target.d"
  run_unit "$target" "$unit" "$place" "$out" </dev/null >"$lines"
  end_leftovers
  if ! alive "$target"; then
    echo "$unit failed: the mount does not answer any more" >>"$lines"
    give_up "$target"
    begin "$target"
  elif ! empty "$place" >>"$out" 2>&1; then
    echo "$unit failed: what it left on the mount cannot be removed" >>"$lines"
    chattr -R -ia "$place" >/dev/null 2>&1 || true
    empty "$place" >/dev/null 2>&1 || true
  fi
  cat "$lines" >>"$keep/$target"
  echo "$unit" >>"$keep/$target.done"
  finished["$target $unit"]=yes
  note_passed "$target" "$lines"
  grep -E '^[^ ]+ failed' "$lines" | sed "s/^/$target: /" || true
}

# Leftover processes end in their own time, so a directory may be busy for a moment.
empty() {
  local tries
  for tries in 1 2 3 4 5; do
    find "$1" -mindepth 1 -delete && return
    sleep 1
  done
  return 1
}

run_all() {
  local unit target left=0 place=0 mine="${shard%/*}" of="${shard#*/}" status=0
  for target in $controls $targets; do
    touch "$keep/$target" "$keep/$target.done"
    while read -r unit; do finished["$target $unit"]=yes; done <"$keep/$target.done"
    note_passed "$target" "$keep/$target"
    begin "$target"
  done
  for unit in "${units[@]}"; do
    place=$((place + 1))
    [ $((place % of)) = $((mine % of)) ] || continue
    if [ "$budget" -gt 0 ] && [ "$SECONDS" -ge "$budget" ]; then
      left=$((left + 1))
      continue
    fi
    for target in $controls; do run_one "$target" "$unit"; done
    for target in $targets; do
      [ -z "${whole_units:-}" ] || [ -n "${passed["${control[$target]} $unit"]:-}" ] || continue
      ! skipped "$target" "$unit" || continue
      run_one "$target" "$unit"
    done
  done
  for target in $controls $targets; do
    # Not in a subshell: it waits for daemons of this one.
    end "$target" >"$dir/wrong" 2>&1 || { sed "s/^/$target, at its end: /" "$dir/wrong"; status=1; }
  done
  judge "$left" || status=1
  if [ "$left" -gt 0 ]; then
    echo "$left of ${#units[@]} were not begun within $budget s; with the same KEEP the next run goes on with them"
    [ $status != 0 ] || status=3
  fi
  exit $status
}

# judge LEFT: each target's results beside its control's; LEFT is how many units were not begun.
judge() {
  local target status=0
  for target in $targets; do
    awk -v target="$target" -v control="${control[$target]}" -v unfinished="$1" '
      function pattern(glob) {
        gsub(/[][\\.+(){}|^$]/, "\\\\&", glob)
        gsub(/\*/, ".*", glob)
        gsub(/\?/, ".", glob)
        return "^" glob "$"
      }
      function ours(list,   some, n, i) {
        n = split(list, some, ",")
        for (i = 1; i <= n; i++) if (target ~ pattern(some[i])) return 1
        return 0
      }
      function excepted(test, why,   i) {
        for (i = 1; i <= tests; i++) if (test ~ test_pattern[i]) return 1
        for (i = 1; i <= texts; i++) if (index(why, text[i])) return 1
        return 0
      }
      FILENAME == ARGV[1] {
        if (/^skip: /) next
        sub(/[ \t]*#.*/, "")
        if (NF < 2 || !ours($NF)) next
        sub(/[ \t]+[^ \t]+$/, "")
        if (sub(/^says: /, "")) text[++texts] = $0
        else test_pattern[++tests] = pattern($0)
        next
      }
      FILENAME == ARGV[2] { if ($2 ~ /^ok/) wanted[$1] = 1; else if ($2 ~ /^failed/) amiss[$1] = 1; next }
      {
        status = $2
        sub(/:$/, "", status)
        n[status]++
        if (status == "ok") compared++
        if (status == "ok" || status == "known") next
        why = $0
        sub(/^[^ ]+ [^ ]+ ?/, "", why)
        if (amiss[$1] || !wanted[$1]) { shared[status]++; next }
        compared++
        if (excepted($1, why)) { exceptions[status]++; next }
        print target ": " control " passes it, weft does not: " $0
        found = 1
      }
      END {
        printf "%s: %d passed, %d failed (%d excepted, %d not passed by %s), %d not run\n", target, n["ok"],
          n["failed"], exceptions["failed"], shared["failed"], control, n["not-run"]
        if (!compared && !unfinished) {
          print target ": nothing that " control " passes was run: there is nothing to compare"
          found = 1
        }
        exit found
      }' "$exceptions" "$keep/${control[$target]}" "$keep/$target" || status=1
  done
  [ $status = 0 ] && echo "weft passes every test that the kernel passes, but for the exceptions"
  return $status
}
