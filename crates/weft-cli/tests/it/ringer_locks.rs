//! Locks between machines: two mounts of one cell, and programs that trust `flock(2)` and `fcntl(2)`.

use crate::ringer::Cell;
use crate::run::can_mount;
use rustix::fs::{FlockOperation, fcntl_lock, flock};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use weft_testing::{ends, wait_until};

fn open(path: &Path) -> File {
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    options.expect("the file")
}

/// A program that has locked a file, and does nothing else.
fn locker(path: &Path) -> Child {
    let script = "flock -x 9 && echo locked && exec sleep 3600";
    let shell = format!("exec 9<>'{}'; {script}", path.display());
    let mut sh = Command::new("sh");
    let mut child = sh.args(["-c", &shell]).stdout(Stdio::piped()).spawn().expect("a shell");
    let mut line = String::new();
    let out = child.stdout.as_mut().expect("its output");
    BufReader::new(out).read_line(&mut line).expect("a line");
    assert_eq!(line, "locked\n");
    child
}

fn end(child: &mut Child) {
    child.kill().expect("it runs");
    child.wait().expect("it ended");
}

#[test]
fn a_counter_behind_a_lock_counts() {
    if !can_mount() {
        return;
    }
    const TIMES: u64 = 40;
    let cell = Cell::new();
    let dirs = [cell.mount("a"), cell.mount("b")];
    // POSIX locks are a process's: its threads would not exclude each other on one mount.
    for (name, callers, posix) in [("flock", 2, false), ("posix", 1, true)] {
        let lock = |file: &File, how| if posix { fcntl_lock(file, how) } else { flock(file, how) };
        fs::write(dirs[0].join(name), 0_u64.to_le_bytes()).expect("a file");
        std::thread::scope(|scope| {
            for dir in &dirs {
                for _ in 0..callers {
                    scope.spawn(move || {
                        for _ in 0..TIMES {
                            let file = open(&dir.join(name));
                            lock(&file, FlockOperation::LockExclusive).expect("locked");
                            let mut count = [0; 8];
                            file.read_exact_at(&mut count, 0).expect("the counter");
                            let next = u64::from_le_bytes(count) + 1;
                            file.write_all_at(&next.to_le_bytes(), 0).expect("counted");
                            // Closing the file unlocks it; every other time by hand.
                            if next % 2 == 0 {
                                lock(&file, FlockOperation::Unlock).expect("unlocked");
                            }
                        }
                    });
                }
            }
        });
        for dir in &dirs {
            let count = fs::read(dir.join(name)).expect("the counter");
            assert_eq!(count, (2 * callers * TIMES).to_le_bytes(), "{name}");
        }
    }
}

/// Python has these locks, and calls that wait for them.
const OPEN_FILE_LOCKS: &str = r#"
import fcntl, os, struct, sys
SET, SET_WAIT = 37, 38
def open_file(path): return os.open(path, os.O_RDWR | os.O_CREAT)
def lock(fd, kind=fcntl.F_WRLCK, start=0, length=0, command=SET):
    try:
        fcntl.fcntl(fd, command, struct.pack("hhqqi4x", kind, 0, start, length, 0))
        return True
    except BlockingIOError:
        return False
one, other = sys.argv[1:]
a, b = open_file(one), open_file(other)
assert lock(a) and not lock(b), "they exclude each other"
again = os.dup(a)
os.close(a)
assert not lock(b), "another descriptor of the open file is there"
os.close(again)
assert lock(b, command=SET_WAIT), "the lock ends with the open file"
os.close(b)
# A process that dies.
for path in (one, other):
    if os.fork() == 0:
        os._exit(0 if lock(open_file(path), command=SET_WAIT) else 1)
    assert os.wait()[1] == 0
    fd = open_file(other)
    assert lock(fd, command=SET_WAIT)
    os.close(fd)
# A child that inherits an open file: its parent has it yet.
a, b = open_file(one), open_file(other)
if os.fork() == 0:
    os._exit(0 if lock(a, start=5, length=5, command=SET_WAIT) else 1)
