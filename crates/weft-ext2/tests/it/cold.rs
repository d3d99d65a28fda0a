//! Operations on a volume of which no block is in memory: one that needs a block waits for it, and
//! the others do not.

use crate::volumes::{KINDS, Kind, empty};
use std::sync::Arc;
use weft_block::{BlockDevice, Image, MemoryDevice};
use weft_ext2::{Ext2, OpenOptions};
use weft_patch::{JournalMode, Options, Policy};
use weft_testing::{At, GateDevice, ends};
use weft_vfs::{
    Caller, DirCursor, FallocateMode, FileSystem, Handle, Ino, OpenFlags, RenameFlags, SetAttr,
    Walker, XattrSet,
};

const CALLER: &Caller = &Caller::ROOT;
const NONE: Handle = Handle::NONE;
const NAMES: u32 = 1500;

fn open(device: Arc<dyn BlockDevice>, policy: Policy, cache_bytes: usize) -> Arc<Ext2> {
    let engine =
        Options { policy, background: false, clean_cache_bytes: cache_bytes, ..Options::default() };
    Ext2::open(device, OpenOptions { engine, ..OpenOptions::default() }).unwrap()
}

fn name(i: u32) -> String {
    format!("{i:0>200}")
}

/// Makes a volume with files, and a directory so long that listing it drives all else out of a
/// small cache.
fn volume(kind: &Kind) -> Image {
    let device = Arc::new(MemoryDevice::from_image(empty(kind)));
    let fs = open(device.clone(), Policy::Soft, 64 << 20);
    let w = Walker::new(&*fs);
    for dir in ["/a", "/b", "/long"] {
        w.mkdir(dir.as_bytes(), 0o755).unwrap();
    }
    for i in 0..NAMES {
        w.write_file(format!("/long/{}", name(i)).as_bytes(), b"", 0o644).unwrap();
    }
    for file in ["/a/file", "/a/other", "/a/gone", "/b/target"] {
        w.write_file(file.as_bytes(), &vec![7; 900_000], 0o644).unwrap();
    }
    fs.unmount().unwrap();
    device.snapshot()
}

fn find(fs: &Ext2, path: &str) -> Ino {
    path.split('/')
        .filter(|part| !part.is_empty())
        .fold(fs.root(), |dir, part| fs.lookup(dir, part.as_bytes()).unwrap().attr.ino)
}

/// Lists the long directory, after which no block of others is in the cache.
fn forget_all_others(fs: &Ext2) {
    fs.readdir(find(fs, "/long"), DirCursor(0), &mut |_| true).unwrap();
}

