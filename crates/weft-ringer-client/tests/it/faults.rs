//! A cell with disks that are faulty, full, or rolled back, and with clients that do not answer.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use weft_block::Rng;
use weft_ringer::Bytes;
use weft_ringer_client::RingerFs;
use weft_ringer_net::{Answer, Ask, Observer};
use weft_ringer_server::backup::{backup, restore};
use weft_vfs::{Caller, Error, FileKind, FileSystem, Handle, OpenFlags, Walker};

use super::Cell;
use weft_testing::wait_for;

const LONG: Duration = Duration::from_secs(30);

/// A small file system in memory, mounted for one test.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None`, with a word about it, where this user cannot mount.
    fn mount(at: &Path, size: &str) -> Option<Self> {
        fs::create_dir_all(at).expect("a directory");
        let size = format!("size={size}");
        let args = ["-t", "tmpfs", "-o", &size, "tmpfs"];
        let mounted = Command::new("mount").args(args).arg(at).status();
        if !mounted.is_ok_and(|status| status.success()) {
            eprintln!("skipped: mounting a tmpfs needs root");
            return None;
        }
        Some(Self(at.into()))
    }

    /// Leaves no byte free.
    fn fill(&self) {
        let mut file = fs::File::create(self.0.join("ballast")).expect("a file");
        for len in [1 << 20, 4096, 1] {
            while file.write_all(&vec![7; len]).is_ok() {}
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// All files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let all = entries.flat_map(|entry| {
        let path = entry.expect("an entry").path();
        if path.is_dir() { files(&path) } else { vec![path] }
    });
    all.collect()
}

fn flip_byte(path: &Path, at: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).expect("a block");
    flip_byte_of(&file, at);
}

fn flip_byte_of(file: &fs::File, at: u64) {
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[byte[0] ^ 0x40], at).expect("written");
}

fn make(fs: &RingerFs, name: &[u8]) -> (weft_vfs::Ino, Handle) {
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let (entry, opened) = fs.create(&Caller::ROOT, fs.root(), name, 0o644, flags).expect("made");
    (entry.attr.ino, opened.handle)
}

/// Other clients get the changes that a client made under leases although its disk is full; they once
/// waited for as long as it was.
#[test]
fn client_with_a_full_disk_releases_its_leases() {
    let cell = Cell::new(LONG);
    let Some(disk) = SmallDisk::mount(&cell.path("a"), "40m") else { return };
    let (a, b) = (cell.join("a"), cell.join("b"));
    let content = |n: u8| vec![n; 700 + 13 * usize::from(n)];
    let made: Vec<_> = (0..40_u8)
        .map(|n| {
            let (ino, handle) = make(&a, format!("file{n}").as_bytes());
            // Not a whole block, so it is open in memory for now.
            a.write(&Caller::ROOT, ino, handle, 0, &content(n)).expect("there is room");
            (ino, handle)
        })
        .collect();
    disk.fill();
    for n in 0..40_u8 {
        let read = Walker::new(&b).read_file(format!("/file{n}").as_bytes());
        assert!(read.expect("a gives it up") == content(n), "{n}");
    }
    // No more is taken than there is room for, and what was taken is everybody's.
    let mut taken = 0;
    let refused = (0..1_000_000_u64).find_map(|at| {
        let written = a.write(&Caller::ROOT, made[0].0, made[0].1, at * 10_000, &[9; 10_000]);
        taken += u64::from(written.is_ok());
        written.err()
    });
    assert!(matches!(refused, Some(Error::NoSpace)), "{refused:?}");
    let size = b.getattr(made[0].0).expect("it is given up").size_bytes;
    assert_eq!(size, (taken * 10_000).max(700));
    drop(disk);
}

/// A bit that flips on the disk of a client is noticed when it is read, and put right by others.
#[test]
fn damaged_blocks_are_not_served_and_are_healed() {
    let cell = Cell::new(LONG);
    let a = cell.join("a");
    let content: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
    Walker::new(&a).write_file(b"/file", &content, 0o644).expect("written");
    a.sync().expect("stored");
    let read = || Walker::new(&a).read_file(b"/file");
    assert!(read().expect("whole") == content);
    let blocks = files(&cell.path("a").join("own"));
    assert_eq!(blocks.len(), 4);
    for (n, block) in blocks.iter().enumerate() {
        flip_byte(block, n as u64 * 100);
    }
    match read() {
        Ok(bytes) => {
            let wrong = bytes.iter().zip(&content).filter(|(a, b)| a != b).count();
            panic!("{wrong} damaged bytes were served");
        }
        Err(e) => assert!(e.to_string().contains("damaged"), "{e}"),
    }
    // Not a byte of them, either.
    let ino = a.lookup(a.root(), b"file").expect("there").attr.ino;
    a.read(ino, Handle::NONE, 150_000, &mut [0; 10]).expect_err("of a damaged block");
    for (n, block) in blocks.iter().enumerate() {
        flip_byte(block, n as u64 * 100);
    }
    let b = cell.join("b");
    assert!(Walker::new(&b).read_file(b"/file").expect("whole again") == content);
    for block in &blocks {
        flip_byte(block, 5);
    }
    // Cut off is damaged too.
    fs::OpenOptions::new().write(true).open(&blocks[0]).expect("a block").set_len(9).expect("cut");
    assert!(read().expect("b has it") == content);
    for block in &blocks {
        let bytes = fs::read(block).expect("a block");
        let name = block.file_name().expect("a name").to_string_lossy().into_owned();
        assert_eq!(blake3::hash(&bytes).to_hex().to_string(), name, "it is whole again");
    }
}

