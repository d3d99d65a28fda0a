//! The flags of inodes at the plug: kept on the disk as debugfs shows them, and obeyed.

use crate::tools::{have_e2fsprogs, run};
use crate::volumes::{Mounted, plain, store};
use std::process::Command;
use weft_ext2::layout::InodeFlags;
use weft_patch::Options;
use weft_vfs::{
    Caller, Error, FallocateMode, FileFlags, FileKind, FileSystem, Handle, Ino, OpenFlags,
    RenameFlags, SetAttr, SetTime, Time,
};

fn file(fs: &dyn FileSystem, dir: Ino, name: &[u8]) -> Ino {
    fs.mknod(&Caller::ROOT, dir, name, FileKind::Regular, 0o644, 0).unwrap().attr.ino
}

fn bits(flags: InodeFlags) -> FileFlags {
    FileFlags::from_bits_retain(flags.bits())
}

fn forbidden<T>(what: &str, result: Result<T, Error>) {
    assert!(matches!(result, Err(Error::NotPermitted)), "{what}: {:?}", result.err());
}

#[test]
fn flags_are_kept_where_debugfs_looks() {
    if !have_e2fsprogs() {
        return;
    }
    let mounted = Mounted::open(plain(), Options::default());
    let fs = &mounted.fs;
    let ino = file(&**fs, fs.root(), b"file");
    assert_eq!(fs.file_flags(ino).unwrap(), FileFlags::empty());
    fs.set_file_flags(&Caller::ROOT, ino, FileFlags::IMMUTABLE | FileFlags::NODUMP).unwrap();
    assert_eq!(fs.file_flags(ino).unwrap(), FileFlags::IMMUTABLE | FileFlags::NODUMP);
    let device = mounted.check("flags");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    store(&device, &path);
    let (text, _) = run(Command::new("debugfs").args(["-R", "stat file"]).arg(&path));
    assert!(text.contains("Flags: 0x50"), "{text}");
}

#[test]
fn only_flags_of_users_can_be_set() {
    if !have_e2fsprogs() {
        return;
    }
    let mounted = Mounted::open(plain(), Options::default());
    let fs = &mounted.fs;
    let ino = file(&**fs, fs.root(), b"file");
    // Extents are no flag that a user of ext2 sees; a hash tree is one that he sees and cannot set.
    let refused = fs.set_file_flags(&Caller::ROOT, ino, bits(InodeFlags::EXTENTS));
    assert!(matches!(refused, Err(Error::Unsupported(_))));
    fs.set_file_flags(&Caller::ROOT, ino, bits(InodeFlags::INDEX | InodeFlags::NOTAIL)).unwrap();
    assert_eq!(fs.file_flags(ino).unwrap(), bits(InodeFlags::NOTAIL));
    // Of directories only.
    for flag in [InodeFlags::DIRSYNC, InodeFlags::TOPDIR] {
        assert!(matches!(
            fs.set_file_flags(&Caller::ROOT, ino, bits(flag)),
            Err(Error::Unsupported(_))
        ));
        fs.set_file_flags(&Caller::ROOT, fs.root(), bits(flag)).unwrap();
    }
    let link = fs.symlink(&Caller::ROOT, fs.root(), b"link", b"file").unwrap().attr.ino;
    assert!(matches!(fs.file_flags(link), Err(Error::UnknownCommand)));
    assert!(matches!(
        fs.set_file_flags(&Caller::ROOT, link, FileFlags::NODUMP),
        Err(Error::UnknownCommand)
    ));
    mounted.check("flags of users");
}

