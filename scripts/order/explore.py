#!/usr/bin/env python3
"""What power cuts can leave of programs whose fsyncs order and do not wait: `weft crash run` on volumes of
weft, on each order of writes.

    WEFT=target/release/weft scripts/order/explore.py [NAME...] [--modes barrier,off] [--orders soft,...]
        [--states N] [--time SECONDS] [--json]

Modes: barrier is `weft order --fsync=barrier PROGRAM`; groups is `weft order WRITE then REMOVE` without any
fsync; off is the program alone, its fsyncs left out (by its own switch, or libeatmydata): there the check
should find something, on some order of writes, or it can find nothing. fsync is the program as it is:
where a state fails there, too, it is the program that does not order what its files need. (async, which
orders nothing inside a step, can be asked for.)

The check demands what the program promises of a power cut: old or new, or as much of the new as came
first, and that its own test of its files passes. That the last changes are there is not demanded.

Needs FUSE, and for each program of Debian: gzip; uw-mailutils; dovecot-core; subversion; git; dpkg
(root); sqlite3; postgresql; and eatmydata. What is missing is skipped. Exit code 3: a state failed with
barrier or groups.
"""

import argparse
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.realpath(__file__))
ORDERS = ["soft", "journal=metadata", "journal=ordered", "journal=full"]
AS_NOBODY = "setpriv --reuid=nobody --regid=nogroup --clear-groups" if os.geteuid() == 0 else ""
EATMYDATA = "eatmydata "

# name; packages; lines: setup, run, the same with fsync off, two parts of groups; check; options.
SUBJECTS = {}


def subject(name, needs, setup, run, check, off=None, groups=None, options=()):
    SUBJECTS[name] = {"needs": needs, "setup": setup, "run": run, "check": check, "off": off,
                      "groups": groups, "options": list(options)}


GZIP_CHECK = """for n in 1 2 3 4 5; do
    [ "$(cksum <f$n)" = "$(seq $n 3000 | cksum)" ] || [ "$(gzip -dc f$n.gz | cksum)" = "$(seq $n 3000 | cksum)" ] ||
        { echo "f$n is lost"; exit 1; }
    done 2>/dev/null"""
subject("gzip", {"gzip": "gzip"},
        setup="for n in 1 2 3 4 5; do seq $n 3000 >f$n; done",
        run="gzip --synchronous f1 f2 f3 f4 f5", off="gzip f1 f2 f3 f4 f5",
        groups=["gzip -k f1 f2 f3 f4 f5", "rm f1 f2 f3 f4 f5"], check=GZIP_CHECK)

MAILS = "python3 $ORDER/small-mails.py"
subject("mbox, mailutil", {"mailutil": "uw-mailutils", "setpriv": "util-linux"},
        setup=f"{MAILS} mbox && {{ [ -z \"$AS\" ] || chown -R nobody . ; }}",
        run="HOME=$PWD $AS mailutil appenddelete in out >/dev/null",
        off="HOME=$PWD $AS eatmydata mailutil appenddelete in out >/dev/null",
        groups=["HOME=$PWD $AS eatmydata mailutil append in out >/dev/null",
                "HOME=$PWD $AS eatmydata mailutil prune in ALL >/dev/null || true"],
        check=f"{MAILS} check")
for kind in ("mbox", "maildir"):
    doveadm = "HOME=$PWD USER=nobody $AS doveadm -c $PWD/%s.conf "
    subject(f"{kind}, doveadm", {"doveadm": "dovecot-core"},
            # It writes its headers into a mailbox in place, where it sees it first.
            setup=f"{MAILS} {kind} && {{ [ -z \"$AS\" ] || chown -R nobody . ; }} && " +
                  doveadm % "fsync" + r"flags add '\Seen' mailbox INBOX all",
            run=doveadm % "fsync" + "move out mailbox INBOX all",
            off=doveadm % "quiet" + "move out mailbox INBOX all",
            groups=[doveadm % "quiet" + "copy out mailbox INBOX all",
                    doveadm % "quiet" + "expunge mailbox INBOX all"],
            check=f"{MAILS} check")

