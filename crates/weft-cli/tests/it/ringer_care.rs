//! Looking after a shared folder through the real command: mappings that others' writes reach, stores that a
//! disk has damaged, copies of a cell, databases that share memory.

use crate::ringer::{Cell, serve};
use crate::run::can_mount;
use crate::transformed::has;
use std::fs;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use weft_testing::wait_until;

/// A mapping showed for ever what there was when it was first read.
#[test]
fn a_mapping_shows_what_another_machine_writes() {
    if !can_mount() || !has("python3") {
        return;
    }
    let cell = Cell::new();
    let (a, b) = (cell.mount("a"), cell.mount("b"));
    // Waits for each value that is asked for, and says so; ends by itself when nobody asks any more.
    let script = "
import mmap, os, sys, time
maps = [mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), 0, flags=flags, prot=mmap.PROT_READ)
        for flags in (mmap.MAP_SHARED, mmap.MAP_PRIVATE)]
for line in sys.stdin:
    for m in maps:
        end = time.time() + 20
        while m[5000:5008] != line[:8].encode():
            if time.time() > end:
                print('stale: it shows', m[5000:5008], flush=True)
                sys.exit(1)
            time.sleep(0.001)
    print('seen', line[:8], flush=True)
";
    let write = |value: usize| {
        let file = fs::OpenOptions::new().write(true).open(a.join("file")).unwrap();
        file.write_all_at(format!("{value:08}").as_bytes(), 5000).unwrap();
    };
    fs::write(a.join("file"), vec![b'.'; 20_000]).unwrap();
    let reader = Command::new("python3")
        .args(["-c", script])
        .arg(b.join("file"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut reader = reader.unwrap();
    let mut ask = reader.stdin.take().unwrap();
    let mut told = std::io::BufReader::new(reader.stdout.take().unwrap());
    for value in 1..=10 {
        write(value);
        std::io::Write::write_all(&mut ask, format!("{value:08}\n").as_bytes()).unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut told, &mut line).unwrap();
        assert_eq!(line, format!("seen {value:08}\n"));
    }
    drop(ask);
    assert!(reader.wait().unwrap().success());
}

/// The files of blocks that a client keeps for itself.
fn own_blocks(cell: &Cell, store: &str) -> Vec<PathBuf> {
    let dirs = fs::read_dir(cell.bench.path(store).join("own")).unwrap();
    dirs.flat_map(|dir| fs::read_dir(dir.unwrap().path()).unwrap())
        .map(|block| block.unwrap().path())
        .collect()
}

#[test]
fn a_store_is_scrubbed() {
    if !can_mount() {
        return;
    }
    let cell = Cell::new();
    let (a, b) = (cell.mount("a"), cell.mount("b"));
    let bench = &cell.bench;
    for name in ["shared", "alone"] {
        fs::write(a.join(name), vec![name.as_bytes()[0]; 700_000]).unwrap();
    }
    fs::File::open(&a).unwrap().sync_all().unwrap();
    assert!(fs::read(b.join("shared")).unwrap() == vec![b's'; 700_000]);
    let clean = bench.json(&["ringer", "scrub", "a"]);
    assert!(clean["blocks"].as_u64().unwrap() >= 4, "{clean}");
    assert_eq!((&clean["healed"], &clean["lost"]), (&0.into(), &0.into()), "{clean}");

    // All blocks of both files: those that are alike are one.
    for block in own_blocks(&cell, "a.store") {
        let file = fs::OpenOptions::new().write(true).open(&block).unwrap();
        file.write_all_at(b"rot", 1000).unwrap();
    }
    let found = bench.run(&["ringer", "scrub", "a"]);
    assert!(found.code == 4 && found.out.contains("damaged, repaired"), "{found:#?}");
    assert!(found.out.contains("damaged, lost"), "{found:#?}");
    fs::read(a.join("alone")).expect_err("damaged, and nobody else has it");
    assert!(fs::read(a.join("shared")).unwrap() == vec![b's'; 700_000]);
    fs::remove_file(a.join("alone")).unwrap();
    // Not at all where no cell is mounted.
    bench.fails(8, &["ringer", "scrub", "."]);
}

