//! An open fork with a current position.

use super::hfs::Hfs;
use crate::layout::{FORK_MAX_BYTES, Fork};
use crate::{Error, Result};
use std::io::SeekFrom;
use std::sync::Arc;
use weft_vfs::{Caller, FileSystem, Handle, Ino};

/// The most bytes of short sequential writes that are buffered. An operation of the engine costs as
/// much as copying some thousand bytes, so that writes of 500 bytes would be mostly operations.
const GATHER_BYTES: usize = 64 << 10;
/// Writes of this size or longer go to the volume directly.
const LONG_BYTES: usize = 16 << 10;

/// An open fork with a current position. Short sequential writes are buffered, as by `stdio`: they
/// become visible to others, and the error of a full volume is returned, when
/// [`flush`](Self::flush) or another call writes the buffer. Dropping the file closes it.
#[derive(Debug)]
pub struct MacFile {
    fs: Arc<Hfs>,
    id: u32,
    fork: Fork,
    handle: Handle,
    position: u64,
    /// Bytes that are not on the volume yet: they end at the current position.
    gathered: Vec<u8>,
}

impl MacFile {
    pub(super) fn new(fs: Arc<Hfs>, id: u32, fork: Fork, handle: Handle) -> Self {
        Self { fs, id, fork, handle, position: 0, gathered: Vec::new() }
    }

    /// The length of the fork in bytes.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn len_bytes(&self) -> Result<u64> {
        let len = self.fs.fork_len(self.id, self.fork)?;
        Ok(if self.gathered.is_empty() { len } else { len.max(self.position) })
    }

    /// Returns the current position, in bytes from the beginning.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Sets the current position; returns its offset.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a position before the beginning; those of [`flush`](Self::flush).
    pub fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        self.flush()?;
        let (base, by) = match to {
            SeekFrom::Start(at) => (at, 0),
            SeekFrom::Current(by) => (self.position, by),
            SeekFrom::End(by) => (self.len_bytes()?, by),
        };
        let at = base.checked_add_signed(by);
        self.position = at.ok_or_else(|| Error::Invalid("a place before the beginning".into()))?;
        Ok(self.position)
    }

    /// Reads at the current position and advances it; returns the number of bytes, 0 at the end.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Device`]; those of [`flush`](Self::flush).
    pub fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        self.flush()?;
        let got = self.fs.do_read(self.id, self.fork, self.position, buf)?;
        self.position += got as u64;
        Ok(got)
    }

    /// Writes at the current position and advances it; returns the number of bytes, smaller than
    /// `data` only on a full volume.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::TooLarge`], [`Error::ReadOnly`]; those of
    /// [`flush`](Self::flush), and then nothing of `data` is written.
    pub fn write(&mut self, data: &[u8]) -> Result<usize> {
        if self.gathered.len() + data.len() > GATHER_BYTES {
            self.flush()?;
        }
        let end = self.position.saturating_add(data.len() as u64);
        let refused = end > u64::from(FORK_MAX_BYTES) || self.fs.is_read_only();
        if data.len() < LONG_BYTES && !refused {
            self.gathered.extend_from_slice(data);
            self.position = end;
            return Ok(data.len());
        }
        self.flush()?;
        let put = self.fs.do_write(self.id, self.fork, Some(self.position), data)?;
        self.position += put as u64;
        Ok(put)
    }

    /// Writes the buffered bytes. Bytes that do not fit are dropped, and the position is set after
    /// those that do.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::ReadOnly`], [`Error::Device`].
    pub fn flush(&mut self) -> Result<()> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        let len = self.gathered.len();
        let start = self.position - len as u64;
        let put = self.fs.do_write(self.id, self.fork, Some(start), &self.gathered);
        self.gathered.clear();
        self.position = start + *put.as_ref().unwrap_or(&0) as u64;
        if put? < len { Err(Error::NoSpace) } else { Ok(()) }
    }

    /// Makes the fork `len_bytes` long.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::TooLarge`]; those of [`flush`](Self::flush).
    pub fn truncate(&mut self, len_bytes: u64) -> Result<()> {
        self.flush()?;
        self.fs.do_set_len(self.id, self.fork, len_bytes)
    }

    /// Makes the file durable.
    ///
    /// # Errors
    /// A write error of the file; those of [`flush`](Self::flush).
    pub fn sync(&mut self) -> weft_vfs::Result<()> {
        self.flush()?;
        self.fs.fsync(&Caller::ROOT, Ino(u64::from(self.id)), false)
    }

    /// Closes the fork; unlike dropping it, returns the error of a failed write.
    ///
    /// # Errors
    /// Those of [`flush`](Self::flush).
    pub fn close(mut self) -> Result<()> {
        self.flush()
    }
}

impl Drop for MacFile {
    fn drop(&mut self) {
        // A drop cannot return the error.
        if let Err(e) = self.flush() {
            tracing::error!("the last write to file {} is lost: {e}", self.id);
        }
        let _ = self.fs.do_release(self.handle);
    }
}