subject("Subversion, commit", {"svnadmin": "subversion"},
        setup="svnadmin create r && svn -q mkdir -m c1 file://$PWD/r/d",
        run="for n in 2 3; do svn -q --config-dir $TOOLS/svn mkdir -m c$n file://$PWD/r/d$n; done",
        check="youngest=$(svnlook youngest r) && svnadmin verify -q r && svnlook tree r >/dev/null &&"
              " [ $youngest -ge 1 ] && [ $youngest -le 3 ]")
subject("Subversion, update", {"svnadmin": "subversion"},
        # The repository is elsewhere.
        setup="""rm -rf $TOOLS/r; svnadmin create $TOOLS/r && mkdir $TOOLS/t$$ && cd $TOOLS/t$$ &&
            for n in 1 2 3 4 5; do seq $n 2000 >f$n; done && svn -q import -m 1 . file://$TOOLS/r && cd - >/dev/null &&
            svn -q checkout file://$TOOLS/r a && rm -rf $TOOLS/t$$ && svn -q checkout file://$TOOLS/r $TOOLS/t$$ &&
            cd $TOOLS/t$$ && for n in 1 2 3; do seq $n 3000 >f$n; done && svn -q commit -m 2 && cd / && rm -rf $TOOLS/t$$""",
        run="svn -q --config-dir $TOOLS/svn update a",
        check="""svn() { command svn --config-dir $TOOLS/svn -q "$@"; }
            svn cleanup a && svn status a >/dev/null && svn update a && [ -z "$(svn status a)" ] &&
            for n in 1 2 3; do [ "$(cksum <a/f$n)" = "$(seq $n 3000 | cksum)" ] || exit 1; done""")

GIT_SETUP = "git init -q -b main . && git config gc.auto 0 && echo 0 >f && git add f && git commit -qm c0"
GIT_RUN = "for n in 1 2; do echo $n >f && git -c core.fsync=%s commit -qam c$n || exit 1; done%s"
GIT_CHECK = """subject=$(git log --format=%s -n 1) && text=$(git show HEAD:f) || exit 1
    [ "$subject" = "c$text" ] || { echo "the commit $subject has $text"; exit 1; }
    git fsck --full --strict --no-dangling 2>&1 || exit 1"""
subject("git, commits", {"git": "git"}, setup=GIT_SETUP, run=GIT_RUN % ("all", ""),
        off=GIT_RUN % ("none", ""), check=GIT_CHECK)
subject("git, commits and gc", {"git": "git"}, setup=GIT_SETUP,
        run=GIT_RUN % ("all", "; git -c core.fsync=all gc -q --prune=now"),
        off=GIT_RUN % ("none", "; git -c core.fsync=none gc -q --prune=now"), check=GIT_CHECK)

DPKG = ("dpkg --root=. --force-not-root --force-script-chrootless %s --log=/dev/null --admindir=var/lib/dpkg "
        "-i $TOOLS/crash_%s.deb >/dev/null 2>&1")
subject("dpkg", {"dpkg-deb": "dpkg"},
        setup="""for version in 1 2; do build=$TOOLS/p$version && mkdir -p $build/DEBIAN $build/usr/share/crash &&
            printf 'Package: crash\\nVersion: %s\\nArchitecture: all\\nMaintainer: a <a@example.com>\\nDescription: a\\n' \\
            $version >$build/DEBIAN/control && for n in 1 2 3; do seq $version$n 3000 >$build/usr/share/crash/f$n; done &&
            dpkg-deb --root-owner-group -b $build $TOOLS/crash_$version.deb >/dev/null || exit 1; done
            mkdir -p var/lib/dpkg/updates var/lib/dpkg/info && : >var/lib/dpkg/status && """ +
              DPKG % ("--no-force-unsafe-io", 1),
        run=DPKG % ("--no-force-unsafe-io", 2), off=EATMYDATA + DPKG % ("--force-unsafe-io", 2),
        check="""status=$(dpkg-query --admindir=var/lib/dpkg -W -f '${db:Status-Status} ${Version}' crash) || exit 1
            # The steps of an administrator.
            case $status in "installed "*) ;; *) """ + DPKG % ("--no-force-unsafe-io", 2) + """ || exit 1
                status="installed 2" ;; esac
            [ -z "$(dpkg --admindir=var/lib/dpkg --audit)" ] || { echo "audit"; exit 1; }
            version=${status#installed }
            for n in 1 2 3; do cmp -s usr/share/crash/f$n $TOOLS/p$version/usr/share/crash/f$n && continue
                # Unpacked, and not yet noted.
                [ $version = 1 ] && cmp -s usr/share/crash/f$n $TOOLS/p2/usr/share/crash/f$n ||
                { echo "$status, and f$n is not of it"; exit 1; }; done""")

