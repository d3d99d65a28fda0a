//! Holes, as a program sees them: not where the kernel has pages that are not written yet.
//!
//! What a program stores through a shared mapping (or, with `writeback`, by write(2)) is in the kernel's
//! pages until it is written back, and the file system still has a hole there. `cp`, `tar -S` and QEMU copy
//! nothing of a hole, so that the copy would have zeroes in place of the data. So before a hole is
//! reported, the kernel writes back what it has of that range; nothing else is asked for, and a file
//! without holes costs nothing.
//!
//! The notice that makes the kernel do so returns after its writes, which are requests to this mount: a
//! thread that answers other requests must not send it.

use std::ops::Range;

use fuser::INodeNo;
use weft_vfs::{Error, Ino, Result, SeekFrom};

use super::{Answered, Front, Refusal};
use crate::wire::{Body, Reply, errno, whence};

/// The most holes that are found to be none before a seek reports the end of the file, where there
/// always is one: a program may store faster than its pages are written.
const TRIES: u32 = 64;

impl Front {
    pub(super) fn lseek(&self, ino: Ino, mut body: Body<'_>, reply: &mut Reply) -> Answered {
        body.skip(8)?;
        let (offset, from) = (body.u64()?, body.u32()?);
        let found = match from {
            whence::DATA => self.seek_data(ino, offset),
            whence::HOLE => self.seek_hole(ino, offset),
            _ => return Err(Refusal::Protocol(errno::EINVAL)),
        };
        reply.u64(found?);
        Ok(())
    }

    /// Returns the position of the next data.
    fn seek_data(&self, ino: Ino, offset: u64) -> Result<u64> {
        let found = self.fs.seek(ino, SeekFrom::Data(offset));
        let end = match &found {
            Ok(data) => *data,
            Err(Error::NoAddress) => self.fs.getattr(ino)?.size_bytes,
            Err(_) => return found,
        };
        if end <= offset {
            return found;
        }
        self.write_pages(ino, offset..end);
        self.fs.seek(ino, SeekFrom::Data(offset))
    }

    /// Returns the position of the next hole.
    fn seek_hole(&self, ino: Ino, offset: u64) -> Result<u64> {
        let mut hole = self.fs.seek(ino, SeekFrom::Hole(offset))?;
        for _ in 0..TRIES {
            let size_bytes = self.fs.getattr(ino)?.size_bytes;
            if hole >= size_bytes {
                return Ok(hole);
            }
            let end = match self.fs.seek(ino, SeekFrom::Data(hole)) {
                Ok(data) => data,
                Err(Error::NoAddress) => size_bytes,
                Err(e) => return Err(e),
            };
            self.write_pages(ino, hole..end);
            let again = self.fs.seek(ino, SeekFrom::Hole(offset))?;
            if again == hole {
                return Ok(hole);
            }
            hole = again;
        }
        Ok(self.fs.getattr(ino)?.size_bytes)
    }

    /// Makes the kernel write its changed pages of a range.
    fn write_pages(&self, ino: Ino, range: Range<u64>) {
        let len = i64::try_from(range.end - range.start).unwrap_or(i64::MAX);
        let (Some(notifier), Ok(start)) = (self.notifier.get(), i64::try_from(range.start)) else {
            return;
        };
        if len > 0
            && let Err(e) = notifier.inval_inode(INodeNo(self.node(ino)), start, len)
        {
            tracing::debug!("the kernel did not take a notice: {e}");
        }
    }
}
