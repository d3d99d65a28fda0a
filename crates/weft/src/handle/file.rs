//! An open file as a handle: it holds one reference on its inode, and one handle of the file system.

use super::volume::{Opened, caller};
use crate::{Error, Result};
use std::sync::Arc;
use weft_vfs::{Attr, FileSystem, Handle, Ino, OpenFlags, SetAttr, Walker};

/// An open file of a [`Volume`](super::Volume). It stays readable after its last name is removed.
#[derive(Debug)]
pub struct File {
    volume: Arc<Opened>,
    path: Vec<u8>,
    ino: Ino,
    handle: Handle,
    flags: OpenFlags,
}

impl Drop for File {
    fn drop(&mut self) {
        // With its volume closed there is nothing to give back.
        let _ = self.volume.with(|open| {
            let _ = open.stack.fs().release(self.ino, self.handle);
            open.stack.fs().forget(self.ino, 1);
            Ok(())
        });
    }
}

impl File {
    pub(super) fn open(
        volume: &Arc<Opened>,
        path: &[u8],
        flags: OpenFlags,
        create: Option<u16>,
    ) -> Result<Self> {
        let (ino, handle) = volume.at("open", path, |walker| {
            let found = match (walker.resolve(path), create) {
                (Ok(_), Some(_)) if flags.contains(OpenFlags::EXCLUSIVE) => {
                    return Err(weft_vfs::Error::Exists);
                }
                (Err(weft_vfs::Error::NotFound), Some(perm)) => {
                    return make(walker, path, perm, flags);
                }
                (found, _) => found?,
            };
            if found.is_dir() {
                return Err(weft_vfs::Error::IsADirectory);
            }
            let opened = walker.fs().open(&caller(), found.ino(), flags)?;
            Ok((found.into_entry().attr.ino, opened.handle))
        })?;
        Ok(Self { volume: Arc::clone(volume), path: path.to_vec(), ino, handle, flags })
    }

    fn with<R>(
        &self,
        action: &'static str,
        call: impl FnOnce(&dyn FileSystem) -> weft_vfs::Result<R>,
    ) -> Result<R> {
        self.volume.with_fs(action, &self.path, call)
    }

    /// Returns an error unless the file was opened for this.
    fn demand(&self, access: OpenFlags, action: &'static str) -> Result<()> {
        if self.flags.contains(access) {
            return Ok(());
        }
        let errno = rustix::io::Errno::BADF.raw_os_error();
        let message = format!("not opened to {action}");
        Err(Error::file(action, &self.path, weft_vfs::Error::Io { errno, message }))
    }

    /// Reads from byte `offset` on; fewer bytes than `buf` has only at the end of the file.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Closed`], as for all calls.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.demand(OpenFlags::READ, "read")?;
        self.with("read", |fs| fs.read(self.ino, self.handle, offset, buf))
    }

    /// Writes all of `data` from byte `offset` on.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at); a part may have been written then.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.demand(OpenFlags::WRITE, "write")?;
        let caller = caller();
        let mut done = 0;
        while done < data.len() {
            done += self.with("write", |fs| {
                let at = offset.checked_add(done as u64).ok_or(weft_vfs::Error::TooLarge)?;
                match fs.write(&caller, self.ino, self.handle, at, &data[done..])? {
                    0 => Err(weft_vfs::Error::NoSpace),
                    taken => Ok(taken),
                }
            })?;
        }
        Ok(())
    }

    /// Cuts the file, or makes it longer with zeroes.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    pub fn set_len(&self, len_bytes: u64) -> Result<()> {
        self.demand(OpenFlags::WRITE, "write")?;
        let set = SetAttr { size_bytes: Some(len_bytes), ..SetAttr::default() };
        self.with("cut", |fs| fs.setattr(&caller(), self.ino, &set)).map(drop)
    }

    /// Returns the attributes.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    pub fn stat(&self) -> Result<Attr> {
        self.with("examine", |fs| fs.getattr(self.ino))
    }

    /// Makes the file durable, and no other.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    pub fn sync(&self) -> Result<()> {
        self.with("sync", |fs| fs.fsync(&caller(), self.ino, false))
    }

    /// Closes the file; nothing is made durable by it.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at), with the first error of a write-back that nothing else has
    /// reported.
    pub fn close(self) -> Result<()> {
        self.with("close", |fs| fs.flush(self.ino, self.handle))
    }
}

/// Makes a file and opens it.
fn make(
    walker: &Walker<'_>,
    path: &[u8],
    perm: u16,
    flags: OpenFlags,
) -> weft_vfs::Result<(Ino, Handle)> {
    let place = walker.place(path)?;
    if place.wants_dir {
        return Err(weft_vfs::Error::IsADirectory);
    }
    let (entry, opened) =
        walker.fs().create(&caller(), place.dir.ino(), &place.name, perm, flags)?;
    Ok((entry.attr.ino, opened.handle))
}
