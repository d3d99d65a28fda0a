//! The kernel reads volumes that weft wrote, and weft those that the kernel wrote. Needs root and
//! loop devices.

use crate::tools::{assert_clean, have_e2fsprogs, run, unmount};
use crate::volumes::{KINDS, Kind, mke2fs, options};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use weft_block::{FileDevice, OpenMode};
use weft_ext2::Ext2;
use weft_patch::Options;
use weft_vfs::{
    Caller, DirCursor, FileKind, FileSystem, Handle, Ino, SetAttr, SetTime, Time, XattrSet,
};

struct Mount(PathBuf);

impl Mount {
    fn new(image: &Path, at: &Path) -> Option<Self> {
        std::fs::create_dir_all(at).unwrap();
        let (text, status) = run(Command::new("mount").args(["-o", "loop"]).arg(image).arg(at));
        if status != 0 {
            println!("skipped: no loop mounts here: {text}");
            return None;
        }
        Some(Self(at.to_owned()))
    }

    fn end(self) {
        unmount(&self.0);
        std::mem::forget(self);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn open(image: &Path) -> Arc<Ext2> {
    let device = Arc::new(FileDevice::open(image, OpenMode::READ_WRITE).unwrap());
    Ext2::open(device, options(Options::default())).unwrap()
}

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251 + seed) as u8).collect()
}

const LENS: [usize; 9] = [0, 1, 4095, 4096, 12 * 1024 + 1, 100_000, 300_000, 1_300_000, 5_000_000];

fn write_with_weft(fs: &Ext2) {
    let caller = Caller { uid: 70_000, gid: 80_000, ..Caller::ROOT };
    let dir = fs.mkdir(&caller, fs.root(), b"weft", 0o751).unwrap().attr.ino;
    for (i, len) in LENS.into_iter().enumerate() {
        let name = format!("file{i}");
        let node = fs.mknod(&caller, dir, name.as_bytes(), FileKind::Regular, 0o640, 0).unwrap();
        fs.write(&Caller::ROOT, node.attr.ino, Handle::NONE, 0, &bytes(i, len)).unwrap();
        let at = Time { secs: 1_000_000_000 + i as i64, nanos: 0 };
        let set = SetAttr { mtime: Some(SetTime::At(at)), ..SetAttr::default() };
        fs.setattr(&Caller::ROOT, node.attr.ino, &set).unwrap();
    }
    let sparse = fs.mknod(&caller, dir, b"sparse", FileKind::Regular, 0o600, 0).unwrap().attr.ino;
    fs.write(&Caller::ROOT, sparse, Handle::NONE, 30 << 20, b"end").unwrap();
    fs.mknod(&caller, dir, b"null", FileKind::CharDevice, 0o666, 0x103).unwrap();
    fs.mknod(&caller, dir, b"far", FileKind::BlockDevice, 0o600, 0x12_3405).unwrap();
    fs.mknod(&caller, dir, b"fifo", FileKind::Fifo, 0o600, 0).unwrap();
    fs.symlink(&caller, dir, b"fast", b"file1").unwrap();
    fs.symlink(&caller, dir, b"slow", &[b's'; 200]).unwrap();
    let file = fs.lookup(dir, b"file1").unwrap().attr.ino;
    fs.link(&Caller::ROOT, file, dir, b"hard").unwrap();
    fs.setxattr(&Caller::ROOT, file, b"user.small", b"value", XattrSet::Any).unwrap();
    fs.setxattr(&Caller::ROOT, file, b"trusted.big", &[7; 500], XattrSet::Any).unwrap();
    for i in 0..500 {
        let name = format!("a rather long name to fill blocks with, number {i}");
        fs.mknod(&caller, dir, name.as_bytes(), FileKind::Regular, 0o600, 0).unwrap();
    }
    for i in (0..500).step_by(3) {
        let name = format!("a rather long name to fill blocks with, number {i}");
        fs.unlink(&Caller::ROOT, dir, name.as_bytes()).unwrap();
    }
}

fn getfattr(path: &Path, name: &str) -> Vec<u8> {
    let (text, _) = run(Command::new("getfattr")
        .args(["--absolute-names", "--only-values", "-n", name])
        .arg(path));
    text.into_bytes()
}

fn kernel_agrees(root: &Path) {
    let dir = root.join("weft");
    let meta = std::fs::metadata(&dir).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.gid()), (0o751, 70_000, 80_000));
    for (i, len) in LENS.into_iter().enumerate() {
        let path = dir.join(format!("file{i}"));
        assert!(std::fs::read(&path).unwrap() == bytes(i, len), "{path:?}");
        assert_eq!(std::fs::metadata(&path).unwrap().mtime(), 1_000_000_000 + i as i64);
    }
    let sparse = std::fs::read(dir.join("sparse")).unwrap();
    assert!(sparse.len() == (30 << 20) + 3 && sparse.ends_with(b"\0end"));
    assert!(std::fs::metadata(dir.join("sparse")).unwrap().blocks() < 100);
    assert_eq!(std::fs::metadata(dir.join("null")).unwrap().rdev(), 0x103);
    assert_eq!(std::fs::metadata(dir.join("far")).unwrap().rdev(), 0x12_3405);
    assert!(std::fs::metadata(dir.join("fifo")).unwrap().file_type().is_fifo());
    assert_eq!(std::fs::read_link(dir.join("fast")).unwrap(), Path::new("file1"));
    assert_eq!(std::fs::read_link(dir.join("slow")).unwrap().as_os_str().len(), 200);
    assert_eq!(std::fs::metadata(dir.join("hard")).unwrap().nlink(), 2);
    if Command::new("getfattr").arg("--version").output().is_ok() {
        assert_eq!(getfattr(&dir.join("file1"), "user.small"), b"value");
        assert_eq!(getfattr(&dir.join("file1"), "trusted.big"), [7; 500]);
    } else {
        println!("skipped: getfattr is not installed");
    }
    let names = std::fs::read_dir(&dir).unwrap().count();
    assert_eq!(names, LENS.len() + 7 + 500 - 167);
}