for mode, name in (("delete", "rollback journal"), ("wal", "WAL")):
    inserts = " ".join(f'"insert into t values({n}, zeroblob(6000))"' for n in (2, 3, 4))
    line = f'sqlite3 db "pragma synchronous=%s" "pragma journal_mode={mode}" {inserts} >/dev/null'
    subject(f"SQLite, {name}", {"sqlite3": "sqlite3"},
            setup=f'sqlite3 db "pragma journal_mode={mode}" "create table t(a integer primary key, b)" '
                  '"insert into t values(1, 1)" >/dev/null',
            run=line % "full", off=line % "off",
            check="""rows=$(sqlite3 db "pragma integrity_check" "select group_concat(a) from t") || exit 1
                case $(echo $rows) in "ok 1" | "ok 1,2" | "ok 1,2,3" | "ok 1,2,3,4") ;;
                *) echo "found: $rows"; exit 1 ;; esac""")

POSTGRES_RUN = """socket=$(mktemp -d) && chmod 777 $socket
    $AS $PGBIN/postgres -D data -k $socket -c listen_addresses= -c fsync=%s >$socket.log 2>&1 & server=$!
    export PGHOST=$socket
    until $PGBIN/pg_isready -q; do kill -0 $server || exit 1; sleep 0.1; done
    for a in 2 3 4; do psql -qc "insert into t values ($a, repeat(chr(48 + $a), 6000))" || exit 1
        [ $a != 3 ] || psql -qc checkpoint; done
    kill -INT $server; wait $server; rm -rf $socket $socket.log"""
