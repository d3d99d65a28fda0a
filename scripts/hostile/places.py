"""Places: trees that weft mounts in some manner, each in a directory of its own."""

import os
import shlex
import signal
import subprocess

from names import KINDS, ONLY_IN_CELLS, RULES
from tools import attempt, read_all, write_file

HOST_DIRECTORY = "hostdir:data"
# All that were made, to be unmounted however the campaign ends.
PLACES = []


class Weft:
    """The command, with an environment of its own."""

    def __init__(self, program, top):
        self.program, self.top = program, top
        self.env = {
            "PATH": f"{top}/canary:" + os.environ["PATH"],
            "LC_ALL": "C",
            "WEFT_KEYS": f"{top}/keys",
            "WEFT_RUNTIME_DIR": f"{top}/run",
            "HOME": top,
        }

    def __call__(self, *arguments, cwd=None, data=None, may_fail=False):
        """Runs it with `data` as its input; returns its output."""
        done = subprocess.run(
            [self.program, *arguments], cwd=cwd or self.top, env=self.env, input=data,
            stdin=None if data is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120,
        )  # fmt: skip
        if done.returncode and not may_fail:
            raise SystemExit(f"weft {' '.join(arguments)}: {done.returncode} {done.stderr.decode()}")
        return done.stdout


class Place:
    """A source, with the rules and options that it is mounted with; `at` is where."""

    def __init__(self, weft, name, source, options, rules=RULES, kinds=None):
        self.weft, self.name, self.source = weft, name, source
        self.options, self.rules = list(options), rules
        self.kinds = kinds or [kind for kind in KINDS if kind not in ONLY_IN_CELLS]
        # HFS has short names, and no attributes.
        self.longest_name = 31 if name.startswith("hfs") else 255
        self.has_attributes = not name.startswith("hfs")
        self.dir = os.path.join(weft.top, name)
        self.at = os.path.join(self.dir, "m")
        self.mounted = False
        PLACES.append(self)
        os.makedirs(self.at)
        self.make()

    def make(self):
        write_file(f"{self.dir}/rules", self.rules.encode())
        if self.source == HOST_DIRECTORY:
            os.mkdir(f"{self.dir}/data")
        else:
            self.weft("mkfs", self.name.split("-")[0], self.source, "--size", "64M", "--quiet", cwd=self.dir)

    def arguments(self):
        rules = "rules" if self.rules else "-"
        arguments = ["mount", self.source, "m", "--background", "--pid-file", "pid", "--transform", rules]
        arguments += ["--key", "work=../keys/work", "--program", "cat=cat", "--log", "audit=audit.log"]
        return arguments + self.options

    def mount(self):
        self.weft(*self.arguments(), cwd=self.dir)
        self.mounted = True

    def unmount(self):
        if self.mounted:
            self.mounted = False
            self.weft("umount", "m", cwd=self.dir)

    def abandon(self):
        """Ends what still runs, whatever state it is in."""
        if self.mounted:
            self.weft("umount", "--lazy", "m", cwd=self.dir, may_fail=True)
        for name in ("pid", "server.pid"):
            pid = attempt(read_all, f"{self.dir}/{name}")
            if pid[0] != "ok":
                continue
            # The number may be that of another process by now.
            command = attempt(read_all, f"/proc/{int(pid[1])}/cmdline")
            if command[0] == "ok" and self.dir.encode() in command[1]:
                os.kill(int(pid[1]), signal.SIGTERM)

    def stored(self, work):
        """Calls `work` with the tree as it is stored: below the mount, or on a mount without networks."""
        if self.source == HOST_DIRECTORY:
            work(f"{self.dir}/data")
            return
        self.weft("mount", self.source, "m", "--background", cwd=self.dir)
        self.mounted = True
        work(self.at)
        self.unmount()

    def reproduce(self, command, before=(), after=""):
        """A line for the shell that mounts the place and runs `command` in it."""
        variables = " ".join(f"{name}={shlex.quote(self.weft.env[name])}" for name in ("WEFT_KEYS", "WEFT_RUNTIME_DIR"))
        steps = [f"cd {shlex.quote(self.dir)}", *before, shlex.join([self.weft.program, *self.arguments()])]
        script = f"{' && '.join(steps)} && cd m && {command}; cd ..; {self.weft.program} umount m{after}"
        return f"{variables} unshare --mount --propagation private sh -c {shlex.quote(script)}"
