//! The defaults of calls of the plug that are made of other calls.

use crate::{
    Caller, DirCursor, DirEntry, Entry, Error, FileKind, FileSystem, Handle, Ino, OpenFlags,
    Opened, Result, SeekFrom,
};

/// Names collected before they are looked up: about as many as a front takes at once.
const BATCH: usize = 128;
/// Attempts to make a file that other callers make and remove again and again.
const ATTEMPTS: usize = 100;

/// Makes and opens a regular file by [`FileSystem::mknod`] and [`FileSystem::open`], as the default
/// of [`FileSystem::create`]. On a read-only file system it opens an existing file.
pub(crate) fn create_by_mknod<F: FileSystem + ?Sized>(
    fs: &F,
    caller: &Caller,
    parent: Ino,
    name: &[u8],
    perm: u16,
    flags: OpenFlags,
) -> Result<(Entry, Opened)> {
    let is_exclusive = flags.contains(OpenFlags::EXCLUSIVE);
    for _ in 0..ATTEMPTS {
        let entry = match fs.mknod(caller, parent, name, FileKind::Regular, perm, 0) {
            Err(Error::Exists) if !is_exclusive => match fs.lookup(parent, name) {
                // Removed between the two calls.
                Err(Error::NotFound) => continue,
                found => found?,
            },
            Err(Error::ReadOnly) => match fs.lookup(parent, name) {
                Ok(entry) if is_exclusive => {
                    fs.forget(entry.attr.ino, 1);
                    return Err(Error::Exists);
                }
                Err(Error::NotFound) => return Err(Error::ReadOnly),
                found => found?,
            },
            made => made?,
        };
        let ino = entry.attr.ino;
        return match open_new(fs, caller, entry, flags) {
            Ok(opened) => Ok(opened),
            Err(e) => {
                fs.forget(ino, 1);
                Err(e)
            }
        };
    }
    Err(Error::Busy)
}

/// Opens the file of `entry`, which was just made or found. Returns the entry with the attributes
/// after that: opening may cut the file.
fn open_new<F: FileSystem + ?Sized>(
    fs: &F,
    caller: &Caller,
    entry: Entry,
    flags: OpenFlags,
) -> Result<(Entry, Opened)> {
    let ino = entry.attr.ino;
    let opened = fs.open(caller, ino, flags)?;
    match fs.getattr(ino) {
        Ok(attr) => Ok((Entry { attr, ..entry }, opened)),
        Err(e) => {
            let _ = fs.release(ino, opened.handle);
            Err(e)
        }
    }
}

