"""Files, names and trees of chance to put on a volume, and the digests of those that were read back."""

import hashlib
import os

import appledouble

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 -_.()+"
# The letters and signs of Mac OS Roman beyond ASCII.
SIGNS = "•¥£¢§®™∞±≤≥∂∑∏π∫Ωƒ≈√∆«»…¿¡—–“”‘’÷◊"
MAC_ROMAN = "".join(c for c in bytes(range(0x80, 0x100)).decode("mac_roman") if c.isalpha() or c in SIGNS)


def name(rng, length, mac_roman, used):
    """A name of `length` characters that differs from those in `used` in more than case."""
    letters = LETTERS + (MAC_ROMAN if mac_roman else "")
    while True:
        made = "".join(rng.choice(letters) for _ in range(length)).strip()
        if made.startswith("."):
            made = "x" + made[1:]
        made = made.ljust(length, "z")
        if made.lower() not in used:
            used.add(made.lower())
            return made


def write_file(rng, directory, file_name, size, resource_size=0):
    """A file, and its AppleDouble file if it has a resource fork."""
    with open(f"{directory}/{file_name}", "wb") as file:
        file.write(rng.randbytes(size))
    if resource_size:
        with open(f"{directory}/._{file_name}", "wb") as file:
            file.write(appledouble.build(rng.randbytes(resource_size), rng))


def write_tree(rng, top, files, max_bytes, mac_roman=False, resources=0.3):
    """A tree with data and resource forks under `top`, up to three folders deep."""
    os.makedirs(top, exist_ok=True)
    folders, used = [top], {}
    for number in range(files):
        if rng.random() < 0.25:
            parent = rng.choice(folders)
            if parent[len(top) :].count("/") < 3:
                tail = name(rng, rng.randint(1, 12), mac_roman, used.setdefault(parent, set()))
                folder = f"{parent}/F{number} {tail}"
                os.mkdir(folder)
                folders.append(folder)
        parent = rng.choice(folders)
        tail = name(rng, rng.randint(1, 20), mac_roman, used.setdefault(parent, set()))
        size = rng.choice([0, 1, 511, 512, 513, 4096, rng.randint(0, max_bytes), rng.randint(0, max_bytes)])
        resource_size = rng.randint(1, max_bytes) if rng.random() < resources else 0
        write_file(rng, parent, f"{number} {tail}", min(size, max_bytes), resource_size)
    return top


def digests(top):
    """What is under `top`: the digest of each data fork, "folder" for each folder."""
    found = {}
    for parent, folders, files in os.walk(top):
        for folder in folders:
            found[os.path.relpath(f"{parent}/{folder}", top)] = "folder"
        for file_name in files:
            if not file_name.startswith("._"):
                with open(f"{parent}/{file_name}", "rb") as file:
                    found[os.path.relpath(f"{parent}/{file_name}", top)] = hashlib.sha1(file.read()).hexdigest()
    return found


def difference(before, after):
    """The paths that differ, the first four with what they were and are."""
    paths = sorted(path for path in set(before) | set(after) if before.get(path) != after.get(path))
    shown = "; ".join(f"{path!r} {before.get(path, '-')[:8]} {after.get(path, '-')[:8]}" for path in paths[:4])
    return f"{len(paths)} of {len(after)}: {shown}"
