"""Volumes of all sizes and options, in partitions and DiskCopy images, with forks and with imported trees."""

import io
import os
import struct
import sysconfig
import tarfile
from functools import partial

K, M, G = 1 << 10, 1 << 20, 1 << 30
SECTOR = 512
PYTHON = os.path.dirname(os.__file__)
HEADERS = "/usr/include"


def filled(volume, size, options=(), files=20, max_bytes=3000):
    volume.make(size, *options)
    volume.put(volume.tree("Tree", files, max_bytes))


def in_partition(volume):
    volume.make(40 * M, "--apm")
    volume.put(volume.tree("Tree", 60, 20_000))
    with open(volume.image, "rb") as file:
        table = file.read(64 * K)
    for start in range(SECTOR, len(table), SECTOR):
        entry = table[start : start + SECTOR]
        if entry[:2] == b"PM" and entry[48:57] == b"Apple_HFS":
            first, count = struct.unpack(">II", entry[8:16])
            unwrap(volume, first * SECTOR, count * SECTOR)
            return
    raise RuntimeError("no partition of the type Apple_HFS")


def in_disk_copy(volume):
    volume.make("800K", "--diskcopy")
    volume.put(volume.tree("Tree", 20, 4000))
    unwrap(volume, 84, 800 * K)


def unwrap(volume, offset, length):
    """Apple's checker gets the bare volume; the image around it is kept beside, and judged by weft fsck."""
    with open(volume.image, "rb") as file:
        file.seek(offset)
        bare = file.read(length)
    wrapped = volume.image.removesuffix(".img") + ".wrapped"
    os.rename(volume.image, wrapped)
    volume.weft("fsck", wrapped)
    with open(volume.image, "wb") as file:
        file.write(bare)


def forks(volume, form):
    """Files with resource forks, once more by way of another form."""
    volume.make(60 * M)
    volume.put(volume.tree("Forks", 150, 60_000, resources=0.7, mac_roman=True))
    if form == "appledouble":
        return
    out = volume.folder("out")
    volume.weft("get", "-q", "-r", "--as", form, volume.at("/Forks"), out)
    volume.weft("mkdir", volume.at("/again"))
    volume.put(f"{out}/Forks", to="/again", options=["--as", form], ok=(0, 1))


def large_resources(volume):
    volume.make(80 * M)
    folder = volume.folder("B")
    for number in range(6):
        volume.file(folder, f"big{number}", volume.rng.randint(0, 3 * M), volume.rng.randint(M, 5 * M))
    volume.put(folder)
    volume.remove("/B/big1", "/B/big3")
    volume.put(folder)
    volume.remove("/B/big0")


def import_directory(volume):
    volume.make(120 * M)
    volume.weft("import", "-q", "--fit-names", f"{HEADERS}/linux", volume.at("/linux"), ok=(0, 1))


def import_tar(volume):
    volume.make(120 * M)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(f"{HEADERS}/{sysconfig.get_config_var('MULTIARCH')}", "inc")
        archive.add("/usr/share/doc/bash", "doc")
    volume.weft("import", "-q", "--fit-names", "-", volume.at("/tar"), input=packed.getvalue(), ok=(0, 1))


def import_python(volume):
    volume.make(120 * M)
    volume.weft("import", "-q", f"{PYTHON}/encodings", volume.at("/enc"), ok=(0, 1))
    volume.weft("import", "-q", "--fit-names", f"{PYTHON}/email", volume.at("/a/b"), ok=(0, 1))


def import_at_mkfs(volume):
    volume.make(60 * M, "--import", f"{PYTHON}/json", "--fit-names", "--force")


def import_own_export(volume):
    volume.make(120 * M)
    volume.put(volume.tree("T", 200, 9000, mac_roman=True))
    archive = volume.weft("export", "-q", volume.at("/"), "-").stdout
    volume.weft("import", "-q", "-", volume.at("/copy"), input=archive)
    volume.weft("cp", volume.at("/T"), volume.at("/T3"), ok=(0, 1))


SMALL_SIZES = [400 * K, 401 * K, 411_136, 720 * K, 800 * K, 819_712, 1440 * K, M + 512]
# Sizes around those at which the allocation block grows, and around the limits of numbers.
LARGE_SIZES = [
    3 * M + 1536, 5 * M, 10 * M - 512, 20 * M, 32 * M - 512, 32 * M, 32 * M + 512, 32 * M + 65536, 64 * M,
    99 * M + 512 * 7, 250 * M, 511 * M, G, 2 * G - 512, 2 * G, 2 * G + 512, 4 * G - 512, 4 * G, 7 * G + 512 * 12345,
    20 * G,
]  # fmt: skip
OPTIONS = [
    (10 * M, ["--block-size", 512]),
    (10 * M, ["--block-size", 1536]),
    (40 * M, ["--block-size", 5120]),
    (100 * M, ["--block-size", 65536]),
    (500 * M, ["--block-size", 262_144]),
    (20 * M, ["--clump", "64K"]),
    (20 * M, ["--clump", "512"]),
    (20 * M, ["--catalog-size", "4M"]),
    (20 * M, ["--catalog-size", "8K", "--extents-size", "8K"]),
    (20 * M, ["--extents-size", "3M", "--clump", "32K"]),
    (64 * M, ["--block-size", 4096, "--clump", "1M", "--catalog-size", "100K", "--extents-size", "20K"]),
    (30 * M, ["--label", "Ünïcödé ƒ∂ß •™ Ωπ"]),
    (30 * M, ["--label", "abcdefghijklmnopqrstuvwxyz1"]),
    (30 * M, ["--label", "x"]),
    (12 * G, ["--block-size", 1 * M]),
    (3 * G, ["--block-size", 50_176, "--clump", "501760"]),
]
FORMS = ["appledouble", "macbinary", "applesingle", "binhex", "basilisk", "auto", "xattr"]

VOLUMES = {
    **{f"size-{size}": partial(filled, size=size) for size in SMALL_SIZES},
    **{f"size-{size}": partial(filled, size=size, files=60, max_bytes=20_000) for size in LARGE_SIZES},
    **{
        f"opt-{number}": partial(filled, size=size, options=options, files=80, max_bytes=30_000)
        for number, (size, options) in enumerate(OPTIONS)
    },
    "wrap-apm": in_partition,
    "wrap-dc42": in_disk_copy,
    **{f"forks-{form}": partial(forks, form=form) for form in FORMS},
    "big-rsrc": large_resources,
    "import-dir": import_directory,
    "import-tar": import_tar,
    "import-py": import_python,
    "import-mkfs": import_at_mkfs,
    "import-back": import_own_export,
}