/// The command and the library obey the flags without a kernel that checks them.
#[test]
fn flags_are_obeyed_at_the_plug() {
    if !have_e2fsprogs() {
        return;
    }
    let mounted = Mounted::open(plain(), Options::default());
    let fs = &mounted.fs;
    let root = fs.root();
    let (fixed, log) = (file(&**fs, root, b"fixed"), file(&**fs, root, b"log"));
    file(&**fs, root, b"plain");
    for ino in [fixed, log] {
        fs.write(&Caller::ROOT, ino, Handle::NONE, 0, b"content").unwrap();
    }
    fs.set_file_flags(&Caller::ROOT, fixed, FileFlags::IMMUTABLE).unwrap();
    fs.set_file_flags(&Caller::ROOT, log, FileFlags::APPEND).unwrap();
    for (ino, name) in [(fixed, &b"fixed"[..]), (log, b"log")] {
        let set = |set| fs.setattr(&Caller::ROOT, ino, &set);
        let cut = SetAttr { size_bytes: Some(1), ..SetAttr::default() };
        let chmod = SetAttr { perm: Some(0o600), ..SetAttr::default() };
        let at = Some(SetTime::At(Time::default()));
        let date = SetAttr { mtime: at, ..SetAttr::default() };
        forbidden("write", fs.write(&Caller::ROOT, ino, Handle::NONE, 0, b"x"));
        forbidden("cut", set(cut));
        forbidden("chmod", set(chmod));
        forbidden("set the time", set(date));
        let touch = SetAttr { atime: Some(SetTime::Now), ..SetAttr::default() };
        forbidden("touch -a", set(touch));
        let touch = SetAttr { mtime: Some(SetTime::Now), ..touch };
        match name {
            b"log" => drop(set(touch).unwrap()),
            _ => forbidden("touch", set(touch)),
        }
        forbidden(
            "attribute",
            fs.setxattr(&Caller::ROOT, ino, b"user.a", b"v", weft_vfs::XattrSet::Any),
        );
        forbidden("link", fs.link(&Caller::ROOT, ino, root, b"another"));
        forbidden("unlink", fs.unlink(&Caller::ROOT, root, name));
        forbidden(
            "rename",
            fs.rename(&Caller::ROOT, root, name, root, b"new", RenameFlags::empty()),
        );
        forbidden(
            "replace",
            fs.rename(&Caller::ROOT, root, b"plain", root, name, RenameFlags::empty()),
        );
        forbidden("open", fs.open(&Caller::ROOT, ino, OpenFlags::WRITE));
        forbidden("punch", fs.fallocate(&Caller::ROOT, ino, FallocateMode::PunchHole, 0, 1));
    }
    let end = fs.getattr(log).unwrap().size_bytes;
    forbidden("append", fs.write(&Caller::ROOT, fixed, Handle::NONE, end, b"x"));
    forbidden("a page", fs.write_cached(&Caller::ROOT, fixed, Handle::NONE, 0, b"page"));
    fs.write(&Caller::ROOT, log, Handle::NONE, end, b", more").unwrap();
    fs.write_cached(&Caller::ROOT, log, Handle::NONE, 0, b"content, more, and more").unwrap();
    fs.set_file_flags(&Caller::ROOT, fixed, FileFlags::empty()).unwrap();
    fs.unlink(&Caller::ROOT, root, b"fixed").unwrap();
    mounted.check("obeyed flags");
}

#[test]
fn flags_that_ask_for_durability_get_it() {
    if !have_e2fsprogs() {
        return;
    }
    let mounted = Mounted::open(plain(), Options::default());
    let fs = &mounted.fs;
    let dir = fs.mkdir(&Caller::ROOT, fs.root(), b"dir", 0o755).unwrap().attr.ino;
    fs.set_file_flags(&Caller::ROOT, dir, bits(InodeFlags::DIRSYNC)).unwrap();
    let ino = file(&**fs, dir, b"old");
    fs.set_file_flags(&Caller::ROOT, ino, FileFlags::SYNC).unwrap();
    fs.write(&Caller::ROOT, ino, Handle::NONE, 0, b"durable").unwrap();
    fs.rename(&Caller::ROOT, dir, b"old", dir, b"new", RenameFlags::empty()).unwrap();
    // Only a sync writes back here: a power cut leaves the synced state.
    let image = mounted.device.snapshot();
    let after = Mounted::open(&image, Options::default());
    let dir = after.fs.lookup(after.fs.root(), b"dir").unwrap().attr.ino;
    let found = after.fs.lookup(dir, b"new").expect("the rename is durable").attr;
    let mut content = [0; 16];
    let len = after.fs.read(found.ino, Handle::NONE, 0, &mut content).unwrap();
    assert_eq!(&content[..len], b"durable");
    assert!(after.fs.lookup(dir, b"old").is_err());
}

#[test]
fn reading_leaves_the_access_time_of_a_noatime_file() {
    if !have_e2fsprogs() {
        return;
    }
    let mounted = Mounted::open(plain(), Options::default());
    let fs = &mounted.fs;
    let long_ago = Some(SetTime::At(Time { secs: 1000, nanos: 0 }));
    let mut seen = Vec::new();
    for (name, flags) in [(&b"a"[..], FileFlags::empty()), (b"b", FileFlags::NOATIME)] {
        let ino = file(&**fs, fs.root(), name);
        fs.write(&Caller::ROOT, ino, Handle::NONE, 0, b"x").unwrap();
        fs.setattr(&Caller::ROOT, ino, &SetAttr { atime: long_ago, ..SetAttr::default() }).unwrap();
        fs.set_file_flags(&Caller::ROOT, ino, flags).unwrap();
        fs.read(ino, Handle::NONE, 0, &mut [0; 1]).unwrap();
        seen.push(fs.getattr(ino).unwrap().atime.secs == 1000);
    }
    assert_eq!(seen, [false, true]);
    mounted.check("access times");
}
