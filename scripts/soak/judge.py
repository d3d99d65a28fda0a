"""Judges an image: e2fsck first, then weft mounted again and every program's own check, then repair.

What each order may leave is README's promise. Soft updates may leave what is not damage: leaked
blocks and inodes, counts, second names of directories that were being renamed. After a journal's
recovery nothing may be left, and the order async promises what was made durable, after a repair."""

import os
import re
import shutil

from tools import Trouble, copy_image, last, run
from volume import kind_of

# What surrounds e2fsck's findings.
FRAME = re.compile(
    r"^$|^Pass \d|^e2fsck \d|^(Fix|Clear|Salvage|Clone multiply-claimed blocks|Connect to /lost\+found)\? no$"
    r"|WARNING: Filesystem still has errors|files \(.*non-contiguous|was not cleanly unmounted, check forced"
    r"|contains a file system with errors, check forced|^Warning: skipping journal recovery"
)
# What soft updates may leave, by README; the numbers are compared below.
LEAKS = re.compile(
    r"^Unattached (zero-length )?inode \d|^Unconnected directory inode \d|^Free (blocks|inodes) count wrong"
    r"|^Directories count wrong|^Deleted inode \d+ has zero dtime"
)
REF_COUNT = re.compile(r"^Inode \d+ ref count is (\d+), should be (\d+)")
I_SIZE = re.compile(r"^Inode \d+, i_size is (\d+), should be (\d+)")
I_BLOCKS = re.compile(r"^Inode \d+, i_blocks is (\d+), should be (\d+)")
BITMAP = re.compile(r"^(Block|Inode) bitmap differences:(.*)")
# Only the churn renames directories.
SECOND_NAME = re.compile(r"^Entry '.*' in /churn\S* \(\d+\) is a link to directory ")
DOT_DOT = re.compile(r"^'\.\.' in .* should be ")
# What a replay of the journal reports, and files that were removed while open.
REPLAY = re.compile(r"recovering journal$|^Clearing orphaned inode|FILE SYSTEM WAS MODIFIED")


def damage(output, soft):
    """The lines of `e2fsck -fn` that tell more than this order may leave."""
    found = []
    unconnected = "Unconnected directory inode" in output
    for line in map(str.strip, output.splitlines()):
        if FRAME.search(line):
            continue
        if soft and (LEAKS.search(line) or SECOND_NAME.search(line) or I_BLOCKS.search(line)):
            continue
        if soft and (match := REF_COUNT.search(line)) and int(match[1]) > int(match[2]):
            continue
        if soft and (match := I_SIZE.search(line)) and int(match[1]) < int(match[2]):
            continue
        if soft and (match := BITMAP.search(line)):
            # "-" is used in the bitmap and by nothing: a leak. "+" is used and free: damage.
            if all(item.startswith("-") for item in match[2].replace("Fix? no", "").split()):
                continue
        if soft and DOT_DOT.search(line) and ("/churn" in line or unconnected):
            continue
        found.append(line)
    return found


def check_itself():
    """A judge that lets everything pass would be of no use: what it must and must not object to."""
    leaks = """\
Inode 12 ref count is 2, should be 1.  Fix? no
Unattached inode 13
Block bitmap differences:  -123 -(130--140)
Free blocks count wrong (1, counted=2).
Entry 'x' in /churn/d (20) is a link to directory /churn/y (12).
'..' in /churn/y (12) is /churn (11), should be /churn/d (20).
volume.img: ********** WARNING: Filesystem still has errors **********"""
    faults = """\
Inode 12 ref count is 1, should be 2.  Fix? no
Block bitmap differences:  -123 +(130--140)
Entry 'x' in / (2) has deleted/unused inode 12.  Clear? no
Multiply-claimed block(s) in inode 12: 100
Inode 12, i_size is 2048, should be 1024.  Fix? no
Entry 'x' in /postgres (20) is a link to directory /postgres/y (12).
Directory inode 11, block #0, offset 64: directory corrupted
Entry 'n' in /churn (11) has illegal characters in its name."""
    assert damage(leaks, soft=True) == [], damage(leaks, soft=True)
    assert len(damage(leaks, soft=False)) == len(leaks.splitlines()) - 1
    for fault in faults.splitlines():
        assert damage(fault, soft=True) and damage(fault, soft=False), fault


class Judge:
    """Judges images of one order; `verify` is called with a mounted volume and gives findings."""

    def __init__(self, order, scratch):
        self.order = order
        self.soft = order == "soft"
        self.journal = kind_of(order) == "ext3"
        self.scratch = scratch

    def e2fsck(self, image, *options):
        done = run(["e2fsck", *options, image], env=dict(os.environ, LC_ALL="C"))
        if done.returncode & ~7:
            raise Trouble(f"e2fsck {' '.join(options)} ended with {done.returncode}:\n{last(done.stdout, 20)}")
        return done.stdout

    def demand_clean(self, image, when, soft=False):
        lines = damage(self.e2fsck(image, "-fn"), soft)
        if lines:
            raise Trouble(f"{when}, e2fsck -fn finds:\n" + "\n".join(lines[:20]))

    def repair(self, weft, image):
        done = run([weft, "fsck", "--repair", image])
        if done.returncode not in (0, 1):
            raise Trouble(f"weft fsck --repair ended with {done.returncode}:\n{last(done.stdout, 20)}")
        self.demand_clean(image, "after weft fsck --repair")

    def judge_crash(self, volume, verify):
        """Judges the image of `volume` as a crash has left it. Ends with the volume unmounted and
        clean; raises Trouble with the first finding."""
        image = volume.image
        if self.soft:
            self.demand_clean(image, "after the crash", soft=True)
        elif self.journal:
            self.judge_replay(image)
        else:
            self.repair(volume.weft, image)
        volume.mount()
        verify(volume.mount_point)
        volume.check_daemon()
        volume.unmount("weft")
        if self.soft:
            self.demand_clean(image, "after the crash, a mount and a clean unmount", soft=True)
            self.repair(volume.weft, image)
        else:
            self.demand_clean(image, "after the crash, recovery and a clean unmount")

    def judge_replay(self, image):
        """e2fsck's replay of the journal must leave a clean volume as well."""
        replayed = copy_image(image, os.path.join(self.scratch, "replayed.img"))
        said = [line for line in damage(self.e2fsck(replayed, "-fy"), False) if not REPLAY.search(line)]
        # The totals in the superblock are not in the journal: the kernel leaves them so as well.
        said = [line for line in said if not re.search(r"^Free (blocks|inodes) count wrong|^Fix\? yes", line)]
        if said:
            raise Trouble("after a replay of the journal, e2fsck -fy mends:\n" + "\n".join(said[:20]))
        self.demand_clean(replayed, "after e2fsck's replay of the journal")
        os.unlink(replayed)

    def judge_clean(self, volume, verify):
        """Judges the image after a clean unmount."""
        self.demand_clean(volume.image, "after a clean unmount")
        volume.mount()
        verify(volume.mount_point)
        volume.check_daemon()
        volume.unmount("umount")
        self.demand_clean(volume.image, "after a clean mount and unmount")


def free_bytes(directory):
    return shutil.disk_usage(directory).free
