//! The number of rounds of write-back, and so of flushes, that a sync of many changes takes under
//! soft updates: counts, no times.

use crate::volumes::options;
use std::sync::Arc;
use weft_block::{MemoryDevice, Rng};
use weft_ext2::Ext2;
use weft_ext2::mkfs::{MkfsOptions, mkfs};
use weft_patch::{Counters, Options, PatchGroup};
use weft_vfs::{Caller, FileKind, FileSystem, Handle, Ino, OpenFlags, SetAttr};

fn volume() -> Arc<Ext2> {
    let device = Arc::new(MemoryDevice::new(1 << 30));
    mkfs(&*device, &MkfsOptions::ext2()).unwrap();
    Ext2::open(device, options(Options { background: false, ..Options::default() })).unwrap()
}

/// Makes all changes durable. Returns the counters before, and the number of flushes.
fn synced(fs: &Ext2) -> (Counters, u64) {
    let before = fs.engine().counters();
    fs.engine().sync().unwrap();
    (before, fs.engine().counters().flushes - before.flushes)
}

fn cut(fs: &Ext2, ino: Ino, size: u64) {
    let set = SetAttr { size_bytes: Some(size), ..SetAttr::default() };
    fs.setattr(&Caller::ROOT, ino, &set).unwrap();
}

/// xfstests' `truncfile`: writes a block anywhere in a file and cuts the file anywhere, again and
/// again.
fn write_and_cut(times: u32, max_bytes: u64) -> u64 {
    let fs = volume();
    let flags = OpenFlags::WRITE;
    let (made, _) = fs.create(&Caller::ROOT, fs.root(), b"file", 0o644, flags).unwrap();
    let ino = made.attr.ino;
    let mut rng = Rng::new(1);
    for _ in 0..times {
        fs.write(&Caller::ROOT, ino, Handle::NONE, rng.below(max_bytes), &[7; 512]).unwrap();
        cut(&fs, ino, rng.below(max_bytes));
    }
    let (before, flushes) = synced(&fs);
    eprintln!("{times} times below {max_bytes}: {flushes} flushes; {before:?}");
    fs.unmount().unwrap();
    assert_eq!(fs.damage(), None);
    flushes
}

/// Each state of the inode was written: 894 and 526 flushes.
#[test]
fn a_file_that_is_cut_again_and_again_is_not_written_in_each_of_its_states() {
    assert!(write_and_cut(1000, 256 << 20) <= 150);
    assert!(write_and_cut(1000, 10 << 20) <= 120);
}

fn make(fs: &Ext2, dir: Ino, name: &str) {
    fs.mknod(&Caller::ROOT, dir, name.as_bytes(), FileKind::Regular, 0o644, 0).unwrap();
}

#[test]
fn a_large_directory_takes_a_few_rounds() {
    let fs = volume();
    let dir = fs.mkdir(&Caller::ROOT, fs.root(), b"dir", 0o755).unwrap().attr.ino;
    let files = 10_000;
    for i in 0..files {
        make(&fs, dir, &format!("file{i}"));
    }
    let (before, flushes) = synced(&fs);
    assert!(flushes <= 8, "made: {flushes} flushes, {before:?}");
    assert!(before.dependencies_now <= 2000, "{before:?}");
    for i in 0..files {
        fs.unlink(&Caller::ROOT, dir, format!("file{i}").as_bytes()).unwrap();
    }
    let (before, flushes) = synced(&fs);
    assert!(flushes <= 3, "removed: {flushes} flushes, {before:?}");
    assert!(before.dependencies_now <= 2000, "{before:?}");
    fs.unmount().unwrap();
}

/// As many dependencies as a search finds among the patches of a block are two orders more.
#[test]
fn names_that_come_and_go_have_few_dependencies() {
    let fs = volume();
    let dir = fs.mkdir(&Caller::ROOT, fs.root(), b"dir", 0o755).unwrap().attr.ino;
    let mut rng = Rng::new(2);
    for _ in 0..4000 {
        let name = format!("name{}", rng.below(100));
        if fs.lookup(dir, name.as_bytes()).is_ok() {
            fs.unlink(&Caller::ROOT, dir, name.as_bytes()).unwrap();
        } else {
            make(&fs, dir, &name);
        }
    }
    let (before, flushes) = synced(&fs);
    eprintln!("{flushes} flushes; {before:?}");
    assert!(flushes <= 130, "{flushes} flushes, {before:?}");
    assert!(before.dependencies_now <= 8 * before.patches_now, "{before:?}");
    fs.unmount().unwrap();
}

/// Makes 10,000 files of one block in 100 directories, and one more in a group. Returns the numbers of
/// blocks and flushes that a sync of the group writes.
fn sync_of_one_among_many(in_a_directory_of_its_own: bool) -> (u64, u64) {
    let fs = volume();
    let root = fs.root();
    let make_dir = |i: usize| fs.mkdir(&Caller::ROOT, root, format!("d{i}").as_bytes(), 0o755);
    let dirs: Vec<Ino> = (0..101).map(|i| make_dir(i).unwrap().attr.ino).collect();
    fs.engine().sync().unwrap();
    let make = |dir: usize, i: usize| {
        let (name, flags) = (format!("file{i}"), OpenFlags::WRITE);
        let made = fs.create(&Caller::ROOT, dirs[dir], name.as_bytes(), 0o644, flags);
        let ino = made.unwrap().0.attr.ino;
        fs.write(&Caller::ROOT, ino, Handle::NONE, 0, &[7; 4096]).unwrap();
    };
    let group = PatchGroup::new(fs.engine());
    for i in 0..10_000 {
        if i == 5000 {
            let dir = if in_a_directory_of_its_own { 100 } else { 50 };
            group.engage().unwrap().enter_for(|| make(dir, 10_000));
        }
        make(i % 100, i);
    }
    let before = fs.engine().counters();
    assert!(before.dirty_blocks_now > 10_000);
    group.sync().unwrap();
    let after = fs.engine().counters();
    assert!(group.is_durable());
    fs.unmount().unwrap();
    assert_eq!(fs.damage(), None);
    (after.blocks_written - before.blocks_written, after.flushes - before.flushes)
}

#[test]
fn a_sync_of_a_group_leaves_what_others_have_changed() {
    // Data, inode, name, what its directory says of itself, and the bitmaps and counts of a group of blocks.
    for in_a_directory_of_its_own in [true, false] {
        let (blocks, flushes) = sync_of_one_among_many(in_a_directory_of_its_own);
        assert!(blocks <= 8 && flushes <= 3, "{blocks} blocks, {flushes} flushes");
    }
}
