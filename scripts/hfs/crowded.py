"""Volumes with much of something: depth, names, folders, fragments, moves, or all the space taken."""

import os
from functools import partial

import content

K, M = 1 << 10, 1 << 20
# What may meet a full volume, a name that is taken or one that HFS cannot have.
MAY_FAIL = (0, 1)


def deep(volume, depth, width):
    volume.make(30 * M)
    path = top = f"{volume.scratch}/deep"
    for level in range(depth):
        path += f"/{level}"
        os.makedirs(path)
        for number in range(width):
            volume.file(path, f"f{number}", 100 * number, 50 if number == 1 else 0)
    volume.put(top)


def many(volume, files, max_bytes, names="short", removed=0):
    """Many files in one folder, with short names or of 31 characters; some are removed again."""
    volume.make(max(30 * M, files * 2048))
    folder, used = volume.folder("Many"), set()
    for number in range(files):
        if names == "short":
            name = f"file {number}"
        else:
            name = content.name(volume.rng, 31, names == "mac", used)
        volume.file(folder, name, volume.rng.randint(0, max_bytes))
    volume.put(folder)
    if removed:
        names_made = sorted(os.listdir(folder))
        volume.rng.shuffle(names_made)
        volume.remove(*[f"/Many/{name}" for name in names_made[:removed]])


def alphabet(volume):
    """Every character a name can have, first, last, between and alone."""
    volume.make(5 * M)
    folder = volume.folder("A")
    characters = [chr(code) for code in range(33, 127) if chr(code) not in "/."]
    characters += bytes(range(128, 256)).decode("mac_roman")
    for character in characters:
        for name in (character, "a" + character, character + "b", character * 5):
            with open(f"{folder}/{name}", "wb") as file:
                file.write(name.encode())
    volume.put(folder, ok=MAY_FAIL)
    for character in characters[::4]:
        volume.weft("mkdir", volume.at(f"/d{character}x"), ok=MAY_FAIL)
    plain = f"{volume.scratch}/plain"
    with open(plain, "wb") as file:
        file.write(b"x")
    for name in ("Icon␍", "a:b", "␀␁␂", " lead", "trail "):
        volume.weft("put", plain, volume.at(f"/{name}"), ok=MAY_FAIL)


def folders(volume, count):
    volume.make(40 * M)
    top = f"{volume.scratch}/Fo"
    for number in range(count):
        path = f"{top}/{number % 37}/{number}"
        os.makedirs(path)
        volume.file(path, "one", 5)
    volume.put(top)
    for number in range(0, 37, 3):
        volume.remove(f"/Fo/{number}")
    volume.put(top, ok=MAY_FAIL)


def fragmented(volume, size, unit, rounds, resources=False):
    """Small files, every other one removed, and large files in what that leaves; several times."""
    volume.make(size)
    small = volume.folder("s")
    count = int(size * (0.8 if resources else 0.9)) // unit
    for number in range(count):
        volume.file(small, f"s{number}", unit)
    for turn in range(rounds):
        volume.put(small, ok=MAY_FAIL)
        volume.remove(*[f"/s/s{number}" for number in range(turn % 2, count, 2)], ok=MAY_FAIL)
        large = volume.folder(f"B{turn}")
        volume.file(large, f"Big{turn}", int(size * 0.3), int(size * 0.1) if resources else 0)
        volume.file(large, "mid", int(size * 0.05))
        volume.put(large, ok=MAY_FAIL)
        if turn + 1 < rounds:
            volume.remove(f"/B{turn}" if turn % 2 else f"/B{turn}/Big{turn}", ok=MAY_FAIL)


