#!/usr/bin/env bash
# Coverage-guided fuzzing of every target in fuzz/, sharing the given number of seconds.
# The same targets run without cargo-fuzz, on seeded inputs, in make test.
set -euo pipefail
cd "$(dirname "$0")/.."
budget=${1:-600}
if ! cargo fuzz --version >/dev/null 2>&1; then
  echo "cargo-fuzz is not installed: cargo install cargo-fuzz" >&2
  exit 1
fi
targets=()
while read -r target; do targets+=("$target"); done < <(cargo fuzz list)
each=$((budget / ${#targets[@]} + 1))
for target in "${targets[@]}"; do
  echo "== $target for $each seconds"
  # Sanitizers need a nightly compiler and find little in code without unsafe.
  cargo fuzz run --sanitizer none "$target" -- -max_total_time="$each" -timeout=10 -rss_limit_mb=2048
done
