"""Mails for the exploration: small-mails.py mbox|maildir|check in the directory of the mailboxes.

`check` demands each mail, whole, in one of the two mailboxes at least: a mail may be in both, in none
never. What else a program keeps beside them (its indexes) it can make again.
"""

import glob
import os
import sys

COUNT = 8
CONFIGURATION = """base_dir = {here}/run
state_dir = {here}/run
log_path = /dev/null
ssl = no
stats_writer_socket_path =
mail_location = {location}
maildir_copy_with_hardlinks = no
mail_fsync = {fsync}
"""


def body(number):
    return f"mail {number} ".encode() * 200 + b"end\n"


def mail(number):
    head = f"From: a@example.com\nSubject: mail {number}\nMessage-ID: <{number}@example.com>\n" \
           "Date: Mon, 1 Jan 2024 00:00:00 +0000\n\n"
    return head.encode() + body(number)


def fill():
    """Inodes of one block reach the disk together: what is made before this, and after, does not."""
    for number in range(64):
        open(f"other{number}", "w").close()


def setup(kind):
    here = os.getcwd()
    os.mkdir("run")
    if kind == "mbox":
        os.mkdir("mail")
        for out in ("out", "mail/out"):
            open(out, "w").close()
        fill()
        with open("in", "wb") as file:
            for number in range(COUNT):
                file.write(b"From a@example.com Mon Jan  1 00:00:00 2024\n" + mail(number) + b"\n")
    else:
        for box in ("in", "in/.out"):
            for part in ("cur", "new", "tmp"):
                os.makedirs(f"{box}/{part}")
        for number in range(COUNT):
            with open(f"in/cur/{1700000000 + number}.M{number}.host:2,S", "wb") as file:
                file.write(mail(number))
    location = f"mbox:{here}/mail:INBOX={here}/in" if kind == "mbox" else f"maildir:{here}/in"
    for name, fsync in (("fsync", "optimized"), ("quiet", "never")):
        with open(f"{name}.conf", "w") as file:
            file.write(CONFIGURATION.format(here=here, location=location, fsync=fsync))


def check():
    # Mails in tmp/ are not delivered yet.
    boxes = ["in", "out", "mail/out"] + glob.glob("in/cur/*") + glob.glob("in/.out/cur/*") + glob.glob("in/.out/new/*")
    texts = []
    for box in boxes:
        if os.path.isfile(box):
            with open(box, "rb") as file:
                texts.append(file.read().replace(b"\r", b""))
    lost = [number for number in range(COUNT) if not any(body(number) in text for text in texts)]
    if lost:
        sys.exit(f"lost: {lost}")


check() if sys.argv[1] == "check" else setup(sys.argv[1])