/// Blocks that the disk has damaged while they are served: no mount reads anything but what was written.
#[test]
fn damaged_blocks_are_served_to_no_mount() {
    if !can_mount() {
        return;
    }
    let cell = Cell::new();
    let (a, b) = (cell.mount("a"), cell.mount("b"));
    let content: Vec<u8> = (0..700_000_u32).map(|n| (n % 251) as u8).collect();
    for n in 0..4 {
        fs::write(a.join(format!("f{n}")), [&content[..], &[n]].concat()).unwrap();
    }
    fs::File::open(&a).unwrap().sync_all().unwrap();
    let all = own_blocks(&cell, "a.store");
    for (n, block) in all.iter().enumerate() {
        let len = fs::metadata(block).unwrap().len();
        let file = fs::OpenOptions::new().write(true).open(block).unwrap();
        match n % 3 {
            0 => file.write_all_at(b"rot", len / 2).unwrap(),
            1 => file.set_len(len / 2).unwrap(),
            _ => {}
        }
    }
    let mut whole = 0;
    for n in 0..4 {
        for mount in [&b, &a] {
            match fs::read(mount.join(format!("f{n}"))) {
                Ok(read) => {
                    assert!(read == [&content[..], &[n]].concat(), "f{n} is something else");
                }
                Err(e) => {
                    let eio = rustix::io::Errno::IO.raw_os_error();
                    assert_eq!(e.raw_os_error(), Some(eio), "f{n}: {e}");
                }
            }
        }
        whole += usize::from(fs::read(a.join(format!("f{n}"))).is_ok());
    }
    assert!(whole < 4, "something was damaged");
    let scrub = cell.bench.run(&["ringer", "scrub", "a"]);
    assert!(scrub.code == 4 && scrub.out.contains("damaged, lost"), "{scrub:#?}");
    let clean = cell.bench.json(&["ringer", "doctor", &cell.address()]);
    assert_eq!(clean["problem_count"], 0, "the cell itself is well: {clean}");
}

/// Pages of the cell's file that the disk has damaged: the server does not begin, and names the file; or a check
/// does not find the cell to be well.
#[test]
fn a_damaged_cell_is_noticed() {
    if !can_mount() {
        return;
    }
    for page in [1_u64, 2, 5, 9, 14] {
        let cell = Cell::new();
        let bench = &cell.bench;
        let a = cell.mount("a");
        for n in 0..200 {
            fs::write(a.join(format!("file-{n}")), format!("content {n}")).unwrap();
        }
        bench.ok(&["umount", "a"]);
        cell.kill("server");
        // All that is in its log goes into the file itself.
        let db = rusqlite::Connection::open(bench.path("cell")).unwrap();
        db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        drop(db);
        let file = fs::OpenOptions::new().write(true).open(bench.path("cell")).unwrap();
        let pages = file.metadata().unwrap().len() / 4096;
        assert!(pages > 20, "{pages} pages");
        // The head of a page, which says how the rest is to be read.
        file.write_all_at(&[0xff; 16], (page - 1) * 4096).unwrap();
        drop(file);
        let serve = ["ringer", "serve", "cell", "--listen", &cell.address(), "--epoch", "3"];
        let served =
            bench.run(&[&serve[..], &["--background", "--pid-file", "server.pid"]].concat());
        if served.code != 0 {
            assert!(served.err.contains("cell"), "page {page}: it names the file: {served:#?}");
            continue;
        }
        let doctor = bench.run(&["ringer", "doctor", &cell.address()]);
        assert!(doctor.code != 0, "page {page}: {doctor:#?}");
        let said = [&doctor.out[..], &doctor.err].concat();
        // It is told what is damaged, or the server has met it before and serves nothing any more.
        let is_noticed =
            ["store-damaged", "malformed", "is a standby"].iter().any(|w| said.contains(w));
        assert!(is_noticed, "page {page}: {said}");
    }
}

