//! Volumes that are nearly full while space is being freed.

use crate::volume::{assert_sound, empty, quiet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use weft_block::{BlockDevice, Filter, MemoryDevice};
use weft_hfs::{Hfs, OpenOptions};
use weft_patch::{JournalMode, Options, Policy};
use weft_vfs::{Caller, FileKind, FileSystem, Handle, Ino, SetAttr};

const POLICIES: [Policy; 3] = [Policy::Soft, Policy::Async, Policy::Journal(JournalMode::Ordered)];

/// A device on which a flush lets other threads go on, as it does on a disk.
struct SlowFlush(Arc<MemoryDevice>);

impl Filter for SlowFlush {
    type Below = MemoryDevice;

    fn below(&self) -> &MemoryDevice {
        &self.0
    }

    fn filter_flush(&self) -> weft_block::Result<()> {
        (0..16).for_each(|_| std::thread::yield_now());
        self.0.flush()
    }
}

fn make(fs: &Hfs, n: usize) -> Ino {
    let name = format!("file{n}").into_bytes();
    let made = fs.mknod(&Caller::ROOT, fs.root(), &name, FileKind::Regular, 0o644, 0);
    made.unwrap().attr.ino
}

fn cut(fs: &Hfs, ino: Ino) {
    fs.setattr(&Caller::ROOT, ino, &SetAttr { size_bytes: Some(0), ..SetAttr::default() }).unwrap();
}

/// Threads replace files, which take two thirds of the volume at most, and others write short files:
/// space that is free, or being freed, is always enough for all of them.
#[test]
fn no_writer_is_told_that_a_volume_is_full_that_is_not() {
    const FILES: usize = 24;
    const REPLACERS: usize = 4;
    const APPENDERS: usize = 8;
    for policy in POLICIES {
        let memory = empty(2 << 20);
        let journal = matches!(policy, Policy::Journal(_))
            .then(|| Arc::new(MemoryDevice::new(4 << 20)) as Arc<dyn BlockDevice>);
        let options =
            OpenOptions { engine: Options { policy, ..Options::default() }, journal, ..quiet() };
        let fs = Hfs::open(Arc::new(SlowFlush(Arc::clone(&memory))), options).unwrap();
        let statfs = fs.statfs().unwrap();
        let free = statfs.blocks_free * u64::from(statfs.block_bytes);
        let longest = usize::try_from(free).unwrap() * 2 / 3 / FILES;
        let files: Vec<Ino> = (0..FILES).map(|n| make(&fs, n)).collect();
        let logs: Vec<Ino> = (FILES..FILES + APPENDERS).map(|n| make(&fs, n)).collect();
        let piece = vec![0x5A; longest];
        let (replacing, failed) = (AtomicUsize::new(REPLACERS), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let (fs, files, piece) = (&fs, &files, &piece);
            let (replacing, failed) = (&replacing, &failed);
            for thread in 0..REPLACERS {
                scope.spawn(move || {
                    let mut at = thread * 7;
                    for round in 0..60 {
                        at = (at * 5 + 3 + round) % FILES;
                        let ino = files[at];
                        cut(fs, ino);
                        let mut done = 0;
                        while done < piece.len() {
                            let written = fs.write(
                                &Caller::ROOT,
                                ino,
                                Handle::NONE,
                                done as u64,
                                &piece[done..],
                            );
                            done += written.unwrap_or_else(|e| {
                                failed.store(true, Ordering::Relaxed);
                                panic!("{policy:?}, thread {thread}, round {round}: {e}")
                            });
                        }
                    }
                    replacing.fetch_sub(1, Ordering::Relaxed);
                });
            }
            for ino in logs {
                scope.spawn(move || {
                    while replacing.load(Ordering::Relaxed) > 0 && !failed.load(Ordering::Relaxed) {
                        // A few bytes at a time, and from the beginning again before they are many.
                        for at in (0..64).map(|n| n * 512) {
                            fs.write(&Caller::ROOT, ino, Handle::NONE, at, b"line").unwrap_or_else(
                                |e| {
                                    failed.store(true, Ordering::Relaxed);
                                    panic!("{policy:?}, a line at {at}: {e}")
                                },
                            );
                        }
                        cut(fs, ino);
                    }
                });
            }
        });
        fs.unmount().unwrap();
        assert_sound(&*memory);
    }
}

/// The space of a file that is removed while other threads write is theirs, too.
#[test]
fn the_space_of_a_removed_file_is_waited_for() {
    for policy in POLICIES {
        let memory = empty(2 << 20);
        let journal = matches!(policy, Policy::Journal(_))
            .then(|| Arc::new(MemoryDevice::new(4 << 20)) as Arc<dyn BlockDevice>);
        let engine = Options { policy, background: false, ..Options::default() };
        let options = OpenOptions { engine, journal, ..quiet() };
        let fs = Hfs::open(Arc::clone(&memory) as Arc<dyn BlockDevice>, options).unwrap();
        let statfs = fs.statfs().unwrap();
        let free = usize::try_from(statfs.blocks_free).unwrap() * statfs.block_bytes as usize;
        let piece = vec![0x5A; free * 3 / 4];
        for n in 0..8 {
            let ino = make(&fs, n);
            assert_eq!(
                fs.write(&Caller::ROOT, ino, Handle::NONE, 0, &piece).unwrap(),
                piece.len(),
                "{policy:?}"
            );
            fs.unlink(&Caller::ROOT, fs.root(), format!("file{n}").as_bytes()).unwrap();
            fs.forget(ino, 1);
        }
        fs.unmount().unwrap();
        assert_sound(&*memory);
    }
}
