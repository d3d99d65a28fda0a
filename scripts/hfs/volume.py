"""A volume that is written with the weft command: its image, its mount, and the ways in which that ends."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import content
from commands import ENV, panicked, run, text

HERE = os.path.dirname(os.path.abspath(__file__))
# Volumes carry the time at which they were made; the same seed is to make the same volumes.
WRITING_ENV = dict(ENV, SOURCE_DATE_EPOCH="800000000")
COMMAND_SECONDS = 180
# Where an image takes more space, its blocks of zeroes are given back.
SPARSE_FROM_BYTES = 4 << 20


class Volume:
    """What is done to a volume is settled by the seed and the volume's name."""

    def __init__(self, weft, directory, seed, name, report):
        self.weft_path = weft
        self.name = name
        self.seed = f"{seed}:{name}"
        self.report = report
        self.rng = random.Random(self.seed)
        self.image = f"{directory}/{name}.img"
        self.scratch = f"{directory}.tmp/{name}"
        self.crashed = f"{directory}.crashed"
        self.mount_point = f"{self.scratch}/mnt"
        shutil.rmtree(self.scratch, ignore_errors=True)
        os.makedirs(self.scratch)
        for path in self.files():
            os.unlink(path)

    def files(self):
        """The image and its journal, as far as they exist."""
        return [path for path in (self.image, self.image + ".wjournal") if os.path.exists(path)]

    def weft(self, *words, ok=(0,), seconds=COMMAND_SECONDS, **options):
        """Runs the weft command; an exit status not in `ok` is a finding, as is a panic."""
        result = run([self.weft_path, *words], env=WRITING_ENV, seconds=seconds, **options)
        if result.returncode not in ok or panicked(result):
            shown = " ".join(str(word) for word in words)[:300]
            self.report.finding(f"{self.name}: exit {result.returncode}: weft {shown}: {text(result.stderr)[-300:]}")
        return result

    def at(self, path):
        return f"{self.image}:{path}"

    def make(self, size, *options):
        self.weft("mkfs", "hfs", self.image, "--size", size, "--reproducible", *options)

    def put(self, source, to="/", ok=(0,), options=()):
        self.weft("put", "-q", "-r", *options, source, self.at(to), ok=ok)

    def remove(self, *paths, ok=(0,)):
        # In parts: a command line has a limit.
        for start in range(0, len(paths), 200):
            self.weft("rm", "-r", *[self.at(path) for path in paths[start : start + 200]], ok=ok)

    def file(self, directory, name, size, resource_size=0):
        content.write_file(self.rng, directory, name, size, resource_size)

    def folder(self, name):
        """A new folder outside of the volume."""
        path = f"{self.scratch}/{name}"
        os.mkdir(path)
        return path

    def tree(self, name, files, max_bytes, **options):
        """A new tree outside of the volume."""
        return content.write_tree(self.rng, f"{self.scratch}/{name}", files, max_bytes, **options)

    def mount(self, *options):
        """Whether the volume could be mounted; that it could not is a finding."""
        os.makedirs(self.mount_point, exist_ok=True)
        pid_file = f"{self.scratch}/pid"
        words = ["mount", self.image, self.mount_point, "--background", "--pid-file", pid_file, *options]
        return self.weft(*words, seconds=60).returncode == 0

    def is_mounted(self):
        with open("/proc/self/mountinfo") as file:
            return any(line.split()[4] == self.mount_point for line in file)

    def detach(self):
        """Takes what is left of a mount off the mount point."""
        if self.is_mounted():
            run(["fusermount3", "-uz", self.mount_point], seconds=60)

    def unmount(self):
        try:
            self.weft("umount", self.mount_point, seconds=120)
            for _ in range(50):
                if not self.is_mounted():
                    return
                time.sleep(0.1)
            self.report.finding(f"{self.name}: still mounted")
        finally:
            self.detach()

    def kill(self):
        """kill -9 of the process that mounts the volume; what it leaves is detached."""
        with open(f"{self.scratch}/pid") as file:
            pid = int(file.read())
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read()
        if self.image.encode() not in command:
            raise RuntimeError(f"process {pid} does not mount {self.image}: {command}")
        os.kill(pid, signal.SIGKILL)
        for _ in range(100):
            if has_ended(pid):
                break
            time.sleep(0.05)
        run([self.weft_path, "umount", "-l", self.mount_point], seconds=60)
        self.detach()

    def churn(self, seconds, forks):
        """Starts a churn of files on the mount; its messages go to churn.err."""
        with open(f"{self.scratch}/churn.err", "wb") as messages:
            return subprocess.Popen(
                [sys.executable, f"{HERE}/churn.py", self.mount_point, self.seed, str(seconds), forks],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=messages,
            )  # fmt: skip

    def export(self, name, ok=(0,), image=None):
        """The digests of what weft export writes."""
        target = f"{self.scratch}/{name}"
        self.weft("export", "-q", f"{image or self.image}:/", target, ok=ok)
        return content.digests(target)

    def finish(self):
        if os.path.exists(self.image) and os.stat(self.image).st_blocks * 512 > SPARSE_FROM_BYTES:
            run(["fallocate", "-d", self.image], seconds=60)
        shutil.rmtree(self.scratch, ignore_errors=True)


def has_ended(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True
