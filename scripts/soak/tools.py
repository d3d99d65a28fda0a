"""Running tools within bounds: every command has a time limit, every process is ended by its pid."""

import os
import shutil
import signal
import subprocess
import time

# What takes longer than this hangs, however busy the machine is with other work: the soak runs at the
# lowest priority, and initdb alone has needed more than three minutes beside a build.
HANG_SECONDS = 1800


class Trouble(Exception):
    """Something is wrong with the volume under test; the message says what."""


def has(*names):
    return all(shutil.which(name) for name in names)


def run(command, **options):
    """Runs a command and returns its result, output as text; a hang is trouble."""
    options.setdefault("timeout", HANG_SECONDS)
    try:
        return subprocess.run(
            [str(word) for word in command],
            stdin=options.pop("stdin", subprocess.DEVNULL),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            errors="backslashreplace",
            **options,
        )
    except subprocess.TimeoutExpired as hang:
        raise Trouble(f"{shown(command)}: not done after {options['timeout']} s\n{hang.output or ''}") from hang


def demand(command, **options):
    """Runs a command that must succeed; returns its output."""
    done = run(command, **options)
    if done.returncode != 0:
        raise Trouble(f"{shown(command)} ended with {done.returncode}:\n{last(done.stdout, 30)}")
    return done.stdout


def shown(command):
    words = " ".join(str(word) for word in command)
    return words if len(words) < 300 else words[:300] + " ..."


def last(text, lines):
    return "\n".join(text.strip().splitlines()[-lines:])


def wait_until(condition, seconds, what):
    """Polls until `condition()`; trouble if it is not so in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise Trouble(f"{what} within {seconds} s")
        time.sleep(0.02)


def _parent_and_start(pid):
    """The parent of a process, and when it began: a number alone may be another's later."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
            return int(fields[1]), int(fields[19])
    except (OSError, ValueError, IndexError):
        return None, None


def descendants(pid):
    """The processes below `pid`, as far as their parents live, with when each began."""
    known = {int(name): _parent_and_start(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    found, todo = {}, [pid]
    while todo:
        above = todo.pop()
        below = {child: start for child, (parent, start) in known.items() if parent == above}
        found |= below
        todo += below
    return found


def end(process, seconds=30):
    """Ends a child and all below it: asks it first (SIGTERM), then kills what is left."""
    if process.poll() is not None:
        return
    below = descendants(process.pid)
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        below |= descendants(process.pid)
        process.kill()
        process.wait(seconds)
    for pid, start in below.items():
        if _parent_and_start(pid)[1] == start:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def copy_image(source, target):
    """Copies an image without its holes, sharing blocks where the file system can."""
    demand(["cp", "--reflink=auto", "--sparse=always", source, target])
    return target


def sync_mount(mount):
    """Makes everything on a weft mount durable: an fsync of its root."""
    fd = os.open(mount, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
