"""Trees that tar, rsync and cp carry onto the mount, compared with the original by a manifest of
their own: type, mode, owner, times, size, checksum, link target, hard links, attributes, ACLs."""

import hashlib
import os
import random
import shutil
import stat
import subprocess

from program import Program
from tools import demand, has, run, sync_mount

ACL = "system.posix_acl_access"


def manifest(top):
    """What there is to know of a tree, by path."""
    found, links = {}, {}
    paths = [top] + [os.path.join(w, n) for w, ds, fs in os.walk(top, onerror=fail) for n in ds + fs]
    for path in sorted(paths):
        info = os.lstat(path)
        kind = stat.S_IFMT(info.st_mode)
        entry = [f"type and mode {info.st_mode:o}", f"owner {info.st_uid}:{info.st_gid}", f"time {info.st_mtime_ns}"]
        if kind == stat.S_IFREG:
            with open(path, "rb") as file:
                entry.append(f"size {info.st_size}, content {hashlib.file_digest(file, 'sha256').hexdigest()}")
        elif kind == stat.S_IFLNK:
            entry.append(f"target {os.readlink(path)!r}")
        elif kind in (stat.S_IFCHR, stat.S_IFBLK):
            entry.append(f"device {info.st_rdev}")
        if kind != stat.S_IFDIR and info.st_nlink > 1:
            entry.append(f"the same file as {links.setdefault(info.st_ino, os.path.relpath(path, top))}")
        if kind != stat.S_IFLNK:
            for name in sorted(os.listxattr(path)):
                entry.append(f"attribute {name} {os.getxattr(path, name).hex()}")
        found[os.path.relpath(path, top)] = entry
    return found


def fail(error):
    raise error


def difference(wanted, found):
    """The first difference of two manifests in words, or None."""
    for path in sorted(wanted.keys() | found.keys()):
        if path not in found:
            return f"{path} is missing"
        if path not in wanted:
            return f"{path} is there and should not be"
        if wanted[path] != found[path]:
            was = [w for w in wanted[path] if w not in found[path]]
            now = [f for f in found[path] if f not in wanted[path]]
            return f"{path} has {'; '.join(now) or 'less'}, and should have {'; '.join(was) or 'less'}"
    return None


def make_tree(top, seed, acls):
    """A tree with everything that a copy can lose."""
    rng = random.Random(seed)
    root = os.getuid() == 0
    os.mkdir(top)
    dirs, files = [top], []
    for number in range(25):
        path = os.path.join(rng.choice(dirs), f"dir {number}" + "d" * rng.choice([0, 5, 60]))
        os.mkdir(path)
        dirs.append(path)
    for number in range(150):
        path = os.path.join(rng.choice(dirs), f"file\t{number}" + "f" * rng.choice([0, 1, 2, 3, 17, 200]))
        with open(path, "wb") as file:
            size = rng.choice([0, 10, 1000, 4096, 20_000, 200_000])
            file.write(rng.randbytes(size))
            if rng.random() < 0.1:
                file.seek(size + 1_000_000)
                file.write(b"after a hole")
        if rng.random() < 0.3:
            os.setxattr(path, "user.soak", rng.randbytes(rng.choice([0, 1, 100, 900])))
        files.append(path)
    for number in range(10):
        os.link(rng.choice(files), os.path.join(rng.choice(dirs), f"link {number}"))
        os.symlink("t" * rng.choice([1, 59, 60, 61, 1000]), os.path.join(rng.choice(dirs), f"symlink {number}"))
    os.mkfifo(os.path.join(top, "fifo"))
    if root:
        os.mknod(os.path.join(top, "null"), stat.S_IFCHR | 0o666, os.makedev(1, 3))
        for path in files + dirs:
            os.chown(path, rng.choice([0, 1, 1000, 65534, 300_000]), rng.choice([0, 5, 1000, 300_000]))
    for path in files:
        os.chmod(path, rng.choice([0o644, 0o600, 0o755, 0o4755, 0o2755, 0o444, 0]))
    if acls:
        for path in rng.sample(files, 20):
            demand(["setfacl", "-m", f"u:{rng.randrange(1, 2000)}:r,g:7:rw,m:{rng.choice(['r', 'rw', 'rwx'])}", path])
        for path in rng.sample(dirs, 4):
            demand(["setfacl", "-m", "u:12:rx,d:u:12:rwx,d:m:rx", path])
    for path in files + dirs:
        # Also before 1970 and with parts of a second; ext2's seconds have 34 bits in large inodes.
        when = rng.choice([rng.randrange(-(10**18), 3 * 10**18), rng.randrange(10**18, 2 * 10**18)])
        os.utime(path, ns=(when, when))


