#!/usr/bin/env python3
"""Moves mails from one mailbox to another, and counts what reaches the disk.

    WEFT=target/release/weft scripts/order/mails.py [NAME...] [--all] [--mails N] [--repeat N] [--json]

It is the measurement of the papers on Featherstitch (1,000 mails of 2 kB, UW's c-client, a full journal),
with fsync as the program makes it, with `weft order --fsync=barrier`, and with patchgroups: `weft order
COPY then REMOVE`, without the program's fsyncs (libeatmydata; Dovecot's mail_fsync=never), since the order
is all that is needed. Peer: the kernel's ext3, by the same program with its fsyncs. All of it reaches the disk in the
end: the columns count until the volume has been unmounted.

Needs root, and of Debian: uw-mailutils (mailutil, of UW's c-client), dovecot-core (doveadm),
dovecot-imapd (its process of one connection, by a pipe), eatmydata, e2fsprogs. No server runs. What is not
installed is skipped.
"""

import os
import re
import sys

import rig

DOVECOT = """base_dir = {mount}/run
state_dir = {mount}/run
log_path = /dev/null
ssl = no
stats_writer_socket_path =
mail_location = {location}
maildir_copy_with_hardlinks = {links}
mail_fsync = {fsync}
"""


class Mails:
    modes = rig.MODES
    mbox = True
    links = True
    unit = "mail"

    def begin(self, found):
        self.weft, self.count = found.weft, found.options.mails
        self.units = self.count
        self.need()

    def mail(self, number):
        head = (f"Return-Path: <a@example.com>\nFrom: a@example.com\nTo: b@example.com\nSubject: mail {number}\n"
                f"Message-ID: <{number}@example.com>\nDate: Mon, 1 Jan 2024 00:00:00 +0000\n\n")
        line = f"{number:06} " * 10 + "\n"
        return (head + line * 40)[:1999] + "\n"

    def prepare(self, mount):
        if self.mbox:
            with open(f"{mount}/in", "w") as file:
                for number in range(self.count):
                    file.write("From a@example.com Mon Jan  1 00:00:00 2024\n" + self.mail(number) + "\n")
            os.makedirs(f"{mount}/mail")
            for out in ("out", "mail/out"):
                open(f"{mount}/{out}", "w").close()
        else:
            for box in ("in", "in/.out"):
                for part in ("cur", "new", "tmp"):
                    os.makedirs(f"{mount}/{box}/{part}")
            for number in range(self.count):
                # The name of a mail that has been read.
                with open(f"{mount}/in/cur/{1700000000 + number}.M{number}.host:2,S", "w") as file:
                    file.write(self.mail(number))
        os.makedirs(f"{mount}/run")
        location = (f"mbox:{mount}/mail:INBOX={mount}/in" if self.mbox else f"maildir:{mount}/in")
        for name, fsync in (("dovecot.conf", "optimized"), ("dovecot-quiet.conf", "never")):
            with open(f"{mount}/{name}", "w") as file:
                file.write(DOVECOT.format(mount=mount, location=location, fsync=fsync,
                                          links="yes" if self.links else "no"))
        rig.run("chown", "-R", "nobody:nogroup", mount)

    def work(self, mount, mode):
        line = rig.ordered(self.weft, mode, mount, *self.lines(mount, mode))
        rig.run(*rig.UNPRIVILEGED, *line, cwd=mount, env={**os.environ, "HOME": mount, "USER": "nobody"})

    def check(self, mount):
        """Each mail is in the new mailbox once, and in no other."""
        found = {}
        for folder, _, files in os.walk(mount):
            for name in files:
                if "dovecot" in name:
                    continue
                with open(f"{folder}/{name}", errors="replace") as file:
                    for number in re.findall(r"^Subject: mail (\d+)$", file.read(), re.M):
                        found.setdefault(int(number), []).append(os.path.relpath(f"{folder}/{name}", mount))
        places = {place.startswith(("out", "mail/out", "in/.out")) for at in found.values() for place in at}
        if len(found) != self.count or any(len(at) != 1 for at in found.values()) or places != {True}:
            raise RuntimeError(f"{len(found)} mails, {list(found.items())[:3]}")


class Mailutil(Mails):
    name = "mbox, mailutil"

    def need(self):
        rig.need("mailutil", "uw-mailutils")
        rig.need("eatmydata", "eatmydata")

    def lines(self, mount, mode):
        if mode == "groups":
            # Its exit code is 1 when it has pruned all.
            return ["eatmydata mailutil append in out", "eatmydata mailutil prune in ALL || true"]
        return ["mailutil appenddelete in out"]


class Doveadm(Mails):
    name = "mbox, doveadm"

    def need(self):
        rig.need("doveadm", "dovecot-core")

    def lines(self, mount, mode):
        if mode == "groups":
            command = f"doveadm -c {mount}/dovecot-quiet.conf "
            return [command + "copy out mailbox INBOX all", command + "expunge mailbox INBOX all"]
        return [f"doveadm -c {mount}/dovecot.conf move out mailbox INBOX all"]


class DoveadmMaildir(Doveadm):
    name = "maildir, doveadm, hard links"
    mbox = False


class DoveadmMaildirCopies(DoveadmMaildir):
    name = "maildir, doveadm, copies"
    links = False


class Imap(Doveadm):
    """As a mail client moves them: one at a time."""

    name = "mbox, Dovecot's imap, one at a time"

    def need(self):
        if not os.path.exists("/usr/lib/dovecot/imap"):
            raise rig.Skip("/usr/lib/dovecot/imap is not installed (Debian: dovecot-imapd)")

    def lines(self, mount, mode):
        command = f"python3 {rig.HERE}/imap-move.py {mount}/"
        if mode == "groups":
            return [command + "dovecot-quiet.conf copy", command + "dovecot-quiet.conf remove"]
        return [command + "dovecot.conf move"]


class ImapMaildir(Imap):
    name = "maildir, Dovecot's imap, copies, one at a time"
    mbox = False
    links = False
    long = True


SUBJECTS = [Mailutil(), Doveadm(), DoveadmMaildir(), DoveadmMaildirCopies(), Imap(), ImapMaildir()]


def options(parser):
    parser.add_argument("--mails", type=int, default=1000, metavar="N", help="mails of 2 kB [default: 1000]")


with rig.Rig(__doc__, options) as measured:
    measured.study(SUBJECTS, 256)
    measured.end()
sys.stdout.flush()