/// Other users cannot read the files of a cell and of a client.
#[test]
fn stores_and_cells_are_for_their_users_alone() {
    let cell = Cell::new(LONG);
    let a = cell.join("a");
    Walker::new(&a).write_file(b"/file", b"content", 0o644).expect("written");
    a.sync().expect("stored");
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o7777;
    assert_eq!(mode(&cell.path("a")), 0o700);
    a.unmount().expect("it ends");
    for path in files(&cell.path("a")) {
        if fs::symlink_metadata(&path).expect("there").is_file() {
            assert_eq!(mode(&path), 0o600, "{}", path.display());
        }
    }
    for name in ["cell", "cell-wal"] {
        assert_eq!(mode(&cell.path(name)), 0o600, "{name}");
    }
}

/// A stopped client does not answer; another holder is asked while the first may still answer.
#[test]
fn silent_peer_does_not_delay_others() {
    let cell = Cell::new(LONG);
    let (a, b) = (cell.join("a"), cell.join("b"));
    let content = vec![3; 300_000];
    Walker::new(&a).write_file(b"/file", &content, 0o644).expect("written");
    a.sync().expect("with the server");
    assert!(Walker::new(&b).read_file(b"/file").expect("a has it") == content);
    // Requests to it are not answered from now on.
    let socket = cell.path("a").join("peers.sock");
    fs::remove_file(&socket).expect("it listened there");
    let listener = UnixListener::bind(&socket).expect("a socket");
    let (called, given_up) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (Arc::clone(&called), Arc::clone(&given_up));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (called, given_up) = (Arc::clone(&counts.0), Arc::clone(&counts.1));
            std::thread::spawn(move || {
                let mut stream = stream;
                let mut buf = [0; 4096];
                while stream.read(&mut buf).is_ok_and(|n| n > 0) {
                    called.fetch_add(1, Ordering::SeqCst);
                }
                given_up.fetch_add(1, Ordering::SeqCst);
            });
        }
    });
    let c = cell.join("c");
    assert!(Walker::new(&c).read_file(b"/file").expect("b has it") == content);
    assert!(called.load(Ordering::SeqCst) > 0, "its writer is asked first");
    assert_eq!(given_up.load(Ordering::SeqCst), 0, "c waited until it gave a up");
}

/// Processes of two machines cannot share memory: SQLite's file for that is refused, beside a database.
#[test]
fn the_shared_memory_of_a_database_is_refused() {
    let cell = Cell::new(LONG);
    let a = cell.join("a");
    let mknod = |name: &[u8]| a.mknod(&Caller::ROOT, a.root(), name, FileKind::Regular, 0o644, 0);
    mknod(b"base").expect("made");
    mknod(b"base-wal").expect("made");
    let refused = mknod(b"base-shm").map(|_| ());
    assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
    // Any other file may have such a name.
    mknod(b"other-shm").expect("made");
    // One that was made by renaming cannot be written.
    a.rename(
        &Caller::ROOT,
        a.root(),
        b"other-shm",
        a.root(),
        b"base-shm",
        weft_vfs::RenameFlags::empty(),
    )
    .expect("renamed");
    let ino = a.lookup(a.root(), b"base-shm").expect("there").attr.ino;
    a.open(&Caller::ROOT, ino, OpenFlags::READ).expect("read");
    let refused = a.open(&Caller::ROOT, ino, OpenFlags::READ | OpenFlags::WRITE).map(|_| ());
    assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
}

