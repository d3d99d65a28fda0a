"""Writes volumes of every kind with the weft command and has them judged: see scripts/hfs-volumes.sh.

    python3 volumes.py WEFT DIR SEED"""

import os
import re
import shutil
import sys
import time
import traceback

import crowded
import mounts
import plain
from commands import Report
from verdict import apple, weft_fsck
from volume import Volume

VOLUMES = {**plain.VOLUMES, **crowded.VOLUMES, **mounts.VOLUMES}


def write(weft, directory, seed, report):
    only = os.environ.get("ONLY", "")
    chosen = [name for name in VOLUMES if re.search(only, name)]
    for name in chosen:
        start = time.monotonic()
        volume = Volume(weft, directory, seed, name, report)
        try:
            VOLUMES[name](volume)
        except Exception:
            # One volume must not keep the others from being written.
            report.finding(f"{name}: {traceback.format_exc()[-500:]}")
        volume.finish()
        print(f"{name}: {time.monotonic() - start:.1f} s", flush=True)
    shutil.rmtree(f"{directory}.tmp", ignore_errors=True)
    print(f"{len(chosen)} volumes are written")


def judge(weft, directory, report):
    """Both checkers must pass every image."""
    images = sorted(name for name in os.listdir(directory) if name.endswith(".img"))
    judged, failing = apple(directory)
    if judged != len(images):
        report.finding(f"Apple's checker judged {judged} images, {len(images)} are there")
    passes = 0
    for name in images:
        path = f"{directory}/{name}"
        status, message = weft_fsck(weft, path)
        passes += status == 0
        if status != 0 or path in failing:
            apple_said = f"Apple fails: {failing[path]}" if path in failing else "Apple passes"
            report.finding(f"{name}: {apple_said}; weft fsck exit {status}: {message[:600]}")
    print(f"Apple passes {judged - len(failing)} of {len(images)}, weft fsck passes {passes} of {len(images)}")


def main():
    weft, directory, seed = sys.argv[1:]
    report = Report()
    write(weft, directory, seed, report)
    judge(weft, directory, report)
    return report.conclude()


if __name__ == "__main__":
    sys.exit(main())
