"""The attack: what root meets in a hostile tree on a mount with rules."""

import itertools
import os
import shlex
import stat
import subprocess
import time

from archives import NESTED, WITH_FINE_MEMBER, evil_archives
from harm import TARGETS
from tools import HANG_SECONDS, NETWORK, SECRET, attempt, bounded, read_all, write_file

# Views of each file in the open; none may reach a program, a key, a file or a log of the mount's.
VIEWS = [
    b"@x", b"@v", b"@exec program=canary", b"@exec program=/bin/sh", b"@exec program=sh", b"@log to=audit",
    b"@~aead key=bank", b"@wasm module=/etc/passwd", b"@log to=../outside/log",
]  # fmt: skip
# What would be read then: of the file outside, of /etc/passwd, of what the bank sealed, of the program.
LEAKS = (b"outside words", b"root:", b"of the bank", b"canary")
# Of the rules file, which says "canary" itself, and of symbolic links, which the kernel follows, nothing
# is promised.
LEAD_OUT = (b".weftattributes", b"in", b"up")
# How much of a tree is walked: some have no end.
NAMES_MAX, DEPTH_MAX = 50_000, 3000


def quoted(path):
    return shlex.quote(os.fsdecode(path))


def append(path):
    """Adds to a file, and waits for the error that may come only with the data."""
    file = os.open(path, os.O_RDWR | os.O_APPEND)
    try:
        os.write(file, SECRET)
        os.fsync(file)
    finally:
        os.close(file)


def walk_tree(tree):
    """What is wrong with an archive that is shown as a directory; and whether its member `fine` is read."""
    wrong, seen, fine = [], 0, False
    for path, directories, names in os.walk(tree):
        for name in directories + names:
            at, seen = path + b"/" + name, seen + 1
            if name in (b".", b"..") or b"/" in name or b"\0" in name or len(name) > 255:
                wrong.append(f"the name {name!r}")
            info = bounded(os.lstat, at)
            if info[0] == "error":
                continue
            mode = info[1].st_mode
            if mode & 0o6000 or stat.S_ISBLK(mode) or stat.S_ISCHR(mode):
                wrong.append(f"{name!r} has mode {mode:o}")
            if stat.S_ISREG(mode):
                content = bounded(read_all, at)
                fine |= name == b"fine" and content[0] == "ok" and b"words" in content[1]
                if content == ("error", "ETIME") or content[0] == "ok" and b"outside words" in content[1]:
                    wrong.append(f"{at!r} reads as {content[1][:80]!r}")
        if seen > NAMES_MAX or path.count(b"/") - tree.count(b"/") > DEPTH_MAX:
            break
    return wrong, fine


