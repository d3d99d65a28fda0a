"""What was acknowledged, noted outside of the mount.

A program notes what it is about to do ("will") before it begins, and that it is durable ("did")
after fsync, msync, COMMIT or a sync of the mount has returned. The notes lie outside of the volume
under test, so they survive whatever happens to it. A judge reads them up to the moment of the crash
and learns for each object the state it must be in, or the states it may be in while a change was
under way.

A line of a note file is a JSON array: ["will" | "did", object, state].
"""

import json
import os


class Notes:
    """Appends to one file; each process of a program has its own."""

    def __init__(self, directory, name):
        self.fd = os.open(os.path.join(directory, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def _append(self, verb, thing, state):
        os.write(self.fd, (json.dumps([verb, thing, state]) + "\n").encode())

    def will(self, thing, state):
        """From now on `thing` may be found in `state`."""
        self._append("will", thing, state)

    def did(self, thing, state):
        """From now on `thing` must be found in `state`."""
        self._append("did", thing, state)


class Expected:
    """The states an object may be found in: the one that was acknowledged last, and those that
    were begun since."""

    def __init__(self):
        self.must = None
        self.may = []

    def possible(self):
        return [self.must] + self.may


def position(directory):
    """How far every note file goes at this moment."""
    return {entry.name: entry.stat().st_size for entry in os.scandir(directory)}


def settle(directory, before):
    """After a crash: what was noted as done later than `before` stays uncertain for good. A program
    may take an error of a dead mount for success (SQLite does, if it cannot open the directory to
    sync it), and a log may end within a line."""
    for name, size in position(directory).items():
        path = os.path.join(directory, name)
        certain = before.get(name)
        if certain is None and size == 0:
            # A mark that something is ready.
            os.unlink(path)
            continue
        with open(path, "r+b") as file:
            data = file.read()
            known, late = data[: certain or 0], data[certain or 0 :]
            # A line that was half written by then is late as a whole.
            end = known.rfind(b"\n") + 1
            known, late = known[:end], known[end:] + late
            lines = [line for line in late.splitlines(keepends=True) if line.endswith(b"\n")]
            kept = [line.replace(b'["did"', b'["will"', 1) for line in lines if line.startswith(b"[")]
            file.seek(0)
            file.write(known + b"".join(kept))
            file.truncate()


class View:
    """The notes as they were at a crash. `before` was taken before it and `after` after it: what
    was acknowledged in between may be there or not."""

    def __init__(self, directory, before=None, after=None):
        self.directory = directory
        now = position(directory)
        self.before = now if before is None else before
        self.after = now if after is None else after

    def files(self, prefix):
        # By number: what a later round says of an object comes after what an earlier one said.
        by_number = lambda name: [(len(part), part) for part in name.split(".")]
        return sorted((name for name in self.after if name.startswith(prefix)), key=by_number)

    def text(self, name):
        """What was certainly in this file at the crash, in whole lines."""
        with open(os.path.join(self.directory, name), "rb") as file:
            data = file.read(self.before.get(name, 0))
        return data[: data.rfind(b"\n") + 1].decode()

    def objects(self, prefix):
        """Each object in the files that begin with `prefix`, with what is expected of it."""
        found = {}
        for name in self.files(prefix):
            certain = self.before.get(name, 0)
            with open(os.path.join(self.directory, name), "rb") as file:
                data = file.read(self.after[name])
            at = 0
            for line in data.splitlines(keepends=True):
                at += len(line)
                if not line.endswith(b"\n"):
                    break
                verb, thing, state = json.loads(line)
                expected = found.setdefault(thing, Expected())
                if verb == "did" and at <= certain:
                    expected.must, expected.may = state, []
                else:
                    expected.may.append(state)
        return found
