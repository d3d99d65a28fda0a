"""AppleDouble files: the resource fork and the Finder information of a file, in a file of their own."""

import struct

MAGIC, VERSION = 0x00051607, 0x00020000
RESOURCE_FORK, FINDER_INFO = 2, 9
HEADER_BYTES, ENTRY_BYTES, FINDER_BYTES = 26, 12, 32


def build(resource, rng):
    """An AppleDouble file with a type, a creator and flags by chance."""
    finder = rng.choice([b"TEXT", b"APPL", b"STAK", b"????"]) + rng.choice([b"ttxt", b"WILD", b"ABCD"])
    finder += bytes([rng.choice([0, 1, 0x20]), 0])
    finder = finder.ljust(FINDER_BYTES, b"\0")
    start = HEADER_BYTES + 2 * ENTRY_BYTES
    header = struct.pack(">II16xH", MAGIC, VERSION, 2)
    header += struct.pack(">III", FINDER_INFO, start, FINDER_BYTES)
    header += struct.pack(">III", RESOURCE_FORK, start + FINDER_BYTES, len(resource))
    return header + finder + resource


def parse(raw):
    """The resource fork, and type and creator: None where the file has none."""
    if len(raw) < HEADER_BYTES or struct.unpack_from(">I", raw)[0] != MAGIC:
        # What could not be read is zeroes: as a resource fork it differs from any.
        return raw, None
    resource, kind = b"", None
    for number in range(struct.unpack_from(">H", raw, 24)[0]):
        entry, start, length = struct.unpack_from(">III", raw, HEADER_BYTES + ENTRY_BYTES * number)
        if entry == RESOURCE_FORK:
            resource = raw[start : start + length]
        if entry == FINDER_INFO:
            kind = raw[start : start + 8]
    return resource, kind
