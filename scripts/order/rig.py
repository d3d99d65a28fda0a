"""The parts that the studies of this directory share: volumes of ext3 on loop devices, mounted by weft or by the
kernel, and what reached the device, by the kernel's own counts in /sys/block/loopN/stat
(Documentation/block/stat.rst), which judge both sides alike.

They need root (loop devices, mounts), Linux 5.5 or newer (counts of flushes), and Debian's e2fsprogs and
util-linux. WEFT is the weft command (default: weft). Programs run as the user nobody, so that those that
refuse root run too, unless said.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.realpath(__file__))
UNPRIVILEGED = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
KERNEL = "kernel"
WEFT = "weft"
SIDES = [(KERNEL, "data=ordered"), (KERNEL, "data=journal"), (WEFT, "soft"), (WEFT, "journal=metadata"),
         (WEFT, "journal=ordered"), (WEFT, "journal=full")]
MODES = ["fsync", "barrier", "groups"]


# No settings of the user who runs this.
PLAIN = {"LC_ALL": "C", "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.com",
         "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.com"}


class Skip(Exception):
    """A program or a package is missing."""


def need(command, package):
    found = shutil.which(command)
    if not found:
        raise Skip(f"{command} is not installed (Debian: {package})")
    return found


def run(*command, **options):
    """Runs a command that must succeed; what it printed is in the error if it does not."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", stdin=subprocess.DEVNULL, **options)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)[:300]}: exit code {done.returncode}: {done.stdout[-2000:]}")
    return done.stdout


def ordered(weft, mode, on, *lines):
    """The command line that runs the lines one after the other with the order of a mode. With groups the
    lines themselves should make nothing durable."""
    if mode == "fsync":
        return ["sh", "-ec", "\n".join(lines)]
    if mode in ("barrier", "group"):
        return [weft, "order", "--on", on, f"--fsync={mode}", "\n".join(("set -e",) + lines)]
    then = [word for line in lines for word in ("then", line)][1:]
    return [weft, "order", "--on", on] + then


class Counts:
    """Counts of what reached a block device since it was made."""

    FIELDS = {"requests": 4, "sectors": 6, "flushes": 15}

    def __init__(self, device):
        with open(f"/sys/block/{os.path.basename(device)}/stat") as file:
            fields = [int(field) for field in file.read().split()]
        if len(fields) < 17:
            raise Skip("this kernel does not count flushes (Linux 5.5)")
        self.of = {name: fields[at] for name, at in self.FIELDS.items()}

    def since(self, earlier):
        return {name: self.of[name] - earlier.of[name] for name in self.of}


class Volume:
    """An empty ext3 volume on a loop device, mounted on `path` by one of the sides."""

    def __init__(self, rig, side, megabytes, journal_megabytes=32):
        self.rig, (self.kind, self.order) = rig, side
        self.image = os.path.join(rig.work, "volume.img")
        self.path = os.path.join(rig.work, "mnt")
        # An fsync of the root of a mount of weft is a sync of the volume, which waits.
        self.home = os.path.join(self.path, "home")
        os.makedirs(self.path, exist_ok=True)
        self.device = None
        self.mounted = False
        with open(self.image, "wb") as file:
            file.truncate(megabytes << 20)
        run("mke2fs", "-q", "-F", "-t", "ext3", "-b", "4096", "-J", f"size={journal_megabytes}",
            "-E", "lazy_itable_init=0,nodiscard,root_owner=65534:65534", self.image)

    def __enter__(self):
        self.rig.volume = self
        # A loop device of its own, and no other's counts: they start where they are.
        self.device = run("losetup", "--find", "--show", self.image).strip()
        return self

    def __exit__(self, *_):
        self.unmount()
        if self.device:
            run("losetup", "--detach", self.device)
            self.device = None
        os.unlink(self.image)
        self.rig.volume = None

    def mount(self):
        if self.kind == KERNEL:
            run("mount", "-t", "ext3", "-o", f"noatime,{self.order}", self.device, self.path)
        else:
            run(self.rig.weft, "--quiet", "mount", "--background", "--order", self.order,
                "-o", "noatime,allow_other", self.device, self.path)
        self.mounted = True

    def unmount(self):
        """Returns when all is durable."""
        if self.mounted:
            if self.kind == KERNEL:
                run("umount", self.path)
            else:
                run(self.rig.weft, "--quiet", "umount", self.path)
            run("blockdev", "--flushbufs", self.device)
            self.mounted = False

    def measure(self, prepare, work):
        """Counts what `work` makes reach the device, until it has ended and until the volume has been
        unmounted. `prepare` ran before, and all that it wrote is durable."""
        self.mount()
        os.mkdir(self.home)
        prepare(self.home)
        self.unmount()
        self.mount()
        os.sync()
        begin, start = Counts(self.device), time.monotonic()
        work(self.home)
        ended, end = Counts(self.device), time.monotonic()
        self.unmount()
        durable, durably = Counts(self.device), time.monotonic()
        run("e2fsck", "-fn", self.device)
        return {"ran": {**ended.since(begin), "seconds": end - start},
                "durable": {**durable.since(begin), "seconds": durably - start}}