def full(volume, size, unit=None, resources=False, again=False):
    """More than fits: files of `unit` bytes, or one file, then tiny files and folders."""
    volume.make(size)
    folder = volume.folder("f")
    if unit is None:
        for part in (1, 0.97):
            volume.file(folder, "huge", int(size * part))
            volume.put(folder, ok=MAY_FAIL)
    else:
        for number in range(int(size * 1.1) // unit):
            volume.file(folder, f"f{number}", unit, unit if resources and number % 2 else 0)
        volume.put(folder, ok=MAY_FAIL)
    tiny = volume.folder("tiny")
    for number in range(3000 if size < 4 * M else 12_000):
        with open(f"{tiny}/{number:031d}", "wb") as file:
            file.write(b"x" if number % 2 else b"")
    volume.put(tiny, ok=MAY_FAIL)
    for number in range(20):
        volume.weft("mkdir", volume.at(f"/dir{number}"), ok=MAY_FAIL)
    if again:
        volume.remove("/f/f0", "/f/f7", ok=MAY_FAIL)
        volume.put(folder, ok=MAY_FAIL)
        volume.remove("/tiny", ok=MAY_FAIL)
        volume.put(folder, ok=MAY_FAIL)


def moves(volume, count):
    """Folders moved into each other and renamed, also in case alone; at the end the volume itself."""
    volume.make(20 * M)
    volume.put(volume.tree("T", 150, 2000, mac_roman=True))
    paths = ["/T"]
    for number in range(12):
        volume.weft("mkdir", volume.at(f"/D{number}"))
        paths.append(f"/D{number}")
    for number in range(count):
        old, parent = volume.rng.choice(paths[1:]), volume.rng.choice(paths)
        if (parent + "/").startswith(old + "/"):
            # Nothing moves into itself: another name instead.
            new = old[:-1] + ("X" if old[-1] == "x" else "x")
        else:
            new = f"{parent}/m{number} {content.name(volume.rng, volume.rng.randint(1, 20), False, set())}"
        if new in paths:
            continue
        if volume.weft("mv", volume.at(old), volume.at(new), ok=MAY_FAIL).returncode == 0:
            paths = [new + path[len(old) :] if (path + "/").startswith(old + "/") else path for path in paths]
    for old, new in (("T", "T"), ("T", "t"), ("t", "TT"), ("TT", "tT")):
        volume.weft("mv", volume.at(f"/{old}"), volume.at(f"/{new}"), ok=MAY_FAIL)
    volume.weft("hfs", "label", volume.image, "Nëw Näme", ok=(0, 1, 2))


VOLUMES = {
    "deep-60": partial(deep, depth=60, width=2),
    "deep-200": partial(deep, depth=200, width=1),
    "many-3000": partial(many, files=3000, max_bytes=600),
    "many-long-2500": partial(many, files=2500, max_bytes=300, names="long"),
    "many-mac-2500": partial(many, files=2500, max_bytes=300, names="mac"),
    "many-8000-empty": partial(many, files=8000, max_bytes=0),
    "many-del": partial(many, files=3000, max_bytes=200, names="long", removed=1500),
    "many-del-all": partial(many, files=2000, max_bytes=200, names="long", removed=2000),
    "alphabet": alphabet,
    "folders-1500": partial(folders, count=1500),
    "frag-1440": partial(fragmented, size=1440 * K, unit=512, rounds=2),
    "frag-5m": partial(fragmented, size=5 * M, unit=2048, rounds=3),
    "frag-20m": partial(fragmented, size=20 * M, unit=16384, rounds=3),
    "frag-10m-512": partial(fragmented, size=10 * M, unit=2048, rounds=1, resources=True),
    "frag-rsrc": partial(fragmented, size=4 * M, unit=1024, rounds=4, resources=True),
    "frag-800": partial(fragmented, size=800 * K, unit=700, rounds=5),
    "full-800": partial(full, size=800 * K, unit=512),
    "full-one": partial(full, size=10 * M),
    "full-rsrc": partial(full, size=4 * M, unit=3000, resources=True),
    "full-again": partial(full, size=2 * M, unit=5000, again=True),
    "full-30m": partial(full, size=30 * M, unit=100_000),
    "moves-150": partial(moves, count=150),
    "moves-300": partial(moves, count=300),
}
