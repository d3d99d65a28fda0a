//! The flushes of the disk that a small file costs: what the page on transformations says.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use weft_testing::Rng;
use weft_transform::{Rules, TransformFs, TransformOptions};
use weft_vfs::{
    Caller, FileSystem, Handle, Ino, Layer, MemFs, OpenFlags, Result, keeps_access_times,
};

use crate::common::{noise, registry};

/// A file system in memory that counts its flushes, and the reads that change access times.
#[derive(Default)]
struct Counting {
    below: MemFs,
    flushes: AtomicUsize,
    accesses: AtomicUsize,
}

impl Layer for Counting {
    fn below(&self) -> &dyn FileSystem {
        &self.below
    }

    fn read(&self, ino: Ino, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.accesses.fetch_add(usize::from(!keeps_access_times()), Ordering::AcqRel);
        self.below.read(ino, handle, offset, buf)
    }

    fn fsync(&self, caller: &Caller, ino: Ino, data_only: bool) -> Result<()> {
        self.flushes.fetch_add(1, Ordering::AcqRel);
        self.below.fsync(caller, ino, data_only)
    }

    fn fsync_dir(&self, caller: &Caller, ino: Ino) -> Result<()> {
        self.flushes.fetch_add(1, Ordering::AcqRel);
        self.below.fsync_dir(caller, ino)
    }
}

/// Makes a file as a program does, or as a shell, which closes it before it writes, too; returns the
/// number of flushes.
fn flushes(rule: &str, is_shell: bool) -> usize {
    let below = Arc::new(Counting::default());
    let rules = Rules::parse(format!("* {rule}\n").as_bytes()).expect("rules");
    let options = TransformOptions { rules, ..TransformOptions::default() };
    let fs = TransformFs::new(below.clone(), registry(), options).expect("a root");
    let (caller, root) = (&Caller::ROOT, fs.root());
    let flags = OpenFlags::WRITE | OpenFlags::TRUNCATE;
    let (entry, opened) = fs.create(caller, root, b"f", 0o644, flags).expect("made");
    let (ino, handle) = (entry.attr.ino, opened.handle);
    if is_shell {
        fs.flush(ino, handle).expect("closed");
    }
    fs.write(caller, ino, handle, 0, b"some words").expect("written");
    fs.flush(ino, handle).expect("closed");
    fs.release(ino, handle).expect("closed");
    let mut content = [0; 20];
    assert_eq!(fs.read(ino, Handle::NONE, 0, &mut content).expect("read"), 10, "{rule}");
    below.flushes.load(Ordering::Acquire)
}

#[test]
fn a_small_file_costs_few_flushes() {
    for (rule, most) in
        [("rot13", 0), ("zstd", 2), ("aead key=work", 3), ("zstd | aead key=work", 3)]
    {
        for is_shell in [false, true] {
            let count = flushes(rule, is_shell);
            assert!(count <= most, "{rule}, {is_shell}: {count} flushes");
        }
    }
}

/// `tar -S` takes a file without blocks for one hole, and does not read it.
#[test]
fn what_is_not_stored_yet_takes_blocks() {
    for rule in ["zstd", "aead key=work", "zstd | aead key=work"] {
        let rules = Rules::parse(format!("* {rule}\n").as_bytes()).expect("rules");
        let options = TransformOptions { rules, ..TransformOptions::default() };
        let fs = TransformFs::new(Arc::new(MemFs::new()), registry(), options).expect("a root");
        let (caller, root) = (&Caller::ROOT, fs.root());
        let (entry, opened) = fs.create(caller, root, b"f", 0o644, OpenFlags::WRITE).expect("made");
        let ino = entry.attr.ino;
        fs.write(caller, ino, opened.handle, 0, &[b'a'; 100_000]).expect("written");
        let attr = fs.getattr(ino).expect("attributes");
        assert_eq!((attr.size_bytes, attr.blocks_512), (100_000, 196), "{rule}");
        fs.flush(ino, opened.handle).expect("closed");
        fs.release(ino, opened.handle).expect("closed");
        assert_ne!(fs.getattr(ino).expect("attributes").blocks_512, 0, "{rule}");
    }
}

/// What a mount reads to know the length of a file is no access, but what a program reads is one.
#[test]
fn a_look_at_a_file_is_no_access() {
    for rule in ["zstd", "aead key=work", "zstd | aead key=work"] {
        let below = Arc::new(Counting::default());
        let mount = || {
            let rules = Rules::parse(format!("* {rule}\n").as_bytes()).expect("rules");
            let options = TransformOptions { rules, ..TransformOptions::default() };
            TransformFs::new(below.clone(), registry(), options).expect("a root")
        };
        let (caller, fs) = (&Caller::ROOT, mount());
        let flags = OpenFlags::WRITE;
        let (entry, opened) = fs.create(caller, fs.root(), b"f", 0o644, flags).expect("made");
        let (ino, handle) = (entry.attr.ino, opened.handle);
        // More than is decoded, and kept, for the length.
        let content = noise(&mut Rng::new(1), 1_000_000);
        let written = fs.write(caller, ino, handle, 0, &content).expect("written");
        assert_eq!(written, content.len());
        fs.flush(ino, handle).expect("closed");
        fs.release(ino, handle).expect("closed");
        drop(fs);
        let before = below.accesses.load(Ordering::Acquire);
        let fs = mount();
        let entry = fs.lookup(fs.root(), b"f").expect("found");
        assert_eq!(fs.getattr(entry.attr.ino).expect("attributes").size_bytes, 1_000_000);
        assert_eq!(below.accesses.load(Ordering::Acquire), before, "{rule}");
        fs.read(entry.attr.ino, Handle::NONE, 0, &mut [0; 100]).expect("read");
        assert!(below.accesses.load(Ordering::Acquire) > before, "{rule}");
    }
}
