"""File content that says in each sector of 512 bytes which file it belongs to.

A sector holds a magic number, its owner (64 bits, one for each file), the generation of the
content, its index in the file, and bytes that follow from these. So a sector that comes from
another file, from another place, or from an older version is told apart from one that is merely
missing.
"""

import hashlib
import struct

SECTOR = 512
MAGIC = b"weftsoak"
HEAD = struct.Struct("<8sQII")
ZEROES = bytes(SECTOR)


def owner_of(text):
    """The owner number of a file that is known by `text`."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def sector(owner, generation, index):
    head = HEAD.pack(MAGIC, owner, generation, index)
    return head + hashlib.shake_128(head).digest(SECTOR - HEAD.size)


def content(owner, generation, start, end):
    """The bytes from `start` to `end`."""
    first, last = start // SECTOR, -(-end // SECTOR)
    data = b"".join(sector(owner, generation, i) for i in range(first, last))
    return data[start - first * SECTOR : end - first * SECTOR]


def is_hole(index, holes):
    """Files with holes lack every `holes`th run of 8 sectors; 0 is a file without."""
    return holes > 0 and (index // 8) % holes == 0


def parts(size, holes):
    """The ranges of a file of `size` bytes that are written."""
    if holes == 0:
        if size:
            yield 0, size
        return
    run = 8 * SECTOR
    for start in range(0, size, run):
        if not is_hole(start // SECTOR, holes):
            yield start, min(start + run, size)


def expected_sector(state, index):
    """What `state` has at this sector, cut at the end of the file; b"" beyond it."""
    length = min(max(state["size"] - index * SECTOR, 0), SECTOR)
    if is_hole(index, state.get("holes", 0)):
        return ZEROES[:length]
    return sector(state["owner"], state["gen"], index)[:length]


def describe(data):
    """What a sector is, for a person."""
    if not data.strip(b"\0"):
        return "zeroes"
    if len(data) >= HEAD.size:
        magic, owner, generation, index = HEAD.unpack(data[: HEAD.size])
        if magic == MAGIC:
            whole = "" if data == sector(owner, generation, index)[: len(data)] else "damaged "
            return f"{whole}sector {index} of owner {owner:016x}, generation {generation}"
    return f"bytes of no file of the soak: {data[:24].hex()}"


def origin(data):
    """(owner, generation, index) of an undamaged sector, or None."""
    if len(data) < HEAD.size:
        return None
    magic, owner, generation, index = HEAD.unpack(data[: HEAD.size])
    if magic != MAGIC or data != sector(owner, generation, index)[: len(data)]:
        return None
    return owner, generation, index


def mismatch(data, state):
    """None if `data` is exactly what `state` says, else where it is not, in words."""
    if len(data) != state["size"]:
        return f"has {len(data)} bytes and not {state['size']}"
    for at in range(0, len(data), SECTOR):
        found = data[at : at + SECTOR]
        if found != expected_sector(state, at // SECTOR):
            return f"holds at offset {at} {describe(found)}, and not generation {state['gen']} of owner {state['owner']:016x}"
    return None


def foreign(data, states, zeroes_allowed):
    """None if each byte of `data` is as in one of `states` (a change between them was under way),
    else where it is not, in words. What was not written yet may be zero where that is allowed."""
    for at in range(0, len(data), SECTOR):
        found = data[at : at + SECTOR]
        versions = [expected_sector(state, at // SECTOR).ljust(SECTOR, b"\0") for state in states]
        if zeroes_allowed:
            versions.append(ZEROES)
        if any(version.startswith(found) for version in versions):
            continue
        if any(all(byte != version[i] for version in versions) for i, byte in enumerate(found)):
            return f"holds at offset {at} {describe(found)}, which no version of it had"
    return None
