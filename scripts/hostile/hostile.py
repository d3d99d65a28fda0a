"""A campaign against the networks of `weft mount --transform` and the derived names of a cell.

    hostile.sh WEFT DIR [SEED]

1. Strangers. Private files on directories of the host, ext2, ext3, HFS and a cell, and every name that
   is derived from them, are asked for by a user who owns nothing of them. A row is a place, a pass, a
   kind of privacy, a derived name and an access; it asks of four files of which only the content
   differs: two of one length, two of two others. Content, a listing and a change violate it, and so
   does any difference between the four answers. Passes: before root has used these names (cold),
   while root has them open (held), and afterwards (after).
2. Controls. The same names of public files say to the user what they say to root, and say something.
3. Hostile trees. Rules files, attributes, links, names and archives that mean harm change nothing that
   the rules of the mount promise; with `--transform-trust tree` they do, as a control.

Exit status: 0 no violation, 1 violations or failed controls.
"""

import os
import random
import sys
import time

from cell import cell
from contents import contents
from names import RULES, random_pairs
from places import HOST_DIRECTORY, PLACES, Place, Weft
from report import Report
from strangers import strangers, volumes_without_owners
from tools import STARTED, write_file
from trees import hostile

FOR_ALL_USERS = ["-o", "allow_other"]
CACHED = ["--output-cache", "kept", "--snapshot-views"]
# Name, source, options, rules: with and without names that rules give.
PLACES_OF_STRANGERS = [
    ("host", HOST_DIRECTORY, FOR_ALL_USERS, RULES),
    ("host-bare", HOST_DIRECTORY, FOR_ALL_USERS, ""),
    ("host-kept", HOST_DIRECTORY, FOR_ALL_USERS + CACHED, RULES),
    ("ext2", "v.img", FOR_ALL_USERS, RULES),
    ("ext3-bare", "v.img", FOR_ALL_USERS, ""),
]
HOSTILE_PLACES = [("host-hostile", HOST_DIRECTORY), ("ext2-hostile", "v.img"), ("hfs-hostile", "v.img")]


def main(program, top, seed):
    os.umask(0o022)
    # Names of hostile trees are not text.
    sys.stdout.reconfigure(errors="backslashreplace")
    make_keys_and_program(top)
    weft, report = Weft(program, top), Report()
    try:
        run(weft, seed, report)
    except BaseException:
        # What was found until then.
        report.end()
        raise
    finally:
        for place in PLACES:
            place.abandon()
    return report.end()


def make_keys_and_program(top):
    """A key that rules of mounts name and one that they do not, and a program that nothing may run."""
    for name in ("keys", "run", "canary"):
        os.mkdir(f"{top}/{name}")
    for name, digits in (("work", b"5a"), ("bank", b"6b")):
        write_file(f"{top}/keys/{name}", digits * 32 + b"\n")
        os.chmod(f"{top}/keys/{name}", 0o600)
    write_file(f"{top}/canary/canary", b"#!/bin/sh\necho canary\n")
    os.chmod(f"{top}/canary/canary", 0o755)


def run(weft, seed, report):
    families = contents(weft, seed)
    pairs = random_pairs(random.Random(seed))
    for name, source, options, rules in PLACES_OF_STRANGERS:
        strangers(Place(weft, name, source, options, rules), families, pairs, report)
        tell_done(name)
    volumes_without_owners(weft, families, pairs, report)
    tell_done("hfs")
    cell(weft, {name: families[name] for name in ("text", "base64", "tgz")}, report)
    tell_done("cell")
    for name, source in HOSTILE_PLACES:
        hostile(weft, name, source, FOR_ALL_USERS, report)
        tell_done(name)


def tell_done(name):
    print(f"{name}: done, {time.time() - STARTED:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
