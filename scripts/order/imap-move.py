"""Moves all mails of INBOX to the mailbox `out` one at a time, over IMAP with a server that was not asked
to run: Dovecot's process of one connection, started here for its user and spoken to through a pipe.

    imap-move.py CONFIGURATION copy|remove|move

`copy` copies each mail by a command of its own, `remove` deletes all and expunges; `move` does both.
"""

import imaplib
import sys

SERVER = "/usr/lib/dovecot/imap"


def must(answer):
    if answer[0] != "OK":
        sys.exit(f"{answer}")
    return answer[1]


def main():
    configuration, what = sys.argv[1:]
    server = imaplib.IMAP4_stream(f"{SERVER} -c {configuration}")
    count = int(must(server.select("INBOX"))[0])
    if what != "remove":
        for number in range(1, count + 1):
            must(server.copy(str(number), "out"))
    if what != "copy":
        must(server.store("1:*", "+FLAGS.SILENT", r"(\Deleted)"))
        must(server.expunge())
    server.logout()


main()
