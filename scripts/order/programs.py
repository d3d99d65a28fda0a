#!/usr/bin/env python3
"""Programs that make their files durable with fsync, and what of that reaches the disk: as they are, where
fsync is a barrier, and where it is one that is durable within a second (group), on each order of writes,
beside the kernel's ext3.

    WEFT=target/release/weft scripts/order/programs.py [NAME...] [--scale N] [--repeat N] [--json]

gzip (write, then remove the original) runs with patchgroups, too: `weft order 'gzip -k' then rm`.

Needs root, and of Debian: gzip, subversion, git, dpkg, sqlite3, postgresql, e2fsprogs. What is not
installed is skipped. All but dpkg run as nobody.
"""

import glob
import os
import sys

import rig


def text(seed, size):
    """Text that compresses as text does."""
    words, state, out, length = [], seed * 2654435761 + 1, [], 0
    for number in range(300):
        words.append("".join(chr(97 + (number * 7919 >> shift) % 26) for shift in range(2 + number % 7)))
    while length < size:
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        word = words[(state >> 33) % len(words)]
        out.append(word)
        length += len(word) + 1
    return " ".join(out)[:size - 1] + "\n"


def tree(path, files, size, seed=0):
    for number in range(files):
        folder = f"{path}/d{number % 20}"
        os.makedirs(folder, exist_ok=True)
        with open(f"{folder}/f{number}", "w") as file:
            file.write(text(number + seed, size))


class Program:
    modes = ["fsync", "barrier", "group"]
    root = False

    def begin(self, found):
        self.weft, self.scale = found.weft, found.options.scale
        self.units = self.count * self.scale
        self.need()

    def prepare(self, mount):
        self.make(mount)
        if not self.root:
            rig.run("chown", "-R", "nobody:nogroup", mount)

    def work(self, mount, mode):
        line = rig.ordered(self.weft, mode, mount, *self.lines(mount, mode))
        as_user = [] if self.root else rig.UNPRIVILEGED
        rig.run(*as_user, *line, cwd=mount, env={**os.environ, **rig.PLAIN, "HOME": "/nonexistent"})

    def ask(self, mount, line):
        """Returns the output of a command line that changes nothing."""
        as_user = [] if self.root else rig.UNPRIVILEGED
        return rig.run(*as_user, "sh", "-ec", line, cwd=mount,
                       env={**os.environ, **rig.PLAIN, "HOME": "/nonexistent"})


class Gzip(Program):
    name, count, unit = "gzip --synchronous, each of many files", 200, "file"
    modes = Program.modes + ["groups"]

    def need(self):
        rig.need("gzip", "gzip")

    def make(self, mount):
        tree(f"{mount}/t", self.units, 20000)

    def lines(self, mount, mode):
        if mode == "groups":
            return ["gzip -rk t", "find t -type f ! -name '*.gz' -delete"]
        return ["gzip -r --synchronous t"]

    def check(self, mount):
        # The last number is that of the originals.
        found = self.ask(mount, "gzip -rt t; ls t/*/*.gz | wc -l; find t -type f ! -name '*.gz' | wc -l").split()
        if found != [str(self.units), "0"]:
            raise RuntimeError(f"{found}")


class Svn(Program):
    """A checkout of 200 files; ten times half of them change, with a commit, and an update elsewhere."""

    name, count, unit = "Subversion: checkout, commits, updates", 5, "commit"

    def need(self):
        rig.need("svnadmin", "subversion")

    def make(self, mount):
        rig.run("svnadmin", "create", f"{mount}/r")
        tree(f"{mount}/t", 200, 3000)
        rig.run("svn", "import", "-q", "--config-dir", f"{mount}/.svnconfig", "-m", "c", f"{mount}/t",
                f"file://{mount}/r")
        rig.run("svn", "checkout", "-q", "--config-dir", f"{mount}/.svnconfig", f"file://{mount}/r", f"{mount}/b")

    def lines(self, mount, mode):
        svn = f"svn -q --config-dir {mount}/.svnconfig"
        return [f"{svn} checkout file://{mount}/r a", f"""for n in $(seq {self.units}); do
            for f in a/d1*/*; do echo $n >>$f; done; {svn} commit -m $n a; {svn} update b; done"""]

    def check(self, mount):
        self.ask(mount, "svnadmin verify -q r")
        found = self.ask(mount, "svnlook youngest r; tail -n 1 b/d1/f1; svn --config-dir $PWD/.svnconfig status a b")
        if found.split() != [str(self.units + 1), str(self.units)]:
            raise RuntimeError(found)


class Git(Program):
    """core.fsync=all: all that git can be told to make durable."""

    name, count, unit = "git, core.fsync=all: add, commits, gc", 20, "commit"

    def need(self):
        rig.need("git", "git")

    def make(self, mount):
        tree(f"{mount}/w", 200, 3000)

    def lines(self, mount, mode):
        return ["""cd w; git init -q -b main .; git config core.fsync all; git config gc.auto 0; git add .
            git commit -qm c0""", f"""cd {mount}/w; for n in $(seq {self.units}); do for f in 1 21 41; do
            echo $n >>d1/f$f; done; git add d1; git commit -qm c$n; done; git gc -q"""]

    def check(self, mount):
        found = self.ask(mount, "cd w; git fsck --full --strict >&2; git rev-list --count HEAD; git status --short")
        if found.split()[-1:] != [str(self.units + 1)]:
            raise RuntimeError(found)


