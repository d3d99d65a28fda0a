# Functions of the scripts that cut the power of a running server; they read it with `.`.
#
# A round is a power cut at a call of the server itself: `cut` waits for it while the script keeps the
# server busy, `row` notes what came of it, and `table` prints all rounds. Which calls a round waits for
# is a line of ROUNDS: the work, the call (a pattern, see `weft crash lose --help`), its number, and what
# is lost (all, random, torn, after: all, once the call is done).
set -eu
weft=${WEFT:-weft}
work=$(mktemp -d)
mkdir "$work/data" "$work/mnt"
: >"$work/rows"

# Lines of $ROUNDS without comments, as many as are wanted; the whole list is repeated.
rounds() { # number of rounds; none: each line once
    printf '%s\n' "$ROUNDS" | sed 's/#.*//; /^ *$/d' >"$work/rounds"
    lines=$(wc -l <"$work/rounds")
    seq "${1:-$lines}" | while read -r nr; do
        echo "$nr $(sed -n "$(( (nr - 1) % lines + 1 ))p" "$work/rounds")"
    done
}

# Begins to wait for a call, at which the power is cut and the processes of the server are killed.
cut() { # round, call, nth, how
    case $4 in
        all) options= ;;
        after) options=--after ;;
        random) options=--random ;;
        # Before a call that cuts the power there may be no write that could be torn.
        torn) options="--torn --after" ;;
        *) echo "no such loss: $4" >&2; exit 2 ;;
    esac
    : >"$work/lost"
    # shellcheck disable=SC2086
    "$weft" --json crash lose "$work/mnt" --at "$2" --nth "$3" --kill $options --seed "$1" --timeout "${CUT_MAX:-30s}" \
        >"$work/lost" 2>"$work/lose.err" &
    losing=$!
    # It must wait before the work begins.
    sleep 0.3
}

waits() {
    kill -0 "$losing" 2>/dev/null
}

# Kills what is left of the server: a process that waits for a lock of one that was killed never ends.
kill_rest() {
    for process in /proc/[0-9]*; do
        case $(readlink "$process/cwd") in "$work/mnt"*) kill -9 "${process#/proc/}" ;; esac
    done 2>/dev/null || true
}

# Notes a round. The rest of the words is what the server said, and what is missing.
row() { # round, work, call, how, what the server said, number that is missing
    python3 - "$work/lost" "$@" >>"$work/rows" <<'PY'
import json, sys
lost_file, nr, job, call, how, said, missing = sys.argv[1:8]
text = open(lost_file).read().strip()
at, lost = "(" + call + " did not come)", "-"
if text:
    answer = json.loads(text)
    at = answer["at"] or call
    what = answer["lost"]
    names = {}
    for name in what["names"]:
        kind = name["text"].split("(")[0]
        names[kind] = names.get(kind, 0) + 1
    parts = [f"{what['bytes']} bytes of {len(what['files'])} files"]
    parts += [f"{count} {kind}" for kind, count in sorted(names.items())]
    if answer["torn"]:
        parts.append("a page torn")
    lost = ", ".join(parts)
print("\t".join([nr, job, at, how, lost, said, missing]))
PY
    tail -1 "$work/rows" | sed 's/\t/ | /g'
}

table() {
    echo
    echo "| round | work | the power is cut at | what | lost | the server | missing |"
    echo "|---:|---|---|---|---|---|---:|"
    sed 's/|/\\|/g; s/\t/ | /g; s/^/| /; s/$/ |/' "$work/rows"
}
