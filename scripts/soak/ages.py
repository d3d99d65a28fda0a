"""Promises of age on real mounts: loads at several rates on volumes in every order, all at once;
then each mount is killed, and what is older than promised must be on the volume.

    python3 ages.py SECONDS WEFT

A kill keeps all completed writes; what a power cut leaves is judged on a simulated clock in
crates/weft-crash/tests/it/ages. What a busy host takes to run the loads and the mount is allowed for
by the time that the slowest call took. The volumes are kept in memory (/dev/shm)."""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time

# Format, options of the mount, and the seconds after which a change is durable.
KINDS = [
    ("ext3", [], 5.5),
    ("ext3", ["--order", "journal"], 5.5),
    ("ext3", ["--order", "journal=full"], 5.5),
    ("ext3", ["-o", "fsync=barrier"], 5.5),
    ("ext2", [], 11),
    ("ext2", ["--order", "async"], 11),
    ("hfs", [], 11),
    ("hfs", ["--order", "journal=ordered"], 5.5),
]
# Seconds between two changes.
RATES = [1, 0.1, 0.02, 0]
SLACK = 1.0


class Run:
    def __init__(self, weft, base, kind, every):
        self.weft, self.every = weft, every
        self.format, self.options, self.promised = kind
        self.dir = tempfile.mkdtemp(dir=base)
        self.image, self.mount = f"{self.dir}/v.img", f"{self.dir}/m"
        os.mkdir(self.mount)
        self.made, self.slowest, self.error = [], 0.0, None

    def __str__(self):
        return f"{self.format} {' '.join(self.options)}, each {self.every} s"

    def ok(self, *args):
        done = subprocess.run([self.weft, *args], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{self}: weft {' '.join(args)}: {done.stderr.strip()}")
        return done.stdout

    def start(self):
        self.ok("mkfs", self.format, self.image, "--size", "256M", "--quiet")
        self.ok("mount", self.image, self.mount, "--background", "--pid-file",
                f"{self.dir}/pid", *self.options)  # fmt: skip

    def load(self, until):
        try:
            number = 0
            with open(f"{self.mount}/log", "ab", buffering=0) as log:
                while time.monotonic() < until:
                    began = time.monotonic()
                    with open(f"{self.mount}/f{number}", "w") as file:
                        file.write(f"{number}")
                    log.write(b"%9d\n" % number)
                    if number % 3 == 0:
                        os.rename(f"{self.mount}/f{number}", f"{self.mount}/g{number}")
                    now = time.monotonic()
                    self.made.append(now)
                    self.slowest = max(self.slowest, now - began)
                    number += 1
                    if self.every:
                        time.sleep(self.every)
                    elif number >= 20000:
                        break
        except OSError as e:
            self.error = e

    def kill(self):
        with open(f"{self.dir}/pid") as file:
            pid = int(file.read())
        self.killed = time.monotonic()
        os.kill(pid, 9)
        subprocess.run([self.weft, "umount", self.mount], capture_output=True, check=False)

    def judge(self):
        """Returns what is missing."""
        if self.error:
            return [f"{self}: the load failed: {self.error}"]
        if "async" in self.options:
            # In this order a crash may damage the volume.
            subprocess.run([self.weft, "fsck", "--repair", self.image], capture_output=True, check=False)
        self.ok("mount", self.image, self.mount, "--background")
        try:
            names = set(os.listdir(self.mount))
            log = b""
            if "log" in names:
                with open(f"{self.mount}/log", "rb") as file:
                    log = file.read()
            due = self.killed - self.promised - SLACK - 2 * self.slowest
            lost = []
            for number, made in enumerate(self.made):
                if made > due:
                    break
                name = f"{'g' if number % 3 == 0 else 'f'}{number}"
                ok = name in names and log[number * 10 : number * 10 + 10] == b"%9d\n" % number
                if ok:
                    with open(f"{self.mount}/{name}") as file:
                        ok = file.read() == f"{number}"
                if not ok:
                    lost.append(f"{name}, {self.killed - made:.1f} s old")
            if lost:
                lost = [f"{self}: {len(lost)} of {len(self.made)}, the first one {lost[0]}"]
            if not self.made or self.made[0] > due:
                lost.append(f"{self}: nothing became old enough")
            return lost
        finally:
            self.ok("umount", self.mount)


def main():
    seconds, weft = float(sys.argv[1]), sys.argv[2]
    base = tempfile.mkdtemp(prefix="weft-ages-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    runs = [Run(weft, base, kind, every) for kind in KINDS for every in RATES]
    findings = []
    try:
        for run in runs:
            run.start()
        until = time.monotonic() + seconds
        threads = [threading.Thread(target=run.load, args=(until,)) for run in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for run in runs:
            run.kill()
        for run in runs:
            findings += run.judge()
            print(f"{run}: {len(run.made)} changes, slowest {run.slowest:.2f} s", flush=True)
    finally:
        for run in runs:
            subprocess.run([weft, "umount", "--lazy", run.mount], capture_output=True, check=False)
        shutil.rmtree(base, ignore_errors=True)
    for finding in findings:
        print("LOST:", finding)
    print(f"{len(runs)} mounts, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
