"""SQLite in its journal modes, each with the synchronous setting by which it promises that a commit
is durable on any file system: FULL, and EXTRA where a commit is the removal of the journal.

A transaction adds rows and counts them in a second table, so that half of one would be seen. Each
committed row is noted outside of the mount."""

import hashlib
import os
import sqlite3
import time

from program import Program
from tools import HANG_SECONDS, has, run, sync_mount

MODES = [("wal", "full"), ("persist", "full"), ("delete", "extra"), ("truncate", "full")]
# Where a new file may show what its blocks had before, a new journal may show the last one, whole and
# valid, and SQLite takes back a transaction that was committed. These two keep their blocks, or salt
# what they write.
MODES_WITH_STALE_DATA = MODES[:2]
# Rows of one process.
ROWS_MAX = 3000


class Sqlite(Program):
    """Process 0 and 1 share the database in WAL mode, 2 has one with a rollback journal."""

    name = "sqlite"

    @classmethod
    def processes(cls):
        return 3

    def run(self):
        place, rng = self.place, self.rng
        modes = MODES if place.shows_no_stale_data() else MODES_WITH_STALE_DATA
        mode, synchronous = modes[0] if place.index < 2 else rng.choice(modes[1:])
        name = "sqlite-wal.db" if self.place.index < 2 else "sqlite-rollback.db"
        log = self.notes()
        ready = os.path.join(place.notes, f"sqlite-ready-{name}")
        if not os.path.exists(ready) and place.index == 1:
            while not os.path.exists(ready):
                if place.stopping():
                    return
                time.sleep(0.1)
        db = sqlite3.connect(place.path(name), timeout=HANG_SECONDS, isolation_level=None)
        db.execute(f"PRAGMA journal_mode={mode}")
        db.execute(f"PRAGMA synchronous={synchronous}")
        if not os.path.exists(ready):
            db.execute("CREATE TABLE IF NOT EXISTS rows (id TEXT PRIMARY KEY, data BLOB, sum TEXT)")
            db.execute("CREATE TABLE IF NOT EXISTS totals (one INTEGER PRIMARY KEY, n INTEGER)")
            db.execute("INSERT OR IGNORE INTO totals VALUES (1, 0)")
            sync_mount(place.mount)
            with open(ready, "w"):
                pass
        # Rows of earlier rounds, too: without an end to them the volume would fill up.
        mine = [row for (row,) in db.execute("SELECT id FROM rows") if row.split(".")[-2] == str(place.index)]
        number = 0
        while not place.stopping():
            ids, gone = [], []
            for _ in range(rng.randrange(1, 6)):
                number += 1
                ids.append(f"{name}/{place.round}.{place.index}.{number}")
            if len(mine) > ROWS_MAX:
                gone = [mine.pop(rng.randrange(len(mine))) for _ in ids]
            elif mine and rng.random() < 0.1:
                gone = [mine.pop(rng.randrange(len(mine)))]
            for row in ids:
                log.will(row, "present")
            for row in gone:
                log.will(row, "absent")
            db.execute("BEGIN IMMEDIATE")
            for row in ids:
                data = rng.randbytes(rng.choice([10, 100, 1000, 8000]))
                db.execute("INSERT INTO rows VALUES (?, ?, ?)", (row, data, hashlib.sha256(data).hexdigest()))
            for row in gone:
                db.execute("DELETE FROM rows WHERE id = ?", (row,))
            db.execute("UPDATE totals SET n = n + ?", (len(ids) - len(gone),))
            db.execute("COMMIT")
            for row in ids:
                log.did(row, "present")
            for row in gone:
                log.did(row, "absent")
            mine += ids
            if rng.random() < 0.01:
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.close()

    @classmethod
    def verify(cls, place, view, clean):
        findings, rows = [], 0
        objects = view.objects(f"{cls.name}.")
        for name in ["sqlite-wal.db", "sqlite-rollback.db"]:
            # Made after the crash, if it was made between the two looks at the notes.
            if f"sqlite-ready-{name}" not in view.before:
                continue
            path = place.path(name)
            if not os.path.exists(path):
                findings.append(f"SQLite: {name} is not there, though it was synced")
                continue
            try:
                db = sqlite3.connect(path, timeout=HANG_SECONDS)
                said = db.execute("PRAGMA integrity_check").fetchall()
                if said != [("ok",)]:
                    findings.append(f"SQLite: {name}: integrity_check says {said[:5]}")
                    continue
                there = dict()
                for row, data, digest in db.execute("SELECT id, data, sum FROM rows"):
                    there[row] = hashlib.sha256(data).hexdigest() == digest
                (total,) = db.execute("SELECT n FROM totals").fetchone()
                db.close()
            except sqlite3.Error as error:
                findings.append(f"SQLite: {name}: {error}")
                continue
            if has("sqlite3"):
                said = run(["sqlite3", path, "PRAGMA integrity_check"]).stdout.strip()
                if said != "ok":
                    findings.append(f"SQLite: {name}: the sqlite3 command says {said[:200]}")
            if total != len(there):
                findings.append(f"SQLite: {name}: has {len(there)} rows, and its transactions counted {total}")
            damaged = [row for row, sound in there.items() if not sound]
            if damaged:
                findings.append(f"SQLite: {name}: the content of {len(damaged)} rows is wrong, such as {damaged[0]}")
            wrong = []
            for row, expected in objects.items():
                if not row.startswith(name + "/"):
                    continue
                rows += 1
                state = "present" if row in there else "absent"
                if state not in ["absent" if s is None else s for s in expected.possible()]:
                    wrong.append(f"{row} is {state}")
            if wrong:
                findings.append(f"SQLite: {name}: {len(wrong)} committed changes are lost, such as: {wrong[0]}")
        return findings, {"rows": rows}
