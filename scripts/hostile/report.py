"""The report: counts of rows and controls, and a command for each finding."""

import collections
import shlex
import time

from probes import ACCESSES
from tools import STARTED, USER

# Sentences of docs/transform.md that allow what looks like a violation.
DOCUMENTED = {
    "length": "A view has the length of its base if its stages keep lengths (`upper`, `xor`), else 0",
    "names": "of such names that are there already the first one looked up counts, and the others fail with `EIO`",
    "log": "The owner of a file can attach `log` to it, and so can write entries.",
}


class Report:
    """A row is a promise that was tested; a control shows that a test can tell something."""

    def __init__(self):
        self.rows, self.violations = collections.Counter(), collections.Counter()
        self.passed, self.failed = collections.Counter(), collections.Counter()
        self.documented = collections.Counter()
        self.findings = []

    def row(self, place, label, wrong, command="true"):
        """`wrong` says in which way the promise is violated, or is None."""
        self.rows[place.name] += 1
        if wrong:
            self.violations[place.name] += 1
            self.finding("VIOLATION", place, label, wrong, command)

    def control(self, place, label, wrong, command="true"):
        if wrong:
            self.failed[place.name] += 1
            self.finding("control failed", place, label, wrong, command)
        else:
            self.passed[place.name] += 1

    def finding(self, what, place, label, wrong, command):
        words = " ".join(map(str, label))
        self.findings.append(f"{what}: {place.name} {words}: {wrong}\n    {place.reproduce(command)}")

    def end(self):
        """Prints all; returns the exit status."""
        for text in self.findings:
            print(text)
        for place in sorted({*self.rows, *self.passed, *self.failed}):
            print(
                f"{place}: {self.rows[place]} rows, {self.violations[place]} violations, "
                f"{self.passed[place]} controls ok, {self.failed[place]} failed"
            )
        for why, count in sorted((+self.documented).items()):
            print(f"documented ({count}): {DOCUMENTED[why]}")
        print(
            f"all: {self.rows.total()} rows, {self.violations.total()} violations, {self.passed.total()} controls ok, "
            f"{self.failed.total()} failed, {time.time() - STARTED:.0f} s"
        )
        return 1 if self.violations or self.failed else 0


def as_stranger(command):
    """A command for the shell, as the user who owns nothing."""
    return f"setpriv --reuid={USER} --regid={USER} --clear-groups {command}"


def shell(access, paths):
    """The command that makes an access, as the user who owns nothing."""
    return as_stranger(f"{ACCESSES[access].shell} {shlex.join(paths)}")
