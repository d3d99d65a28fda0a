#!/usr/bin/env bash
# Builds the wheel of the Python package `weft` into a directory, installs it in an environment of its
# own and runs the package's tests against it. Needs maturin (`pip install maturin`, or from crates.io),
# and pytest in the Python that runs the tests.
#
#   scripts/wheel.sh [DIRECTORY]    target/wheels
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-target/wheels}
package=python/weft

if ! command -v maturin >/dev/null; then
  echo "wheel: maturin is not installed: pip install maturin" >&2
  exit 1
fi
mkdir -p "$out"
out=$(realpath "$out")
rm -f "$out"/weft-*.whl
(cd "$package" && maturin build --release --locked --out "$out")
wheel=$(echo "$out"/weft-*.whl)

# One wheel for all versions of Python from the first on.
case $wheel in
  *-cp39-abi3-*.whl) ;;
  *) echo "wheel: $wheel is not for the stable ABI of Python 3.9" >&2 && exit 1 ;;
esac

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# With what the system has, for pytest.
python3 -m venv --system-site-packages "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet --no-index --no-deps "$wheel"
WEFT_DOCUMENTATION=$PWD/docs PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 \
  "$scratch/venv/bin/python" -P -m pytest -q -rs -p no:cacheprovider --basetemp "$scratch/tests" "$package/tests"
echo "$wheel"
