"""The verdicts of Apple's checker, by way of scripts/apple-fsck.sh, and of weft fsck."""

import os
import re

from commands import run, said, text

APPLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "apple-fsck.sh")
# Lines of Apple's checker that tell of its progress.
PROGRESS = ("Executing", "The volume name", "Status", "CBTStat")


def apple(path):
    """Judges an image, or all images in a directory: how many it judged, and by path why some fail."""
    result = run(["bash", APPLE, path], seconds=3600)
    output = result.stdout.decode("utf8", "replace")
    counts = re.search(r"^(\d+) images pass, (\d+) do not", output, re.M)
    if counts is None:
        raise RuntimeError(f"{APPLE} ended with {result.returncode}: {text(result.stderr)}")
    parts = re.split(r"^(/.*\.img):$", output[: counts.start()], flags=re.M)
    failing = {image: problems(message) for image, message in zip(parts[1::2], parts[2::2])}
    passes, fails = int(counts[1]), int(counts[2])
    if len(failing) != fails:
        raise RuntimeError(f"cannot tell which of the images fail: {output[-1000:]}")
    return passes + fails, failing


def problems(message):
    lines = [line.strip() for line in message.splitlines() if line.startswith("   ")]
    return "; ".join(line for line in lines if not any(word in line for word in PROGRESS))[:300] or "no reason given"


def apple_one(image):
    """None if the image passes, else why it does not."""
    judged, failing = apple(image)
    if judged != 1:
        raise RuntimeError(f"Apple's checker did not judge {image}")
    return failing.get(image)


def weft_fsck(weft, volume):
    """The exit status of weft fsck, and what it said."""
    result = run([weft, "fsck", volume], seconds=300)
    return result.returncode, said(result)