/// Lists a directory by [`FileSystem::readdir`] and [`FileSystem::lookup`], as the default of
/// [`FileSystem::readdir_plus`]. Looks names up between listings, not within one, as a file system
/// may hold a lock while it lists.
pub(crate) fn list_by_lookup<F: FileSystem + ?Sized>(
    fs: &F,
    ino: Ino,
    mut cursor: DirCursor,
    each: &mut dyn FnMut(DirEntry<'_>, Entry) -> bool,
) -> Result<()> {
    loop {
        let mut batch = Vec::new();
        fs.readdir(ino, cursor, &mut |entry| {
            batch.push((entry.ino, entry.kind, entry.name.to_vec(), entry.next));
            batch.len() < BATCH
        })?;
        if batch.is_empty() {
            return Ok(());
        }
        for (listed, kind, name, next) in batch {
            cursor = next;
            let entry = match fs.lookup(ino, &name) {
                // Removed since it was listed.
                Err(Error::NotFound) => continue,
                found => found?,
            };
            let is_dots = name == b"." || name == b"..";
            // The name may be of another file by now.
            let (shown, kind) =
                if is_dots { (listed, kind) } else { (entry.attr.ino, entry.attr.kind) };
            let more = each(DirEntry { ino: shown, kind, name: &name, next }, entry);
            if is_dots || !more {
                fs.forget(entry.attr.ino, 1);
            }
            if !more {
                return Ok(());
            }
        }
    }
}

/// Finds data or a hole in a file of `size_bytes` without holes, as the default of
/// [`FileSystem::seek`].
///
/// # Errors
/// [`Error::NoAddress`] at or past the end.
pub fn seek_without_holes(size_bytes: u64, from: SeekFrom) -> Result<u64> {
    match from {
        SeekFrom::Data(at) | SeekFrom::Hole(at) if at >= size_bytes => Err(Error::NoAddress),
        SeekFrom::Data(at) => Ok(at),
        SeekFrom::Hole(_) => Ok(size_bytes),
    }
}

/// Copies a range of one file to another by reading and writing, as the default of
/// [`FileSystem::copy_range`]. Returns the number of bytes copied.
///
/// # Errors
/// Those of [`FileSystem::read`] and [`FileSystem::write`].
pub fn copy_by_reading<F: FileSystem + ?Sized>(
    fs: &F,
    caller: &Caller,
    (from, from_offset): (Ino, u64),
    (to, to_offset): (Ino, u64),
    len_bytes: u64,
) -> Result<u64> {
    const CHUNK_BYTES: usize = 256 << 10;
    let mut buf = vec![0; CHUNK_BYTES.min(usize::try_from(len_bytes).unwrap_or(usize::MAX))];
    let mut done = 0;
    while done < len_bytes {
        let want = usize::try_from(len_bytes - done).unwrap_or(usize::MAX).min(buf.len());
        let Some((at, to_at)) = from_offset.checked_add(done).zip(to_offset.checked_add(done))
        else {
            break;
        };
        let step = fs.read(from, Handle::NONE, at, &mut buf[..want]).and_then(|got| {
            fs.write(caller, to, Handle::NONE, to_at, &buf[..got]).map(|put| (got, put))
        });
        match step {
            Ok((got, put)) => {
                done += put as u64;
                if got < want || put < got {
                    break;
                }
            }
            // The bytes copied before the error are returned; the next call returns the error.
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Attr, MemFs, SetAttr, Time, XattrSet};
    use std::sync::atomic::{AtomicU64, Ordering};

    const ROOT: Ino = Ino(1);
    /// More names than are looked up at a time.
    const FILES: u64 = 3 * BATCH as u64;

    /// A read-only file system that defines only the required calls: files `2`, `3`, ... with their
    /// names as content.
    #[derive(Default)]
    struct Numbers {
        references: AtomicU64,
    }

    impl FileSystem for Numbers {
        fn root(&self) -> Ino {
            ROOT
        }

        fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Entry> {
            let number = std::str::from_utf8(name).ok().and_then(|name| name.parse().ok());
            let ino = match number {
                _ if name == b"." || name == b".." => dir,
                // One that is removed while it is listed.
                Some(5) | None => return Err(Error::NotFound),
                Some(n) => Ino(n),
            };
            let attr = self.getattr(ino)?;
            self.references.fetch_add(1, Ordering::Relaxed);
            Ok(Entry { attr, generation: 0 })
        }

        fn forget(&self, _: Ino, count: u64) {
            self.references.fetch_sub(count, Ordering::Relaxed);
        }

        fn getattr(&self, ino: Ino) -> Result<Attr> {
            let kind = match ino {
                ROOT => FileKind::Directory,
                Ino(n) if n < FILES => FileKind::Regular,
                Ino(n) => return Err(Error::Stale(n)),
            };
            let time = Time::default();
            Ok(Attr {
                ino,
                kind,
                perm: 0o444,
                nlink: 1,
                uid: 0,
                gid: 0,
                rdev: 0,
                size_bytes: ino.0.to_string().len() as u64,
                blocks_512: 0,
                io_bytes: 4096,
                atime: time,
                mtime: time,
                ctime: time,
                btime: None,
            })
        }

        fn read(&self, ino: Ino, _: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
            let name = ino.0.to_string();
            let rest = &name.as_bytes()[name.len().min(offset as usize)..];
            let len = rest.len().min(buf.len());
            buf[..len].copy_from_slice(&rest[..len]);
            Ok(len)
        }

        fn readdir(
            &self,
            _: Ino,
            cursor: DirCursor,
            each: &mut dyn FnMut(DirEntry<'_>) -> bool,
        ) -> Result<()> {
            for n in cursor.0..FILES {
                let name = match n {
                    0 => ".".to_owned(),
                    1 => "..".to_owned(),
                    n => n.to_string(),
                };
                let kind = if n < 2 { FileKind::Directory } else { FileKind::Regular };
                let (ino, next) = (Ino(n.max(1)), DirCursor(n + 1));
                if !each(DirEntry { ino, kind, name: name.as_bytes(), next }) {
                    break;
                }
            }
            Ok(())
        }

        fn sync(&self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_listing_takes_references_on_what_was_taken() {
        let fs = Numbers::default();
        let mut seen = Vec::new();
        fs.readdir_plus(ROOT, DirCursor::START, &mut |dirent, entry| {
            assert_eq!(dirent.ino, entry.attr.ino);
            seen.push(dirent.ino.0);
            true
        })
        .unwrap();
        let expected: Vec<u64> = [1, 1].into_iter().chain((2..FILES).filter(|n| *n != 5)).collect();
        assert_eq!(seen, expected);
        assert_eq!(fs.references.load(Ordering::Relaxed), expected.len() as u64 - 2);

        // The third is refused; the listing goes on there.
        let fs = Numbers::default();
        let mut last = DirCursor::START;
        let mut count = 0;
        fs.readdir_plus(ROOT, last, &mut |dirent, _| {
            count += 1;
            if count < 4 {
                last = dirent.next;
            }
            count < 4
        })
        .unwrap();
        assert_eq!(fs.references.load(Ordering::Relaxed), 1);
        assert_eq!(last, DirCursor(3));
    }

    #[test]
    fn a_file_system_that_is_only_read_says_so() {
        let (fs, caller) = (Numbers::default(), Caller::ROOT);
        let read = OpenFlags::READ;
        let (entry, opened) = fs.create(&caller, ROOT, b"7", 0o644, read).unwrap();
        let mut buf = [0; 8];
        assert_eq!(fs.read(entry.attr.ino, opened.handle, 0, &mut buf).unwrap(), 1);
        assert_eq!(buf[0], b'7');
        fs.release(entry.attr.ino, opened.handle).unwrap();
        fs.forget(entry.attr.ino, 1);
        assert!(matches!(
            fs.create(&caller, ROOT, b"7", 0o644, OpenFlags::EXCLUSIVE),
            Err(Error::Exists)
        ));
        assert!(matches!(fs.create(&caller, ROOT, b"new", 0o644, read), Err(Error::ReadOnly)));
        let write = read | OpenFlags::WRITE;
        assert!(matches!(fs.create(&caller, ROOT, b"7", 0o644, write), Err(Error::ReadOnly)));
        assert_eq!(fs.references.load(Ordering::Relaxed), 0);

        let file = Ino(7);
        assert!(matches!(fs.open(&Caller::ROOT, ROOT, read), Err(Error::IsADirectory)));
        assert!(matches!(
            fs.write(&Caller::ROOT, file, Handle::NONE, 0, b"x"),
            Err(Error::ReadOnly)
        ));
        assert!(matches!(
            fs.setattr(&Caller::ROOT, file, &SetAttr::default()),
            Err(Error::ReadOnly)
        ));
        assert!(matches!(fs.readlink(file), Err(Error::Invalid(_))));
        assert!(matches!(fs.readlink(Ino(FILES)), Err(Error::Stale(_))));
        assert!(matches!(fs.fsync(&Caller::ROOT, Ino(FILES), false), Err(Error::Stale(_))));
        assert!(fs.listxattr(file).unwrap().is_empty());
        let set = fs.setxattr(&Caller::ROOT, file, b"user.a", b"", XattrSet::Any);
        assert!(matches!(set, Err(Error::Unsupported(_))));
        assert_eq!(fs.seek(file, SeekFrom::Hole(0)).unwrap(), 1);
    }

    #[test]
    fn a_file_that_is_there_is_opened_as_it_then_is() {
        let (fs, caller) = (MemFs::new(), Caller::ROOT);
        let create = |flags| {
            create_by_mknod(&fs, &caller, fs.root(), b"file", 0o644, OpenFlags::WRITE | flags)
        };
        let (made, _) = create(OpenFlags::EXCLUSIVE).unwrap();
        fs.write(&Caller::ROOT, made.attr.ino, Handle::NONE, 0, b"content").unwrap();
        assert!(matches!(create(OpenFlags::EXCLUSIVE), Err(Error::Exists)));
        assert_eq!(create(OpenFlags::empty()).unwrap().0.attr.size_bytes, 7);
        assert_eq!(create(OpenFlags::TRUNCATE).unwrap().0.attr.size_bytes, 0);
    }
}
