//! Inodes without a name.

use std::collections::HashSet;

use super::bench::{Bench, caller, refused};
use super::seeded::pattern;
use crate::{Caller, OpenFlags, RenameFlags, Result};

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

pub(super) fn file_lives_while_open(bench: &Bench<'_>) -> Result<()> {
    let (fs, root) = (&bench.fs, bench.root());
    let before = fs.statfs()?;
    let (made, opened) = fs.create(&caller(), root.ino(), b"file", 0o600, RW)?;
    let ino = made.attr.ino;
    let bytes = pattern(1, 200_000);
    assert_eq!(fs.write(&Caller::ROOT, ino, opened.handle, 0, &bytes)?, bytes.len());
    fs.unlink(&Caller::ROOT, root.ino(), b"file")?;
    fs.forget(ino, 1);
    refused!(root.lookup(b"file"), NotFound);
    assert_eq!(fs.getattr(ino)?.nlink, 0);
    let mut got = vec![0; bytes.len()];
    assert_eq!(fs.read(ino, opened.handle, 0, &mut got)?, bytes.len());
    assert!(got == bytes);
    assert_eq!(fs.write(&Caller::ROOT, ino, opened.handle, 1 << 20, b"more")?, 4);
    fs.release(ino, opened.handle)?;
    refused!(fs.getattr(ino), Stale(_));
    fs.sync()?;
    let after = fs.statfs()?;
    if bench.limits.reuses_inodes {
        assert_eq!(after.inodes_free, before.inodes_free, "the inode is free again");
    }
    // The directory may have taken a block to hold the name.
    let lost = before.blocks_free.saturating_sub(after.blocks_free);
    let is_little = lost * u64::from(after.block_bytes) < 100_000;
    assert!(is_little || !bench.limits.counts_space, "{lost} blocks are lost");
    Ok(())
}

pub(super) fn file_lives_while_referenced(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let node = root.create(&caller(), b"file", 0o600)?;
    let again = root.lookup(b"file")?;
    root.remove(&Caller::ROOT, b"file")?;
    drop(again);
    // Without a handle: a front without open calls relies on this.
    node.write_at(&Caller::ROOT, 0, b"still here")?;
    assert_eq!(node.read_all()?, b"still here");
    if bench.limits.hard_links {
        refused!(node.link_as(&Caller::ROOT, &root, b"back"), NotFound);
    }
    let ino = node.ino();
    drop(node);
    refused!(bench.fs.getattr(ino), Stale(_));
    Ok(())
}

pub(super) fn replaced_file_lives_while_open(bench: &Bench<'_>) -> Result<()> {
    let (fs, root) = (&bench.fs, bench.root());
    let old = root.create(&caller(), b"old", 0o600)?;
    old.write_at(&Caller::ROOT, 0, b"old content")?;
    let opened = fs.open(&Caller::ROOT, old.ino(), OpenFlags::READ)?;
    root.create(&caller(), b"new", 0o600)?.write_at(&Caller::ROOT, 0, b"new")?;
    fs.rename(&Caller::ROOT, root.ino(), b"new", root.ino(), b"old", RenameFlags::empty())?;
    let mut buf = [0; 20];
    assert_eq!(fs.read(old.ino(), opened.handle, 0, &mut buf)?, 11);
    assert_eq!(&buf[..11], b"old content");
    assert_eq!(root.lookup(b"old")?.read_all()?, b"new");
    fs.release(old.ino(), opened.handle)
}

pub(super) fn removed_directory_is_dead(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let dir = root.mkdir(&caller(), b"dir", 0o755)?;
    let file = root.create(&caller(), b"file", 0o644)?;
    root.remove(&Caller::ROOT, b"dir")?;
    assert_eq!(dir.stat()?.nlink, 0);
    refused!(dir.lookup(b"x"), NotFound);
    refused!(dir.create(&caller(), b"x", 0o644), NotFound);
    refused!(dir.mkdir(&caller(), b"x", 0o755), NotFound);
    if bench.limits.symlinks {
        refused!(dir.symlink(&caller(), b"x", b"y"), NotFound);
    }
    if bench.limits.hard_links {
        refused!(file.link_as(&Caller::ROOT, &dir, b"x"), NotFound);
    }
    let flags = RenameFlags::empty();
    refused!(bench.fs.rename(&Caller::ROOT, root.ino(), b"file", dir.ino(), b"x", flags), NotFound);
    assert!(dir.list()?.is_empty());
    Ok(())
}

pub(super) fn inode_number_is_not_reused_early(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let mut held = Vec::new();
    for _ in 0..20 {
        held.push(root.create(&caller(), b"file", 0o600)?);
        root.remove(&Caller::ROOT, b"file")?;
    }
    let numbers: HashSet<_> = held.iter().map(crate::Node::ino).collect();
    assert_eq!(numbers.len(), held.len(), "an inode number in use was given again");
    Ok(())
}

pub(super) fn unmount_gives_up_references(bench: &Bench<'_>) -> Result<()> {
    let (fs, root) = (&bench.fs, bench.root());
    // A kernel that unmounts sends no more `forget`; the check after the case finds leaks.
    let (made, opened) = fs.create(&caller(), root.ino(), b"open", 0o600, RW)?;
    fs.write(&Caller::ROOT, made.attr.ino, opened.handle, 0, &pattern(1, 50_000))?;
    fs.unlink(&Caller::ROOT, root.ino(), b"open")?;
    let node = root.create(&caller(), b"referenced", 0o600)?;
    node.write_at(&Caller::ROOT, 0, &pattern(2, 50_000))?;
    root.remove(&Caller::ROOT, b"referenced")?;
    let dir = root.mkdir(&caller(), b"dir", 0o700)?;
    root.remove(&Caller::ROOT, b"dir")?;
    std::mem::forget((node, dir));
    Ok(())
}