/// A server whose disk is full: what it has acknowledged stays, what it has not waits in the client and says so, and
/// all of it is there when there is room again.
#[test]
fn a_server_on_a_full_disk_loses_nothing() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let bench = crate::run::Bench::new();
    let disk = bench.path("disk");
    fs::create_dir(&disk).unwrap();
    let tmpfs = |args: &[&str]| {
        let done = std::process::Command::new("mount").args(args).arg(&disk).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    };
    tmpfs(&["-t", "tmpfs", "-o", "size=4m", "none"]);
    let cell = Cell { bench };
    let unmount = Disk(disk.clone());
    serve(&cell.bench, "disk/cell", &cell.address(), "server.pid");
    let a = crate::ringer::mount(&cell.bench, "a", &cell.address(), &["--patience", "3"]);
    let c = cell.mount("c");
    fs::write(a.join("for all"), "text").unwrap();
    assert_eq!(fs::read(c.join("for all")).unwrap(), b"text");
    fs::write(disk.join("ballast"), vec![1; 2 << 20]).unwrap();
    let mut done = Vec::new();
    let mut refused = None;
    for n in 0..5000 {
        let name = format!("{n}-{}", "x".repeat(200));
        let made = fs::write(a.join(&name), "x");
        match made.and_then(|()| fs::File::open(&a)?.sync_all()) {
            Ok(()) => done.push(name),
            Err(e) => {
                refused = Some(e);
                break;
            }
        }
    }
    let refused = refused.expect("the disk is full at last");
    // It waits in the client, for longer than the patience of this one, which says why.
    let full = rustix::io::Errno::NOSPC.raw_os_error();
    assert_eq!(refused.raw_os_error(), Some(full), "{refused}");
    let status = cell.bench.json(&["ringer", "status", &cell.address()]);
    assert_eq!(status["disk_full"], true, "{status}");
    let names = |mount: &std::path::Path| {
        let names =
            fs::read_dir(mount).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        names.collect::<std::collections::BTreeSet<String>>()
    };
    let after = names(&a);
    assert!(done.iter().all(|name| after.contains(name)), "what was acknowledged is there");
    // A client dies, and its epoch ends: the server stays, and the others read.
    cell.kill("c");
    wait_until("the epoch of the dead client ends", || {
        let status = cell.bench.json(&["ringer", "status", &cell.address()]);
        let clients = status["clients"].as_array().expect("clients").clone();
        assert_eq!(status["disk_full"], true, "{status}");
        clients.iter().filter(|client| client["live"] == true).count() == 1
    });
    assert_eq!(fs::read(a.join("for all")).unwrap(), b"text");
    assert_eq!(names(&a), after);
    fs::remove_file(disk.join("ballast")).unwrap();
    fs::File::open(&a).unwrap().sync_all().unwrap();
    let doctor = cell.bench.json(&["ringer", "doctor", &cell.address()]);
    assert_eq!(doctor["problem_count"], 0, "{doctor}");
    // Over the server's end, too, and for others.
    cell.kill("server");
    serve(&cell.bench, "disk/cell", &cell.address(), "server.pid");
    assert_eq!(names(&cell.mount("b")), after);
    drop(cell);
    drop(unmount);
}