class Attack:
    """All that is tried; `written` is what root wrote under the rules, to be looked for where it is stored."""

    def __init__(self, place, report, outside):
        self.place, self.report, self.outside = place, report, outside
        self.at = os.fsencode(place.at) + b"/"
        self.written = []

    def run(self, planted, in_the_open):
        for name in planted:
            self.read_planted(name)
            self.write_planted(name)
            self.change_network(name)
        self.write_by_other_names()
        self.link()
        listed = self.names_under_two_rules()
        for name in sorted({*in_the_open, *listed}):
            self.read_in_the_open(name)
        mode = bounded(os.stat, self.at + b"open/su@xor hex=5d")
        wrong = f"{mode}" if mode[0] == "ok" and mode[1].st_mode & 0o6000 else None
        self.row(("setuid of a view",), wrong, "stat 'open/su@xor hex=5d'")
        for name in evil_archives(self.outside):
            self.open_archive(name)
        self.copy_archive()
        # The one name that the rules of the mount log.
        bounded(read_all, self.at + b"open/plain@seen")

    def row(self, label, wrong, command="true"):
        self.report.row(self.place, ("hostile", *label), wrong, command)

    def write(self, name, stored=None):
        """Writes a secret, and notes under which name it must be stored if that is done."""
        done = bounded(write_file, self.at + name, SECRET)
        if done[0] == "ok":
            self.written.append(stored or name)
        return done

    def read_planted(self, name):
        answers = [bounded(read_all, self.at + name + view) for view in (b"", b"@upper", b"@~aead key=work", b"@tree")]
        # An empty content tells nothing. A name of the longest length has no views.
        bad = any(answer[0] == "ok" and answer[1] or answer[1] == "ETIME" for answer in answers)
        self.row(("planted", name), f"{answers}"[:300] if bad else None, f"cat {quoted(name)}")

    def write_planted(self, name):
        path = quoted(name)
        appended = bounded(append, self.at + name)
        self.row(("append", name), f"{appended}" if appended[0] == "ok" else None, f"echo >> {path}")
        done = bounded(write_file, self.at + name, SECRET)
        back = bounded(read_all, self.at + name)
        whole = (done[0] == "ok") == (back == ("ok", SECRET))
        self.row(("written", name), None if whole else f"{done} {back}", f"cat {path}")
        if done[0] == "error":
            attempt(os.unlink, self.at + name)
            done = bounded(write_file, self.at + name, SECRET)
        if done[0] == "ok":
            self.written.append(name)
        wrong = None if done[0] == "ok" else f"{done}"
        self.report.control(self.place, ("made anew", name), wrong, f"rm {path}; echo > {path}")

    def change_network(self, name):
        attributes = (NETWORK, "user.weft.convert")
        for attribute, value in itertools.product(attributes, (b"", b"rot13", b"link", b"aead key=bank")):
            answer = bounded(os.setxattr, self.at + name, attribute, value)
            command = f"setfattr -n {attribute} -v '{value.decode()}' {quoted(name)}"
            self.row(("attribute", name, value), f"{answer}" if answer[0] == "ok" else None, command)

    def write_by_other_names(self):
        self.write(b"open/in/by-link", stored=b"secret/by-link")
        self.write(b"secret/within/by-link", stored=b"secret/deep/by-link")
        self.write(b"open/../secret/by-dots", stored=b"secret/by-dots")
        self.write(b"open/new.sealed")
        renames = {
            b"open/moved": b"secret/moved",
            b"secret/out": b"open/out",
            b"open/renamed": b"open/renamed.sealed",
            b"open/exchange": b"secret/by-dots",
        }
        for old, new in renames.items():
            bounded(write_file, self.at + old, SECRET)
            done = bounded(os.rename, self.at + old, self.at + new)
            if done[0] == "ok":
                self.written.append(new)

    def link(self):
        for old, new in ((b"secret/moved", b"open/linked"), (b"open/plain", b"secret/linked")):
            done = bounded(os.link, self.at + old, self.at + new)
            wrong = f"{done}" if done[0] == "ok" else None
            self.row(("a second name", old), wrong, f"ln {quoted(old)} {quoted(new)}")

    def names_under_two_rules(self):
        """Of names of one file under different rules the first one looked up counts, and the other hides no
        name beside it; returns the names beside it."""
        answers = {}
        for name in TARGETS.values():
            if os.path.lexists(self.at + name):
                answers[name] = [bounded(read_all, self.at + name), bounded(write_file, self.at + name, SECRET)]
        listed = attempt(os.listdir, self.at + b"open")
        for name, refused in answers.items():
            good = listed[0] == "ok" and all(answer == ("error", "EIO") for answer in refused)
            wrong = None if good else f"{refused}, and the other name's directory: {str(listed)[:100]}"
            self.row(("two rules", name), wrong, f"cat {quoted(name)}; ls open")
            self.report.documented["names"] += 1
        return listed[1] if listed[0] == "ok" else []

    def read_in_the_open(self, name):
        if name.endswith((b".tgz", b".zip", b".tar", b".txz")):
            return
        for view in (b"", *VIEWS):
            answer = bounded(read_all, self.at + b"open/" + name + view)
            bad = answer[1] == "ETIME"
            if answer[0] == "ok" and name not in LEAD_OUT:
                bad = any(word in answer[1] for word in LEAKS)
            # The first of more links than are followed.
            if name == b"l.0" and view == b"" and self.place.has_attributes:
                bad = answer != ("error", "ELOOP")
            self.row(("open", name, view), f"{answer}"[:200] if bad else None, f"cat {quoted(b'open/' + name + view)}")

    def open_archive(self, name):
        for view in ("@tree", "@~gzip+tree", "@tree" + "/inner.tar@tree" * NESTED):
            path = f"open/{name}{view}"
            start = time.monotonic()
            wrong, fine = walk_tree(self.at + path.encode())
            seconds = time.monotonic() - start
            if seconds > HANG_SECONDS:
                wrong.append(f"{seconds:.0f} s")
            alive = attempt(os.statvfs, self.at)
            if alive[0] != "ok":
                wrong.append(f"the mount: {alive}")
            self.row(("archive", name, view), "; ".join(wrong)[:300] or None, f"find '{path}' -ls")
            if name in WITH_FINE_MEMBER and view == "@tree":
                missing = None if fine else "the good member is not read"
                self.report.control(self.place, ("archive", name), missing, f"cat {path}/fine")

    def copy_archive(self):
        """Copies what an archive has under a rule."""
        to = self.at + b"secret/copied"
        copied = subprocess.run(
            ["cp", "-rP", self.at + b"open/names.tar@tree", to], stderr=subprocess.DEVNULL, check=False
        )
        files = [os.path.join(path, name) for path, _, names in os.walk(to) for name in names]
        self.written += [os.path.relpath(path, self.at) for path in files if os.path.isfile(path)]
        # Names that are damaged in the archive make the status 1.
        good = self.written and copied.returncode in (0, 1)
        self.row(("copied",), None if good else "nothing was copied")
