"""git with core.fsync=all: clones, commits, packs.

git makes what it writes durable before it renames it, and leaves the order of its renames to the
file system. Where operations become durable in order (the journals), a repository must be whole
after any crash. In the other orders only what was synced must be: the program syncs the mount
before it counts a commit, and packs in steps with a sync before anything is removed."""

import os
import shutil

from program import Program
from tools import demand, has, last, run, sync_mount

SETTINGS = ["-c", "core.fsync=all", "-c", "core.fsyncMethod=fsync", "-c", "user.name=soak", "-c", "gc.auto=0",
            "-c", "user.email=soak@localhost", "-c", "core.logAllRefUpdates=false", "-c", "advice.detachedHead=false",
            "-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main", "-c", "safe.directory=*"]  # fmt: skip


def environment(place):
    return dict(os.environ, HOME=place.scratch, GIT_CONFIG_NOSYSTEM="1", LC_ALL="C")


def git(place, where, *words):
    return demand(["git", *SETTINGS, "-C", where, *words], env=environment(place))


def make_origin(place, path, rng):
    """The repository to clone, outside of the mount."""
    making = path + ".making"
    os.makedirs(making)
    git(place, making, "init", "-q")
    for number in range(60):
        name = os.path.join(making, f"dir{number % 7}", f"file{number}" + "n" * rng.choice([0, 4, 30]))
        os.makedirs(os.path.dirname(name), exist_ok=True)
        with open(name, "wb") as file:
            file.write(rng.randbytes(rng.choice([0, 100, 5000, 40_000])))
        if number % 20 == 19:
            git(place, making, "add", "-A")
            git(place, making, "commit", "-q", "-m", f"to {number}")
    os.rename(making, path)


class Git(Program):
    """Each round clones anew; objects of the notes are clones, with the last commit that counts."""

    name = "git"

    @classmethod
    def lacks(cls):
        return None if has("git") else "git is not installed"

    def run(self):
        place, rng = self.place, self.rng
        log = self.notes()
        for old in sorted(os.listdir(place.mount)):
            if old.startswith("git-"):
                log.will(old, "removed")
                shutil.rmtree(place.path(old))
        origin = os.path.join(place.originals, "origin.git")
        if not os.path.exists(origin):
            make_origin(place, origin, rng)
        name = f"git-{place.round}"
        repository = place.path(name)
        git(place, place.mount, "clone", "-q", "--no-local", f"file://{origin}", repository)
        number = 0
        while not place.stopping():
            number += 1
            for _ in range(rng.randrange(1, 8)):
                path = os.path.join(repository, f"new{rng.randrange(5)}", "w" * rng.randrange(1, 60))
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "wb") as file:
                    file.write(rng.randbytes(rng.randrange(20_000)))
            git(place, repository, "add", "-A")
            git(place, repository, "commit", "-q", "-m", f"commit {number}", "--allow-empty")
            commit = git(place, repository, "rev-parse", "HEAD").strip()
            log.will(name, commit)
            sync_mount(place.mount)
            log.did(name, commit)
            if number % 8 == 0:
                self.pack(repository)
            if number % 16 == 0:
                git(place, repository, "fsck", "--strict", "--full", "--no-dangling")

    def pack(self, repository):
        if self.place.keeps_order():
            git(self.place, repository, "gc", "-q", "--prune=now")
        else:
            git(self.place, repository, "repack", "-q")
            sync_mount(self.place.mount)
            git(self.place, repository, "prune-packed", "-q")

    @classmethod
    def verify(cls, place, view, clean):
        findings, commits = [], 0
        for name, expected in view.objects(f"{cls.name}.").items():
            if expected.must is None or "removed" in expected.possible():
                continue
            commits += 1
            repository = place.path(name)
            # The judge is a repository outside that borrows these objects, whatever state the
            # references here are in.
            judge = os.path.join(place.scratch, "git-judge")
            shutil.rmtree(judge, ignore_errors=True)
            git(place, place.scratch, "init", "-q", "--bare", judge)
            with open(os.path.join(judge, "objects", "info", "alternates"), "w") as file:
                file.write(os.path.join(repository, ".git", "objects") + "\n")
            checks = [["-C", judge, "fsck", "--strict", "--full", "--no-dangling", expected.must]]
            if clean or place.keeps_order():
                checks.append(["-C", repository, "fsck", "--strict", "--full", "--no-dangling"])
                checks.append(["-C", repository, "merge-base", "--is-ancestor", expected.must, "HEAD"])
            for words in checks:
                done = run(["git", *SETTINGS, *words], env=environment(place))
                if done.returncode != 0:
                    findings.append(
                        f"git: commit {expected.must} of {name} was synced, and git {' '.join(words[2:])} "
                        f"says {done.returncode}: {last(done.stdout, 8)}"
                    )
                    break
        return findings, {"commits": commits}
