//! Making inodes.

use super::bench::{Bench, caller, refused};
use super::seeded::pattern;
use crate::{Caller, FileKind, Handle, Ino, OpenFlags, Result, SetAttr};

pub(super) fn each_kind(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let special = [
        (FileKind::Fifo, 0),
        (FileKind::Socket, 0),
        (FileKind::CharDevice, 0x0103),
        (FileKind::BlockDevice, 0x0801),
        // Major 300, minor 70,000: past the 8-bit numbers of old.
        (FileKind::BlockDevice, 0x1111_2c70),
    ];
    let special = if bench.limits.special_files { &special[..] } else { &[] };
    for (at, &(kind, rdev)) in [(FileKind::Regular, 0)].iter().chain(special).enumerate() {
        let name = format!("node{at}");
        let made = root.mknod(&caller(), name.as_bytes(), kind, 0o6755, rdev)?;
        let attr = made.stat()?;
        assert_eq!(attr, *made.attr(), "{kind:?}: the entry and a later look");
        assert_eq!((attr.kind, attr.nlink), (kind, 1));
        let perm = bench.limits.shown(kind, 0o6755);
        assert!(attr.perm == perm || !bench.limits.owners_and_modes);
        let rdev = if bench.limits.privileges { rdev } else { 0 };
        assert_eq!((attr.rdev, attr.size_bytes), (rdev, 0), "{kind:?}");
        let listed = root.list()?;
        assert!(listed.iter().any(|l| l.name == name.as_bytes() && l.kind == kind));
    }
    let dir = root.mkdir(&caller(), b"dir", 0o1750)?;
    assert_eq!(dir.kind(), FileKind::Directory);
    assert!(dir.attr().perm == 0o1750 || !bench.limits.owners_and_modes);
    if bench.limits.symlinks {
        let link = root.symlink(&caller(), b"link", b"to")?;
        assert_eq!((link.kind(), link.attr().size_bytes), (FileKind::Symlink, 2));
    }
    refused!(root.mknod(&caller(), b"no", FileKind::Directory, 0o755, 0), Invalid(_));
    Ok(())
}

pub(super) fn existing_name_is_refused(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    root.create(&caller(), b"file", 0o644)?;
    root.mkdir(&caller(), b"dir", 0o755)?;
    let mut names = vec![&b"file"[..], b"dir"];
    if bench.limits.symlinks {
        root.symlink(&caller(), b"dangling", b"nowhere")?;
        names.push(b"dangling");
    }
    for name in names {
        let before = root.lookup(name)?.stat()?;
        refused!(root.create(&caller(), name, 0o644), Exists);
        refused!(root.mkdir(&caller(), name, 0o755), Exists);
        if bench.limits.symlinks {
            refused!(root.symlink(&caller(), name, b"x"), Exists);
        }
        assert_eq!(root.lookup(name)?.stat()?, before);
    }
    Ok(())
}

pub(super) fn parent_must_be_a_directory(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let file = root.create(&caller(), b"file", 0o644)?;
    let mut parents = vec![&file];
    let link;
    if bench.limits.symlinks {
        link = root.symlink(&caller(), b"link", b".")?;
        parents.push(&link);
    }
    for parent in parents {
        refused!(parent.lookup(b"x"), NotADirectory);
        refused!(parent.create(&caller(), b"x", 0o644), NotADirectory);
        refused!(parent.mkdir(&caller(), b"x", 0o755), NotADirectory);
        if bench.limits.symlinks {
            refused!(parent.symlink(&caller(), b"x", b"y"), NotADirectory);
        }
        refused!(bench.fs.unlink(&Caller::ROOT, parent.ino(), b"x"), NotADirectory);
        refused!(bench.fs.rmdir(&Caller::ROOT, parent.ino(), b"x"), NotADirectory);
        if bench.limits.hard_links {
            refused!(file.link_as(&Caller::ROOT, parent, b"x"), NotADirectory);
        }
    }
    Ok(())
}

