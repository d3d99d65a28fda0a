"""A churn in the manner of fsstress: several processes create, rename, exchange, link, remove,
write and truncate in the same directories, with names of mixed lengths, and fsync now and then.

Nothing is acknowledged here; the judge of its directories is e2fsck. A file's content tells its
owner in every sector, so that data of another file would be seen."""

import ctypes
import errno
import fcntl
import itertools
import os
import stat

import stamped
from program import Program

RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
AT_FDCWD = -100
LIBC = ctypes.CDLL(None, use_errno=True)
# What another process may have done to a name in the meantime.
RACES = {
    errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY, errno.EISDIR, errno.ENOTDIR, errno.EINVAL,
    errno.ELOOP, errno.EPERM, errno.EBUSY, errno.EMLINK, errno.ENXIO, errno.ENOSPC,
    errno.ENAMETOOLONG,
}  # fmt: skip
DIRECTORIES_MAX = 12
SMALL_NAMES = 24


def rename2(old, new, flags):
    if LIBC.renameat2(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), old)


class Churn(Program):
    name = "churn"

    @classmethod
    def processes(cls):
        return 3

    def run(self):
        place, rng = self.place, self.rng
        self.root = place.path("churn")
        os.makedirs(self.root, exist_ok=True)
        # Most happens in a directory with few names, where each new record takes the place of old
        # ones of other lengths; the root of the churn grows to many blocks.
        self.small = place.path("churn-small")
        os.makedirs(self.small, exist_ok=True)
        self.dirs = [self.root, self.small]
        # Names are shared: 24 stems, each with a tail of 0 to 19 letters, some of any length.
        self.tails = [rng.randrange(20) for _ in range(40)] + [60, 130, 250]
        operations = {
            self.create: 14, self.unlink: 10, self.rename: 10, self.exchange: 4, self.link: 4,
            self.symlink: 3, self.mkdir: 3, self.rmdir: 3, self.rename_dir: 3, self.write: 8,
            self.truncate: 3, self.look: 3,
        }  # fmt: skip
        # An fsync takes everything along that it needs. Where there is none, the background writes
        # by age, in another order.
        if place.index == 2:
            operations |= {self.fsync: 2, self.fsync_dir: 1}
        names, weights = list(operations), list(operations.values())
        while not place.stopping():
            try:
                rng.choices(names, weights)[0]()
            except OSError as error:
                if error.errno not in RACES:
                    raise

    def where(self):
        return self.small if self.rng.random() < 0.7 else self.rng.choice(self.dirs)

    def any_path(self):
        rng = self.rng
        where = self.where()
        return os.path.join(where, f"n{rng.randrange(24):02}" + "x" * rng.choice(self.tails))

    def existing(self):
        where = self.where()
        names = os.listdir(where)
        return os.path.join(where, self.rng.choice(sorted(names))) if names else self.any_path()

    def create(self):
        path = self.any_path()
        if path.startswith(self.small) and len(os.listdir(self.small)) > SMALL_NAMES:
            os.unlink(self.existing())
            return
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, self.rng.choice([0o600, 0o644, 0o755]))
        try:
            if self.rng.random() < 0.7:
                self.extend(fd)
        finally:
            os.close(fd)

    def extend(self, fd):
        """Writes somewhere; all that is in a file carries the owner of its first sector."""
        fcntl.flock(fd, fcntl.LOCK_EX)
        size = os.fstat(fd).st_size
        if size == 0:
            owner, start = self.rng.getrandbits(63), 0
        else:
            known = stamped.origin(os.pread(fd, stamped.SECTOR, 0))
            if known is None:
                return
            owner, start = known[0], self.rng.randrange(1 + size // stamped.SECTOR + 20) * stamped.SECTOR
        length = min(self.rng.choice([512, 4096, 8192, 20480]), max(65536 - start, 512))
        os.pwrite(fd, stamped.content(owner, 0, start, start + length), start)

    def write(self):
        fd = os.open(self.existing(), os.O_RDWR | os.O_NOFOLLOW)
        try:
            self.extend(fd)
            if self.place.index == 2 and self.rng.random() < 0.1:
                os.fsync(fd)
        finally:
            os.close(fd)

    def truncate(self):
        fd = os.open(self.existing(), os.O_RDWR | os.O_NOFOLLOW)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_size > 0:
                os.ftruncate(fd, self.rng.randrange(1, 129) * stamped.SECTOR)
        finally:
            os.close(fd)

    def unlink(self):
        os.unlink(self.existing())

    def rename(self):
        old, new = self.existing(), self.any_path()
        if self.rng.random() < 0.3:
            rename2(old, new, RENAME_NOREPLACE)
        else:
            os.rename(old, new)

    def exchange(self):
        rename2(self.existing(), self.existing(), RENAME_EXCHANGE)

    def link(self):
        os.link(self.existing(), self.any_path(), follow_symlinks=False)

    def symlink(self):
        os.symlink("x" * self.rng.choice([1, 20, 59, 60, 61, 300]), self.any_path())

    def mkdir(self):
        if len(self.dirs) < DIRECTORIES_MAX:
            path = self.any_path()
            os.mkdir(path)
            self.dirs.append(path)
        else:
            self.dirs = self.dirs[:2] + [d for d in self.dirs[2:] if os.path.isdir(d)]

    def rmdir(self):
        path = self.existing()
        if os.path.isdir(path) and not os.path.islink(path):
            os.rmdir(path)

    def rename_dir(self):
        new = self.any_path()
        os.rename(self.rng.choice(self.dirs[2:] or [self.existing()]), new)
        if os.path.isdir(new) and not os.path.islink(new):
            self.dirs.append(new)

    def fsync(self):
        fd = os.open(self.existing(), os.O_RDONLY | os.O_NOFOLLOW)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def fsync_dir(self):
        fd = os.open(self.rng.choice(self.dirs), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def look(self):
        path = self.existing()
        os.lstat(path)
        os.listdir(self.rng.choice(self.dirs))

    @classmethod
    def verify(cls, place, view, clean):
        """Every name leads somewhere; every file's sectors have one owner."""
        findings, files = [], 0

        def failed(error):
            findings.append(f"churn: {error.filename}: {error.strerror}")

        tops = filter(os.path.isdir, [place.path("churn"), place.path("churn-small")])
        walks = (os.walk(top, onerror=failed) for top in tops)
        for where, _, names in itertools.chain.from_iterable(walks):
            for name in names:
                path = os.path.join(where, name)
                files += 1
                try:
                    if stat.S_ISREG(os.lstat(path).st_mode):
                        with open(path, "rb") as file:
                            problem = mixed(file.read())
                    else:
                        problem = None
                        os.readlink(path)
                except OSError as error:
                    findings.append(f"churn: {path}: {error.strerror}")
                    continue
                if problem and place.shows_no_stale_data():
                    findings.append(f"churn: {path[len(place.mount):]}: {problem}")
        return findings, {"churned": files}


def mixed(data):
    """What in a file of the churn is not its own, or None."""
    owner = None
    for at in range(0, len(data), stamped.SECTOR):
        found = data[at : at + stamped.SECTOR]
        if not found.strip(b"\0"):
            continue
        known = stamped.origin(found)
        if known is None or known[2] != at // stamped.SECTOR or known[0] != (owner := owner or known[0]):
            return f"holds at offset {at} {stamped.describe(found)} (of owner {owner or 0:016x} before)"
    return None
