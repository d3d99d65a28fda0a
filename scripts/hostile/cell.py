"""A cell, mounted for all users: private files in its snapshots, query folders and history."""

import itertools
import os
import shlex

from contents import plant
from names import KINDS, Question
from places import Place
from probes import READING, ask, use_as_root
from strangers import ask_and_judge, close
from tools import USER, VARIANTS, as_user

# What a name is asked for by, with {directory} and {base}.
PATHS = {
    "": "{directory}/{base}",
    "snapshot": "{directory}/.snapshots/then/{base}",
    "snapshot of all": ".snapshots/then/{directory}/{base}",
    "query": ".query",
    "query name": ".query/{base}",
    "query text": ".query/text:token",
    "query kind": ".query/kind:file",
    "query link": ".query/kind:file/{base}",
    "query of nothing": ".query/text:absent",
}
READ = ("", "snapshot", "snapshot of all")
LISTED = ("query", "query text", "query kind", "query of nothing")


class Cell(Place):
    """The cell, and the server that its mount asks."""

    def __init__(self, weft):
        super().__init__(weft, "cell", None, [], kinds=list(KINDS))
        self.address = f"unix:{self.dir}/socket"
        self.server = ["ringer", "serve", "cell", "--listen", self.address, "--background", "--pid-file", "server.pid"]

    def make(self):
        """The server makes the cell."""

    def arguments(self):
        return ["ringer", "mount", self.address, "m", "--store", "store", "-o", "allow_other", "--background"]

    def mount(self):
        self.weft(*self.server, cwd=self.dir)
        super().mount()

    def unmount(self):
        super().unmount()
        self.abandon()

    def reproduce(self, command, before=(), after=""):
        server = shlex.join([self.weft.program, *self.server])
        return super().reproduce(command, before=[server], after="; kill $(cat server.pid)")

    def prepare(self, families):
        """Kept versions, texts and snapshots of all files; then what was public becomes private, and back."""
        os.chmod(self.at, 0o755)
        plant(self.at, families, [])
        directories = ("open", "shut", "own", "public")
        for directory in directories:
            policy = ["--text", "64K", "--versions", "5", "--every", "0s"]
            self.weft("ringer", "policy", f"m/{directory}", *policy, cwd=self.dir)
        plant(self.at, families, self.kinds)
        for directory in (".", *directories):
            self.weft("ringer", "snapshot", "create", f"m/{directory}", "then", cwd=self.dir)
        for kind, mode in (("later", 0o600), ("before", 0o644)):
            for family, variant in itertools.product(families, VARIANTS):
                os.chmod(f"{self.at}/open/{kind}-{family}-{variant}", mode)

    def questions(self, families, kinds):
        for kind, (label, path) in itertools.product(kinds, PATHS.items()):
            # The file itself is public by now.
            if (kind, label) == ("before", ""):
                continue
            path = path.replace("{directory}", KINDS[kind].directory)
            yield Question(kind, label, path, list(families), label == "" and kind == "planted")


def cell(weft, families, report):
    place = Cell(weft)
    place.mount()
    place.prepare(families)
    questions = list(place.questions(families, [kind for kind in place.kinds if kind != "public"]))
    for when in ("cold", "after"):
        ask_and_judge(place, when, questions, families, report)
        close(use_as_root(place, questions))
    controls(place, families, report)
    place.unmount()


def controls(place, families, report):
    """Public files say to the user what they say to root; query folders are for root and who mounted."""
    questions = list(place.questions(families, ["public"]))
    theirs = as_user(USER, lambda: ask(place, questions, READING))
    roots = as_user(0, lambda: ask(place, questions, READING))
    for key, row in roots.items():
        _, label, _, access = key
        if (access, label) not in [("read", label) for label in READ] + [("list", label) for label in LISTED]:
            continue
        good = row[0][0] == "ok" and (theirs[key] == row) == (label in READ)
        report.control(place, key, None if good else f"{row}"[:200])
