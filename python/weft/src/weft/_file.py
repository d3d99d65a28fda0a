"""Files of a volume as Python's own files."""

import io


class RawFile(io.RawIOBase):
    """An open file without a buffer; Volume.open() puts one around it."""

    def __init__(self, file, name, mode, readable, writable, appending):
        super().__init__()
        self._file = file
        self.name = name
        self.mode = mode
        self._readable = readable
        self._writable = writable
        self._appending = appending
        self._at = 0

    def readable(self):
        return self._readable

    def writable(self):
        return self._writable

    def seekable(self):
        return True

    def seek(self, offset, whence=io.SEEK_SET):
        self._checkClosed()
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at}
        if whence == io.SEEK_END:
            at = self._file.size() + offset
        elif whence in start:
            at = start[whence] + offset
        else:
            raise ValueError(f"invalid whence: {whence}")
        if at < 0:
            raise ValueError(f"negative seek position {at}")
        self._at = at
        return at

    def tell(self):
        self._checkClosed()
        return self._at

    def readinto(self, buffer):
        self._checkClosed()
        if not self._readable:
            raise io.UnsupportedOperation("not readable")
        view = memoryview(buffer).cast("B")
        data = self._file.read(self._at, len(view))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def write(self, data):
        self._checkClosed()
        if not self._writable:
            raise io.UnsupportedOperation("not writable")
        if self._appending:
            self._at = self._file.size()
        written = self._file.write(self._at, bytes(data))
        self._at += written
        return written

    def truncate(self, size=None):
        self._checkClosed()
        if not self._writable:
            raise io.UnsupportedOperation("not writable")
        size = self._at if size is None else size
        self._file.truncate(size)
        return size

    def sync(self):
        """Makes the file durable, and no other."""
        self._checkClosed()
        self._file.sync()

    def close(self):
        if not self.closed:
            try:
                super().close()
            finally:
                self._file.close()


def opened(volume, path, mode, buffering, encoding, errors, newline):
    """Opens a file of a native volume as open() does one of the system."""
    kinds = set(mode)
    if kinds - set("rwaxb+t") or len(mode) != len(kinds) or len(kinds & set("rwax")) != 1:
        raise ValueError(f"invalid mode: {mode!r}")
    binary = "b" in kinds
    if binary and "t" in kinds:
        raise ValueError("can't have text and binary mode at once")
    if binary and (encoding or errors or newline):
        raise ValueError("binary mode takes neither encoding, errors nor newline")
    if buffering == 0 and not binary:
        raise ValueError("can't have unbuffered text I/O")
    plus = "+" in kinds
    reads = "r" in kinds or plus
    writes = "r" not in kinds or plus
    file = volume.open(path, mode)
    raw = RawFile(file, path, mode, reads, writes, "a" in kinds)
    if "a" in kinds:
        raw.seek(0, io.SEEK_END)
    if buffering == 0:
        return raw
    size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
    if plus:
        buffered = io.BufferedRandom(raw, size)
    else:
        buffered = (io.BufferedWriter if writes else io.BufferedReader)(raw, size)
    if binary:
        return buffered
    text = io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering=buffering == 1)
    text.mode = mode
    return text
