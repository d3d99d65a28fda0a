# Read by each scenario first: the guest, its checks, and the weft command, which is the scenario's first
# argument. Without what a guest needs the scenario ends here.
set -uo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
. "$here/rig.sh"
. "$here/checks.sh"
find_weft "${1:-}"
guest_ready || exit 0
