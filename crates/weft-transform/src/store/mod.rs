//! Files accessed through stages.
//!
//! A [`Store`] is a file that can be read and written at any offset. Stores stack: [`InPlace`] runs
//! stages over the bytes of the store below, [`SealedFile`] keeps sealed blocks in it,
//! [`FramedFile`] frames, and [`StreamFile`] reads through a sequential stage.
//!
//! Written data is visible to reads at once and becomes durable, all of it or none, with
//! [`Store::commit`] (except for in-place stages on a plain file, whose writes go straight down).

mod at_random;
mod checked;
mod framed;
mod home;
mod in_place;
mod memory;
mod merged;
mod pass;
mod proof;
mod sealed;
mod sealed_format;
mod stack;
mod stream;

pub use framed::FramedFile;
pub(crate) use home::Single;
pub use home::{Base, FreshId, Home};
pub use in_place::InPlace;
pub use memory::{MemoryBase, MemoryStore};
pub use sealed::SealedFile;
pub use stack::open;
pub(crate) use stack::seal_again;
pub use stream::StreamFile;

use crate::Result;

/// Bytes of zeroes that pass through the stages at a time when a file is extended.
const ZEROES_BYTES: usize = 128 << 10;

/// Returns how many bytes of `[offset, offset + want)` lie within a file of `len_bytes`.
fn within(offset: u64, want: usize, len_bytes: u64) -> usize {
    usize::try_from(len_bytes.saturating_sub(offset)).unwrap_or(usize::MAX).min(want)
}

/// The resource limits for a stored file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum length of a decoded frame, in bytes: it is held in memory.
    pub frame_bytes: u64,
    /// Maximum length of a decoded file, in bytes.
    pub file_bytes: u64,
    /// Maximum ratio of a frame's plain length to its stored length. A page of zeroes reaches some
    /// thousand.
    pub ratio: u64,
    /// Maximum bytes written to a file that are held in memory before they are written to the file
    /// below.
    pub dirty_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { frame_bytes: 64 << 20, file_bytes: 1 << 50, ratio: 40_000, dirty_bytes: 16 << 20 }
    }
}

/// The amount of written data that a file commits atomically, even if parts of it reach the disk
/// earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Atomic {
    /// Maximum bytes written until the commit, each write counted by [`cost`](Self::cost): beyond
    /// it, a part of them may be committed early.
    pub max_bytes: u64,
    /// Bytes of a unit that is written as a whole.
    pub unit_bytes: u64,
}

impl Atomic {
    /// Returns the maximum number of bytes that a write of `len_bytes` changes, at any offset.
    #[must_use]
    pub fn cost(&self, len_bytes: u64) -> u64 {
        (len_bytes / self.unit_bytes).saturating_add(2).saturating_mul(self.unit_bytes)
    }
}

/// A file that can be read and, unless it is read-only, written at any offset.
pub trait Store: Send {
    /// Returns the length in bytes; `None` if it can be determined only by reading to the end.
    ///
    /// # Errors
    /// Those of the file below.
    fn len_bytes(&mut self) -> Result<Option<u64>>;

    /// Reads into `buf` from byte `offset` on; returns the number of bytes read, which is less than
    /// the length of `buf` only at the end.
    ///
    /// # Errors
    /// Those of the file below, or [`Error::Corrupt`](crate::Error::Corrupt) if any requested byte
    /// cannot be read.
    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// Writes all of `data` at byte `offset`. A gap behind the end reads as zeroes.
    ///
    /// # Errors
    /// Those of the file below; an error if the file is read-only.
    fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let _ = (offset, data);
        Err(weft_vfs::Error::ReadOnly.into())
    }

    /// Truncates or extends the file; the extension reads as zeroes.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    fn set_len(&mut self, len_bytes: u64) -> Result<()> {
        let _ = len_bytes;
        Err(weft_vfs::Error::ReadOnly.into())
    }

    /// Durably marks an empty file as intact, for formats in which an empty stored file indicates
    /// truncation.
    ///
    /// # Errors
    /// Those of the file below.
    fn begin(&mut self) -> Result<()> {
        Ok(())
    }

    /// Makes all written data durable, atomically.
    ///
    /// # Errors
    /// Those of the file below. The written data is kept, and the next call tries again.
    fn commit(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns the limits of an atomic commit; `None` if a crash may leave any part of the written
    /// data.
    fn atomic(&self) -> Option<Atomic> {
        None
    }

    /// Returns true if there is data to commit.
    fn is_dirty(&self) -> bool {
        false
    }

    /// Releases the memory that only serves a reader who reads on: nobody has the file open. What was
    /// learned of the file, such as its length, is kept.
    fn release_buffers(&mut self) {}
}

/// Returns the length of a file, for stages that read it from its end or at any offset.
///
/// # Errors
/// [`Error::Corrupt`](crate::Error::Corrupt) if it can be determined only by reading to the end.
pub(crate) fn known_len(store: &mut dyn Store, stage: &'static str) -> Result<u64> {
    store.len_bytes()?.ok_or_else(|| crate::Error::Corrupt {
        stage,
        offset: 0,
        what: "the length of the stored file is not known before all was read".to_owned(),
    })
}

/// Returns the length of a file; reads the file to its end if the length is not known.
///
/// # Errors
/// Those of reading, and [`Error::Limit`](crate::Error::Limit) if that takes more than `max_bytes`.
pub(crate) fn measured_len(
    store: &mut dyn Store,
    stage: &'static str,
    max_bytes: u64,
) -> Result<u64> {
    if let Some(len) = store.len_bytes()? {
        return Ok(len);
    }
    let mut block = vec![0; crate::exec::BLOCK_BYTES];
    let mut at = 0;
    loop {
        let got = store.read_at(at, &mut block)?;
        at += got as u64;
        if at > max_bytes {
            let what = format!("longer than {max_bytes} bytes");
            return Err(crate::Error::Limit { stage, offset: max_bytes, what });
        }
        if got < block.len() {
            return Ok(at);
        }
    }
}

/// Reads exactly `buf.len()` bytes, which the caller expects to exist.
pub(crate) fn read_exact(
    store: &mut dyn Store,
    stage: &'static str,
    offset: u64,
    buf: &mut [u8],
) -> Result<()> {
    let got = store.read_at(offset, buf)?;
    if got == buf.len() {
        return Ok(());
    }
    Err(crate::Error::Corrupt {
        stage,
        offset: 0,
        what: format!("the stored file ends at byte {}", offset + got as u64),
    })
}