type Step = (&'static str, fn(&Ext2, &[Ino; 5]) -> weft_vfs::Result<()>);

/// Calls of a user's day, by name. Their inodes are those of a, b, a/file, a/other and b/target.
const STEPS: &[Step] = &[
    ("create", |fs, [a, ..]| {
        fs.create(CALLER, *a, b"new", 0o644, OpenFlags::READ | OpenFlags::WRITE).map(|_| ())
    }),
    ("mkdir", |fs, [_, b, ..]| fs.mkdir(CALLER, *b, b"dir", 0o755).map(|_| ())),
    ("symlink", |fs, [a, ..]| fs.symlink(CALLER, *a, b"short", b"file").map(|_| ())),
    ("link", |fs, [_, b, file, ..]| fs.link(CALLER, *file, *b, b"second").map(|_| ())),
    ("unlink", |fs, [a, ..]| fs.unlink(CALLER, *a, b"gone")),
    ("rename", |fs, [a, b, ..]| {
        fs.rename(CALLER, *a, b"other", *b, b"target", RenameFlags::empty())
    }),
    ("rmdir", |fs, [_, b, ..]| fs.rmdir(CALLER, *b, b"dir")),
    ("chmod", |fs, [_, _, file, ..]| {
        fs.setattr(CALLER, *file, &SetAttr { perm: Some(0o600), ..SetAttr::default() }).map(|_| ())
    }),
    ("write in the middle", |fs, [_, _, file, ..]| {
        fs.write(CALLER, *file, NONE, 700_001, b"some bytes").map(|_| ())
    }),
    ("write behind the end", |fs, [_, _, file, ..]| {
        fs.write(CALLER, *file, NONE, 900_000, b"some bytes").map(|_| ())
    }),
    ("truncate", |fs, [_, _, file, ..]| {
        let set = SetAttr { size_bytes: Some(899_001), ..SetAttr::default() };
        fs.setattr(CALLER, *file, &set).map(|_| ())
    }),
    ("fallocate -p", |fs, [_, _, file, ..]| {
        fs.fallocate(CALLER, *file, FallocateMode::PunchHole, 400_000, 4096)
    }),
    ("setfattr", |fs, [_, _, file, ..]| {
        fs.setxattr(CALLER, *file, b"user.key", &[1; 300], XattrSet::Any)
    }),
    ("getfattr", |fs, [_, _, file, ..]| fs.getxattr(*file, b"user.key").map(|_| ())),
    ("setfattr -x", |fs, [_, _, file, ..]| fs.removexattr(CALLER, *file, b"user.key")),
    ("ls -l", |fs, [a, ..]| fs.readdir_plus(*a, DirCursor(0), &mut |_, _| false)),
    ("read", |fs, [_, _, file, ..]| fs.read(*file, NONE, 500_000, &mut [0; 9000]).map(|_| ())),
    ("fsync", |fs, [_, _, file, ..]| fs.fsync(CALLER, *file, false)),
    ("sync", |fs, _| fs.sync()),
];

#[test]
fn nothing_is_read_under_the_lock() {
    let mut found = Vec::new();
    let (ext2, ext3) = (&KINDS[1], &KINDS[3]);
    let journal = Policy::Journal(JournalMode::Ordered);
    for (kind, policy) in [(ext2, Policy::Soft), (ext2, Policy::Async), (ext3, journal)] {
        let image = volume(kind);
        for cache_bytes in [64 << 20, 160 << 10] {
            let device = Arc::new(MemoryDevice::from_image(image.clone()));
            let fs = open(device, policy, cache_bytes);
            let inodes = ["/a", "/b", "/a/file", "/a/other", "/b/target"].map(|p| find(&fs, p));
            for (what, step) in STEPS {
                if cache_bytes < 1 << 20 {
                    fs.sync().unwrap();
                    forget_all_others(&fs);
                }
                let before = fs.engine().counters();
                step(&fs, &inodes).unwrap_or_else(|e| panic!("{what}: {e}"));
                let after = fs.engine().counters();
                let under_lock = after.reads_under_lock - before.reads_under_lock;
                if under_lock > 0 {
                    let all = after.blocks_read - before.blocks_read;
                    found.push(format!("{policy:?}, {cache_bytes}: {what}: {under_lock} of {all}"));
                }
            }
            fs.unmount().unwrap();
        }
    }
    assert!(found.is_empty(), "blocks read under the lock: {found:#?}");
}

/// While a cold block is on its way, others look up, read, make and remove what is in memory.
#[test]
fn a_cold_directory_holds_up_nobody_else() {
    let gate = GateDevice::new(MemoryDevice::from_image(volume(&KINDS[1])));
    let fs = open(gate.clone(), Policy::Soft, 64 << 20);
    let (a, file) = (find(&fs, "/a"), find(&fs, "/a/file"));
    fs.create(CALLER, a, b"first", 0o644, OpenFlags::WRITE).unwrap();
    let long = find(&fs, "/long");
    gate.arm(At::ReadDone, 0..u64::MAX);
    let lister = fs.clone();
    let cold = std::thread::spawn(move || lister.lookup(long, name(7).as_bytes()).unwrap());
    gate.wait_held();
    let other = fs.clone();
    ends("the others end beside the cold lookup", move || {
        assert_eq!(other.lookup(a, b"file").unwrap().attr.ino, file);
        assert_eq!(other.getattr(file).unwrap().size_bytes, 900_000);
        let (entry, _) = other.create(CALLER, a, b"made", 0o644, OpenFlags::WRITE).unwrap();
        assert_eq!(other.write(CALLER, entry.attr.ino, NONE, 0, b"text").unwrap(), 4);
        other.unlink(CALLER, a, b"first").unwrap();
        other.sync().unwrap();
    });
    assert!(!cold.is_finished(), "the lookup waits for its block");
    gate.release();
    assert_eq!(cold.join().unwrap().attr.size_bytes, 0);
    fs.unmount().unwrap();
}
