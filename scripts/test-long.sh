#!/usr/bin/env bash
# The long campaigns: every test marked #[ignore], each told by WEFT_LONG_SECONDS how long it may
# take together with the others, and the dependency check. Ends with "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO=${CARGO:-cargo}
export PATH="$PATH:/usr/sbin:/sbin"
budget=${1:-600}
case "$budget" in
  '' | *[!0-9]*) echo "test-long: SECONDS must be a number of seconds, not '$budget'" >&2; exit 2 ;;
esac
export WEFT_LONG_SECONDS=$budget WEFT_FUZZ_SECONDS=$((budget / 10 + 1))
mkdir -p target
log=target/test-long.log
status=0
echo "long campaigns, about $budget seconds; the log is $log"

# Optimised without debug checks: campaigns are about how many states are looked at.
"$CARGO" test --locked --release --workspace --no-fail-fast -- --ignored --nocapture </dev/null 2>&1 |
  tee "$log" || status=1

# Other people's file-system tests, on real mounts: they need root and FUSE. A million operations
# of fsx on each policy where the budget allows, else what fits.
if [ "$(id -u)" = 0 ] && [ -e /dev/fuse ]; then
  "$CARGO" build --locked --release -p weft-cli
  weft=target/release/weft
  {
    scripts/pjdfstest.sh "$weft" &&
      ORDER=journal=ordered KIND=ext3 scripts/pjdfstest.sh "$weft" &&
      KIND=ringer scripts/pjdfstest.sh "$weft" &&
      scripts/shared-folder.sh "$weft" weft-ext2 &&
      { if command -v go >/dev/null; then
          scripts/linearizability.sh "$weft" "$((budget / 20 + 10))"
        else
          echo "the linearizability checker is left out: it needs Go"
        fi; } &&
      scripts/fsx.sh "$weft" "$((budget * 400 < 1000000 ? budget * 400 : 1000000))"
  } 2>&1 | tee -a "$log" || status=1
  # Real programs on mounts that are killed and lose power; with the checks of the engine on, as
  # they say where a fault begins and not only that there is one.
  "$CARGO" build --locked --profile ci -p weft-cli
  scripts/soak.sh "$budget" target/ci/weft 2>&1 | tee -a "$log" || status=1
else
  echo "pjdfstest, fsx and the soak are left out: they need root and /dev/fuse"
fi

if cargo deny --version >/dev/null 2>&1; then
  cargo deny check || status=1
else
  echo "cargo-deny is not installed (cargo install cargo-deny): advisories are not checked;" \
    "licences are, by make test"
fi
awk '
  /^test result: / {
    for (i = 1; i < NF; i++) {
      if ($(i + 1) == "passed;") passed += $i
      if ($(i + 1) == "failed;") broken += $i
    }
  }
  END { printf "%d passed, %d failed\n", passed, broken }' "$log"
exit "$status"