/// Compares a tree of the volume with that of a mount.
fn same_tree(fs: &Ext2, ino: Ino, path: &Path) -> usize {
    let mut names = Vec::new();
    fs.readdir(ino, DirCursor::START, &mut |entry| {
        names.push((entry.name.to_vec(), entry.ino, entry.kind));
        true
    })
    .unwrap();
    names.retain(|(name, ..)| name != b"." && name != b"..");
    let mut host: Vec<_> = std::fs::read_dir(path).unwrap().map(Result::unwrap).collect();
    assert_eq!(host.len(), names.len(), "{path:?}");
    host.sort_by_key(std::fs::DirEntry::file_name);
    names.sort_by(|a, b| a.0.cmp(&b.0));
    let mut count = 0;
    for (entry, (name, _, kind)) in host.iter().zip(&names) {
        count += 1;
        assert_eq!(entry.file_name().as_encoded_bytes(), name);
        let attr = fs.lookup(ino, name).unwrap().attr;
        let meta = entry.path().symlink_metadata().unwrap();
        assert_eq!(attr.kind, *kind);
        assert_eq!(u32::from(attr.perm) | attr.kind.mode_bits(), meta.mode(), "{entry:?}");
        assert_eq!((attr.uid, attr.gid), (meta.uid(), meta.gid()));
        assert_eq!((attr.size_bytes, u64::from(attr.nlink)), (meta.len(), meta.nlink()));
        assert_eq!((attr.mtime.secs, attr.ctime.secs), (meta.mtime(), meta.ctime()));
        assert_eq!(i64::from(attr.mtime.nanos), meta.mtime_nsec());
        match attr.kind {
            FileKind::Directory => count += same_tree(fs, attr.ino, &entry.path()),
            FileKind::Symlink => {
                let target = std::fs::read_link(entry.path()).unwrap();
                let target = target.as_os_str().as_encoded_bytes();
                assert_eq!(fs.readlink(attr.ino).unwrap(), target);
            }
            FileKind::Regular => {
                let want = std::fs::read(entry.path()).unwrap();
                let mut got = vec![0; want.len()];
                assert_eq!(fs.read(attr.ino, Handle::NONE, 0, &mut got).unwrap(), want.len());
                assert!(got == want, "{entry:?}");
            }
            _ => assert_eq!(u64::from(attr.rdev), meta.rdev()),
        }
    }
    count
}

fn both_ways(kind: &Kind) {
    if !have_e2fsprogs() || !rustix_is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (image, at) = (dir.path().join("image"), dir.path().join("mount"));
    mke2fs(&image, &Kind { size: "64M", ..*kind });
    let fs = open(&image);
    write_with_weft(&fs);
    fs.unmount().unwrap();
    drop(fs);
    assert_clean(&image, kind.name);

    let Some(mount) = Mount::new(&image, &at) else { return };
    kernel_agrees(&at);
    // Now the kernel writes: a large directory (with a hash tree, where it makes them), ...
    let big = at.join("big");
    std::fs::create_dir(&big).unwrap();
    for i in 0..700 {
        std::fs::write(big.join(format!("by the kernel, number {i:040}")), bytes(i, i * 9))
            .unwrap();
    }
    std::fs::write(at.join("long"), bytes(5, 9_000_000)).unwrap();
    std::os::unix::fs::symlink("x".repeat(90), at.join("slow")).unwrap();
    mount.end();

    let plain = dir.path().join("before");
    std::fs::copy(&image, &plain).unwrap();
    let fs = open(&image);
    let Some(mount) = Mount::new(&plain, &at) else { return };
    let count = same_tree(&fs, fs.root(), &at);
    assert!(count > 1000);
    mount.end();
    // ... which weft changes, so that the tree must go.
    let big = fs.lookup(fs.root(), b"big").unwrap().attr.ino;
    for i in 0..350 {
        fs.unlink(&Caller::ROOT, big, format!("by the kernel, number {:040}", i * 2).as_bytes())
            .unwrap();
        let name = format!("by weft, number {i:050}");
        fs.mknod(&Caller::ROOT, big, name.as_bytes(), FileKind::Regular, 0o600, 0).unwrap();
    }
    fs.unmount().unwrap();
    drop(fs);
    assert_clean(&image, kind.name);
    let Some(mount) = Mount::new(&image, &at) else { return };
    for i in 0..350 {
        assert!(!at.join("big").join(format!("by the kernel, number {:040}", i * 2)).exists());
        assert!(at.join("big").join(format!("by the kernel, number {:040}", i * 2 + 1)).exists());
        assert!(at.join("big").join(format!("by weft, number {i:050}")).exists());
    }
    mount.end();
    assert_clean(&image, kind.name);
}

fn rustix_is_root() -> bool {
    let root = std::fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0);
    if !root {
        println!("skipped: not root");
    }
    root
}

#[test]
fn kernel_and_weft_4k() {
    both_ways(&KINDS[0]);
}

#[test]
fn kernel_and_weft_1k() {
    both_ways(&KINDS[1]);
}

#[test]
fn kernel_and_weft_ext3() {
    both_ways(&KINDS[3]);
}

/// Descriptors in each of several meta groups.
#[test]
fn kernel_and_weft_meta_bg() {
    both_ways(&KINDS[5]);
}

#[test]
fn large_inodes_go_both_ways() {
    both_ways(&KINDS[6]);
}
