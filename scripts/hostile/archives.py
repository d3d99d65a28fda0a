"""Archives that mean harm: names and links that lead out of them, lengths that lie, and bombs."""

import functools
import gzip
import io
import lzma
import os
import stat
import warnings
import zipfile

from tools import LONG_AGO

# Those whose member `fine` must be readable in spite of the others.
WITH_FINE_MEMBER = ("names.tar", "links.tar", "twice.tar", "setuid.tar", "evil.zip", "nested.tar", "bomb.tgz")
# How often the tar in nested.tar is in another.
NESTED = 12


def checksummed(header):
    """A header of a tar with its checksum."""
    header = header[:148] + b" " * 8 + header[156:]
    return header[:148] + b"%06o\0 " % sum(header) + header[156:]


def member(name, data=b"", kind=b"0", link=b"", mode=0o644, size=None):
    """A member of a tar, as no program would make it."""
    size = b"%011o\0" % len(data) if size is None else size
    header = name[:100].ljust(100, b"\0") + b"%07o\0" % mode + b"0000000\0" * 2 + size + b"%011o\0" % LONG_AGO
    header += b" " * 8 + kind + link[:100].ljust(100, b"\0") + b"ustar\x0000" + b"root".ljust(32, b"\0") * 2
    header += b"0000001\0" + b"0000005\0"
    return checksummed(header.ljust(512, b"\0")) + data + b"\0" * (-len(data) % 512)


def pax(**records):
    """Extended headers of the next member; `__` stands for the dot in a key."""
    text = b""
    for name, value in records.items():
        record = b" " + name.replace("__", ".").encode() + b"=" + value + b"\n"
        # The length of a record counts its own digits.
        length = len(record) + len(str(len(record)))
        text += b"%d" % (length + (len(str(length)) > len(str(len(record))))) + record
    return member(b"pax", text, b"x")


FINE = member(b"fine", b"fine words")


@functools.lru_cache
def evil_archives(outside):
    """All by name; `outside` is a directory that they try to reach."""
    return {
        "names.tar": with_names(outside.encode()),
        "links.tar": with_links(outside.encode()),
        "twice.tar": with_names_twice(),
        "setuid.tar": FINE
        + member(b"su", b"#!/bin/sh\nid -u\n", mode=0o7755)
        + member(b"sd/", kind=b"5", mode=0o7777),
        "long.tar": with_long_names(),
        "pax.tar": with_extended_headers(),
        "long-name.tar": FINE + member(b"L", kind=b"L", size=b"10000000000\0") + member(b"x"),
        "cut.tar": (FINE + member(b"x", b"words" * 999))[:1800],
        "noise.tar": FINE + os.urandom(9999),
        **with_sizes(),
        **zips(outside),
        **bombs(),
    }


def with_names(outside):
    names = [
        b"../x", b"../../outside/planted", outside + b"/planted", b"a/../../b", b"././c", b"", b".", b"..", b"/",
        b"a//b/", b"new\nline", b"\xff\xfe", b"x@upper", b"a|b", b".weftattributes", b".weft/networks", b"n" * 100,
        b"../" * 30,
    ]  # fmt: skip
    return FINE + b"".join(member(name, b"words") for name in names)


def with_links(outside):
    links = [
        (b"up", b"2", b"../../outside"), (b"root", b"2", outside), (b"hard", b"1", b"../../outside/victim"),
        (b"hard-abs", b"1", outside + b"/victim"), (b"self", b"1", b"self"), (b"h1", b"1", b"h2"), (b"h2", b"1", b"h1"),
        (b"loop", b"2", b"loop"), (b"null", b"3", b""), (b"disk", b"4", b""), (b"pipe", b"6", b""), (b"odd", b"Z", b""),
    ]  # fmt: skip
    members = b"".join(member(name, b"", kind, link, 0o6777) for name, kind, link in links)
    return FINE + members + member(b"up/planted", b"words") + member(b"root/planted", b"words")


def with_names_twice():
    """A file that is also a directory, and the other way round."""
    versions = b"".join(member(b"fine", b"%d words" % number) for number in range(9))
    below = member(b"fine/below", b"words") + member(b"d", b"words") + member(b"d/e", b"words")
    return versions + below + member(b"d/", kind=b"5") + FINE


def with_long_names():
    members = pax(path=b"p" * 5000) + member(b"x") + pax(path=b"d/" * 2000 + b"x") + member(b"x")
    return FINE + members + pax(path=b"nul\0nul", linkpath=b"q" * 9000) + member(b"x", kind=b"2")


def with_extended_headers():
    lies = pax(SCHILY__xattr__user__weft__network=b"none", uid=b"-1", mtime=b"9" * 40)
    sparse = pax(
        GNU__sparse__major=b"1", GNU__sparse__minor=b"0", GNU__sparse__name=b"../s", GNU__sparse__realsize=b"9" * 18
    )
    members = pax(size=b"9" * 20) + member(b"x", b"words") + lies + member(b"y", b"words")
    return FINE + members + sparse + member(b"z", b"999999999\n" * 60)


def with_sizes():
    sizes = {
        "huge": b"\x80" + b"\0" * 3 + b"\x7f" + b"\xff" * 7,
        "negative": b"\xff" * 12,
        "nonsense": b"99x9;\xfe9999\0",
        "octal": b"77777777777\0",
    }
    return {f"{name}.tar": FINE + member(b"x", b"words", size=size) for name, size in sizes.items()}


def zips(outside):
    names = ["fine", "fine", "../x", outside + "/planted", "a/../../b", "d", "d/e", "n" * 4000, "new\nline"]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings():
        # Of names that are there already.
        warnings.simplefilter("ignore")
        for name in [*names, ".weftattributes"]:
            archive.writestr(name, "fine words" if name == "fine" else "words")
        archive.writestr("zeros", bytes(80 << 20))
        link = zipfile.ZipInfo("up")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, outside)
    whole = packed.getvalue()
    # Both lengths in the last entry of the directory at the end.
    lengths = whole.rindex(b"PK\1\2") + 20
    return {
        "evil.zip": whole,
        "lies.zip": whole[:lengths] + b"\xff" * 8 + whole[lengths + 8 :],
        "cut.zip": whole[: len(whole) // 2],
        "noise.zip": whole[:-22] + os.urandom(22),
    }


def bombs():
    bomb = gzip.compress(FINE + bytes(300 << 20))
    nested = FINE
    for _ in range(NESTED):
        nested = FINE + member(b"inner.tar", nested)
    return {
        "bomb.tgz": bomb,
        "cut.tgz": bomb[: len(bomb) // 2],
        "bombs.tgz": gzip.compress(bomb),
        "nested.tar": nested,
        "xz.txz": lzma.compress(FINE + bytes(64 << 20))[:-9],
    }