/// A file system in memory that a test has mounted.
struct Disk(PathBuf);

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn a_cell_is_put_back_and_who_knew_better_is_told() {
    if !can_mount() {
        return;
    }
    let cell = Cell::new();
    let a = cell.mount("a");
    let bench = &cell.bench;
    fs::write(a.join("old"), "content").unwrap();
    fs::File::open(&a).unwrap().sync_all().unwrap();
    let copied = bench.json(&["ringer", "backup", &cell.address(), "copy"]);
    assert_eq!(copied["inodes"], 2, "{copied}");
    fs::write(a.join("new"), "later").unwrap();
    bench.ok(&["umount", "a"]);
    cell.kill("server");
    for suffix in ["", "-wal"] {
        let _ =
            fs::rename(bench.path(&format!("cell{suffix}")), bench.path(&format!("newer{suffix}")));
    }
    bench.ok(&["ringer", "restore-cell", "copy", "cell"]);
    bench.fails(1, &["ringer", "restore-cell", "copy", "cell"]);
    cell.serve();
    let mount = ["ringer", "mount", &cell.address(), "a", "--store", "a.store", "--background"];
    let why = bench.fails(1, &mount);
    assert!(why.contains("older") && why.contains("--accept-older-cell"), "{why}");
    let doctor = bench.run(&["ringer", "doctor", &cell.address()]);
    assert!(doctor.code == 4 && doctor.out.contains("older-copy"), "{doctor:#?}");
    let pid = ["--accept-older-cell", "--pid-file", "a.pid"];
    bench.ok(&[&mount[..], &pid].concat());
    assert_eq!(fs::read_to_string(a.join("old")).unwrap(), "content");
    assert!(!a.join("new").exists());
    assert!(bench.path("a.store/older-cell-1/identity").exists());
    bench.ok(&["umount", "a"]);
    // The newer one has it all.
    cell.kill("server");
    serve(bench, "newer", &cell.address(), "server.pid");
    let b = cell.mount("b");
    assert!(b.join("old").exists() && b.join("new").exists());
}

/// SQLite in WAL mode lost rows on two mounts; it is told that it cannot have its shared memory there.
#[test]
fn a_database_in_wal_mode_is_refused_in_place_of_losing_rows() {
    if !can_mount() || !has("sqlite3") {
        return;
    }
    let cell = Cell::new();
    let (a, b) = (cell.mount("a"), cell.mount("b"));
    let sqlite = |at: &PathBuf, sql: &str| {
        let out = Command::new("sqlite3").arg(at.join("base")).arg(sql).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        (out.status.success(), text + &String::from_utf8_lossy(&out.stderr))
    };
    assert!(sqlite(&a, "CREATE TABLE t (n INTEGER)").0);
    let _ = sqlite(&a, "PRAGMA journal_mode=WAL");
    for at in [&a, &b] {
        let (done, why) = sqlite(at, "INSERT INTO t VALUES (99)");
        assert!(!done && why.contains("unable to open"), "{why}");
    }
    // As the log and the documentation say; in any other mode it is a database of both.
    let back = sqlite(&a, "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=DELETE");
    assert!(back.0, "{}", back.1);
    for n in 0..10 {
        let at = if n % 2 == 0 { &a } else { &b };
        let done = sqlite(at, &format!("INSERT INTO t VALUES ({n})"));
        assert!(done.0, "{}", done.1);
    }
    assert_eq!(sqlite(&b, "SELECT count(*) FROM t").1.trim(), "10");
    assert!(!a.join("base-shm").exists());
}

/// Colours are for people who look on.
#[test]
fn a_log_file_has_no_colours() {
    if !can_mount() {
        return;
    }
    let cell = Cell::new();
    let mut serving = cell
        .bench
        .command(&["-vv", "ringer", "serve", "other", "--listen", "unix:other.socket"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = serving.stderr.take().unwrap();
    // The socket is there before anybody listens on it.
    let mut connected = None;
    wait_until("the server listens", || {
        connected = UnixStream::connect(cell.bench.path("other.socket")).ok();
        connected.is_some()
    });
    // Something that it logs: a connection that is ended for nonsense.
    let mut stream = connected.unwrap();
    std::io::Write::write_all(&mut stream, b"this is no message of the protocol").unwrap();
    let _ = stream.read(&mut [0; 10]);
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&serving),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    serving.wait().unwrap();
    let mut text = String::new();
    log.read_to_string(&mut text).unwrap();
    assert!(text.contains("connection") && !text.contains('\u{1b}'), "{text:?}");
}
