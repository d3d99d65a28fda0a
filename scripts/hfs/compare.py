"""Exports of weft compared byte for byte with what two other readers see: reader.py, and hcopy of hfsutils."""

import os
import struct

import appledouble
from commands import ENV, run, text

MACBINARY_HEADER_BYTES = 128
# What has a meaning for hcopy within a name.
HCOPY_SPECIAL = b"*?[]{}\\"


class Differences:
    """Findings are what weft has done wrong; notes are what another reader could not do."""

    def __init__(self):
        self.findings = []
        self.notes = []
        self.compared = 0

    def __len__(self):
        return len(self.findings) + len(self.notes)


def exported_name(raw):
    """The name weft export gives to a name of a Mac: no control characters, a colon for a slash."""
    control = {0x7F: "␡", 0x2F: ":", **{code: chr(0x2400 + code) for code in range(0x20)}}
    return "".join(control.get(code) or bytes([code]).decode("mac_roman") for code in raw)


def exported_path(path):
    return "/".join(exported_name(name) for name in path[1:].split(b":"))


def appledouble_path(path):
    folder, name = os.path.split(path)
    return os.path.join(folder, "._" + name)


def read_file(path):
    with open(path, "rb") as file:
        return file.read()


def exported_paths(top):
    """All paths under `top`, folders with a slash at their end."""
    found = set()
    for parent, folders, files in os.walk(top):
        found |= {os.path.relpath(f"{parent}/{name}", top) for name in files}
        found |= {os.path.relpath(f"{parent}/{name}", top) + "/" for name in folders}
    return found


def first_difference(one, other):
    return next((offset for offset, pair in enumerate(zip(one, other)) if pair[0] != pair[1]), "the end")


def with_reader(contents, out):
    """An export against what the reader of this campaign has read."""
    differences = Differences()
    differences.notes = [f"the reader cannot read {name!r}: {reason}" for name, reason in contents.unread]
    findings = differences.findings
    there, known = exported_paths(out), set()
    for raw_path, file in contents.files.items():
        path = exported_path(raw_path)
        known |= {path, appledouble_path(path)}
        if path not in there:
            findings.append(f"{path!r}: not exported")
            continue
        findings += file_differences(path, file, out, appledouble_path(path) in there)
    for raw_path in contents.folders:
        path = exported_path(raw_path)
        known |= {path + "/", appledouble_path(path)}
        if path + "/" not in there:
            findings.append(f"{path!r}: folder not exported")
    findings += [f"{path!r}: exported, and the reader does not know it" for path in sorted(there - known)]
    differences.compared = len(contents.files)
    return differences


def file_differences(path, file, out, has_appledouble):
    data, resource, kind = file
    found = []
    exported = read_file(f"{out}/{path}")
    if exported != data:
        at = first_difference(exported, data)
        found.append(f"{path!r}: data fork differs ({len(exported)} bytes, {len(data)} expected, first at {at})")
    exported_resource, exported_kind = b"", None
    if has_appledouble:
        exported_resource, exported_kind = appledouble.parse(read_file(f"{out}/{appledouble_path(path)}"))
    if exported_resource != resource:
        found.append(f"{path!r}: resource fork differs ({len(exported_resource)} bytes, {len(resource)} expected)")
    if exported_kind not in (None, kind):
        found.append(f"{path!r}: type and creator {exported_kind} are not {kind}")
    return found


def with_hcopy(image, paths, out, home):
    """An export against the MacBinary files hcopy makes of the same files."""
    differences = Differences()
    # hmount keeps what it has mounted in a file in the home directory.
    env = dict(ENV, HOME=home)
    mounted = run(["hmount", image], env=env, seconds=60)
    if mounted.returncode != 0:
        # It refuses volumes of less than 800K.
        differences.notes.append(f"hmount: {text(mounted.stderr)[:200]}")
        return differences
    for raw_path in paths:
        escaped = b"".join(b"\\" + bytes([c]) if c in HCOPY_SPECIAL else bytes([c]) for c in raw_path)
        copied = run(["hcopy", "-m", escaped, "-"], env=env, seconds=60)
        if copied.returncode != 0 or len(copied.stdout) < MACBINARY_HEADER_BYTES:
            differences.notes.append(f"hcopy {raw_path!r}: {text(copied.stderr)[:120]}")
            continue
        differences.compared += 1
        differences.findings += macbinary_differences(exported_path(raw_path), copied.stdout, out)
    run(["humount"], env=env, seconds=60)
    return differences


def macbinary_differences(path, macbinary, out):
    data_length, resource_length = struct.unpack_from(">II", macbinary, 83)
    data = macbinary[MACBINARY_HEADER_BYTES:][:data_length]
    # Each fork is padded to the length of the header.
    padded = -(-data_length // MACBINARY_HEADER_BYTES) * MACBINARY_HEADER_BYTES
    resource = macbinary[MACBINARY_HEADER_BYTES + padded :][:resource_length]
    try:
        exported = read_file(f"{out}/{path}")
    except OSError as error:
        return [f"{path!r}: {error}"]
    beside = f"{out}/{appledouble_path(path)}"
    exported_resource = appledouble.parse(read_file(beside))[0] if os.path.exists(beside) else b""
    found = []
    if exported != data:
        found.append(f"{path!r}: data fork is not hcopy's ({len(exported)} bytes, {len(data)})")
    if exported_resource != resource:
        found.append(f"{path!r}: resource fork is not hcopy's ({len(exported_resource)} bytes, {len(resource)})")
    return found
