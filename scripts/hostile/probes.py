"""Probes: every access that a name is asked for with, and the answers in a form that can be compared."""

import fcntl
import itertools
import os
from typing import Callable, NamedTuple

from tools import LONG_AGO, NETWORK, STARTED, VARIANTS, attempt, read_all

# The ioctl(2) of docs/transform.md.
PUSH = 0xD00057E0
ATTRIBUTES = [
    "user.weft.network", "user.weft.explain", "user.weft.convert", "user.weft.stored", "user.secret", "user.weft.history",
    "user.weft.holders", "user.weft.versions", "user.xdg.tags", "system.posix_acl_access", "security.capability",
]  # fmt: skip


def by_path_descriptor(path):
    """The content, through a descriptor that was opened without permission to read."""
    file = os.open(path, os.O_PATH)
    try:
        return read_all(f"/proc/self/fd/{file}")
    finally:
        os.close(file)


def look(path, follow=True):
    """What stat(2) says, but for the inode number. Of times, whether they are those that were set, or are
    of the campaign: they differ from file to file."""
    info = os.stat(path, follow_symlinks=follow)
    times = [int(time) for time in (info.st_atime, info.st_mtime, info.st_ctime)]
    # In whole seconds, and by a clock of the kernel that lags a little.
    first = int(STARTED) - 1
    return {
        "mode": info.st_mode, "links": info.st_nlink, "owner": (info.st_uid, info.st_gid), "size": info.st_size,
        "blocks": info.st_blocks, "block size": info.st_blksize, "device": info.st_rdev,
        "times": ["set" if time == LONG_AGO else "recent" if time >= first else time for time in times],
    }  # fmt: skip


def around(path):
    """How many names the directory above lists, and whether it lists this one."""
    names = os.listdir(os.path.dirname(path))
    return [len(names), os.path.basename(path) in names]


def attributes(path):
    return [attempt(os.getxattr, path, name) for name in ATTRIBUTES]


def may(path):
    return [os.access(path, mode) for mode in (os.F_OK, os.R_OK, os.W_OK, os.X_OK)]


def list_after_chdir(path):
    os.chdir(path)
    return os.listdir(".")


def open_to_write(path):
    os.close(os.open(path, os.O_WRONLY))


def push(path):
    """What the ioctl(2) that pushes says, with its text, on whatever descriptor can be had."""
    for flags in (os.O_RDONLY | os.O_DIRECT, os.O_WRONLY, os.O_PATH):
        opened = attempt(os.open, path, flags)
        if opened[0] == "ok":
            break
    else:
        return opened
    text = bytearray(b"rot13".ljust(4096, b"\0"))
    try:
        done = attempt(fcntl.ioctl, opened[1], PUSH, text)
        return (done[0], (done[1], bytes(text).rstrip(b"\0")))
    finally:
        os.close(opened[1])


class Access(NamedTuple):
    """A way to use a name; `shell` is a command that does much the same."""

    call: Callable
    shell: str = "head -c 200"
    changes: bool = False


ACCESSES = {
    "read": Access(read_all),
    "direct": Access(lambda path: read_all(path, os.O_RDONLY | os.O_DIRECT)),
    "by-descriptor": Access(by_path_descriptor),
    "stat": Access(look, "stat -L"),
    "lstat": Access(lambda path: look(path, follow=False), "stat"),
    "list": Access(lambda path: sorted(os.listdir(path)), "ls -la"),
    "parent": Access(around, "ls -la"),
    "getxattr": Access(attributes, "getfattr -d -m -"),
    "listxattr": Access(lambda path: sorted(os.listxattr(path)), "getfattr -m -"),
    "readlink": Access(os.readlink, "readlink"),
    "access": Access(may, "stat -L"),
    "chdir": Access(list_after_chdir, "ls"),
    "write": Access(open_to_write, "dd of=/dev/null conv=notrunc", True),
    "push": Access(push, changes=True),
    "push-by-attribute": Access(
        lambda path: os.setxattr(path, NETWORK, b"rot13"), "setfattr -n user.weft.network -v rot13", True
    ),
    "convert": Access(
        lambda path: os.setxattr(path, "user.weft.convert", b"hex"), "setfattr -n user.weft.convert -v hex", True
    ),
    "push-as-stored": Access(
        lambda path: os.setxattr(path, "user.weft.stored", b"rot13"), "setfattr -n user.weft.stored -v rot13", True
    ),
    "pop-by-attribute": Access(lambda path: os.removexattr(path, NETWORK), "setfattr -x user.weft.network", True),
    "restore": Access(
        lambda path: os.setxattr(path, "user.weft.restore", b"1"), "setfattr -n user.weft.restore -v 1", True
    ),
    "truncate": Access(lambda path: os.truncate(path, 1), "truncate -s 1", True),
    "chmod": Access(lambda path: os.chmod(path, 0o777), "chmod 777", True),
    "utime": Access(lambda path: os.utime(path, (LONG_AGO, LONG_AGO)), "touch -d @1000000000", True),
}
# Those that root and the user are compared by.
READING = ("read", "direct", "by-descriptor", "stat", "lstat", "list", "chdir", "getxattr", "listxattr", "readlink")


def use(access, path):
    """The answer to an access."""
    answer = attempt(ACCESSES[access].call, path)
    # push() answers errors itself, as they come with a text.
    return answer[1] if access == "push" else answer


def ask(place, questions, accesses=tuple(ACCESSES)):
    """Answers to all questions: {(kind, label, family, access): [one for each variant]}."""
    answers = {}
    for question in questions:
        for family, access in itertools.product(question.families, accesses):
            if ACCESSES[access].changes and question.own:
                continue
            row = []
            for variant in VARIANTS:
                os.chdir("/")
                base = f"{question.kind}-{family}-{variant}"
                row.append(neutral(use(access, f"{place.at}/{question.path.format(base=base)}"), base))
            answers[question.kind, question.label, family, access] = row
    os.chdir("/")
    return answers


def use_as_root(place, questions):
    """Reads and lists all that is derived, as who may do so; returns descriptors that are left open."""
    held = []
    for question in questions:
        for family, variant in itertools.product(question.families, VARIANTS):
            path = f"{place.at}/{question.path.format(base=f'{question.kind}-{family}-{variant}')}"
            for call in (os.listdir, read_all, look):
                attempt(call, path)
            opened = attempt(os.open, path, os.O_RDONLY | os.O_NONBLOCK)
            if opened[0] == "ok":
                held.append(opened[1])
            # The limit of descriptors is 1,024 by default.
            if len(held) > 600:
                os.close(held.pop())
    return held


def neutral(value, base):
    """An answer without the name of the file that was asked for."""
    if isinstance(value, (list, tuple)):
        return type(value)(neutral(one, base) for one in value)
    if isinstance(value, str):
        return value.replace(base, "?")
    return value.replace(base.encode(), b"?") if isinstance(value, bytes) else value


def without_length(value, length):
    """An answer in which a length that is that of the base makes no difference."""
    if isinstance(value, dict):
        return {**value, "size": "that of the base", "blocks": "likewise"} if value["size"] == length else value
    return type(value)(without_length(one, length) for one in value) if isinstance(value, (list, tuple)) else value
