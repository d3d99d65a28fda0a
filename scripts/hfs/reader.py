"""A reader of HFS and MFS that shares nothing with weft's: all files of a bare volume, with both forks.

It reads a sound volume in the plainest way, without the indexes of the trees, and holds all in memory."""

import struct
from typing import NamedTuple

SECTOR = 512
MDB_AT = 1024
EXTENTS_FILE, CATALOG_FILE = 3, 4
DATA, RESOURCE = 0, 0xFF
ROOT = 2
DEPTH_MAX = 200


class Contents(NamedTuple):
    files: dict  # by path, as bytes with a colon before each name: data fork, resource fork, type with creator
    folders: list  # paths
    unread: list  # names, with the reason


def be16(raw, offset):
    return struct.unpack_from(">H", raw, offset)[0]


def be32(raw, offset):
    return struct.unpack_from(">I", raw, offset)[0]


def read(path, kind):
    with open(path, "rb") as file:
        return Hfs(file).contents() if kind == "hfs" else read_mfs(file)


def read_at(file, offset, length):
    """What lies behind the end of a cut image is zeroes."""
    file.seek(offset)
    return file.read(length).ljust(length, b"\0")


def extents_of(raw, offset):
    """An extent record: three times a first block and a count."""
    return [struct.unpack_from(">HH", raw, offset + 4 * number) for number in range(3)]


def leaf_records(tree):
    """The records of all leaves of a B-tree, along their links."""
    number, seen = be32(tree, 14 + 10), set()
    while number:
        if number in seen:
            raise ValueError("the leaves are linked in a ring")
        seen.add(number)
        node = tree[number * SECTOR : (number + 1) * SECTOR]
        if len(node) < SECTOR or node[8] != 0xFF:
            raise ValueError(f"no leaf at node {number}")
        for index in range(be16(node, 10)):
            yield node[be16(node, 510 - 2 * index) : be16(node, 508 - 2 * index)]
        number = be32(node, 0)


class Hfs:
    def __init__(self, file):
        self.file = file
        mdb = read_at(file, MDB_AT, SECTOR)
        self.block_bytes = be32(mdb, 20)
        self.start = be16(mdb, 28) * SECTOR
        # What a file has beyond its first three extents, by file, fork and first block.
        self.more_extents = {}
        extents_tree = self.fork(be32(mdb, 130), extents_of(mdb, 134), EXTENTS_FILE, DATA)
        for record in leaf_records(extents_tree):
            if record[0] == 7:
                self.more_extents[be32(record, 2), record[1], be16(record, 6)] = extents_of(record, 8)
        self.catalog = self.fork(be32(mdb, 146), extents_of(mdb, 150), CATALOG_FILE, DATA)

    def fork(self, length, extents, number, which):
        parts, blocks, needed = [], 0, -(-length // self.block_bytes)
        while blocks < needed:
            for first, count in extents:
                count = min(count, needed - blocks)
                if count:
                    parts.append(read_at(self.file, self.start + first * self.block_bytes, count * self.block_bytes))
                    blocks += count
            if blocks < needed:
                extents = self.more_extents.get((number, which, blocks))
                if extents is None or extents[0][1] == 0:
                    raise ValueError(f"file {number}, fork {which:#x}: no extent for block {blocks} of {needed}")
        return b"".join(parts)[:length]

    def contents(self):
        self.folders, records = {1: (0, b"")}, []
        for record in leaf_records(self.catalog):
            key_length = record[0]
            if key_length == 0:
                continue
            parent, name = be32(record, 2), record[7 : 7 + record[6]]
            data = record[(key_length + 2) & ~1 :]
            if data[0] == 1:
                self.folders[be32(data, 6)] = (parent, name)
            elif data[0] == 2:
                records.append((parent, name, data))
        files, unread = {}, []
        for parent, name, data in records:
            try:
                files[self.path(parent) + b":" + name] = self.file_of(data)
            except (ValueError, KeyError, struct.error) as error:
                unread.append((name, repr(error)))
        return Contents(files, [self.path(folder) for folder in self.folders if folder > ROOT], unread)

    def file_of(self, data):
        number = be32(data, 20)
        data_fork = self.fork(be32(data, 26), extents_of(data, 74), number, DATA)
        resource_fork = self.fork(be32(data, 36), extents_of(data, 86), number, RESOURCE)
        return data_fork, resource_fork, data[4:12]

    def path(self, folder, depth=0):
        if folder == ROOT:
            return b""
        if depth > DEPTH_MAX:
            raise ValueError("the folders are nested in a ring")
        parent, name = self.folders[folder]
        return self.path(parent, depth + 1) + b":" + name


def read_mfs(file):
    mdb = read_at(file, MDB_AT, 2 * SECTOR)
    directory_start, directory_blocks, blocks = be16(mdb, 14), be16(mdb, 16), be16(mdb, 18)
    block_bytes, start = be32(mdb, 20), be16(mdb, 28) * SECTOR
    block_map = read_at(file, MDB_AT + 64, (blocks * 12 + 7) // 8 + 2)

    def next_of(block):
        """The map has 12 bits for each block; the first has the number 2."""
        offset, odd = divmod((block - 2) * 3, 2)
        pair = be16(block_map, offset)
        return pair & 0xFFF if odd else pair >> 4

    def fork(block, length):
        parts, got = [], 0
        while got < length:
            if block < 2 or block >= blocks + 2 or len(parts) > blocks:
                raise ValueError(f"the chain breaks at block {block}")
            parts.append(read_at(file, start + (block - 2) * block_bytes, block_bytes))
            got += block_bytes
            block = next_of(block)
        return b"".join(parts)[:length]

    files, unread = {}, []
    for number in range(directory_blocks):
        entries, at = read_at(file, (directory_start + number) * SECTOR, SECTOR), 0
        while at + 51 <= SECTOR and entries[at] & 0x80:
            name = entries[at + 51 : at + 51 + entries[at + 50]]
            try:
                data_fork = fork(be16(entries, at + 22), be32(entries, at + 24))
                resource_fork = fork(be16(entries, at + 32), be32(entries, at + 34))
                files[b":" + name] = data_fork, resource_fork, entries[at + 2 : at + 10]
            except (ValueError, struct.error) as error:
                unread.append((name, repr(error)))
            at = (at + 51 + len(name) + 1) & ~1
    return Contents(files, [], unread)
