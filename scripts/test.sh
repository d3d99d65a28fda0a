#!/usr/bin/env bash
# Everything CI checks. Goes on after a failed step, so that one run shows all that is wrong, and
# ends with what was skipped and one line: "N passed, N failed, N skipped". With WEFT_REQUIRE_ALL=1,
# as in CI, anything that was skipped is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO=${CARGO:-cargo}
export PATH="$PATH:/usr/sbin:/sbin"
# Seconds that the seeded replays of the fuzz targets may take together.
export WEFT_FUZZ_SECONDS=${WEFT_FUZZ_SECONDS:-60}

# Many tests wait, for a mount, a program or a time: with two on each core, the suite of the command takes
# 122 seconds instead of 215 (two cores).
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}

# What is heavy to build, and so not on by default.
features=(--features weft-cli/wasm,weft-bench/wasm)

mkdir -p target
log=target/test.log
: >"$log"
steps_passed=0
steps_failed=0
failed=()

# What passed tests print goes to the log, which is searched for what they skipped, and is no
# reading for people.
quiet_successes() {
  awk '/^successes:$/ { hidden = 1 } /^(failures:$|test result: )/ { hidden = 0 }
       !hidden { print; fflush() }'
}

skip() { # step, reason
  printf '\n== %s: skipped: %s\n' "$1" "$2" | tee -a "$log"
}

step() { # name, command...
  local name=$1 started=$SECONDS
  shift
  printf '\n== %s\n' "$name"
  if "$@" </dev/null 2>&1 | tee -a "$log" | quiet_successes; then
    steps_passed=$((steps_passed + 1))
    printf '== %s: ok (%s s)\n' "$name" "$((SECONDS - started))"
  else
    steps_failed=$((steps_failed + 1))
    failed+=("$name")
    printf '== %s: FAILED (%s s)\n' "$name" "$((SECONDS - started))"
  fi
}

if cargo fmt --version >/dev/null 2>&1; then
  step "format" "$CARGO" fmt --all --check
else
  skip format "rustfmt is not installed"
fi
if cargo clippy --version >/dev/null 2>&1; then
  step "lints" "$CARGO" clippy --locked --profile ci --workspace --all-targets "${features[@]}" -q -- -D warnings
else
  skip lints "clippy is not installed"
fi
# A test that hangs ends the step, not the patience of whoever waits: it is the one of which cargo
# said that it "has been running for over 60 seconds".
step "tests" timeout --kill-after=30 "${WEFT_TEST_SECONDS:-3000}" "$CARGO" test --locked --profile ci --workspace --all-targets "${features[@]}" --no-fail-fast -- --show-output
# What mounts, once more with requests over io_uring; the modules of tests are named.
step "tests over io_uring" timeout --kill-after=30 "${WEFT_TEST_SECONDS:-3000}" \
  bash scripts/io-uring.sh "$CARGO" test --locked --profile ci --workspace --test it "${features[@]}" --no-fail-fast -- --show-output \
  callers:: io_uring:: life:: mapped:: overtaken:: trees:: writing:: mount:: programs:: flags::
# What users meet, once more as an ordinary user: root may do everything, and so its tests cannot see what
# a user may not. What a test needs root for it does not do, and says so. (The tests of the sources need
# Rust, which is root's.)
as_user() {
  WEFT_AS_USER_CRATES="weft weft-block weft-cli weft-crash-test weft-fuse weft-net weft-order weft-transform weft-vfs" \
    "$@" 2>&1 | sed -u 's/^skipped: /not as an ordinary user: /'
}
[ "$(id -u)" != 0 ] || step "tests as an ordinary user" as_user timeout --kill-after=30 "${WEFT_TEST_SECONDS:-3000}" \
  "$CARGO" test --config "target.'cfg(unix)'.runner = ['$PWD/scripts/as-user.sh']" \
  --locked --profile ci --workspace --test it "${features[@]}" --no-fail-fast -- --show-output --skip house::
step "documentation's examples" "$CARGO" test --locked --profile ci --workspace --doc "${features[@]}" --no-fail-fast
step "documentation" env RUSTDOCFLAGS="-D warnings" \
  "$CARGO" doc --locked --profile ci --workspace "${features[@]}" --no-deps -q

# Cargo's own counts, and one for each step that is not a test run.
read -r passed broken < <(awk '
  /^test result: / {
    for (i = 1; i < NF; i++) {
      if ($(i + 1) == "passed;") passed += $i
      if ($(i + 1) == "failed;") broken += $i
    }
  }
  END { print passed + 0, broken + 0 }' "$log")
if [ "$steps_failed" -gt 0 ]; then
  printf '\nfailed steps: %s (the whole log: %s)\n' "${failed[*]}" "$log"
  grep -E '^test .* FAILED$|^error' "$log" | sort -u | head -40 || true
  # A step that failed without a failed test (it did not build, a lint) counts as one.
  [ "$broken" -gt 0 ] || broken=$steps_failed
fi
# Every reason once, with the tests that gave it. What a test found this kernel or this file system
# not to have, it says with other words ("not here:"): no package brings that.
reasons() { # word
  awk -v word="$1" '
    /^---- .* stdout ----$/ { test = $2 }
    /^test result: / { test = "" }
    {
      at = index($0, word ": ")
      if (at == 0 || (at > 1 && $0 !~ /^== /)) next
      reason = substr($0, at + length(word) + 2)
      if ($0 ~ /^== /) test = substr($0, 4, at - 6)
      count[reason]++
      if (!seen[reason, test]++) where[reason] = where[reason] " " test
    }
    END { for (reason in count) printf "%d\t%s:%s\n", count[reason], reason, where[reason] }
  ' "$log" | sort -k2
}
for word in "not here" "not as an ordinary user" skipped; do
  list=$(reasons "$word")
  [ -n "$list" ] || continue
  printf '\n%s:\n' "$word"
  cut -f2- <<<"$list" | sed 's/^/  /'
done
skipped=$(reasons skipped | awk '{ all += $1 } END { print all + 0 }')
if [ "$skipped" -gt 0 ] && [ "${WEFT_REQUIRE_ALL:-}" = 1 ]; then
  echo "WEFT_REQUIRE_ALL=1: nothing may be skipped; scripts/setup.sh test installs what is missing"
  steps_failed=$((steps_failed + 1))
fi
printf '%s passed, %s failed, %s skipped\n' "$passed" "$broken" "$skipped"
[ "$steps_failed" -eq 0 ]