/// A cell that is put back to an earlier state has forgotten what clients know: none goes on with it
/// as if nothing had happened.
#[test]
fn a_cell_that_was_rolled_back_is_refused() {
    let mut cell = Cell::new(Duration::from_secs(2));
    let (a, b) = (cell.join("a"), cell.join("b"));
    Walker::new(&a).write_file(b"/old", b"before", 0o644).expect("written");
    a.sync().expect("with the server");
    a.unmount().expect("it ends");
    drop(a);
    cell.stop();
    fs::copy(cell.path("cell"), cell.path("copy")).expect("copied");
    cell.start();
    let a = cell.join("a");
    Walker::new(&a).write_file(b"/new", b"after", 0o644).expect("written");
    assert!(Walker::new(&b).read_file(b"/new").expect("read") == b"after");
    a.unmount().expect("it ends");
    drop(a);
    cell.stop();
    fs::copy(cell.path("copy"), cell.path("cell")).expect("rolled back");
    let _ = fs::remove_file(cell.path("cell-wal"));
    cell.start();
    // A client that was disconnected meanwhile, and one that was connected all the time.
    let error = RingerFs::join(cell.options("a")).expect_err("the cell is older than a");
    assert!(error.to_string().contains("older"), "{error}");
    let stale = wait_for("a lookup is refused", || match b.lookup(b.root(), b"new") {
        Err(e) if e.errno() == 116 => Ok(e),
        other => Err(format!("{other:?}")),
    });
    assert!(stale.to_string().contains("older"), "{stale}");
    // A new client may join.
    cell.join("c");
}

/// A copy that is made while others change the cell is what it was at one moment, and is served.
#[test]
fn a_cell_is_copied_while_it_is_served() {
    let mut cell = Cell::new(Duration::from_secs(2));
    let a = cell.join("a");
    let dir = a.mkdir(&Caller::ROOT, a.root(), b"dir", 0o755).expect("made").attr.ino;
    let make = |n: u32| {
        let leaf = format!("name{n:04}");
        let made = a.mknod(&Caller::ROOT, dir, leaf.as_bytes(), FileKind::Regular, 0o644, 0);
        made.expect("made");
    };
    // More than one page of records.
    (0..1500).for_each(make);
    a.sync().expect("with the server");
    let copied = std::thread::scope(|scope| {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let writer = scope.spawn(|| {
            let stopped = stopped;
            let mut made = 1500;
            while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                make(made);
                a.unlink(&Caller::ROOT, dir, format!("name{:04}", made - 1500).as_bytes())
                    .expect("removed");
                a.sync().expect("with the server");
                made += 1;
            }
            made
        });
        let mut server = Observer::connect(&cell.address(), None).expect("a connection");
        let copied = backup(&mut server, &cell.path("copy")).expect("a copy");
        drop(stop);
        (copied, writer.join().expect("no panic"))
    });
    let (copied, made) = copied;
    assert_eq!(copied.checked.problem_count, 0, "{:?}", copied.checked.problems);
    assert_eq!(fs::metadata(cell.path("copy")).expect("there").permissions().mode() & 0o777, 0o600);
    let mut server = Observer::connect(&cell.address(), None).expect("a connection");
    backup(&mut server, &cell.path("copy")).expect_err("nothing is replaced");
    Walker::new(&a).write_file(b"/later", b"content", 0o644).expect("written");
    a.sync().expect("stored");
    a.unmount().expect("it ends");
    drop(a);
    cell.stop();
    restore(&cell.path("copy"), &cell.path("cell")).expect_err("nothing is replaced");
    fs::rename(cell.path("cell"), cell.path("lost")).expect("moved away");
    restore(&cell.path("copy"), &cell.path("cell")).expect("put back");
    cell.start();
    RingerFs::join(cell.options("a")).expect_err("a has seen more");
    let c = cell.join("c");
    let dir = c.lookup(c.root(), b"dir").expect("there").attr.ino;
    let mut names = 0;
    let count = &mut |entry: weft_vfs::DirEntry<'_>| {
        names += usize::from(entry.name.starts_with(b"name"));
        true
    };
    c.readdir(dir, weft_vfs::DirCursor::START, count).expect("listed");
    // A file is created before another is removed.
    assert!(made > 1500 && (1500..=1501).contains(&names), "{made}: {names}");
    // Whatever was indexed is found.
    let search = Ask::Search { query: Bytes(b"name".to_vec()), limit: 10_000 };
    let found = Observer::connect(&cell.address(), None).and_then(|mut server| server.ask(&search));
    let Ok(Answer::Found { hits, .. }) = found else { panic!("{found:?}") };
    assert_eq!(hits.len(), names);
    // The problems that a check of the cell finds, until the later client accepts the older cell.
    let problems = || {
        let asked =
            Observer::connect(&cell.address(), None).and_then(|mut s| s.ask(&Ask::Check {}));
        let Ok(Answer::Checked { problems, .. }) = asked else { panic!("{asked:?}") };
        problems.into_iter().map(|(code, _)| code.0).collect::<Vec<_>>()
    };
    assert_eq!(problems(), [b"older-copy".to_vec()]);
    let mut options = cell.options("a");
    options.accept_older_cell = true;
    let again = RingerFs::join(options).expect("it is accepted");
    assert!(again.lookup(again.root(), b"later").is_err());
    Walker::new(&again).write_file(b"/new", b"content", 0o644).expect("written");
    again.sync().expect("with the server");
    let aside = cell.path("a").join("older-cell-1");
    assert!(aside.join("identity").exists() && aside.join("journal").exists());
    assert_eq!(files(&aside.join("own")).len(), 1, "what it alone had");
    assert!(Walker::new(&c).read_file(b"/new").expect("read") == b"content");
    // The old client is listed until an administrator drops it.
    assert_eq!(problems(), [b"older-copy".to_vec()]);
    let Answer::Status { status } = server_says(&cell, &Ask::Status {}) else {
        panic!("no status")
    };
    for client in status.clients {
        let _ = Observer::connect(&cell.address(), None)
            .and_then(|mut server| server.ask(&Ask::Forget { client: client.client }));
    }
    assert!(problems().is_empty());
}

