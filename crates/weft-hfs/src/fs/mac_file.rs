//! An open fork with a place in it.

use super::Hfs;
use crate::layout::{FORK_MAX_BYTES, Fork};
use crate::{Error, Result};
use std::io::SeekFrom;
use std::sync::Arc;
use weft_vfs::{FileSystem, Handle, Ino};

/// So much is gathered of what is written in a row. An operation of the engine costs as much as
/// copying some thousand bytes, so that 500 bytes at a time would be mostly operations.
const GATHER_BYTES: usize = 64 << 10;
/// Writes from this size on are handed on as they are.
const LONG_BYTES: usize = 16 << 10;

/// An open fork with a place in it. Short writes in a row are gathered, as by `stdio`: others see
/// them, and a full volume is told, when [`flush`](Self::flush) or another call hands them on.
/// Dropping the file closes it.
#[derive(Debug)]
pub struct MacFile {
    fs: Arc<Hfs>,
    id: u32,
    fork: Fork,
    handle: Handle,
    position: u64,
    /// What is written and not handed on: it ends at the place.
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

    /// The place, in bytes from the beginning.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Goes to a place in the fork; returns its offset.
    ///
    /// # Errors
    /// [`Error::Invalid`] before the beginning; those of [`flush`](Self::flush).
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

    /// Reads from the place on, and goes on; returns how many bytes, 0 at the end.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Device`]; those of [`flush`](Self::flush).
    pub fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        self.flush()?;
        let got = self.fs.do_read(self.id, self.fork, self.position, buf)?;
        self.position += got as u64;
        Ok(got)
    }

    /// Writes at the place, and goes on; returns how many bytes, fewer only on a full volume.
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

    /// Hands on what was gathered. What does not fit is given up, and the place is behind what
    /// does.
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

    /// Makes the fork so many bytes long.
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
    /// A write error that touched it; those of [`flush`](Self::flush).
    pub fn sync(&mut self) -> weft_vfs::Result<()> {
        self.flush()?;
        self.fs.fsync(Ino(u64::from(self.id)), false)
    }

    /// Closes the fork; unlike dropping it, says what could not be written.
    ///
    /// # Errors
    /// Those of [`flush`](Self::flush).
    pub fn close(mut self) -> Result<()> {
        self.flush()
    }
}

impl Drop for MacFile {
    fn drop(&mut self) {
        // An error has nobody else to go to.
        if let Err(e) = self.flush() {
            tracing::error!("what was written last to file {} is lost: {e}", self.id);
        }
        let _ = self.fs.do_release(self.handle.0);
    }
}