assert os.wait()[1] == 0
assert not lock(b), "this process has the open file"
os.close(a)
assert lock(b, command=SET_WAIT)
# A process' own lock lives as long as no descriptor of the file is closed, whatever open files end.
c, d = open_file(one), open_file(other)
os.close(b)
fcntl.fcntl(c, fcntl.F_SETLKW, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
if os.fork() == 0:
    e = open_file(other)
    os._exit(1 if lock(e) else 0)
assert os.wait()[1] == 0
os.close(c)
assert lock(d, command=SET_WAIT)
"#;

#[test]
fn locks_of_open_files_end_with_them() {
    if !can_mount() {
        return;
    }
    let cell = Cell::new();
    let (a, b) = (cell.mount("a").join("file"), cell.mount("b").join("file"));
    for (one, other) in [(&a, &a), (&a, &b)] {
        let mut python = Command::new("python3");
        let ran =
            python.args(["-c", OPEN_FILE_LOCKS]).args([one, other]).output().expect("python3");
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    }
}

#[test]
fn locks_end_with_their_process_and_with_their_client_and_outlive_the_server() {
    if !can_mount() {
        return;
    }
    let cell = Cell::new();
    let (a, b) = (cell.mount("a"), cell.mount("b"));
    fs::write(a.join("f"), b"x").expect("a file");
    let try_b = || flock(open(&b.join("f")), FlockOperation::NonBlockingLockExclusive);
    let mut holder = locker(&a.join("f"));
    assert_eq!(try_b(), Err(rustix::io::Errno::WOULDBLOCK));
    // `flock(2)` and `fcntl(2)` do not see each other.
    fcntl_lock(open(&b.join("f")), FlockOperation::NonBlockingLockExclusive).expect("its own kind");

    cell.kill("server");
    cell.serve();
    assert_eq!(try_b(), Err(rustix::io::Errno::WOULDBLOCK), "the server was told again");
    end(&mut holder);
    wait_until("its process has ended", || try_b().is_ok());

    // Many who wait hold up nobody, and one who is killed waits no more.
    let mut holder = locker(&a.join("f"));
    let wait = |_| Command::new("flock").arg(b.join("f")).arg("true").spawn().expect("flock(1)");
    let mut waiting: Vec<Child> = (0..20).map(wait).collect();
    // Time for them to wait: if it is too short, a mistake is not found.
    std::thread::sleep(Duration::from_millis(500));
    let file = b.join("f");
    ends("reads are not held up by those who wait", move || {
        for _ in 0..10 {
            assert_eq!(fs::read(&file).expect("the file"), b"x");
        }
    });
    assert!(waiting.iter_mut().all(|w| w.try_wait().expect("a process").is_none()), "they wait");
    let mut killed = waiting.pop().expect("one of them");
    killed.kill().expect("it runs");
    wait_until("a signal ends the waiting", || killed.try_wait().expect("a process").is_some());

    // The holder's machine is gone: the lock goes with its epoch.
    cell.kill("a");
    for mut waiting in waiting {
        wait_until("the holder is gone", || {
            waiting.try_wait().expect("a process").is_some_and(|status| status.success())
        });
    }
    end(&mut holder);
    try_b().expect("nobody is left");
}

#[test]
fn sqlite_on_two_mounts_is_one_database() {
    if !can_mount() {
        return;
    }
    const TIMES: i64 = 12;
    let cell = Cell::new();
    let dirs = [cell.mount("a"), cell.mount("b")];
    let connect = |dir: &Path| {
        let db = rusqlite::Connection::open(dir.join("db")).expect("a database");
        db.busy_timeout(Duration::from_secs(60)).expect("patience");
        db
    };
    let tables = "CREATE TABLE n (n INTEGER); INSERT INTO n VALUES (0);
        CREATE TABLE log (who INTEGER, n INTEGER PRIMARY KEY);";
    connect(&dirs[0]).execute_batch(tables).expect("tables");
    std::thread::scope(|scope| {
        for (who, dir) in (0_i64..).zip(&dirs) {
            scope.spawn(move || {
                let mut db = connect(dir);
                for _ in 0..TIMES {
                    let how = rusqlite::TransactionBehavior::Immediate;
                    let tx = db.transaction_with_behavior(how).expect("its turn");
                    tx.execute("UPDATE n SET n = n + 1", []).expect("counted");
                    tx.execute("INSERT INTO log SELECT ?1, n FROM n", [who]).expect("noted");
                    tx.commit().expect("committed");
                }
            });
        }
    });
    for dir in &dirs {
        let db = connect(dir);
        let text = |sql: &str| db.query_row(sql, [], |r| r.get::<_, String>(0)).expect("a row");
        let number = |sql: &str| db.query_row(sql, [], |r| r.get::<_, i64>(0)).expect("a row");
        assert_eq!(text("PRAGMA journal_mode"), "delete");
        assert_eq!(text("PRAGMA integrity_check"), "ok");
        assert_eq!(number("SELECT n FROM n"), 2 * TIMES);
        assert_eq!(number("SELECT count(*) FROM log"), 2 * TIMES);
        assert_eq!(number("SELECT count(*) FROM log WHERE who = 0"), TIMES);
    }
}

#[test]
fn git_works_in_a_shared_folder() {
    if !can_mount() {
        return;
    }
    if Command::new("git").arg("--version").output().is_err() {
        eprintln!("skipped: there is no git here");
        return;
    }
    let cell = Cell::new();
    let dirs = [cell.mount("a"), cell.mount("b")];
    let git = |dir: &Path, args: &[&str]| {
        let mut git = Command::new("git");
        let who = ["-c", "user.name=w", "-c", "user.email=w@example.org", "-c", "gc.auto=0"];
        git.args(who).args(["-c", "safe.directory=*"]).args(args).current_dir(dir);
        git.env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", cell.bench.dir());
        let out = git.output().expect("git runs");
        let err = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "git {args:?}: {err}");
        String::from_utf8_lossy(&out.stdout).trim().to_owned()
    };
    git(&dirs[0], &["init", "-q", "r"]);
    for n in 0..8 {
        let dir = dirs[n % 2].join("r");
        fs::write(dir.join(format!("f{n}")), format!("{n}\n").repeat(n * 500)).expect("a file");
        git(&dir, &["add", "."]);
        git(&dir, &["commit", "-q", "-m", &format!("number {n}")]);
        let other = dirs[(n + 1) % 2].join("r");
        assert_eq!(git(&other, &["rev-list", "--count", "HEAD"]), (n + 1).to_string());
        assert_eq!(git(&other, &["status", "--porcelain"]), "");
    }
    for dir in &dirs {
        git(&dir.join("r"), &["fsck", "--strict"]);
    }
}