class Rig:
    """A work directory and the options that all studies have."""

    def __init__(self, description, add_options=None):
        parser = argparse.ArgumentParser(
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("names", nargs="*", help="only these (see --list)")
        parser.add_argument("--list", action="store_true", help="list what can be measured")
        parser.add_argument("--all", action="store_true", help="also what takes long")
        parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
        parser.add_argument("--repeat", type=int, default=1, metavar="N",
                            help="rounds, of which the medians are printed [default: 1]")
        parser.add_argument("--sides", metavar="WORDS",
                            help="only sides with one of these words, comma-separated, such as soft,data=journal")
        if add_options:
            add_options(parser)
        self.options = parser.parse_args()
        self.volume = None
        self.rows = []

    def __enter__(self):
        if os.geteuid():
            sys.exit(f"{sys.argv[0]}: needs root, for loop devices and mounts")
        if not os.environ.get("WEFT_ORDER_STUDY"):
            # Mounts that no other process can see, and that end with this one.
            os.execvpe("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable] + sys.argv,
                       {**os.environ, "WEFT_ORDER_STUDY": "1"})
        found = shutil.which(os.environ.get("WEFT", "weft"))
        if not found:
            sys.exit(f"{sys.argv[0]}: weft is not installed; set WEFT")
        self.weft = os.path.realpath(found)
        # The volumes of killed runs would stay mounted.
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: sys.exit(1))
        self.work = tempfile.mkdtemp(prefix="weft-order.")
        os.chmod(self.work, 0o755)
        return self

    def __exit__(self, *_):
        if self.volume:
            self.volume.__exit__()
        shutil.rmtree(self.work)

    def wanted(self, subject):
        if not self.options.names:
            return self.options.all or not getattr(subject, "long", False)
        return any(word in subject.name for word in self.options.names)

    def sides(self):
        words = self.options.sides
        return [side for side in SIDES
                if not words or any(word == side[1] for word in words.split(","))]

    def study(self, subjects, megabytes):
        """Measures each subject on each side in each mode that it has there. A subject has a name and
        modes; prepare(mount); work(mount, mode); and check(mount), which runs at the end, on the volume
        as the kernel or weft mounts it again."""
        if self.options.list:
            print("\n".join(subject.name for subject in subjects))
            return
        for subject in subjects:
            if not self.wanted(subject):
                continue
            try:
                subject.begin(self)
            except Skip as reason:
                print(f"skipped: {subject.name}: {reason}", file=sys.stderr)
                continue
            found = {}
            for _ in range(self.options.repeat):
                for side in self.sides():
                    for mode in subject.modes if side[0] == WEFT else ["fsync"]:
                        found.setdefault((side, mode), []).append(self.once(subject, side, mode, megabytes))
            rows = [{"program": subject.name, "units": subject.units, "unit": subject.unit, "side": side[0],
                     "order": side[1], "mode": mode,
                     **{until: medians([result[until] for result in results]) for until in ("ran", "durable")}}
                    for (side, mode), results in found.items()]
            self.rows += rows
            if not self.options.json:
                table(rows)

    def once(self, subject, side, mode, megabytes):
        with Volume(self, side, megabytes) as volume:
            try:
                result = volume.measure(subject.prepare, lambda path: subject.work(path, mode))
                volume.mount()
                subject.check(volume.home)
            except Exception as error:
                raise RuntimeError(f"{subject.name}, {' '.join(side)}, {mode}: {error}") from error
        print(f"{subject.name}, {' '.join(side)}, {mode}: {result['durable']}", file=sys.stderr, flush=True)
        return result

    def end(self):
        if self.options.json:
            json.dump({"kernel": os.uname().release, "cpus": os.cpu_count(), "rows": self.rows}, sys.stdout, indent=1)
            print()


def table(rows):
    """Prints the rows of one subject."""
    print(f"\n**{rows[0]['program']}** ({rows[0]['units']:,} {rows[0]['unit']}s)\n\n"
          "| volume | order | with | requests | blocks of 4 KiB | flushes | of these while it ran "
          f"| {rows[0]['unit']}s a second | until durable |\n|---|---|---|---:|---:|---:|---:|---:|---:|")
    for row in rows:
        ran, durable = row["ran"], row["durable"]
        print(f"| {row['side']} ext3 | {row['order']} | {row['mode']} | {durable['requests']:,} "
              f"| {durable['sectors'] // 8:,} | {durable['flushes']:,} "
              f"| {ran['requests']:,}, {ran['sectors'] // 8:,}, {ran['flushes']:,} "
              f"| {rate(row['units'], ran)} | {rate(row['units'], durable)} |")
    sys.stdout.flush()


def rate(units, counts):
    a_second = units / counts["seconds"]
    return f"{a_second:,.0f}" if a_second >= 10 else f"{a_second:.1f}"


def medians(results):
    return {name: statistics.median(result[name] for result in results) if name == "seconds"
            else int(statistics.median(result[name] for result in results)) for name in results[0]}
