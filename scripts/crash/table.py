"""Rows of the tables that all.sh writes: table.py states|each-sync head, or ... WHAT EXIT_CODE, with
what the script said on standard input: a line of what it tests, then JSON."""

import json
import sys

SHORT = {"ext4-ordered": "ext4", "xfs-like": "XFS", "btrfs-like": "btrfs", "posix": "posix"}


def models(answer):
    return "; ".join(
        f"{SHORT[m['model']]} {m['progress']['failed']} of {m['progress']['judged']}"
        for m in answer["models"])


def cause(finding):
    lost = finding["lost"][0]["text"] if finding["lost"] else ""
    kept = finding["kept"]["text"] if finding["kept"] else ""
    nature = finding["nature"]
    words = f"{lost} lost, {kept} kept" if lost and kept else f"{nature}: {lost or kept}"
    mend = finding["mend"]
    if mend:
        words += f"; missing: {', '.join(mend['calls'])}"
        words += f" (then {mend['failed']} of {mend['states']} fail)"
    return words


def states(title, answer):
    findings = [(m["model"], f) for m in answer["models"] for f in m["findings"]]
    first = "; ".join(f"{SHORT[model]}: {cause(f)}" for model, f in findings[:1])
    print(f"| {title} | {answer['calls']} ({answer['syncs']}) | {models(answer)} | {first or '-'} |")


def each_sync(title, answer):
    print(f"**{title}**\n")
    calls = {}
    for sync in answer["syncs"]:
        calls.setdefault((sync["call"]["nr"], sync["call"]["text"]), []).append(sync)
    for (nr, text), under in calls.items():
        told = ", ".join(
            SHORT[s["model"]] + (f": needed ({s['states']} states, {s['seconds']:.1f} s): {s['failure']}"
                                 if s["needed"] else f": not missed ({s['states']} states)"
                                 if s["settles"] else ": nothing to do")
            for s in under)
        print(f"- {nr} {text}: {told}")
    print()


def main():
    table, what = sys.argv[1:3]
    if what == "head":
        if table == "states":
            print("| program | calls (fsyncs) | states that fail | first cause |\n|---|---:|---|---|")
        return
    said = sys.stdin.read()
    title, _, rest = said.partition("\n")
    try:
        answer = json.loads(rest)
    except ValueError:
        print(f"| {what} | not tested, exit code {sys.argv[3]} | | |")
        return
    (states if table == "states" else each_sync)(f"{what}: {title.removeprefix('== ')}", answer)


main()
sys.stdout.flush()
