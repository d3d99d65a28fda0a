"""Volumes that are mounted: written to by a churn and by the tools of a shell, unmounted or killed."""

import os
import subprocess
import time
from functools import partial

import content
from commands import run

K, M, G = 1 << 10, 1 << 20, 1 << 30
CHURN_SECONDS = 4
SHELL = """
cd "$1" && cp -r /usr/include/linux . 2>/dev/null
rm -rf linux/netfilter*
tar cf a.tar linux; mkdir x && tar xf a.tar -C x
mv x/linux y; rm -r linux
for i in 1 2 3 4 5 6 7 8 9; do mkdir -p d/$i/e; cp y/a*.h d/$i/e; done
find d -name "a*" -exec mv {} {}.r \\;
rm a.tar
cat y/*.h > all; split -b 3000 all part.; rm part.a[a-m]; cp all all2
"""


def options_of(forks, order):
    return ["--forks", forks] + (["--order", order] if order else [])


def end_churn(volume, churn):
    """Ends the churn if it goes on; what it said is a note."""
    churn.kill()
    churn.wait()
    with open(f"{volume.scratch}/churn.err", errors="replace") as file:
        messages = file.read().strip()
    if messages:
        volume.report.note(f"{volume.name}: {messages[-200:]}")


def unmounted(volume, size, forks, order):
    """A churn on a mount; after the unmount, the volume must hold what the mount showed."""
    volume.make(size)
    if volume.rng.random() < 0.5:
        volume.put(volume.tree("Start", 60, 9000))
    if not volume.mount(*options_of(forks, order)):
        return
    try:
        churn = volume.churn(CHURN_SECONDS, forks)
        try:
            churn.wait(timeout=CHURN_SECONDS + 90)
        finally:
            end_churn(volume, churn)
        shown = content.digests(volume.mount_point)
    finally:
        volume.unmount()
    if forks == "suffix":
        # The mount shows resource forks as files of their own, the export does not.
        return
    kept = volume.export("out")
    if shown != kept:
        difference = content.difference(shown, kept)
        volume.report.finding(f"{volume.name}: the content differs after the unmount in {difference}")


def tools_of_a_shell(volume):
    volume.make(64 * M)
    if not volume.mount("--forks", "appledouble"):
        return
    try:
        run(["sh", "-c", SHELL, "sh", volume.mount_point], seconds=120)
    finally:
        volume.unmount()


def killed(volume, size, forks, order, filled):
    """A mount that is killed in a churn: the repair must keep every file that could be read before."""
    volume.make(size)
    if filled:
        volume.put(volume.tree("Start", 80, 9000))
    if not volume.mount(*options_of(forks, order)):
        return
    churn = volume.churn(30, forks)
    try:
        time.sleep(volume.rng.choice([0.5, 1.2, 2.5, 5.5, 6.3, 7.1]))
        volume.kill()
    finally:
        # Time for the churn to see that its mount has gone.
        time.sleep(0.2)
        end_churn(volume, churn)
        volume.detach()
    # What the crash has left is kept for a look at it later; a copy is read here, for that may replay.
    os.makedirs(volume.crashed, exist_ok=True)
    for path in volume.files():
        copy(path, f"{volume.crashed}/{os.path.basename(path)}")
        copy(path, f"{volume.scratch}/{os.path.basename(path)}")
    before = volume.export("before", ok=(0, 1), image=f"{volume.scratch}/{volume.name}.img")
    repair = volume.weft("fsck", "--repair", volume.image, ok=(0, 1))
    volume.report.note(f"{volume.name}: fsck --repair ended with {repair.returncode}")
    after = volume.export("after")
    if not (order or "").startswith("journal"):
        # Items that were being removed, and whose folder went first: see docs/hfs.md.
        after = {path: found for path, found in after.items() if path.split("/")[0] != "Recovered items"}
    if before != after:
        difference = content.difference(before, after)
        volume.report.finding(f"{volume.name}: exports before and after the repair differ in {difference}")


def copy(source, target):
    subprocess.run(["cp", "--sparse=always", source, target], check=True)


UNMOUNTED = [
    (20 * M, "xattr", None),
    (8 * M, "appledouble", None),
    (5 * M, "suffix", None),
    (3 * M, "none", "soft"),
    (40 * M, "xattr", "journal"),
    (20 * M, "appledouble", "journal=metadata"),
    (10 * M, "xattr", "async"),
    (1440 * K, "none", None),
    (800 * K, "appledouble", None),
    (2 * G, "xattr", None),
    (G + 512, "none", "journal=ordered"),
]
KILLED_SIZES = [3 * M, 10 * M, 20 * M, 40 * M, 1440 * K, 100 * M]
KILLED_FORKS = ["xattr", "appledouble", "none"]
KILLED_ORDERS = ["soft", None, "soft", "journal", "journal=ordered", "journal=metadata", "async"]

VOLUMES = {
    **{
        f"mount-{number}": partial(unmounted, size=size, forks=forks, order=order)
        for number, (size, forks, order) in enumerate(UNMOUNTED)
    },
    "mount-shell": tools_of_a_shell,
    **{
        f"kill-{number}": partial(
            killed, size=KILLED_SIZES[number % 6], forks=KILLED_FORKS[number % 3],
            order=KILLED_ORDERS[number % 7], filled=number % 2 == 0,
        )
        for number in range(21)
    },
}  # fmt: skip
