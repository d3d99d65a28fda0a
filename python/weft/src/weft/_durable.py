"""Being told that changes are durable, without waiting for it."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import threading
from collections.abc import Generator
from types import TracebackType
from typing import Any

from ._errors import error


class Durable:
    """Tells once the changes are durable that a group had when this was made.

    It has a descriptor, which is readable then: for select, poll, selectors, loop.add_reader(). A thread
    may wait() for it, and a coroutine await it. An object that is forgotten is closed. If the volume or
    the mount has ended before, wait() and await raise an OSError of EIO.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._told: bool | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Durable:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def fileno(self) -> int:
        """Returns the descriptor, which is this object's; it is to be polled and not read."""
        if self._fd < 0:
            raise ValueError("it is closed")
        return self._fd

    def wait(self, timeout: float | None = None) -> bool:
        """Waits, at most so many seconds. Returns whether the changes are durable."""
        polled = select.poll()
        polled.register(self.fileno(), select.POLLIN)
        ready = polled.poll(None if timeout is None else max(0.0, timeout) * 1000)
        return bool(ready) and self._take()

    def __await__(self) -> Generator[Any, None, None]:
        return self._wait().__await__()

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        readable = loop.create_future()
        # Its own descriptor: a loop has one reader for each, and others may wait, too.
        fd = os.dup(self.fileno())

        def tell() -> None:
            if not readable.done():
                readable.set_result(None)

        try:
            loop.add_reader(fd, tell)
            try:
                await readable
            finally:
                loop.remove_reader(fd)
            self._take()
        finally:
            os.close(fd)

    def _take(self) -> bool:
        """Reads what the readable descriptor tells, once: it stays readable, at its end."""
        with self._lock:
            if self._told is None:
                self._told = os.read(self.fileno(), 4) != b""
        if not self._told:
            raise error(errno.EIO, "the volume has ended before the changes were durable")
        return True

    def close(self) -> None:
        """Closes the descriptor; nothing is told any more."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
