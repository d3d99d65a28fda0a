//! The flushes of the disk that a small file costs: what the page on transformations says.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use weft_transform::{Rules, TransformFs, TransformOptions};
use weft_vfs::{Caller, FileSystem, Handle, Ino, Layer, MemFs, OpenFlags, Result};

use crate::common::registry;

/// A file system in memory that counts its flushes.
#[derive(Default)]
struct Counting {
    below: MemFs,
    flushes: AtomicUsize,
}

impl Layer for Counting {
    fn below(&self) -> &dyn FileSystem {
        &self.below
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
