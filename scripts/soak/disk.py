"""A disk that can lose its power: an NBD server on a Unix socket with a volatile write cache.

It keeps what was flushed apart from what was only written. A cut makes the image that a disk might
hold after the power has gone at some moment: everything that was flushed (or written with FUA), and
of each sector of 512 bytes written since, either what was written or what was there before. The
moment is now, or when one of the next flushes is asked for and not yet done: then the cache holds the
most. Several cuts can be made while the disk goes on.

    python3 disk.py IMAGE SOCKET

IMAGE is what is durable. Commands come as lines on standard input, each answered by one line:
`cut PATH SEED`, `quit`. It ends when its standard input does. The protocol is that of
https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md (fixed newstyle handshake, simple
replies, one connection at a time that may be made anew).
"""

import os
import random
import socket
import struct
import sys
import threading

SECTOR = 512
OPT_EXPORT_NAME, OPT_ABORT, OPT_LIST, OPT_INFO, OPT_GO = 1, 2, 3, 6, 7
REP_ACK, REP_INFO, REP_ERR_UNSUP = 1, 3, (1 << 31) | 1
CMD_READ, CMD_WRITE, CMD_DISC, CMD_FLUSH, CMD_TRIM, CMD_WRITE_ZEROES = 0, 1, 2, 3, 4, 6
FLAG_FUA = 1
# HAS_FLAGS, SEND_FLUSH, SEND_FUA, SEND_TRIM, SEND_WRITE_ZEROES.
EXPORT_FLAGS = 1 | 4 | 8 | 32 | 64
EINVAL = 22


class Disk:
    """The durable image, a copy with every write, and the writes that only the copy has."""

    def __init__(self, path):
        self.path = path
        self.durable = os.open(path, os.O_RDWR)
        self.size = os.fstat(self.durable).st_size
        self.current_path = path + ".current"
        copy(path, self.current_path)
        self.current = os.open(self.current_path, os.O_RDWR)
        self.pending = []
        self.lock = threading.Lock()
        # A cut that waits for a flush: how many to let pass, where to, and the writes it found.
        self.flushes_left = None
        self.cut_path = None
        self.cut_pending = None
        self.was_cut = threading.Event()

    def read(self, offset, length):
        with self.lock:
            return os.pread(self.current, length, offset)

    def write(self, offset, data, fua):
        with self.lock:
            os.pwrite(self.current, data, offset)
            self.pending.append((offset, data, fua))

    def flush(self):
        with self.lock:
            if self.flushes_left is not None:
                if self.flushes_left == 0:
                    self.cut_now()
                else:
                    self.flushes_left -= 1
            for offset, data, _ in self.pending:
                os.pwrite(self.durable, data, offset)
            self.pending.clear()

    def cut_now(self):
        """Keeps what is durable and what is not; the lock is held."""
        copy(self.path, self.cut_path)
        self.cut_pending = list(self.pending)
        self.flushes_left = None
        self.was_cut.set()

    def cut(self, path, seed):
        """Writes the image of a power cut to `path`; the disk goes on."""
        rng = random.Random(seed)
        self.was_cut.clear()
        with self.lock:
            self.cut_path = path
            self.flushes_left = rng.choice([0, 0, 1, 2, 5])
        self.was_cut.wait(rng.choice([0, 1, 1, 3]))
        with self.lock:
            if not self.was_cut.is_set():
                self.cut_now()
        pending = self.cut_pending
        # Most of it, a half, little, or whole writes only.
        kept, torn = rng.choice([(0.9, True), (0.5, True), (0.1, True), (0.5, False), (0.8, False)])
        survived = 0
        with open(path, "r+b", buffering=0) as image:
            for offset, data, fua in pending:
                if fua or (not torn and rng.random() < kept):
                    ranges = [(0, len(data))]
                elif torn:
                    ranges = [(s, s + SECTOR) for s in range(0, len(data), SECTOR) if rng.random() < kept]
                else:
                    ranges = []
                survived += bool(ranges)
                for start, end in ranges:
                    image.seek(offset + start)
                    image.write(data[start:end])
        return f"{len(pending)} writes in the cache, {survived} of them survive at least in part"


def copy(source, target):
    """Copies an image without its holes."""
    if os.spawnlp(os.P_WAIT, "cp", "cp", "--sparse=always", source, target) != 0:
        raise OSError(f"cannot copy {source} to {target}")


def receive(sock, length):
    data = bytearray()
    while len(data) < length:
        more = sock.recv(min(length - len(data), 1 << 20))
        if not more:
            raise ConnectionError("closed")
        data += more
    return bytes(data)


def negotiate(sock, disk):
    """The handshake, up to the phase of transmission. False: the client went away again."""
    sock.sendall(b"NBDMAGIC" + b"IHAVEOPT" + struct.pack(">H", 3))
    (client_flags,) = struct.unpack(">I", receive(sock, 4))
    while True:
        magic, option, length = struct.unpack(">8sII", receive(sock, 16))
        if magic != b"IHAVEOPT":
            raise ConnectionError("bad option magic")
        receive(sock, length)

        def reply(kind, data=b"", option=option):
            sock.sendall(struct.pack(">QIII", 0x3E889045565A9, option, kind, len(data)) + data)

        if option == OPT_EXPORT_NAME:
            padding = b"" if client_flags & 2 else bytes(124)
            sock.sendall(struct.pack(">QH", disk.size, EXPORT_FLAGS) + padding)
            return True
        if option in (OPT_INFO, OPT_GO):
            reply(REP_INFO, struct.pack(">HQH", 0, disk.size, EXPORT_FLAGS))
            reply(REP_ACK)
            if option == OPT_GO:
                return True
        elif option == OPT_ABORT:
            reply(REP_ACK)
            return False
        else:
            reply(REP_ERR_UNSUP)


def transmit(sock, disk):
    while True:
        magic, flags, kind, cookie, offset, length = struct.unpack(">IHHQQI", receive(sock, 28))
        if magic != 0x25609513:
            raise ConnectionError("bad request magic")
        error, answer = 0, b""
        data = receive(sock, length) if kind == CMD_WRITE else None
        if kind == CMD_DISC:
            return
        if kind == CMD_FLUSH:
            disk.flush()
        elif offset + length > disk.size:
            error = EINVAL
        elif kind == CMD_READ:
            answer = disk.read(offset, length)
        elif kind in (CMD_WRITE, CMD_TRIM, CMD_WRITE_ZEROES):
            disk.write(offset, bytes(length) if data is None else data, bool(flags & FLAG_FUA))
        else:
            error = EINVAL
        sock.sendall(struct.pack(">IIQ", 0x67446698, error, cookie) + answer)


def serve(listener, disk):
    def talk(sock):
        try:
            if negotiate(sock, disk):
                transmit(sock, disk)
        except (ConnectionError, OSError):
            pass
        finally:
            sock.close()

    while True:
        sock, _ = listener.accept()
        threading.Thread(target=talk, args=(sock,), daemon=True).start()


def main():
    image, path = sys.argv[1:]
    disk = Disk(image)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    threading.Thread(target=serve, args=(listener, disk), daemon=True).start()
    print("ready", flush=True)
    for line in sys.stdin:
        words = line.split()
        if words[0] == "quit":
            break
        print(disk.cut(words[1], int(words[2])), flush=True)
    os.unlink(disk.current_path)


if __name__ == "__main__":
    main()
