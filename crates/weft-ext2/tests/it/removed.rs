//! Space: that of a removed file is free at once, for statfs and for writers, and a change that finds
//! none has changed nothing.

use crate::tools::{assert_clean, have_e2fsprogs};
use crate::volumes::{Kind, POLICIES, empty, options, store};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use weft_block::{Event, Fault, FaultDevice, MemoryDevice, Recorder, Request, Rng, Rule};
use weft_ext2::Ext2;
use weft_patch::{Clock, Options, Policy};
use weft_vfs::{Caller, Error, FileKind, FileSystem, Handle, Ino, RenameFlags, SetAttr};

/// Blocks so small that deleting a file that fills it takes several steps.
const KIND: Kind =
    Kind { name: "1 KiB", args: &["-t", "ext3", "-b", "1024", "-I", "128"], size: "96M" };

struct Full {
    device: Arc<Recorder<MemoryDevice>>,
    fs: Arc<Ext2>,
    ino: Ino,
    len_bytes: u64,
    /// Free blocks before the volume was filled.
    free: u64,
}

/// A volume that one file fills to the last block, durably.
fn full(policy: Policy) -> Full {
    let image = empty(&KIND);
    let device = Arc::new(Recorder::new(MemoryDevice::from_image(image)));
    // On a clock that stands still nothing is written by its age, however slow the machine is.
    let engine = Options { policy, clock: Clock::new(|| Duration::ZERO), ..Options::default() };
    let fs = Ext2::open(device.clone(), options(engine)).unwrap();
    let free = fs.statfs().unwrap().blocks_free;
    let (ino, len_bytes) = fill(&fs, b"full");
    fs.sync().unwrap();
    Full { device, fs, ino, len_bytes, free }
}

/// A new file that takes all the space there is; returns its length.
fn fill(fs: &Ext2, name: &[u8]) -> (Ino, u64) {
    let made = fs.mknod(&Caller::ROOT, fs.root(), name, FileKind::Regular, 0o644, 0);
    let ino = made.unwrap().attr.ino;
    let piece = vec![0xA5; 1 << 20];
    let mut at = 0;
    loop {
        match fs.write(&Caller::ROOT, ino, Handle::NONE, at, &piece) {
            Ok(n) => at += n as u64,
            Err(Error::NoSpace) => return (ino, at),
            Err(e) => panic!("write at {at}: {e}"),
        }
    }
}

fn changes(fs: &Ext2) -> u64 {
    let counters = fs.engine().counters();
    counters.patches + counters.merged + counters.hard
}

fn check(fs: &Ext2, device: &Recorder<MemoryDevice>, what: &str) {
    fs.unmount().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    store(device.inner(), &path);
    assert_clean(&path, what);
}

/// The space of a file is free once its last name is removed, before the kernel has sent FORGET and
/// while the deletion takes several steps; none of the steps waits for the device.
#[test]
fn a_removed_file_is_free_space_at_once() {
    if !have_e2fsprogs() {
        return;
    }
    for policy in POLICIES {
        let Full { device, fs, ino, free, .. } = full(policy);
        let reserved = fs.statfs().unwrap().blocks_free;
        assert!(reserved < 64, "{policy:?}: {reserved} blocks are left");
        let events = device.event_count();
        fs.unlink(&Caller::ROOT, fs.root(), b"full").unwrap();
        assert_eq!(fs.statfs().unwrap().blocks_free, free, "{policy:?}: before FORGET");
        fs.forget(ino, 1);
        assert_eq!(fs.statfs().unwrap().blocks_free, free, "{policy:?}: after FORGET");
        let flushes =
            device.events()[events..].iter().filter(|e| matches!(e, Event::Flush { .. })).count();
        assert_eq!(flushes, 0, "{policy:?}: flushes of a removal");
        check(&fs, &device, &format!("{policy:?}"));
    }
}

/// A file that is open has its space until it is closed.
#[test]
fn a_removed_file_that_is_open_is_no_free_space() {
    if !have_e2fsprogs() {
        return;
    }
    for policy in POLICIES {
        let Full { device, fs, ino, free, .. } = full(policy);
        let taken = fs.statfs().unwrap().blocks_free;
        let opened = fs.open(&Caller::ROOT, ino, weft_vfs::OpenFlags::READ).unwrap();
        fs.unlink(&Caller::ROOT, fs.root(), b"full").unwrap();
        assert_eq!(fs.statfs().unwrap().blocks_free, taken, "{policy:?}: while open");
        fs.release(ino, opened.handle).unwrap();
        assert_eq!(fs.statfs().unwrap().blocks_free, free, "{policy:?}: when closed");
        fs.forget(ino, 1);
        check(&fs, &device, &format!("{policy:?}"));
    }
}

/// A writer gets all of the space that another thread is giving back by a deletion.
#[test]
fn a_writer_waits_for_space_that_is_being_freed() {
    if !have_e2fsprogs() {
        return;
    }
    for policy in POLICIES {
        let Full { device, fs, ino, len_bytes, .. } = full(policy);
        let mut last = (ino, b"full".to_vec());
        for round in 0..4 {
            fs.unlink(&Caller::ROOT, fs.root(), &last.1).unwrap();
            let (ino, len) = std::thread::scope(|scope| {
                let before = changes(&fs);
                let (fs, gone) = (&fs, last.0);
                scope.spawn(move || fs.forget(gone, 1));
                // The first step of the deletion was taken.
                while changes(fs) == before {
                    std::thread::yield_now();
                }
                last.1 = format!("round{round}").into_bytes();
                fill(fs, &last.1)
            });
            last.0 = ino;
            assert!(len >= len_bytes, "{policy:?}, round {round}: {len} of {len_bytes} bytes");
        }
        check(&fs, &device, &format!("{policy:?}"));
    }
}

