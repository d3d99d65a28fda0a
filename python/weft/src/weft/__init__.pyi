import os
from collections.abc import Iterable
from types import TracebackType
from typing import IO, Any, NamedTuple, Union

_Path = Union[str, bytes, os.PathLike[str], os.PathLike[bytes]]
_Source = Union[str, os.PathLike[str]]

__version__: str

class Error(OSError): ...

class Stat(NamedTuple):
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
    def is_dir(self) -> bool: ...
    def is_file(self) -> bool: ...

class Checked(NamedTuple):
    problems: list[str]
    remaining: list[str]
    @property
    def sound(self) -> bool: ...

def mkfs(
    image: _Source,
    format: str = "ext2",
    size: int | None = None,
    *,
    label: str = "",
    force: bool = False,
) -> None: ...
def check(source: _Source, *, repair: bool = False) -> Checked: ...

class Volume:
    source: str
    def __init__(
        self,
        source: _Source,
        *,
        write: bool = False,
        order: str | None = None,
        atime: bool = True,
    ) -> None: ...
    def __enter__(self) -> Volume: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    @property
    def closed(self) -> bool: ...
    @property
    def read_only(self) -> bool: ...
    @property
    def order(self) -> str: ...
    def close(self) -> None: ...
    def sync(self) -> None: ...
    def open(
        self,
        path: _Path,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]: ...
    def read(self, path: _Path) -> bytes: ...
    def write(self, path: _Path, data: bytes | bytearray | memoryview) -> None: ...
    def listdir(self, path: _Path = "/") -> list[Any]: ...
    def stat(self, path: _Path, *, follow_symlinks: bool = True) -> Stat: ...
    def exists(self, path: _Path) -> bool: ...
    def mkdir(self, path: _Path, mode: int = 0o755) -> None: ...
    def unlink(self, path: _Path) -> None: ...
    def rmdir(self, path: _Path) -> None: ...
    def rename(self, path: _Path, new_path: _Path) -> None: ...
    def group(self, after: Group | Iterable[Group] | None = None) -> Group: ...

class Group:
    def __enter__(self) -> Group: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def barrier(self) -> None: ...
    def sync(self) -> None: ...
    @property
    def durable(self) -> bool: ...
    def close(self) -> None: ...

def group(
    where: Volume | _Source, after: Group | Iterable[Group] | None = None
) -> Group: ...

class Mount(os.PathLike[str]):
    path: str
    def __init__(
        self,
        source: _Source,
        directory: _Source,
        *,
        write: bool = True,
        order: str | None = None,
        options: str = "",
    ) -> None: ...
    def __enter__(self) -> Mount: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def __fspath__(self) -> str: ...
    @property
    def mounted(self) -> bool: ...
    def unmount(self) -> None: ...

def mount(
    image: _Source,
    directory: _Source,
    *,
    write: bool = True,
    order: str | None = None,
    options: str = "",
) -> Mount: ...