def acls_of(directory):
    """How ACLs are treated here: "kept", with the mode's part in step; "refused"; or "ignored",
    stored with no effect. cp -a then loses modes: it sets them by way of an ACL."""
    if not has("setfacl", "getfacl"):
        return "refused"
    path = os.path.join(directory, ".acl-probe")
    with open(path, "w"):
        os.chmod(path, 0o640)
    try:
        if run(["setfacl", "-m", "u:1:rwx,m:rwx", path]).returncode != 0:
            return "refused"
        return "kept" if stat.S_IMODE(os.stat(path).st_mode) == 0o670 else "ignored"
    finally:
        os.unlink(path)


def by_tar(source, target, acls):
    os.mkdir(target)
    options = ["--xattrs", *(["--acls"] if acls else [])]
    pack = subprocess.Popen(
        ["tar", "-C", source, *options, "-S", "-cf", "-", "."], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    demand(["tar", "-C", target, *options, "--xattrs-include=*", "--numeric-owner", "-xpf", "-"], stdin=pack.stdout)
    pack.wait(60)


def by_rsync(source, target, acls):
    # Without the window, a time within the same second is as good to rsync, and it leaves a symbolic
    # link that it has just made as it is.
    rsync = ["rsync", "-aHX", *(["-A"] if acls else []), "--numeric-ids", "--modify-window=-1"]
    demand([*rsync, source + "/", target])


def by_cp(source, target, _acls):
    demand(["cp", "-a", source, target])


def by_cp_whole(source, target, _acls):
    demand(["cp", "-a", "--sparse=never", source, target])


WAYS = {"tar": (by_tar, "tar"), "rsync": (by_rsync, "rsync"), "cp": (by_cp, "cp"), "cp-whole": (by_cp_whole, "cp")}


class Trees(Program):
    """Objects of the notes are copies: "whole" with the seed of their tree, or "removed"."""

    name = "trees"
    KEPT = 4

    def run(self):
        place, rng = self.place, self.rng
        log = self.notes()
        source = os.path.join(place.originals, f"tree-{place.volume}")
        treated = acls_of(place.mount)
        acls = treated == "kept" and acls_of(place.originals) == "kept"
        if not os.path.exists(source):
            make_tree(source, place.seed, acls)
        wanted = manifest(source)
        copies = sorted(name for name in os.listdir(place.mount) if name.startswith("tree-"))
        ways = [way for way, (_, tool) in WAYS.items() if has(tool) and (tool != "cp" or treated != "ignored")]
        number = 0
        while not place.stopping():
            number += 1
            way = rng.choice(ways)
            name = f"tree-{place.round}-{number}-{way}"
            WAYS[way][0](source, place.path(name), acls)
            problem = difference(wanted, manifest(place.path(name)))
            if problem:
                raise AssertionError(f"the copy that {way} has made in {name} differs: {problem}")
            log.will(name, "whole")
            sync_mount(place.mount)
            log.did(name, "whole")
            copies.append(name)
            while len(copies) > self.KEPT:
                old = copies.pop(0)
                log.will(old, "removed")
                shutil.rmtree(place.path(old))

    @classmethod
    def verify(cls, place, view, clean):
        findings, files = [], 0
        source = os.path.join(place.originals, f"tree-{place.volume}")
        if not os.path.exists(source):
            return [], {}
        wanted = None
        for name, expected in view.objects(f"{cls.name}.").items():
            if expected.must != "whole" or expected.may:
                continue
            wanted = wanted or manifest(source)
            files += len(wanted)
            try:
                problem = difference(wanted, manifest(place.path(name)))
            except OSError as error:
                problem = f"{error.filename}: {error.strerror}"
            if problem:
                findings.append(f"the copy {name}, which was synced: {problem}")
        return findings, {"files": files}
