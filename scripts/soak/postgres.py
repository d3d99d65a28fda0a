"""PostgreSQL under pgbench, with a server of its own that runs as an unprivileged user.

Each transaction of the first script counts a counter of its client and writes a line of history;
the second script is pgbench's own, like TPC-B. pgbench's log, outside of the mount, tells which
transactions were acknowledged. The judges are PostgreSQL's recovery, its data checksums, pg_amcheck
(indexes against tables), the counters, and the sums that TPC-B keeps equal."""

import glob
import os
import pwd
import shutil
import signal
import subprocess
import time

from program import Program
from tools import HANG_SECONDS, Trouble, demand, last, run, sync_mount, wait_until

SCRIPT = """\
BEGIN;
INSERT INTO counters VALUES (:run, :client_id, 1)
  ON CONFLICT (run, client) DO UPDATE SET n = counters.n + 1;
INSERT INTO history SELECT run, client, n, repeat(md5(random()::text), 10)
  FROM counters WHERE run = :run AND client = :client_id;
COMMIT;
"""
TABLES = """\
CREATE TABLE counters (run int, client int, n int, PRIMARY KEY (run, client));
CREATE TABLE history (run int, client int, n int, filler text, PRIMARY KEY (run, client, n));
"""
CLIENTS = 3


def binaries():
    """Where PostgreSQL's programs are, server and tools; Debian keeps them apart."""
    dirs = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda d: -float(d.split("/")[4]))
    named = shutil.which("postgres")
    dirs += [os.path.dirname(os.path.realpath(named))] if named else []
    tools = ["postgres", "initdb", "pgbench", "psql", "pg_isready", "pg_checksums", "pg_amcheck"]
    return next((d for d in dirs if all(os.path.exists(os.path.join(d, tool)) for tool in tools)), None)


def user():
    """Whom the server runs as: it refuses to be root."""
    for name in ["postgres", "nobody"]:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None


def as_user():
    account = user()
    if os.getuid() != 0:
        return {}
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def remove_shared_memory(since):
    """Removes what an initdb that was overtaken by a crash has left in /dev/shm: segments made after
    `since` (seconds of the clock) that belong to the server's user and that no process has mapped."""
    left = []
    for path in glob.glob("/dev/shm/PostgreSQL.*"):
        info = os.stat(path)
        if user() and info.st_uid == user().pw_uid and info.st_mtime >= since:
            left.append(path)
    mapped = ""
    for maps in glob.glob("/proc/[0-9]*/maps") if left else []:
        try:
            with open(maps, errors="backslashreplace") as file:
                mapped += file.read()
        except OSError:
            continue
    for path in left:
        if path not in mapped:
            os.unlink(path)