class Dpkg(Program):
    name, count, unit = "dpkg: installs a package of many files, then the next version", 300, "file"
    root = True

    def need(self):
        rig.need("dpkg-deb", "dpkg")

    def make(self, mount):
        for version in (1, 2):
            build = f"{mount}/p{version}"
            os.makedirs(f"{build}/DEBIAN")
            with open(f"{build}/DEBIAN/control", "w") as file:
                file.write(f"Package: many\nVersion: {version}\nArchitecture: all\nMaintainer: a <a@example.com>\n"
                           "Description: a\n")
            tree(f"{build}/usr/share/many", self.units // 2, 5000, version)
            rig.run("dpkg-deb", "--root-owner-group", "-b", build, f"{mount}/many_{version}.deb")
            rig.run("rm", "-r", build)
        os.makedirs(f"{mount}/system/var/lib/dpkg/updates")
        os.makedirs(f"{mount}/system/var/lib/dpkg/info")
        open(f"{mount}/system/var/lib/dpkg/status", "w").close()

    def lines(self, mount, mode):
        # Images of containers set force-unsafe-io.
        dpkg = (f"dpkg --root={mount}/system --force-not-root --force-script-chrootless --no-force-unsafe-io "
                "--log=/dev/null -i")
        return [f"{dpkg} {mount}/many_1.deb", f"{dpkg} {mount}/many_2.deb"]

    def check(self, mount):
        found = self.ask(mount, f"""dpkg --root={mount}/system --audit
            dpkg-query --admindir={mount}/system/var/lib/dpkg -W -f '${{db:Status-Abbrev}} ${{Version}} ' many
            find system/usr -type f | wc -l; find system/usr -name '*.dpkg*' | wc -l""")
        if found.split() != ["ii", "2", str(self.units // 2), "0"]:
            raise RuntimeError(found)


class Sqlite(Program):
    count, unit = 500, "transaction"

    def __init__(self, journal, sync):
        self.name = f"SQLite, journal_mode={journal}, synchronous={sync}"
        self.journal, self.sync = journal, sync

    def need(self):
        rig.need("sqlite3", "sqlite3")

    def make(self, mount):
        with open(f"{mount}/sql", "w") as file:
            file.write(f"pragma journal_mode={self.journal};\npragma synchronous={self.sync};\n")
            for number in range(self.units):
                file.write(f"insert into t values({number}, '{text(number, 200).strip()}');\n")

    def prepare(self, mount):
        rig.run("sqlite3", f"{mount}/db", f"pragma journal_mode={self.journal}",
                "create table t(a integer primary key, b)")
        super().prepare(mount)

    def lines(self, mount, mode):
        return ["sqlite3 db <sql"]

    def check(self, mount):
        found = self.ask(mount, "sqlite3 db 'pragma integrity_check' 'select count(*) from t'").split()
        if found != ["ok", str(self.units)]:
            raise RuntimeError(f"{found}")


class Postgres(Program):
    """pgbench's own tables and transactions, one client."""

    name, count, unit = "PostgreSQL, pgbench", 300, "transaction"

    def need(self):
        found = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
        if not found or not os.path.exists(found[-1] + "/pgbench"):
            raise rig.Skip("PostgreSQL is not installed (Debian: postgresql)")
        self.bin = found[-1]

    def serve(self, mount, work):
        """Lines that run the server as a child of their shell (`pg_ctl start` would leave it to init),
        and `work` beside it."""
        return f"""{self.bin}/postgres -D {mount}/data -k {mount} -c listen_addresses= >{mount}/log 2>&1 & server=$!
            export PGHOST={mount} PGDATABASE=postgres PGUSER=a PATH={self.bin}:$PATH
            until pg_isready -q; do kill -0 $server; sleep 0.1; done
            {work}
            kill -INT $server; wait $server"""

    def prepare(self, mount):
        rig.run("chown", "nobody:nogroup", mount)
        self.ask(mount, f"{self.bin}/initdb -D data -U a -A trust --no-sync >/dev/null\n" +
                 self.serve(mount, "pgbench -q -i -s 1 >/dev/null 2>&1"))

    def lines(self, mount, mode):
        return [self.serve(mount, f"pgbench -n -t {self.units} 2>&1")]

    def check(self, mount):
        found = self.ask(mount, self.serve(
            mount, "psql -Atc 'select count(*) from pgbench_history; select sum(abalance) = (select sum(delta) "
            "from pgbench_history) from pgbench_accounts'")).split()
        if found != [str(self.units), "t"]:
            raise RuntimeError(f"{found}")


SUBJECTS = [Gzip(), Svn(), Git(), Dpkg(), Sqlite("delete", "full"), Sqlite("wal", "full"), Postgres()]


def options(parser):
    parser.add_argument("--scale", type=int, default=1, metavar="N", help="N times the work [default: 1]")


with rig.Rig(__doc__, options) as measured:
    measured.study(SUBJECTS, 512)
    measured.end()
sys.stdout.flush()
