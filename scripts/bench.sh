#!/usr/bin/env bash
# Builds the release binaries and runs all measurements; the tool writes docs/benchmarks.md.
# Arguments go to weft-bench: bench.sh counts, bench.sh table --pairs 9, ...
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:/usr/sbin:/sbin"
"${CARGO:-cargo}" build --locked --release -p weft-cli -p weft-bench --features weft-cli/wasm,weft-bench/wasm
exec target/release/weft-bench "${@:-all}"
