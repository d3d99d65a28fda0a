"""ext2, ext3, HFS and MFS volumes without mounting them, FUSE mounts of them, and patchgroups: these
changes before those, without waiting for the disk.

    with weft.Volume("v.img", write=True) as volume:
        with volume.open("/greeting", "w") as file:
            file.write("hello")
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import stat as _stat
import weakref
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import IO, Any, NamedTuple, Protocol, Union

from . import _file
from ._durable import Durable
from ._errors import Error
from ._weft import Group as _Group
from ._weft import Mount as _Mount
from ._weft import Volume as _Volume
from ._weft import check as _check
from ._weft import mkfs as _mkfs

__all__ = [
    "Checked",
    "Durable",
    "Error",
    "Group",
    "Mount",
    "Stat",
    "Volume",
    "atomic",
    "check",
    "group",
    "mkfs",
    "mount",
]
__version__ = "0.1.0"

_Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
_Source = Union[str, "os.PathLike[str]"]


class _HasFileno(Protocol):
    def fileno(self) -> int: ...


class Stat(NamedTuple):
    """The attributes of a file, with the names of os.stat_result. Times are in nanoseconds."""

    st_mode: int
    st_ino: int
    st_nlink: int
    st_uid: int
    st_gid: int
    st_size: int
    st_atime_ns: int
    st_mtime_ns: int
    st_ctime_ns: int
    st_blocks: int
    st_rdev: int

    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return _stat.S_ISDIR(self.st_mode)

    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return _stat.S_ISREG(self.st_mode)


class Checked(NamedTuple):
    """The findings of a check."""

    problems: list[str]
    """The problems found, each a line."""
    remaining: list[str]
    """Those that remain after a repair; all of them without one."""

    @property
    def sound(self) -> bool:
        """Whether no problem remains."""
        return not self.remaining


def mkfs(
    image: _Source,
    format: str = "ext2",
    size: int | None = None,
    *,
    label: str = "",
    force: bool = False,
) -> None:
    """Makes a volume in an image file (which is made, too) or on a device, of size bytes or of all of
    it. The formats are ext2, ext3, hfs and mfs. What is there already is overwritten with force only."""
    if size is not None and size < 0:
        raise ValueError(f"a volume cannot have a size of {size} bytes")
    _mkfs(os.fspath(image), format, size, label, force)


def check(source: _Source, *, repair: bool = False) -> Checked:
    """Checks a volume that is not in use, and repairs it if told so. Returns a Checked."""
    return Checked(*_check(os.fspath(source), repair))


class Volume:
    """An opened volume: an image file, a device, a partition ("disk.img?partition=2") or a network
    disk. Paths start at its root. Any thread may use it."""

    def __init__(
        self,
        source: _Source,
        *,
        write: bool = False,
        order: str | None = None,
        atime: bool = True,
    ) -> None:
        """order is the order of writes: "soft", "journal", "journal=ordered", "journal=full", "async";
        None is the default of the volume."""
        self._native: _Volume | None = _Volume(os.fspath(source), write, order, atime)
        self.source = os.fspath(source)

    def __enter__(self) -> Volume:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<weft.Volume {self.source!r}{' (closed)' if self.closed else ''}>"

    @property
    def closed(self) -> bool:
        """Whether the volume is closed."""
        return self._native is None

    @property
    def _open(self) -> _Volume:
        if self._native is None:
            raise ValueError("the volume is closed")
        return self._native

    @property
    def read_only(self) -> bool:
        """Whether the volume refuses changes."""
        return self._open.read_only()

    @property
    def order(self) -> str:
        """The order of writes."""
        return self._open.order()

    def close(self) -> None:
        """Makes everything durable, marks the volume clean and closes it, its files and its groups."""
        native, self._native = self._native, None
        if native is not None:
            native.close()

    def sync(self) -> None:
        """Makes everything durable."""
        self._open.sync()

    def open(
        self,
        path: _Path,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]:
        """Opens a file as open() does: the result is a file of Python. Its raw file has sync()."""
        return _file.opened(
            self._open, os.fsencode(path), mode, buffering, encoding, errors, newline
        )

    def read(self, path: _Path) -> bytes:
        """Returns the content of a file."""
        with self.open(path, "rb") as file:
            return file.read()

    def write(self, path: _Path, data: bytes | bytearray | memoryview) -> None:
        """Makes a file, or replaces the content of one."""
        with self.open(path, "wb") as file:
            file.write(data)

    def listdir(self, path: _Path = "/") -> list[Any]:
        """Returns the names of a directory, in no particular order; bytes if the path is."""
        names = self._open.list(os.fsencode(path))
        return names if isinstance(path, bytes) else [os.fsdecode(name) for name in names]

    def stat(self, path: _Path, *, follow_symlinks: bool = True) -> Stat:
        """Returns the Stat of a file."""
        mode, ino, nlink, uid, gid, size, times, blocks, rdev = self._open.stat(
            os.fsencode(path), follow_symlinks
        )
        atime, mtime, ctime = (seconds * 1_000_000_000 + nanos for seconds, nanos in times)
        return Stat(mode, ino, nlink, uid, gid, size, atime, mtime, ctime, blocks, rdev)

    def exists(self, path: _Path) -> bool:
        """Whether there is something at the path."""
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def mkdir(self, path: _Path, mode: int = 0o755) -> None:
        """Makes a directory."""
        self._open.mkdir(os.fsencode(path), mode)

    def unlink(self, path: _Path) -> None:
        """Removes a name that is not that of a directory."""
        self._open.unlink(os.fsencode(path))

    def rmdir(self, path: _Path) -> None:
        """Removes an empty directory."""
        self._open.rmdir(os.fsencode(path))

    def rename(self, path: _Path, new_path: _Path) -> None:
        """Renames, and replaces what new_path named."""
        self._open.rename(os.fsencode(path), os.fsencode(new_path))

    def group(
        self, after: Group | Iterable[Group] | None = None, kind: str = "ordinary"
    ) -> Group:
        """Makes a group, as weft.group() does."""
        return group(self, after, kind)


class Group:
    """A patchgroup: a set of changes that are ordered as a whole. As a context manager it takes the
    changes of the thread that enters it, which must be the one that leaves it."""

    def __init__(self, native: _Group) -> None:
        self._native = native

    def set_label(self, label: str) -> None:
        """Gives a group of a mount a label, for people, which weft order --list shows: at most 63 bytes
        of UTF-8."""
        self._native.set_label(label)

    def __enter__(self) -> Group:
        self.engage()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.disengage()

    def engage(
        self,
        *,
        process: bool = False,
        file: int | _HasFileno | None = None,
        fsync: str = "wait",
    ) -> None:
        """Adds changes to the group from now on: of this thread; or of this process and all that it
        starts; or those made by an open file or descriptor, whoever makes them. fsync is the meaning
        of fsync to these: "wait", "barrier" (it orders, and does not wait), or "group:MS" (the same,
        and durable within MS milliseconds). On a volume: this thread, and "wait"."""
        self._native.engage(process, _descriptor(process, file), fsync)

    def disengage(self, *, process: bool = False, file: int | _HasFileno | None = None) -> None:
        """Ends an engagement of this thread, of this process, or of an open file."""
        self._native.disengage(process, _descriptor(process, file))

    @contextlib.contextmanager
    def engaged(
        self,
        *,
        process: bool = False,
        file: int | _HasFileno | None = None,
        fsync: str = "wait",
    ) -> Iterator[Group]:
        """As engage(), until the context is left."""
        self.engage(process=process, file=file, fsync=fsync)
        try:
            yield self
        finally:
            self.disengage(process=process, file=file)

    def barrier(self) -> None:
        """Orders the changes of the group from now on after those until now."""
        self._native.barrier()

    def commit(self) -> None:
        """Ends an atomic group: from now on a power cut leaves all of its changes, or none. It takes no
        more. TimeoutError: it took longer than 5 seconds while others waited, and is not atomic."""
        self._native.commit()

    def abort(self) -> None:
        """Undoes all changes of a group of the kind "abortable", and ends it. EBUSY: others have changed
        the same, and nothing is undone."""
        self._native.abort()

    @property
    def blocks_left(self) -> int:
        """The most blocks that an atomic group may still change: 0 if it has ended or is not atomic."""
        return self._native.blocks_left()

    def when_durable(self) -> Durable:
        """Returns a Durable of the changes made until now, for select, selectors and asyncio. Nothing is
        written for it: that happens by age, or by a sync."""
        return Durable(self._native.tell_durable())

    def sync(self) -> None:
        """Waits until the changes of the group are durable, and what they depend on."""
        self._native.sync()

    @property
    def durable(self) -> bool:
        """Whether they are."""
        return self._native.is_durable()

    def close(self) -> None:
        """Ends the group; the order of its changes stays. A group that is forgotten is closed."""
        self._native.close()


def _descriptor(process: bool, file: int | _HasFileno | None) -> int | None:
    if file is None:
        return None
    if process:
        raise ValueError("either the process or an open file")
    return file if isinstance(file, int) else file.fileno()


def group(
    where: Volume | Mount | _Path,
    after: Group | Iterable[Group] | None = None,
    kind: str = "ordinary",
) -> Group:
    """Makes a patchgroup of a Volume, or of the mount that a path is on. after is the group, or the
    groups, whose changes must all be durable before any of this one; they take no more changes.

    The kinds are "ordinary"; "linear", in which each change is ordered after the one before it; "atomic":
    after a power cut all changes are there, or none, once it is committed; "abortable": atomic, and it can
    be aborted. atomic() uses both."""
    if isinstance(where, Volume):
        native = where._open.group(kind)
    else:
        native = _Group.on_mount(os.fsencode(where), kind)
    made = Group(native)
    befores = [] if after is None else [after] if isinstance(after, Group) else list(after)
    try:
        for before in befores:
            native.depend(before._native)
    except BaseException:
        made.close()
        raise
    if not isinstance(where, Volume):
        # It holds the mount, which is to be free when this process unmounts it.
        device = os.stat(where).st_dev
        for mounted in list(_mounts):
            if mounted._device == device:
                mounted._groups.add(made)
    return made


@contextlib.contextmanager
def atomic(
    where: Volume | Mount | _Path,
    after: Group | Iterable[Group] | None = None,
    *,
    process: bool = False,
    file: int | _HasFileno | None = None,
) -> Iterator[Group]:
    """All that this thread changes in the context, or this process, or an open file, as for
    Group.engage(): after a power cut it is there as a whole, or not at all. That needs a journal
    (EOPNOTSUPP); on a mount, root or the user who runs it.

    If an exception leaves the context, the changes are undone. Where they cannot be, they are kept, and
    the exception has a note (__notes__) that says so: on a volume on which nothing can be undone, and if
    others have changed the same. If it has no such note, nothing is changed.

    A context of more than 5 seconds for which others wait ends with a TimeoutError, which undoes its
    changes, too; one that changes more than the journal has room for with an OSError of EFBIG. The changes
    are durable by age, as others are, or once the group is synced."""
    can_abort = True
    try:
        made = group(where, after, "abortable")
    except Error as e:
        if e.errno != errno.EOPNOTSUPP:
            raise
        can_abort = False
        made = group(where, after, "atomic")
    try:
        with made.engaged(process=process, file=file):
            yield made
    except BaseException as e:
        kept = _undo(made) if can_abort else "nothing can be undone on this volume"
        if kept and kept != _ENDED:
            _keep(made, e, kept)
        raise
    if can_abort and not made.blocks_left:
        # It was cut, or aborted within the context.
        kept = _undo(made)
        if kept != _ENDED:
            cut = TimeoutError(errno.ETIMEDOUT, "the changes took longer than 5 seconds while others waited")
            if kept:
                _keep(made, cut, kept)
            raise cut
    try:
        made.commit()
    except OSError as e:
        _note(e, "all of them, which are not atomic")
        raise


_ENDED = "the group has ended"


def _undo(group: Group) -> str | None:
    """Undoes the changes of a group, or returns the reason why they are kept."""
    try:
        group.abort()
    except OSError as refused:
        return _ENDED if refused.errno == errno.EINVAL else str(refused.strerror)
    return None


def _keep(group: Group, error: BaseException, why: str) -> None:
    _note(error, why)
    with contextlib.suppress(OSError):
        group.commit()


def _note(error: BaseException, kept: str) -> None:
    # Python 3.11 has add_note(), which does this, and shows it.
    notes = getattr(error, "__notes__", [])
    vars(error)["__notes__"] = [*notes, f"weft: the changes are kept: {kept}"]


_mounts: weakref.WeakSet[Mount] = weakref.WeakSet()


class Mount(os.PathLike[str]):
    """A mounted volume, which threads of this process serve. As a context manager it unmounts."""

    def __init__(
        self,
        source: _Source,
        directory: _Source,
        *,
        write: bool = True,
        order: str | None = None,
        options: str = "",
    ) -> None:
        self.path: str = os.path.realpath(directory)
        self._groups: weakref.WeakSet[Group] = weakref.WeakSet()
        self._native = _Mount(os.fspath(source), os.fsencode(self.path), write, order, options)
        self._device = os.stat(self.path).st_dev
        _mounts.add(self)

    def __enter__(self) -> Mount:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.unmount()

    def __fspath__(self) -> str:
        return self.path

    @property
    def mounted(self) -> bool:
        """Whether it has not been unmounted by this object."""
        return self._native.mounted()

    def unmount(self) -> None:
        """Makes everything durable and unmounts. The groups on it are closed. EBUSY: it is in use, and
        stays mounted."""
        for group in list(self._groups):
            group.close()
        self._native.unmount()


def mount(
    image: _Source,
    directory: _Source,
    *,
    write: bool = True,
    order: str | None = None,
    options: str = "",
) -> Mount:
    """Mounts a volume on a directory; options are those of weft mount -o, separated by commas. The
    mount ends with this process: unmount it before, or use it as a context manager."""
    return Mount(image, directory, write=write, order=order, options=options)


# A child has the objects, and neither the threads that serve a mount nor the right to end it.
os.register_at_fork(after_in_child=_mounts.clear)


@atexit.register
def _unmount_all() -> None:
    # The mounts that the program has left. A mount in use is made durable at least.
    for mounted in list(_mounts):
        try:
            mounted.unmount()
        except OSError:
            try:
                fd = os.open(mounted.path, os.O_RDONLY)
                os.fsync(fd)
                os.close(fd)
            except OSError:
                pass
