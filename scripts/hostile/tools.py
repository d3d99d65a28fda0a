"""What every part of the campaign uses: constants, calls that may fail, and calls as another user."""

import errno
import mmap
import os
import pickle
import signal
import time
import traceback

# The user who owns none of the private files, and a group that this user is not in.
USER = 65534
GROUP = 12345
SECRET = b"the plain text of a secret that is long enough to be looked for"
# Files that differ in nothing but their content; the answers about them are compared.
VARIANTS = "abcd"
NETWORK = "user.weft.network"
# The time of all planted files, and that of the campaign.
LONG_AGO = 1_000_000_000
STARTED = time.time()
# A call that takes longer than this hangs, however busy the machine is.
HANG_SECONDS = 60


def attempt(call, *arguments, **named):
    """What a call answers: ("ok", value) or ("error", the name of the error)."""
    try:
        return ("ok", call(*arguments, **named))
    except OSError as error:
        return ("error", errno.errorcode.get(error.errno, str(error.errno)))


def bounded(call, *arguments):
    """As `attempt`; a call that hangs is the error ETIME."""

    def late(*_):
        raise OSError(errno.ETIME, "no answer")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(HANG_SECONDS)
    try:
        return attempt(call, *arguments)
    finally:
        signal.alarm(0)


def try_all(calls):
    """Makes those calls that the file system has: HFS has neither owners nor attributes."""
    for call, *arguments in calls:
        attempt(call, *arguments)


def write_file(path, data):
    with open(path, "wb") as file:
        file.write(data)


def read_all(path, flags=os.O_RDONLY):
    """The first 64 KiB of a file."""
    # A pipe or a device does not block the campaign.
    file = os.open(path, flags | os.O_NONBLOCK)
    try:
        if flags & os.O_DIRECT:
            buffer = mmap.mmap(-1, 1 << 16)
            return bytes(buffer[: os.preadv(file, [buffer], 0)])
        return os.read(file, 1 << 16)
    finally:
        os.close(file)


def as_user(user, work):
    """The result of `work` in a process of that user."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            if user:
                os.setgroups([])
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)
            with os.fdopen(writer, "wb") as out:
                pickle.dump(work(), out)
            status = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as result:
        data = result.read()
    if os.waitpid(child, 0)[1]:
        raise SystemExit("a process that asks as another user has failed")
    return pickle.loads(data)
