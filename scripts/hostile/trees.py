"""Hostile trees: mounted with rules, attacked, and looked at where they are stored."""

import ctypes
import os
import struct

from attack import Attack
from harm import HOSTILE_RULES, TARGETS, plant_harm
from places import Place
from tools import SECRET, attempt, read_all, write_file

# More memory than a mount may take for archives.
PEAK_MIB = 2500
IN_ACCESS, IN_OPEN = 0x1, 0x20


class Watch:
    """Which of some files are opened or read (inotify(7))."""

    def __init__(self, paths):
        libc = ctypes.CDLL(None, use_errno=True)
        self.file = libc.inotify_init1(os.O_NONBLOCK)
        self.paths = {libc.inotify_add_watch(self.file, path.encode(), IN_ACCESS | IN_OPEN): path for path in paths}

    def seen(self):
        events = attempt(os.read, self.file, 1 << 16)
        if events[0] == "error":
            return set()
        return {self.paths[number] for number, _, _, _ in struct.iter_unpack("<iIII", events[1])}


def digest(top):
    """All that is in a directory, with modes and content."""
    found = {}
    for directory, _, names in os.walk(top):
        for path in (directory, *(os.path.join(directory, name) for name in names)):
            found[path] = (os.lstat(path).st_mode, read_all(path) if os.path.isfile(path) else b"")
    return found


def peak_mib(place):
    with open(f"{place.dir}/pid") as file:
        pid = int(file.read())
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) >> 10 for line in file if line.startswith("VmHWM"))


def hostile(weft, name, source, options, report):
    """Nothing in the tree changes what the rules of the mount promise."""
    place = Place(weft, name, source, options, rules=HOSTILE_RULES)
    outside = f"{place.dir}/outside"
    os.mkdir(outside)
    write_file(f"{outside}/victim", b"outside words")
    planted = []
    place.stored(lambda top: planted.extend(plant_harm(top, outside, weft)))
    before = digest(outside)
    watch = Watch([f"{weft.top}/canary/canary", f"{weft.top}/keys/bank"])
    place.mount()
    attack = Attack(place, report, outside)
    attack.run(*planted)
    peak = peak_mib(place)
    place.unmount()

    def row(label, wrong):
        report.row(place, ("hostile", *label), wrong)

    place.stored(lambda top: judge_stored(os.fsencode(top) + b"/", attack.written, row))
    changed = set(digest(outside).items()) ^ set(before.items())
    row(("outside",), f"{changed}"[:300] if changed else None)
    opened = watch.seen()
    row(("programs and keys",), f"{opened}" if opened else None)
    log = read_all(f"{place.dir}/audit.log")
    bad = any(words in log for words in (b"planted", SECRET[:20], b"outside words"))
    row(("log",), f"{log[:300]!r}" if bad else None)
    report.documented["log"] += b"in the open" in log
    row(("memory",), f"{peak} MiB" if peak > PEAK_MIB else None)
    print(f"{name}: {len(attack.written)} files written, {peak} MiB at most, log: {log[:200]!r}", flush=True)
    trust_control(place, report)


def judge_stored(top, written, row):
    """What was written under the rules is sealed, and the files in the open are as they were."""
    for path in dict.fromkeys(written):
        content = attempt(read_all, top + path)
        sealed = content[0] == "ok" and content[1].startswith(b"WEFTSEAL") and SECRET[:20] not in content[1]
        row(("stored", path), None if sealed else f"{content}"[:200])
    for path in (*TARGETS, b"open/plain"):
        content = attempt(read_all, top + path)
        row(("stored", path), None if content == ("ok", b"as it was") else f"{content}"[:200])
    for path, (_, content) in digest(top + b"secret").items():
        row(("sealed", path), "plain text" if SECRET[:20] in content else None)


def trust_control(place, report):
    """With --transform-trust tree the rules files of the tree count, so the attack could have succeeded."""
    place.options += ["--transform-trust", "tree"]
    place.mount()
    write_file(f"{place.at}/secret/deep/control", SECRET)
    place.unmount()
    stored = []
    place.stored(lambda top: stored.append(read_all(f"{top}/secret/deep/control")))
    report.control(place, ("trust", "tree"), None if stored[0] == SECRET else f"{stored}")