/// Writers that replace files, and others that append a little, find room as long as what the files
/// hold together leaves some: what one of them frees may be taken by another, and none is told that
/// the volume is full. (generic/464 of xfstests found this, with 48 processes.)
#[test]
fn no_writer_is_told_that_a_volume_is_full_that_is_not() {
    const FILES: u64 = 24;
    const REPLACERS: u64 = 4;
    const APPENDERS: u64 = 16;
    if !have_e2fsprogs() {
        return;
    }
    for policy in POLICIES {
        let memory = MemoryDevice::from_image(empty(&KIND));
        let device = Arc::new(FaultDevice::new(memory));
        // As on a disk, a sync takes long enough for others to come between.
        device.add(Rule::every(Request::Flush, Fault::Delay(Duration::from_millis(2))));
        let engine = Options { policy, ..Options::default() };
        let fs = Ext2::open(device.clone(), options(engine)).unwrap();
        let statfs = fs.statfs().unwrap();
        // Two thirds of the volume at most.
        let longest = statfs.blocks_free * u64::from(statfs.block_bytes) * 2 / 3 / FILES;
        let make = |n| {
            let name = format!("file{n}").into_bytes();
            let made = fs.mknod(&Caller::ROOT, fs.root(), &name, FileKind::Regular, 0o644, 0);
            made.unwrap().attr.ino
        };
        let files: Vec<Ino> = (0..FILES).map(make).collect();
        let logs: Vec<Ino> = (FILES..FILES + APPENDERS).map(make).collect();
        let piece = vec![0x5A; usize::try_from(longest).unwrap()];
        let replacing = AtomicU64::new(REPLACERS);
        std::thread::scope(|scope| {
            let (fs, files, piece, replacing) = (&fs, &files, &piece, &replacing);
            for thread in 0..REPLACERS {
                scope.spawn(move || {
                    let mut rng = Rng::stream(464, thread);
                    for round in 0..80 {
                        let ino = *rng.pick(files).unwrap();
                        let cut = SetAttr { size_bytes: Some(0), ..SetAttr::default() };
                        fs.setattr(&Caller::ROOT, ino, &cut).unwrap();
                        let mut at = 0;
                        while at < piece.len() {
                            let written =
                                fs.write(&Caller::ROOT, ino, Handle::NONE, at as u64, &piece[at..]);
                            at += written.unwrap_or_else(|e| {
                                replacing.store(0, Ordering::Relaxed);
                                panic!("{policy:?}, thread {thread}, round {round}: {e}")
                            });
                        }
                    }
                    replacing.fetch_sub(1, Ordering::Relaxed);
                });
            }
            for ino in logs {
                scope.spawn(move || {
                    while replacing.load(Ordering::Relaxed) > 0 {
                        // A block at a time, and from the beginning again before they are many.
                        let blocks = (0..64).map(|n| n * 1024);
                        for at in blocks {
                            fs.write(&Caller::ROOT, ino, Handle::NONE, at, b"line").unwrap_or_else(
                                |e| {
                                    replacing.store(0, Ordering::Relaxed);
                                    panic!("{policy:?}, a line at {at}: {e}")
                                },
                            );
                        }
                        let cut = SetAttr { size_bytes: Some(0), ..SetAttr::default() };
                        fs.setattr(&Caller::ROOT, ino, &cut).unwrap();
                    }
                });
            }
        });
        fs.unmount().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        store(device.inner(), &path);
        assert_clean(&path, &format!("{policy:?}"));
    }
}

/// In soft updates an exchange needs a third name for a moment. Without room for it the exchange
/// fails, and the directories count what they counted before.
#[test]
fn an_exchange_without_room_changes_no_count() {
    if !have_e2fsprogs() {
        return;
    }
    let Full { device, fs, ino, .. } = {
        let image = empty(&KIND);
        let device = Arc::new(Recorder::new(MemoryDevice::from_image(image)));
        let engine = Options { policy: Policy::Soft, ..Options::default() };
        let fs = Ext2::open(device.clone(), options(engine)).unwrap();
        for (parent, name) in [(&b"p"[..], &b"a"[..]), (b"q", b"b")] {
            let made = fs.mkdir(&Caller::ROOT, fs.root(), parent, 0o755).unwrap();
            fs.mkdir(&Caller::ROOT, made.attr.ino, name, 0o755).unwrap();
        }
        let free = fs.statfs().unwrap().blocks_free;
        let (ino, len_bytes) = fill(&fs, b"full");
        Full { device, fs, ino, len_bytes, free }
    };
    let dir = |name: &[u8]| fs.lookup(fs.root(), name).unwrap().attr.ino;
    let (p, q) = (dir(b"p"), dir(b"q"));
    // Names of 8 bytes, until the directory is full: a third name is longer.
    let refused = (0..1000)
        .find_map(|n| fs.link(&Caller::ROOT, ino, q, format!("link{n:04}").as_bytes()).err())
        .expect("a full volume");
    assert!(matches!(refused, Error::NoSpace), "{refused}");
    let counts = || (fs.getattr(p).unwrap().nlink, fs.getattr(q).unwrap().nlink);
    let before = counts();
    let exchanged = fs.rename(&Caller::ROOT, p, b"a", q, b"b", RenameFlags::EXCHANGE);
    assert!(matches!(exchanged, Err(Error::NoSpace)), "{exchanged:?}");
    assert_eq!(counts(), before, "links of the two directories");
    check(&fs, &device, "after a refused exchange");
}