pub(super) fn owner_and_group(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    // Past 16 bits, which old inodes kept apart.
    let who = Caller { uid: 70_001, gid: 80_002, pid: 1, ..Caller::ROOT };
    let file = root.create(&who, b"file", 0o644)?;
    assert_eq!((file.attr().uid, file.attr().gid), (70_001, 80_002));
    let dir = root.mkdir(&who, b"dir", 0o775)?;
    let setgid = SetAttr { gid: Some(55), perm: Some(0o2775), ..SetAttr::default() };
    bench.fs.setattr(&Caller::ROOT, dir.ino(), &setgid)?;
    let inner = dir.create(&who, b"file", 0o640)?;
    assert_eq!((inner.attr().uid, inner.attr().gid, inner.attr().perm), (70_001, 55, 0o640));
    let sub = dir.mkdir(&who, b"sub", 0o700)?;
    assert_eq!((sub.attr().gid, sub.attr().perm), (55, 0o2700), "setgid goes down");
    assert_eq!(dir.symlink(&who, b"link", b"x")?.attr().gid, 55);
    Ok(())
}

pub(super) fn symlink_targets(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let longest = bench.limits.symlink_bytes;
    // 59 to 61: the edge of a target inside the inode in the ext family.
    for len in [1, 2, 59, 60, 61, 119, 120, 255, 256, 1023, 4000, 4095] {
        if len > longest {
            continue;
        }
        let target = pattern(len as u64, len).iter().map(|b| b | 1).collect::<Vec<_>>();
        let name = format!("link{len}");
        let made = root.symlink(&caller(), name.as_bytes(), &target)?;
        assert_eq!(made.readlink()?, target);
        assert_eq!(made.stat()?.size_bytes, len as u64);
        assert_eq!(root.lookup(name.as_bytes())?.readlink()?, target);
        root.remove(&Caller::ROOT, name.as_bytes())?;
    }
    refused!(root.symlink(&caller(), b"long", &vec![b'x'; 4096]), NameTooLong);
    refused!(root.symlink(&caller(), b"empty", b""), NotFound | Invalid(_));
    let file = root.create(&caller(), b"file", 0o644)?;
    refused!(file.readlink(), Invalid(_));
    refused!(root.readlink(), Invalid(_));
    Ok(())
}

pub(super) fn create_opens(bench: &Bench<'_>) -> Result<()> {
    let (fs, root) = (&bench.fs, bench.root());
    let rw = OpenFlags::READ | OpenFlags::WRITE;
    let (made, first) = fs.create(&caller(), root.ino(), b"file", 0o640, rw)?;
    let ino = made.attr.ino;
    let kept = bench.limits.owners_and_modes;
    assert!((made.attr.perm, made.attr.uid) == (0o640, 1000) || !kept);
    assert_eq!(made.attr.size_bytes, 0);
    assert_eq!(fs.write(&Caller::ROOT, ino, first.handle, 0, b"content")?, 7);
    refused!(fs.create(&caller(), root.ino(), b"file", 0o600, rw | OpenFlags::EXCLUSIVE), Exists);
    let (again, second) = fs.create(&caller(), root.ino(), b"file", 0o600, rw)?;
    assert_eq!((again.attr.ino, again.attr.size_bytes), (ino, 7));
    assert!(again.attr.perm == 0o640 || !kept);
    assert_ne!(first.handle, second.handle);
    assert_ne!(second.handle, Handle::NONE);
    let cut = rw | OpenFlags::TRUNCATE;
    let (emptied, third) = fs.create(&caller(), root.ino(), b"file", 0o600, cut)?;
    assert_eq!(emptied.attr.size_bytes, 0);
    for opened in [first, second, third] {
        fs.release(ino, opened.handle)?;
    }
    fs.forget(ino, 3);
    root.mkdir(&caller(), b"dir", 0o755)?;
    refused!(fs.create(&caller(), root.ino(), b"dir", 0o600, rw), IsADirectory);
    Ok(())
}

pub(super) fn unknown_inode_is_stale(bench: &Bench<'_>) -> Result<()> {
    for ino in [0, 0xffff_fff0, u64::MAX] {
        let ino = Ino(ino);
        refused!(bench.fs.getattr(ino), Stale(_));
        refused!(bench.fs.lookup(ino, b"x"), Stale(_));
        refused!(bench.fs.read(ino, Handle::NONE, 0, &mut [0]), Stale(_));
        refused!(
            bench.fs.setattr(&Caller::ROOT, ino, &SetAttr { perm: Some(0), ..SetAttr::default() }),
            Stale(_)
        );
    }
    Ok(())
}
