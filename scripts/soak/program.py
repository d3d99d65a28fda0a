"""A program under test: what a worker process does on the mount, and what must be there afterwards.

A program runs in one or more worker processes, each a Python process of its own, which the driver
starts, asks to end (the file `stop`) or overtakes with a crash (the file `cut`, made just before).
An error before that is a finding; after it, it is what a program sees of a crash.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback

from notes import Notes
from tools import HANG_SECONDS, Trouble, end, last

HERE = os.path.dirname(os.path.abspath(__file__))


class Place:
    """Where a program runs: everything it may know, as it is passed to the worker."""

    def __init__(self, **fields):
        self.__dict__.update(fields)

    # mount, notes, scratch: directories. order; power (bool); volume: a name for this volume;
    # round: its number on this volume; seed; index: of this process among those of the program.

    def stopping(self):
        return os.path.exists(os.path.join(self.scratch, "stop"))

    def was_cut(self):
        return os.path.exists(os.path.join(self.scratch, "cut"))

    def path(self, *names):
        return os.path.join(self.mount, *names)

    def keeps_order(self):
        """Whether operations become durable in the order they were done in."""
        return self.order.startswith("journal")

    def shows_no_stale_data(self):
        return shows_no_stale_data(self.order)


def shows_no_stale_data(order):
    """Whether what was never written to a new block reads as zeroes after a crash."""
    return order not in ("journal", "journal=metadata", "async")


class Program:
    """The base of all programs."""

    name = ""
    # Whether a crash may put stale data where it wrote nothing yet.
    bears_stale_data = True

    def __init__(self, place):
        self.place = place
        self.rng = random.Random(f"{place.seed} {self.name} {place.index}")

    @classmethod
    def lacks(cls):
        """What is not installed that this program needs, or None."""
        return None

    @classmethod
    def processes(cls):
        return 1

    def notes(self):
        return Notes(self.place.notes, f"{self.name}.{self.place.round}.{self.place.index}")

    def run(self):
        """Works until `self.place.stopping()`."""
        raise NotImplementedError

    @classmethod
    def verify(cls, place, view, clean):
        """Looks at a volume after a crash, or after a clean unmount. Returns findings in words,
        and how much was looked at: {"files": ..., "rows": ...}."""
        raise NotImplementedError


class Worker:
    """A worker process, from the driver's side."""

    def __init__(self, program, place):
        self.what = f"{program.name} (process {place.index})"
        self.place = place
        self.log = os.path.join(place.scratch, f"{program.name}.{place.index}.log")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, os.path.join(HERE, "program.py"), program.name, json.dumps(vars(place))],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def failure(self):
        """What went wrong with it before any crash, or None."""
        if self.process.poll() in (None, 0):
            return None
        with open(self.log, errors="backslashreplace") as file:
            said = last(file.read(), 25)
        return f"{self.what} failed with {self.process.returncode} while the mount was well:\n{said}"

    def finish(self):
        """After the request to stop: waits for the end."""
        try:
            self.process.wait(HANG_SECONDS)
        except subprocess.TimeoutExpired:
            end(self.process)
            raise Trouble(f"{self.what} did not end within {HANG_SECONDS} s: it hangs on the mount") from None

    def end(self):
        end(self.process, 40)


def main():
    from programs import PROGRAMS

    place = Place(**json.loads(sys.argv[2]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        PROGRAMS[sys.argv[1]](place).run()
    except Exception:
        # A crash that is under way may be seen just before the driver has said so.
        for _ in range(20):
            if place.was_cut():
                return
            time.sleep(0.05)
        traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    main()
