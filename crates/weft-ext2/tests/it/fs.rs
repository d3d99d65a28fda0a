//! The file system: the conformance suite on each kind of volume with e2fsck after each case.

use crate::tools::{have_e2fsprogs, run};
use crate::volumes::{KINDS, Kind, Mounted, empty, load, mke2fs, plain};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weft_block::Image;
use weft_ext2::layout::Superblock;
use weft_ext2::{Ext2, OpenOptions};
use weft_patch::{JournalMode, Options, Policy};
use weft_vfs::conformance::tried::Tried;
use weft_vfs::conformance::{self, Limits};
use weft_vfs::{Caller, FileKind, FileSystem, Handle, OpenFlags, XattrSet};

fn limits(image: &Image) -> Limits {
    let mut raw = [0; 1024];
    image.read(&mut raw, 1024).unwrap();
    let sb = Superblock::parse(&raw).unwrap();
    let geometry = sb.geometry();
    let wide = geometry.inode_bytes > 128;
    Limits {
        links: Some(65_000),
        file_bytes: if sb.revision == 0 { i32::MAX as u64 } else { geometry.max_file_bytes() },
        symlink_bytes: (geometry.block_bytes as usize - 1).min(4095),
        time_unit_nanos: if wide { 1 } else { 1_000_000_000 },
        seconds: if wide {
            i64::from(i32::MIN)..=i64::from(i32::MAX) + (3 << 32)
        } else {
            i64::from(i32::MIN)..=i64::from(i32::MAX)
        },
        xattr_bytes: if sb.revision == 0 { 0 } else { 400 },
        only: std::env::var("WEFT_CASE").ok(),
        random_runs: 3,
        names: 600,
        long_bytes: 3 << 20,
        ..Limits::default()
    }
}

fn conform(kind: &Kind, engine: &Options) {
    conform_as(kind, engine, Mounted::open, |fs| fs);
}

/// As [`conform`], on volumes that `open` opens, as `front` makes of them.
fn conform_as(
    kind: &Kind,
    engine: &Options,
    open: impl Fn(&Image, Options) -> Mounted,
    front: impl Fn(Arc<Ext2>) -> Arc<dyn FileSystem>,
) {
    if !have_e2fsprogs() {
        return;
    }
    let image = empty(kind);
    let mut limits = limits(&image);
    if !engine.merge {
        // Each of so many changes of one inode is then a patch on top of all the others.
        limits.links = None;
    }
    let last: Mutex<Option<Mounted>> = Mutex::new(None);
    let check = || {
        if let Some(mounted) = last.lock().unwrap().take() {
            mounted.check(kind.name);
        }
    };
    conformance::run(
        || {
            check();
            let mounted = open(&image, engine.clone());
            let fs = mounted.fs.clone();
            *last.lock().unwrap() = Some(mounted);
            front(fs)
        },
        &limits,
    );
    check();
}

#[test]
fn conformance_4k() {
    conform(&KINDS[0], &Options::default());
}

#[test]
fn conformance_1k() {
    conform(&KINDS[1], &Options::default());
}

#[test]
fn conformance_2k() {
    conform(&KINDS[2], &Options { policy: Policy::Async, ..Options::default() });
}

#[test]
fn conformance_ext3_without_journaling() {
    conform(&KINDS[3], &Options { hard_patches: false, merge: false, ..Options::default() });
}

#[test]
fn conformance_journaled() {
    for mode in [JournalMode::Metadata, JournalMode::Ordered, JournalMode::Full] {
        conform(&KINDS[3], &Options { policy: Policy::Journal(mode), ..Options::default() });
    }
}

/// A cache of 16 blocks: nearly every operation is tried again, and not always with success.
#[test]
fn conformance_with_hardly_any_cache() {
    for (kind, policy) in [
        (&KINDS[1], Policy::Soft),
        (&KINDS[0], Policy::Async),
        (&KINDS[3], Policy::Journal(JournalMode::Ordered)),
    ] {
        conform(kind, &Options { policy, clean_cache_bytes: 0, ..Options::default() });
    }
}

/// Hardly any inode is in memory that is not open or waits to be written.
#[test]
fn conformance_with_hardly_any_inodes() {
    for (inodes, kind, policy) in [
        (1, &KINDS[0], Policy::Soft),
        (2, &KINDS[1], Policy::Async),
        (3, &KINDS[3], Policy::Journal(JournalMode::Ordered)),
    ] {
        // Inodes can be dropped once they are durable.
        let engine = Options { policy, max_age: Duration::from_millis(1), ..Options::default() };
        let inodes_in_memory = Some(inodes);
        let open = |image: &Image, engine| {
            Mounted::open_with(image, |o| OpenOptions { engine, inodes_in_memory, ..o })
        };
        conform_as(kind, &engine, open, |fs| fs);
    }
}