fn server_says(cell: &Cell, ask: &Ask) -> Answer {
    let mut server = Observer::connect(&cell.address(), None).expect("a connection");
    server.ask(ask).expect("an answer")
}

/// Clients that write, overwrite and read while their disks change what they keep: each read is right, or an
/// error.
fn lying_disks(seed: u64, steps: u64) {
    const FILES: u64 = 5;
    let cell = Cell::new(LONG);
    let names = ["a", "b", "c"];
    let clients = names.map(|name| cell.join(name));
    let mut rng = Rng::new(seed);
    let mut model: Vec<Option<Vec<u8>>> = vec![None; FILES as usize];
    let (mut right, mut failed, mut damaged) = (0, 0, 0);
    for step in 0..steps {
        let (fs, n) = (&clients[rng.index(3)], rng.index(FILES as usize));
        let path = format!("/file{n}");
        match rng.below(10) {
            0..2 => {
                let mut content = vec![0; rng.index(200_000) + 1];
                rng.fill(&mut content);
                let written = Walker::new(fs).write_file(path.as_bytes(), &content, 0o644);
                model[n] = written.is_ok().then_some(content);
            }
            2 => {
                // A part of a block: the rest of it is read, and must not be believed either.
                let Some(content) = &mut model[n] else { continue };
                let at = rng.index(content.len());
                let ino = fs.lookup(fs.root(), &path.as_bytes()[1..]).expect("there").attr.ino;
                match fs.write(&Caller::ROOT, ino, Handle::NONE, at as u64, &[step as u8]) {
                    Ok(_) => content[at] = step as u8,
                    Err(e) => assert!(is_honest(&e), "seed {seed}, step {step}: {e}"),
                }
            }
            3 => fs.sync().expect("stored"),
            4..6 => {
                let store = cell.path(names[rng.index(3)]);
                let blocks: Vec<PathBuf> =
                    ["own", "cache"].iter().flat_map(|kind| files(&store.join(kind))).collect();
                if blocks.is_empty() {
                    continue;
                }
                let block = &blocks[rng.index(blocks.len())];
                // It may be evicted at any time.
                let Ok(file) = fs::OpenOptions::new().read(true).write(true).open(block) else {
                    continue;
                };
                let len = file.metadata().expect("open").len();
                damaged += 1;
                if rng.below(5) == 0 {
                    file.set_len(rng.below(len)).expect("cut");
                } else {
                    flip_byte_of(&file, rng.below(len));
                }
            }
            _ => {
                let Some(content) = &model[n] else { continue };
                match Walker::new(fs).read_file(path.as_bytes()) {
                    Ok(read) => {
                        assert!(read == *content, "seed {seed}, step {step}: wrong bytes");
                        right += 1;
                    }
                    Err(e) => {
                        assert!(is_honest(&e), "seed {seed}, step {step}: {e}");
                        failed += 1;
                    }
                }
            }
        }
    }
    println!("seed {seed}: {damaged} times damaged, {right} right reads, {failed} failed");
    assert!(damaged > 0 && right > failed, "seed {seed}");
}

/// Whether an error says what is wrong.
fn is_honest(e: &Error) -> bool {
    let text = e.to_string();
    text.contains("damaged") || text.contains("is unavailable")
}

#[test]
fn faulty_disks_never_yield_wrong_data() {
    (1..=3).for_each(|seed| lying_disks(seed, 400));
}

#[test]
#[ignore = "a campaign: WEFT_LONG_SECONDS says how long"]
fn long_faulty_disks() {
    let secs = std::env::var("WEFT_LONG_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(60);
    let end = std::time::Instant::now() + Duration::from_secs(secs);
    (1000..)
        .take_while(|_| std::time::Instant::now() < end)
        .for_each(|seed| lying_disks(seed, 2000));
}
