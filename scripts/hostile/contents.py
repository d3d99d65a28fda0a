"""The content of the private files, and the files themselves with the links that lead to them."""

import base64
import binascii
import gzip
import io
import lzma
import os
import random
import tarfile
import zipfile

from names import KINDS, OWN_RULES
from tools import LONG_AGO, NETWORK, SECRET, USER, VARIANTS, attempt, try_all, write_file

# The families of content that links lead to, with the network of those links.
LINKED = {"text": "upper", "tgz": "~gzip"}


def tar(payload, inner=True):
    """A tar with a file for everybody, one for its owner, and a tar."""
    members = [("open", payload, 0o644), ("closed", payload, 0o600)]
    if inner:
        members.append(("inner.tar", tar(payload, inner=False), 0o600))
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content, mode in members:
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime = len(content), mode, LONG_AGO
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def zipped(payload):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        member = zipfile.ZipInfo("open", (2001, 9, 9, 1, 46, 40))
        member.external_attr = 0o100644 << 16
        archive.writestr(member, payload)
    return out.getvalue()


def contents(weft, seed):
    """For each family of content four: good and bad of one length, good and bad of two other lengths."""
    noise = random.Random(seed)
    lines = b"user,token\nroot,Zx81-abcd.q\n" + SECRET + b",1\n"
    short, long = lines * 3, lines * 7
    packers = {
        "utf16": lambda data: data.decode().encode("utf-16"),
        "base64": base64.b64encode,
        "hex": binascii.hexlify,
        "tar": tar,
        "tgz": lambda data: gzip.compress(tar(data), mtime=0),
        "zip": zipped,
        "xz": lzma.compress,
        "zstd": lambda data: weft("transform", "run", "zstd", data=data),
        "lz4": lambda data: weft("transform", "run", "lz4", data=data),
        "guard": lambda data: weft("transform", "run", "guard", data=data),
        "aead": lambda data: weft("transform", "run", "aead key=work", data=data),
    }
    families = {"text": [short, short.replace(b"token", b"other"), long, lines * 4 + b"x" * 9]}
    for name, pack in packers.items():
        good, other = pack(short), pack(long)
        families[name] = [good, noise.randbytes(len(good)), other, noise.randbytes(len(other) + 77)]
    return families


def plant(top, families, kinds):
    """The files of all kinds, links to them, and a directory of the user's."""
    for name in ("open", "shut", "own", "public", "links"):
        os.makedirs(f"{top}/{name}", exist_ok=True)
        os.chmod(f"{top}/{name}", 0o755)
    for kind in kinds:
        for family, variants in families.items():
            for variant, content in zip(VARIANTS, variants):
                base = f"{kind}-{family}-{variant}"
                plant_file(f"{top}/{KINDS[kind].directory}/{base}", KINDS[kind], content)
                if family in LINKED:
                    plant_links(top, KINDS[kind].directory, base, LINKED[family])
    for name, content in ((".weftattributes", OWN_RULES), ("witness", b"own words\n")):
        write_file(f"{top}/own/{name}", content)
        attempt(os.chown, f"{top}/own/{name}", USER, USER)
    attempt(os.chown, f"{top}/own", USER, USER)
    os.chmod(f"{top}/shut", 0o700)


def plant_file(path, kind, content):
    write_file(path, content)
    try_all([
        (os.chown, path, 0, kind.group),
        (os.chmod, path, kind.mode),
        (os.setxattr, path, "user.secret", content[:64]),
    ])  # fmt: skip
    if kind.acl and attempt(os.setxattr, path, "system.posix_acl_access", kind.acl)[0] == "error":
        os.chmod(path, 0)
    os.utime(path, (LONG_AGO, LONG_AGO))


def plant_links(top, directory, base, network):
    """Links of root's, by attribute and by rule; a link and a symbolic link of the user's."""
    text = f"weft link 1\nbase: ../{directory}/{base}\nnetwork: view: {network}\n"
    for name, owner in ((f"links/{base}", 0), (f"links/{base}.linked", 0), (f"own/l.{base}", USER)):
        path = f"{top}/{name}"
        write_file(path, text.encode())
        try_all([(os.chown, path, owner, owner), (os.chmod, path, 0o644), (os.setxattr, path, NETWORK, b"link")])
        os.utime(path, (LONG_AGO, LONG_AGO))
    attempt(os.symlink, f"../{directory}/{base}", f"{top}/own/s.{base}")