/// Each call is tried without waiting, on a device that always makes wait, and made again if it would
/// wait: with the usual cache some are, with hardly any most.
#[test]
fn conformance_of_calls_that_must_not_wait() {
    for (kind, policy, clean_cache_bytes) in [
        (&KINDS[0], Policy::Soft, Options::default().clean_cache_bytes),
        (&KINDS[1], Policy::Soft, 0),
        (&KINDS[3], Policy::Journal(JournalMode::Ordered), 0),
    ] {
        let engine = Options { policy, clean_cache_bytes, ..Options::default() };
        let again = Arc::new(AtomicU64::new(0));
        conform_as(kind, &engine, Mounted::open_waiting, |fs| {
            Arc::new(Tried::new(fs, Arc::clone(&again)))
        });
        let again = again.load(Ordering::Relaxed);
        assert!(again > 500 || !have_e2fsprogs(), "{}: only {again} calls again", kind.name);
    }
}

#[test]
fn conformance_revision_0() {
    conform(&KINDS[4], &Options::default());
}

#[test]
fn conformance_meta_bg() {
    conform(&KINDS[5], &Options::default());
}

#[test]
fn large_inodes_conform() {
    conform(&KINDS[6], &Options::default());
}

#[test]
fn a_small_tree_survives_unmounting() {
    if !have_e2fsprogs() {
        return;
    }
    let mounted = Mounted::open(plain(), Options::default());
    let fs = &mounted.fs;
    let caller = Caller::ROOT;
    let dir = fs.mkdir(&caller, fs.root(), b"dir", 0o755).unwrap().attr.ino;
    let data: Vec<u8> = (0..3_000_000_u32).map(|i| (i / 7 % 251) as u8).collect();
    for i in 0..300 {
        let name = format!("file{i}");
        let (entry, open) =
            fs.create(&caller, dir, name.as_bytes(), 0o644, OpenFlags::WRITE).unwrap();
        let len = if i == 7 { data.len() } else { i * 37 };
        assert_eq!(
            fs.write(&Caller::ROOT, entry.attr.ino, open.handle, 0, &data[..len]).unwrap(),
            len
        );
        fs.release(entry.attr.ino, open.handle).unwrap();
        fs.forget(entry.attr.ino, 1);
    }
    fs.mknod(&caller, dir, b"fifo", FileKind::Fifo, 0o600, 0).unwrap();
    fs.symlink(&caller, dir, b"link", b"file7").unwrap();
    let device = mounted.check("a small tree");
    let image = device.snapshot();
    let again = Mounted::open(&image, Options::default());
    let fs = &again.fs;
    let dir = fs.lookup(fs.root(), b"dir").unwrap().attr.ino;
    let mut count = 0;
    fs.readdir(dir, weft_vfs::DirCursor::START, &mut |_| {
        count += 1;
        true
    })
    .unwrap();
    assert_eq!(count, 304);
    let file = fs.lookup(dir, b"file7").unwrap().attr;
    assert_eq!(file.size_bytes, data.len() as u64);
    let mut back = vec![0; data.len()];
    assert_eq!(fs.read(file.ino, Handle::NONE, 0, &mut back).unwrap(), data.len());
    assert!(back == data);
    again.check("a small tree read again");
}

/// mke2fs and debugfs put values at the end of an inode of 1 KiB, which is another sector than its
/// fields: they are read there, and all are kept when one of them changes.
#[test]
fn attributes_of_others_in_large_inodes_are_kept() {
    if !have_e2fsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    mke2fs(&path, &KINDS[6]);
    let values: [(&str, Vec<u8>); 3] =
        [("user.a", vec![b'a'; 300]), ("user.b", vec![b'b'; 200]), ("user.c", vec![b'c'; 100])];
    for (name, value) in &values {
        let value = std::str::from_utf8(value).unwrap();
        let (text, _) = run(Command::new("debugfs")
            .args(["-w", "-R", &format!("ea_set / {name} {value}")])
            .arg(&path));
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    for policy in [Policy::Soft, Policy::Async] {
        let mounted = Mounted::open(&load(&path), Options { policy, ..Options::default() });
        let (fs, root) = (&mounted.fs, mounted.fs.root());
        fs.setxattr(&Caller::ROOT, root, b"user.b", &[b'B'; 250], XattrSet::Any).unwrap();
        fs.setxattr(&Caller::ROOT, root, b"user.d", &[b'd'; 20], XattrSet::Any).unwrap();
        fs.removexattr(&Caller::ROOT, root, b"user.c").unwrap();
        let device = mounted.check("the attributes of others");
        let again = Mounted::open(&device.snapshot(), Options { policy, ..Options::default() });
        for (name, byte, len) in
            [("user.a", b'a', 300), ("user.b", b'B', 250), ("user.d", b'd', 20)]
        {
            assert_eq!(again.fs.getxattr(root, name.as_bytes()).unwrap(), vec![byte; len]);
        }
        assert_eq!(again.fs.listxattr(root).unwrap().len(), 3);
    }
}
