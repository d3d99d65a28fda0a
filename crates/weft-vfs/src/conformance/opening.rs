//! Opening, and closing as `close(2)` does: a flush for each descriptor, then the release.

use super::bench::{Bench, caller, refused};
use super::seeded::pattern;
use crate::{Caller, FileSystem, Handle, Ino, OpenFlags, Result};

const READ_WRITE: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

fn content(fs: &dyn FileSystem, ino: Ino) -> Result<Vec<u8>> {
    let mut buf = vec![0; 64 << 10];
    let got = fs.read(ino, Handle::NONE, 0, &mut buf)?;
    buf.truncate(got);
    Ok(buf)
}

pub(super) fn closing_keeps_what_was_written(b: &Bench<'_>) -> Result<()> {
    let (fs, root) = (&*b.fs, b.fs.root());
    let (entry, opened) = fs.create(&caller(), root, b"file", 0o644, READ_WRITE)?;
    let ino = entry.attr.ino;
    let data = pattern(1, 20_000);
    fs.write(&Caller::ROOT, ino, opened.handle, 0, &data)?;
    fs.flush(ino, opened.handle)?;
    fs.release(ino, opened.handle)?;
    fs.forget(ino, 1);
    let again = fs.lookup(root, b"file")?;
    assert_eq!(again.attr.size_bytes, 20_000);
    assert!(content(fs, again.attr.ino)? == data);
    fs.forget(again.attr.ino, 1);
    Ok(())
}

pub(super) fn each_descriptor_is_closed(b: &Bench<'_>) -> Result<()> {
    let (fs, root) = (&*b.fs, b.fs.root());
    let (entry, one) = fs.create(&caller(), root, b"file", 0o644, READ_WRITE)?;
    let ino = entry.attr.ino;
    let two = fs.open(&Caller::ROOT, ino, READ_WRITE)?;
    fs.write(&Caller::ROOT, ino, one.handle, 0, b"one ")?;
    // A duplicated descriptor: the file is still used after the first flush.
    fs.flush(ino, one.handle)?;
    fs.write(&Caller::ROOT, ino, two.handle, 4, b"two ")?;
    fs.write(&Caller::ROOT, ino, one.handle, 8, b"three")?;
    fs.flush(ino, one.handle)?;
    fs.flush(ino, two.handle)?;
    fs.release(ino, one.handle)?;
    assert_eq!(content(fs, ino)?, b"one two three");
    fs.write(&Caller::ROOT, ino, two.handle, 0, b"ONE")?;
    fs.flush(ino, two.handle)?;
    fs.release(ino, two.handle)?;
    assert_eq!(content(fs, ino)?, b"ONE two three");
    fs.forget(ino, 1);
    Ok(())
}

pub(super) fn closing_a_file_without_a_name(b: &Bench<'_>) -> Result<()> {
    let (fs, root) = (&*b.fs, b.fs.root());
    let (entry, opened) = fs.create(&caller(), root, b"file", 0o644, READ_WRITE)?;
    let ino = entry.attr.ino;
    fs.write(&Caller::ROOT, ino, opened.handle, 0, b"before")?;
    fs.unlink(&Caller::ROOT, root, b"file")?;
    fs.write(&Caller::ROOT, ino, opened.handle, 0, b"behind")?;
    fs.flush(ino, opened.handle)?;
    assert_eq!(content(fs, ino)?, b"behind");
    fs.release(ino, opened.handle)?;
    fs.forget(ino, 1);
    refused!(fs.lookup(root, b"file"), NotFound);
    Ok(())
}

pub(super) fn closing_after_reading(b: &Bench<'_>) -> Result<()> {
    let (fs, root) = (&*b.fs, b.fs.root());
    let root_node = b.root();
    let node = root_node.create(&caller(), b"file", 0o644)?;
    node.write_at(&Caller::ROOT, 0, b"content")?;
    let before = fs.getattr(node.ino())?;
    let opened = fs.open(&Caller::ROOT, node.ino(), OpenFlags::READ)?;
    let mut buf = [0; 16];
    assert_eq!(fs.read(node.ino(), opened.handle, 0, &mut buf)?, 7);
    fs.flush(node.ino(), opened.handle)?;
    fs.release(node.ino(), opened.handle)?;
    let after = fs.getattr(node.ino())?;
    assert_eq!((before.mtime, before.size_bytes), (after.mtime, after.size_bytes));
    let entry = fs.lookup(root, b"file")?;
    assert_eq!(entry.attr.ino, node.ino());
    fs.forget(entry.attr.ino, 1);
    Ok(())
}