subject("PostgreSQL", {"psql": "postgresql-client"},
        setup='as=$AS bin=$PGBIN; . "$ORDER/../crash/postgres/setup.sh"',
        run=POSTGRES_RUN % "on", off=POSTGRES_RUN % "off",
        check='as=$AS bin=$PGBIN; . "$ORDER/../crash/postgres/check.sh"',
        options=["--size", "192M"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only these (see --list)")
    parser.add_argument("--list", action="store_true", help="list the programs")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--modes", default="barrier,groups,off", help="[default: barrier,groups,off]")
    parser.add_argument("--orders", help="[default: soft and all of a journal]")
    parser.add_argument("--states", default="300", help="states to judge, for each run [default: 300]")
    parser.add_argument("--time", default="4", help="seconds to search, for each run [default: 4]")
    parser.add_argument("--keep", metavar="DIR", help="keep the recordings of what failed in this directory")
    options = parser.parse_args()
    if options.list:
        print("\n".join(SUBJECTS))
        return 0
    weft = shutil.which(os.environ.get("WEFT", "weft"))
    if not weft:
        sys.exit(f"{sys.argv[0]}: weft is not installed; set WEFT")
    work = tempfile.mkdtemp(prefix="weft-order.")
    os.chmod(work, 0o755)
    try:
        return explore(options, os.path.realpath(weft), work)
    finally:
        shutil.rmtree(work)


def explore(options, weft, work):
    postgres = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
    environment = {**os.environ, "LC_ALL": "C", "WEFT": weft, "ORDER": HERE, "AS": AS_NOBODY, "TMPDIR": "/tmp",
                   "PGBIN": postgres[-1] if postgres else "/nonexistent", "PGUSER": "crash", "PGDATABASE": "postgres",
                   "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_NAME": "a",
                   "GIT_AUTHOR_EMAIL": "a@example.com", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.com",
                   "GIT_AUTHOR_DATE": "1700000000 +0000", "GIT_COMMITTER_DATE": "1700000000 +0000"}
    orders = options.orders.split(",") if options.orders else ORDERS
    rows, lost_order = [], 0
    if not options.json:
        print("| program | mode | " + " | ".join(orders) + " |\n|---|---|" + "---:|" * len(orders))
    for name, of in SUBJECTS.items():
        if options.names and not any(word in name for word in options.names):
            continue
        missing = [f"{command} (Debian: {package})" for command, package in of["needs"].items()
                   if not shutil.which(command)]
        if missing:
            print(f"skipped: {name}: not installed: {', '.join(missing)}", file=sys.stderr)
            continue
        for mode in options.modes.split(","):
            if mode == "groups" and not of["groups"]:
                continue
            cells = []
            for order in orders:
                row = once(options, weft, work, environment, name, of, mode, order)
                rows.append(row)
                cells.append(row.get("error") or f"{row['failed']} of {row['judged']}{'+' if row['cut_short'] else ''}")
                if row.get("failed") and mode != "off":
                    lost_order += 1
            if not options.json:
                print(f"| {name} | {mode} | " + " | ".join(cells) + " |", flush=True)
    if options.json:
        json.dump(rows, sys.stdout, indent=1)
        print()
    return 3 if lost_order else 0


def once(options, weft, work, environment, name, of, mode, order):
    """One cell of the table."""
    row = {"program": name, "mode": mode, "order": order}
    # A journal makes all changes of a transaction durable at once, and a short program is one. So it runs
    # again, while another process ends transactions in the middle of it by an fsync that is none of the
    # program's.
    for beside in [False, True] if order.startswith("journal") else [False]:
        answer = crash_run(options, weft, work, environment, (name, of, mode, order), beside)
        if answer is None:
            return {**row, "error": "not tested"}
        model = answer["models"][0]
        row["tried"] = row.get("tried", 0) + model["progress"]["tried"]
        row["judged"] = row.get("judged", 0) + model["progress"]["judged"]
        row["failed"] = row.get("failed", 0) + model["progress"]["failed"]
        row["cut_short"] = row.get("cut_short") or model["cut_short"]
        row.setdefault("findings", []).extend(
            {"headline": f["headline"], "state": f["state"], "output": f["output"]} for f in model["findings"])
    return row


def crash_run(options, weft, work, environment, what, beside):
    name, of, mode, order = what
    # A directory for what is not on the volume.
    tools = os.path.join(work, "tools")
    shutil.rmtree(tools, ignore_errors=True)
    os.mkdir(tools)
    os.mkdir(tools + "/svn")
    os.chmod(tools, 0o777)
    environment = {**environment, "TOOLS": tools, "LINE": of["run"]}
    if mode == "barrier":
        run = '"$WEFT" order --fsync=barrier "$LINE"'
    elif mode == "groups":
        environment["LINE"], environment["THEN"] = of["groups"]
        run = '"$WEFT" order "$LINE" then "$THEN"'
    elif mode == "off":
        environment["LINE"] = of["off"] or of["run"]
        run = 'sh -c "$LINE"' if of["off"] else EATMYDATA + 'sh -c "$LINE"'
    else:
        run = 'sh -c "$LINE"'
    if beside:
        run = f"(while :; do sync .; done) & {run}; code=$?; kill $!; exit $code"
    recording = os.path.join(work, "recording")
    command = [weft, "crash", "run", "--json", "--order", order, "--setup", of["setup"], "--run", run,
               "--check", of["check"], "--states", options.states, "--time", options.time + "s",
               "--record", recording] + of["options"]
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, errors="replace", cwd=work)
    if done.returncode not in (0, 3):
        print(f"{name}, {mode}, {order}: exit code {done.returncode}: {done.stderr[-1500:]}", file=sys.stderr)
        return None
    answer = json.loads(done.stdout)
    if done.returncode == 3 and mode != "off":
        print(f"{name}, {mode}, {order}:\n{answer['text']}", file=sys.stderr)
        if options.keep:
            shutil.copy(recording, os.path.join(options.keep, f"{name}-{mode}-{order}".replace(" ", "-")))
    return answer


sys.exit(main())
