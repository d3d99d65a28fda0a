"""Where the volumes of HFS and MFS are on a disk: bare, in a DiskCopy image, or in Apple's partitions."""

import os
import struct
from typing import NamedTuple

SECTOR = 512
SIGNATURE_AT = 1024
# Where the MDB has the signature of a volume of HFS Plus that is embedded: such a one is not read here.
EMBEDDED_AT = SIGNATURE_AT + 0x7C
DISK_COPY_BYTES = 84
SIGNATURES = {b"BD": "hfs", b"\xd2\xd7": "mfs"}
PARTITIONS_MAX = 100


class Place(NamedTuple):
    suffix: str  # what weft wants behind the name of the disk, to find the volume
    kind: str  # "hfs" or "mfs"
    offset: int
    length: int


def kind_at(head, offset):
    start = offset + SIGNATURE_AT
    kind = SIGNATURES.get(head[start : start + 2])
    embedded = head[offset + EMBEDDED_AT : offset + EMBEDDED_AT + 2] == b"H+"
    return None if kind == "hfs" and embedded else kind


def places(path):
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        head = file.read(64 * 1024)
    if kind := kind_at(head, 0):
        return [Place("", kind, 0, size)]
    if head[0x52:0x54] == b"\x01\x00" and (kind := kind_at(head, DISK_COPY_BYTES)):
        (length,) = struct.unpack_from(">I", head, 0x40)
        return [Place("", kind, DISK_COPY_BYTES, min(length, size - DISK_COPY_BYTES))]
    if head[SECTOR : SECTOR + 2] == b"PM":
        return in_partitions(path, head, size)
    return []


def in_partitions(path, head, size):
    found = []
    (count,) = struct.unpack_from(">I", head, SECTOR + 4)
    for number in range(1, min(count, PARTITIONS_MAX) + 1):
        entry = head[SECTOR * number : SECTOR * (number + 1)]
        if entry[:2] != b"PM":
            break
        if entry[48:80].split(b"\0")[0] not in (b"Apple_HFS", b"Apple_MFS"):
            continue
        first, blocks = struct.unpack_from(">II", entry, 8)
        offset = first * SECTOR
        with open(path, "rb") as file:
            file.seek(offset + SIGNATURE_AT)
            kind = SIGNATURES.get(file.read(2))
        if kind:
            found.append(Place(f"?partition={number}", kind, offset, min(blocks * SECTOR, size - offset)))
    if len(found) == 1:
        # weft finds the only one by itself.
        return [found[0]._replace(suffix="")]
    return found


def extract(path, place, target):
    """Copies a volume out of its disk, with holes where it has zeroes."""
    with open(path, "rb") as source, open(target, "wb") as file:
        source.seek(place.offset)
        left = place.length
        while left > 0:
            data = source.read(min(left, 1 << 20))
            if not data:
                break
            left -= len(data)
            if data.strip(b"\0"):
                file.write(data)
            else:
                file.seek(len(data), os.SEEK_CUR)
        file.truncate(file.tell())
