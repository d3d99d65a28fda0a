"""A churn on a mount: files and folders are made, written, moved and removed, also by cp, tar, dd, sed
and find, until its time is over or the mount has gone.

    python3 churn.py MOUNT SEED SECONDS FORKS

FORKS is the way in which the mount shows resource forks: xattr, appledouble, suffix or none."""

import errno
import os
import random
import shutil
import subprocess
import sys
import time

import appledouble

LETTERS = "abcdefghij éüßƒ∂"
DEPTH_MAX = 7
COPY_MAX_BYTES = 3 << 20
# The mount has gone.
GONE = {errno.ENOTCONN, errno.EIO, errno.ECONNABORTED}


def shell(*command):
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)


def moved(path, old, new):
    """The path after `old`, it or a folder above it, has become `new`."""
    return new + path[len(old) :] if path == old or path.startswith(old + "/") else path


class Churn:
    def __init__(self, mount, seed, forks):
        self.mount = mount
        self.rng = random.Random(seed)
        self.forks = forks
        self.count = 0
        self.files = []
        self.folders = [mount]

    def run(self, seconds):
        end = time.time() + seconds
        operations = {
            self.create: 68, self.write: 20, self.append: 12, self.truncate: 8, self.unlink: 28, self.make_folder: 14,
            self.rename: 22, self.rename_folder: 8, self.remove_folder: 6, self.copy_folder: 3, self.tar: 2, self.dd: 2,
            self.sed: 2, self.fsync: 1, self.find: 2, self.read: 2,
        }  # fmt: skip
        ways, weights = list(operations), list(operations.values())
        while time.time() < end:
            try:
                if self.files:
                    self.rng.choices(ways, weights)[0]()
                else:
                    self.create()
            except OSError as error:
                if error.errno in GONE:
                    return
                if error.errno == errno.ENOENT:
                    self.look_again()
                elif error.errno == errno.ENOSPC:
                    self.make_room()
                else:
                    print(f"churn: {error}", file=sys.stderr)

    def look_again(self):
        """The tools remove and rename files too."""
        self.files = [path for path in self.files if os.path.exists(path)]
        self.folders = [self.mount] + [path for path in self.folders[1:] if os.path.isdir(path)]

    def make_room(self):
        for path in self.files[::2]:
            folder, name = os.path.split(path)
            # A file that is removed leaves its AppleDouble, which takes space.
            for victim in [f"{folder}/._{name}", path] if self.forks == "appledouble" else [path]:
                try:
                    os.unlink(victim)
                except OSError:
                    pass
        self.files = self.files[1::2]

    def new_path(self, folder=None):
        self.count += 1
        tail = "".join(self.rng.choice(LETTERS) for _ in range(self.rng.randint(1, 20)))
        return f"{folder or self.rng.choice(self.folders)}/{self.count} {tail}".rstrip()

    def some_file(self):
        return self.rng.choice(self.files)

    def some_folder(self):
        """A folder that is not the root."""
        return self.rng.choice(self.folders[1:])

    def create(self):
        rng, path = self.rng, self.new_path()
        with open(path, "wb") as file:
            size = rng.choice([0, 10, 511, 512, 5000, rng.randint(0, 60_000), rng.randint(0, 400_000)])
            file.write(rng.randbytes(size))
            if rng.random() < 0.1:
                file.flush()
                os.fsync(file.fileno())
        self.files.append(path)
        if rng.random() < 0.3:
            self.write_resource(path, rng.randbytes(rng.randint(1, 40_000)))

    def write_resource(self, path, resource):
        if self.forks == "xattr":
            os.setxattr(path, "user.com.apple.ResourceFork", resource)
        elif self.forks == "appledouble":
            folder, name = os.path.split(path)
            with open(f"{folder}/._{name}", "wb") as file:
                file.write(appledouble.build(resource, self.rng))
        elif self.forks == "suffix":
            with open(path + "..rsrc", "wb") as file:
                file.write(resource)

    def write(self):
        rng, path = self.rng, self.some_file()
        with open(path, "r+b") as file:
            file.seek(rng.randint(0, os.path.getsize(path) + rng.choice([0, 100, 20_000])))
            file.write(rng.randbytes(rng.randint(1, 60_000)))

    def append(self):
        with open(self.some_file(), "ab") as file:
            file.write(self.rng.randbytes(self.rng.randint(1, 9000)))

    def truncate(self):
        path = self.some_file()
        os.truncate(path, self.rng.randint(0, os.path.getsize(path) + 3000))

    def unlink(self):
        os.unlink(self.files.pop(self.rng.randrange(len(self.files))))

    def make_folder(self):
        parent = self.rng.choice(self.folders)
        if parent.count("/") - self.mount.count("/") < DEPTH_MAX:
            path = self.new_path(parent)
            os.mkdir(path)
            self.folders.append(path)

    def rename(self):
        index, path = self.rng.randrange(len(self.files)), self.new_path()
        os.rename(self.files[index], path)
        self.files[index] = path

    def rename_folder(self):
        if len(self.folders) < 2:
            return
        old, new = self.some_folder(), self.new_path()
        if not new.startswith(old + "/"):
            os.rename(old, new)
            self.folders = [moved(path, old, new) for path in self.folders]
            self.files = [moved(path, old, new) for path in self.files]

    def remove_folder(self):
        if len(self.folders) < 5:
            return
        gone = self.some_folder()
        shutil.rmtree(gone)
        self.folders = [path for path in self.folders if path != gone and not path.startswith(gone + "/")]
        self.files = [path for path in self.files if not path.startswith(gone + "/")]

    def copy_folder(self):
        if len(self.folders) < 2:
            return
        source, target = self.some_folder(), self.new_path(self.mount)
        if sum(os.path.getsize(path) for path in self.files if path.startswith(source + "/")) < COPY_MAX_BYTES:
            shell("cp", "-r", source, target)
            self.folders.append(target)

    def tar(self):
        script = 'cd "$1" && tar cf - . 2>/dev/null | head -c 300000 > "$1/t.tar"'
        shell("sh", "-c", script, "sh", self.rng.choice(self.folders))

    def dd(self):
        shell("dd", "if=/dev/zero", f"of={self.some_file()}", "bs=777", "count=20", "conv=notrunc", "seek=3")

    def sed(self):
        shell("sed", "-i", "s/a/bb/", self.some_file())

    def fsync(self):
        fd = os.open(self.mount, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def find(self):
        shell("find", self.mount, "-size", "+700k", "-delete")

    def read(self):
        with open(self.some_file(), "rb") as file:
            file.read()


if __name__ == "__main__":
    mount_point, seed_text, time_seconds, forks_way = sys.argv[1:]
    Churn(mount_point, seed_text, forks_way).run(float(time_seconds))