class Server:
    """A server on a data directory, reached by a Unix socket in a directory outside of the mount."""

    def __init__(self, data, sockets, settings=()):
        self.sockets = sockets
        self.log = os.path.join(sockets, "server.log")
        os.makedirs(sockets, exist_ok=True)
        if os.getuid() == 0:
            os.chown(sockets, user().pw_uid, user().pw_gid)
        # Left by a server that a crash has ended; after it, its number may be another process's.
        stale = os.path.join(data, "postmaster.pid")
        if os.path.exists(stale):
            os.unlink(stale)
        options = ["fsync=on", "synchronous_commit=on", "full_page_writes=on", "listen_addresses=",
                   f"unix_socket_directories={sockets}", "shared_buffers=16MB", "max_connections=20",
                   "max_wal_size=48MB",
                   "dynamic_shared_memory_type=mmap", "checkpoint_timeout=30s", "log_checkpoints=off", *settings]  # fmt: skip
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [os.path.join(binaries(), "postgres"), "-D", data] + [w for o in options for w in ("-c", o)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", **as_user(),
            )  # fmt: skip

    def wait(self):
        """Until recovery is done and it takes connections."""

        def ready():
            if self.process.poll() is not None:
                raise Trouble(f"the server ended with {self.process.returncode}:\n{self.last_words()}")
            return run([os.path.join(binaries(), "pg_isready"), "-q", "-h", self.sockets]).returncode == 0

        wait_until(ready, HANG_SECONDS, f"the server was not ready: {self.log}")

    def last_words(self):
        with open(self.log, errors="backslashreplace") as file:
            return last(file.read(), 12)

    def sql(self, text):
        command = [os.path.join(binaries(), "psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1",
                   "-h", self.sockets, "-U", user().pw_name, "-d", "postgres", "-c", text]  # fmt: skip
        return demand(command, env=dict(os.environ, LC_ALL="C")).strip()

    def end(self, how=signal.SIGINT):
        """SIGINT is a fast shutdown with a checkpoint, SIGQUIT an immediate one."""
        if self.process.poll() is not None:
            return
        self.process.send_signal(how)
        try:
            self.process.wait(HANG_SECONDS if how == signal.SIGINT else 20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
            if how == signal.SIGINT:
                raise Trouble(f"the server did not stop:\n{self.last_words()}") from None


class Postgres(Program):
    name = "postgres"
    # A page that a relation has just got is zeroes or has a checksum.
    bears_stale_data = False

    @classmethod
    def lacks(cls):
        if binaries() is None:
            return "postgresql is not installed"
        if user() is None:
            return "there is no user postgres or nobody"
        return None

    def run(self):
        place = self.place
        data = place.path("postgres")
        sockets = os.path.join(place.scratch, "pg")
        os.makedirs(sockets, exist_ok=True)
        ready = os.path.join(place.notes, "postgres-ready")
        method = self.rng.choice(["fdatasync", "fsync", "open_datasync", "open_sync"])
        server = None
        try:
            if not os.path.exists(ready):
                self.init(data)
            server = Server(data, sockets, [f"wal_sync_method={method}"])
            server.wait()
            if not os.path.exists(ready):
                server.sql(TABLES)
                demand([os.path.join(binaries(), "pgbench"), "-i", "-q", "-s", "1", *self.target(sockets)])
                with open(ready, "w"):
                    pass
            self.bench(sockets)
            server.end()
            server = None
        finally:
            if server is not None:
                server.end(signal.SIGQUIT)

    def target(self, sockets):
        return ["-h", sockets, "-U", user().pw_name, "postgres"]

    def init(self, data):
        if os.path.exists(data):
            shutil.rmtree(data)
        os.mkdir(data, 0o700)
        if os.getuid() == 0:
            os.chown(data, user().pw_uid, user().pw_gid)
        sync_mount(self.place.mount)
        demand([os.path.join(binaries(), "initdb"), "-D", data, "-A", "trust", "-E", "UTF8", "--locale=C",
                "-U", user().pw_name, "--data-checksums", "--wal-segsize=4"], cwd="/", **as_user())  # fmt: skip

    def bench(self, sockets):
        script = os.path.join(self.place.scratch, "counters.sql")
        with open(script, "w") as file:
            file.write(SCRIPT)
        number = self.place.round * 1000
        while not self.place.stopping():
            number += 1
            prefix = os.path.join(self.place.notes, f"pgbench.{number}")
            demand([os.path.join(binaries(), "pgbench"), "-n", "-c", CLIENTS, "-T", 4, "-D", f"run={number}", "-l",
                    f"--log-prefix={prefix}", "-f", f"{script}@3", "-b", "tpcb-like@1",
                    *self.target(sockets)], env=dict(os.environ, LC_ALL="C"))  # fmt: skip
            time.sleep(0.1)

    @classmethod
    def verify(cls, place, view, clean):
        if "postgres-ready" not in view.before:
            return [], {}
        data = place.path("postgres")
        server = None
        try:
            server = Server(data, os.path.join(place.scratch, "pg-verify"))
            server.wait()
            findings, rows = cls.compare(server, view)
            check = [os.path.join(binaries(), "pg_amcheck"), "--install-missing", "--heapallindexed",
                     "-h", server.sockets, "-U", user().pw_name, "-d", "postgres"]  # fmt: skip
            demand(check, env=dict(os.environ, LC_ALL="C"))
            server.end()
            server = None
            demand([os.path.join(binaries(), "pg_checksums"), "--check", "-D", data], cwd="/", **as_user())
            return findings, {"rows": rows}
        except (Trouble, OSError) as error:
            return [f"PostgreSQL: {error}"], {}
        finally:
            if server is not None:
                server.end(signal.SIGQUIT)

    @classmethod
    def compare(cls, server, view):
        """The counters against pgbench's log, and the sums of TPC-B against each other."""
        acknowledged = {}
        for name in view.files("pgbench."):
            number = int(name.split(".")[1])
            for line in view.text(name).splitlines():
                client, _, _, script = line.split()[:4]
                if script == "0":
                    key = (number, int(client))
                    acknowledged[key] = acknowledged.get(key, 0) + 1
        counters = {}
        for line in server.sql("SELECT run, client, n FROM counters").splitlines():
            number, client, n = map(int, line.split("|"))
            counters[number, client] = n
        findings = []
        for key, n in acknowledged.items():
            if counters.get(key, 0) < n:
                findings.append(
                    f"PostgreSQL: client {key[1]} of run {key[0]} has {counters.get(key, 0)} "
                    f"transactions, and {n} were acknowledged"
                )
        odd = server.sql(
            "SELECT c.run, c.client, c.n, count(h.n), max(h.n) FROM counters c LEFT JOIN history h "
            "USING (run, client) GROUP BY 1, 2, 3 HAVING c.n <> count(h.n) OR c.n <> max(h.n)"
        )
        if odd:
            findings.append(f"PostgreSQL: counters and history differ: {odd[:200]}")
        sums = server.sql(
            "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(bbalance) FROM pgbench_branches), "
            "(SELECT sum(tbalance) FROM pgbench_tellers), (SELECT coalesce(sum(delta), 0) FROM pgbench_history)"
        )
        if len(set(sums.split("|"))) != 1:
            findings.append(f"PostgreSQL: the sums of accounts, branches, tellers and history differ: {sums}")
        return findings, sum(acknowledged.values())
