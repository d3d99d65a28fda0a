"""Writers that make their files durable one by one: with fsync, fdatasync, O_SYNC, a rename and an
fsync of the directory, a sync of the mount, or msync of a mapping. Each state of a file that was
made durable is noted outside of the mount before the writer goes on."""

import mmap
import os

import stamped
from notes import Expected
from program import Program
from tools import sync_mount

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789-_"
# The part of the volume that these files leave free. The other programs fill up to half of it before
# these are removed, and take a full volume for a fault.
FREE_PART = 0.6


def free_part(mount):
    stat = os.statvfs(mount)
    return stat.f_bavail / stat.f_blocks


def fsync_path(path, flags=os.O_RDONLY):
    fd = os.open(path, flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_parts(fd, state, rng, start=0):
    """Writes what a state has from `start` on, in pieces and not in order."""
    pieces = []
    for begin, end in stamped.parts(state["size"], state["holes"]):
        begin = max(begin, start)
        while begin < end:
            until = min(end, begin + rng.choice([512, 1000, 4096, 10000, 65536]))
            pieces.append((begin, until))
            begin = until
    if rng.random() < 0.3:
        rng.shuffle(pieces)
    for begin, until in pieces:
        data = stamped.content(state["owner"], state["gen"], begin, until)
        while data:
            done = os.pwrite(fd, data, begin)
            data, begin = data[done:], begin + done
    if state["size"] > os.fstat(fd).st_size:
        os.ftruncate(fd, state["size"])


class SyncedFiles(Program):
    """Files of one process in a directory of its own; each is an object of the notes, with the
    state {owner, gen, size, holes, mode, uid, gid}, null for absent, or {moved: NAME} for a rename
    under way. `whole` states come into being at once (by a rename), others may be half done."""

    name = "synced"

    @classmethod
    def processes(cls):
        return 2

    def run(self):
        place, rng = self.place, self.rng
        self.log = self.notes()
        self.dir = f"synced-{place.round}-{place.index}"
        self.remove_old()
        os.mkdir(place.path(self.dir))
        sync_mount(place.mount)
        self.files = {}
        self.count = 0
        ways = [self.create] * 5 + [self.replace, self.append, self.remove, self.link, self.overwrite]
        ways += [self.attributes, self.truncate, self.several, self.rename]
        while not place.stopping():
            if len(self.files) > 300 or free_part(place.mount) < FREE_PART:
                self.remove()
            else:
                rng.choice(ways)()

    def remove_old(self):
        """Removes the files of earlier rounds when the volume fills up."""
        place = self.place
        for number in range(place.round):
            name = f"synced-{number}-{place.index}"
            if free_part(place.mount) > FREE_PART or not os.path.isdir(place.path(name)):
                continue
            self.log.will(name, "removed")
            for file in os.listdir(place.path(name)):
                os.unlink(place.path(name, file))
            os.rmdir(place.path(name))
            fsync_path(place.mount)
            self.log.did(name, "removed")

    def new_name(self):
        self.count += 1
        length = self.rng.choice([0, 1, 3, 7, 8, 15, 21, 40, 100, 200, 240])
        tail = "".join(self.rng.choice(LETTERS) for _ in range(length))
        return os.path.join(self.dir, f"{self.count:x}.{tail}")

    def new_state(self, name):
        rng = self.rng
        size = rng.choice([0, 1, 500, 4096, rng.randrange(9000), rng.randrange(70_000), rng.randrange(70_000), 300_000])
        holes = rng.choice([0, 0, 0, 2, 3])
        # Attributes are what a new file has; they are changed where a case is about them.
        return {"owner": stamped.owner_of(f"{self.place.volume}/{name}"), "gen": 1, "size": size,
                "holes": holes, "mode": 0o644, "uid": os.getuid(), "gid": os.getgid()}  # fmt: skip

    def some(self):
        return self.rng.choice(sorted(self.files)) if self.files else None

    def make(self, name, state, flags=0):
        fd = os.open(self.place.path(name), os.O_RDWR | os.O_CREAT | os.O_EXCL | flags, 0o644)
        write_parts(fd, state, self.rng)
        return fd

    def create(self):
        name, rng = self.new_name(), self.rng
        state = self.new_state(name)
        way = rng.choice(["fsync", "fsync", "fdatasync", "O_SYNC", "attributes"])
        if way == "attributes":
            state.update(mode=rng.choice([0o600, 0o755, 0o4711, 0o1000]), uid=rng.randrange(70_000), gid=rng.randrange(70_000))
        self.log.will(name, state)
        fd = self.make(name, state, os.O_SYNC if way == "O_SYNC" else 0)
        if way == "attributes":
            os.fchown(fd, state["uid"], state["gid"])
            os.fchmod(fd, state["mode"])
        if way == "fdatasync":
            os.fdatasync(fd)
        elif way != "O_SYNC" or state["size"] == 0 or state["holes"]:
            os.fsync(fd)
        self.log.did(name, state)
        os.close(fd)
        self.files[name] = state

    def several(self):
        """Some files at once, made durable by one sync of the mount."""
        made = []
        for _ in range(self.rng.randrange(2, 12)):
            name = self.new_name()
            state = self.new_state(name)
            self.log.will(name, state)
            os.close(self.make(name, state))
            made.append((name, state))
        sync_mount(self.place.mount)
        for name, state in made:
            self.log.did(name, state)
            self.files[name] = state

    def replace(self):
        """The way of editors: a new file, fsync, rename over the old one, fsync of the directory."""
        name = self.some()
        if name is None:
            return
        temporary = self.new_name()
        state = dict(self.new_state(name), gen=self.files[name]["gen"] + 1, owner=self.files[name]["owner"])
        self.log.will(temporary, state)
        fd = self.make(temporary, state)
        os.fsync(fd)
        os.close(fd)
        self.log.did(temporary, state)
        self.log.will(name, dict(state, whole=True))
        self.log.will(temporary, {"moved": name})
        os.rename(self.place.path(temporary), self.place.path(name))
        fsync_path(self.place.path(self.dir))
        self.log.did(temporary, None)
        self.log.did(name, state)
        self.files[name] = state

    def rename(self):
        name = self.some()
        if name is None:
            return
        new, state = self.new_name(), self.files.pop(name)
        self.log.will(name, {"moved": new})
        self.log.will(new, dict(state, whole=True))
        os.rename(self.place.path(name), self.place.path(new))
        # Either makes the new name durable; only the directory's promises that the old is gone.
        if self.rng.random() < 0.3:
            fsync_path(self.place.path(new), os.O_RDWR)
            self.log.did(new, state)
        fsync_path(self.place.path(self.dir))
        self.log.did(new, state)
        self.log.did(name, None)
        self.files[new] = state

    def link(self):
        name = self.some()
        if name is None or os.stat(self.place.path(name)).st_nlink > 1:
            return
        second, state = self.new_name(), self.files[name]
        self.log.will(second, dict(state, whole=True))
        os.link(self.place.path(name), self.place.path(second))
        fsync_path(self.place.path(second), os.O_RDWR)
        self.log.did(second, state)
        # Left alone from here on, under both names.
        del self.files[name]

    def change(self, name, state, act):
        self.log.will(name, state)
        fd = os.open(self.place.path(name), os.O_RDWR)
        act(fd)
        os.fsync(fd)
        self.log.did(name, state)
        os.close(fd)
        self.files[name] = state

    def append(self):
        name = self.some()
        if name is None or self.files[name]["size"] > 1_000_000:
            return
        old = self.files[name]
        state = dict(old, size=old["size"] + self.rng.randrange(1, 50_000))
        self.change(name, state, lambda fd: write_parts(fd, state, self.rng, old["size"]))

    def overwrite(self):
        name = self.some()
        if name is None:
            return
        state = dict(self.files[name], gen=self.files[name]["gen"] + 1)
        self.change(name, state, lambda fd: write_parts(fd, state, self.rng))

    def truncate(self):
        name = self.some()
        if name is None:
            return
        state = dict(self.files[name], size=self.rng.randrange(self.files[name]["size"] + 1))
        self.change(name, state, lambda fd: os.ftruncate(fd, state["size"]))

    def attributes(self):
        name = self.some()
        if name is None:
            return
        state = dict(self.files[name], mode=self.rng.choice([0o600, 0o640, 0o755, 0o2755]), uid=self.rng.randrange(70_000))

        def act(fd):
            os.fchown(fd, state["uid"], -1)
            os.fchmod(fd, state["mode"])

        self.change(name, state, act)

    def remove(self):
        name = self.some()
        if name is None:
            return
        self.log.will(name, None)
        os.unlink(self.place.path(name))
        fsync_path(self.place.path(self.dir))
        self.log.did(name, None)
        del self.files[name]

    @classmethod
    def verify(cls, place, view, clean):
        findings = []
        objects = view.objects(f"{cls.name}.")
        removed = {name for name, e in objects.items() if "removed" in e.possible()}
        files = 0
        for name, expected in objects.items():
            if os.path.dirname(name) in removed or name in removed:
                continue
            files += 1
            problem = wrong_file(place, name, expected)
            if problem:
                findings.append(f"synced file {name}: {problem}")
        return findings, {"files": files}


def wrong_file(place, name, expected: Expected):
    """What is wrong with a file of SyncedFiles, or None."""
    moved = [state["moved"] for state in expected.may if state is not None and "moved" in state]
    possible = [state for state in expected.possible() if state is None or "moved" not in state]
    path = place.path(name)
    try:
        stat = os.lstat(path)
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        if None in possible:
            return None
        if moved:
            # A rename leaves at least one of the names, in every order that promises anything.
            if place.order == "async" or os.path.exists(place.path(moved[-1])):
                return None
            return f"has neither this name nor the new one, {moved[-1]}"
        return f"is not there, though {say(expected.must)} was made durable"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    found = []
    for state in possible:
        if state is None:
            found.append("was removed, and that was made durable")
            continue
        problem = stamped.mismatch(data, state) or wrong_attributes(stat, state)
        if problem is None:
            return None
        found.append(problem)
    changing = [state for state in possible if state is not None and not state.get("whole")]
    if len(changing) == 0 or all(s is None or "moved" in s or s.get("whole") for s in expected.may):
        return f"{found[0]} ({len(expected.may)} changes under way)"
    # A change in place was under way. The order async promises nothing of a file that was never made
    # durable: its pointer blocks can be older than its inode, and e2fsck then says what its size is.
    if place.order == "async" and expected.must is None:
        return None
    # Each part is as in one of the versions.
    most = max(state["size"] for state in changing)
    if place.order in ("async", "soft"):
        # Pointers newer than the inode: the correction behind a mount and e2fsck make the file as long as
        # the blocks they lead to. What lies behind the size of the longest version is zeroes.
        block = os.statvfs(place.mount).f_bsize
        most = -(-most // block) * block
    if len(data) > most:
        return f"has {len(data)} bytes, and never had so many"
    if expected.must is not None and len(data) < min(state["size"] for state in changing):
        return f"has {len(data)} bytes, and never had so few"
    if not place.shows_no_stale_data():
        # Only new blocks may: what was made durable, and is not being removed, is there.
        if expected.must is None or None in expected.may:
            return None
        kept = min(state["size"] for state in changing)
        return stamped.foreign(data[:kept], changing, zeroes_allowed=False)
    grown = expected.must is None or any(s["size"] > expected.must["size"] for s in changing)
    cut_off = any(s["size"] < changing[0]["size"] for s in changing)
    return stamped.foreign(data, changing, zeroes_allowed=grown or cut_off)


def wrong_attributes(stat, state):
    mode = stat.st_mode & 0o7777
    if mode != state["mode"]:
        return f"has the mode {mode:o} and not {state['mode']:o}"
    if (stat.st_uid, stat.st_gid) != (state["uid"], state["gid"]):
        return f"belongs to {stat.st_uid}:{stat.st_gid} and not {state['uid']}:{state['gid']}"
    return None


def say(state):
    if state is None:
        return "its absence"
    return f"its generation {state['gen']} of {state['size']} bytes"


class MappedFiles(Program):
    """One file for each process, written through a shared mapping; objects are its pages, with the
    generation that msync (or fsync) has made durable."""

    name = "mapped"
    PAGES = 200
    PAGE = 4096

    @classmethod
    def processes(cls):
        return 2

    def run(self):
        place, rng = self.place, self.rng
        log = self.notes()
        name = f"mapped-{place.round}-{place.index}"
        owner = stamped.owner_of(f"{place.volume}/{name}")
        old = place.path(f"mapped-{place.round - 2}-{place.index}")
        if os.path.exists(old):
            log.will(os.path.basename(old), "removed")
            os.unlink(old)
            fsync_path(place.mount)
            log.did(os.path.basename(old), "removed")
        fd = os.open(place.path(name), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        if rng.random() < 0.5:
            os.posix_fallocate(fd, 0, self.PAGES * self.PAGE)
        else:
            os.ftruncate(fd, self.PAGES * self.PAGE)
        os.fsync(fd)
        log.did(name, "made")
        mapping = mmap.mmap(fd, self.PAGES * self.PAGE)
        generations = [0] * self.PAGES
        while not place.stopping():
            first = rng.randrange(self.PAGES)
            count = min(rng.choice([1, 1, 2, 5, 20]), self.PAGES - first)
            pages = range(first, first + count)
            for page in pages:
                generations[page] += 1
                log.will(f"{name}:{page}", generations[page])
                start = page * self.PAGE
                mapping[start : start + self.PAGE] = stamped.content(owner, generations[page], start, start + self.PAGE)
            if rng.random() < 0.8:
                mapping.flush(first * self.PAGE, count * self.PAGE)
            else:
                os.fsync(fd)
            for page in pages:
                log.did(f"{name}:{page}", generations[page])

    @classmethod
    def verify(cls, place, view, clean):
        findings, pages = [], 0
        objects = view.objects(f"{cls.name}.")
        files = {}
        for name, expected in objects.items():
            if ":" not in name and "removed" not in expected.possible() and expected.must == "made":
                try:
                    with open(place.path(name), "rb") as file:
                        files[name] = file.read()
                except OSError as error:
                    findings.append(f"mapped file {name}: {error.strerror}, though it was fsynced")
                    continue
                if len(files[name]) != cls.PAGES * cls.PAGE:
                    findings.append(f"mapped file {name}: has {len(files[name])} bytes")
        for thing, expected in objects.items():
            name, _, page = thing.partition(":")
            if not page or name not in files:
                continue
            pages += 1
            owner = stamped.owner_of(f"{place.volume}/{name}")
            start = int(page) * cls.PAGE
            allowed = [0 if state is None else state for state in expected.possible()]
            for at in range(start, start + cls.PAGE, stamped.SECTOR):
                found = files[name][at : at + stamped.SECTOR]
                zero = 0 in allowed and not found.strip(b"\0")
                index = at // stamped.SECTOR
                if zero or any(g and found == stamped.sector(owner, g, index) for g in allowed):
                    continue
                if expected.must is None and not place.shows_no_stale_data():
                    continue
                findings.append(
                    f"mapped file {name}, page {page}: holds at offset {at} {stamped.describe(found)}; "
                    f"generation {expected.must} was made durable by msync, {expected.may} begun since"
                )
                break
        return findings, {"pages": pages}
