//! Reading and writing of files, and the flags of the descriptor by which a program does it.
//!
//! The kernel sends them with each read and write, also for files that it does not open here; but
//! not with the pages of a mapping, which any of the descriptors may have changed.

use weft_vfs::{Handle, Ino, keeping_access_times};

use super::{Answered, Front, Refusal};
use crate::wire::{Body, Header, Malformed, O_DSYNC, O_NOATIME, Reply, errno, write_flags};

/// Returns true if the descriptor by which is read has `O_NOATIME`: by the part of a `fuse_read_in`
/// behind the length.
pub(super) fn keeps_access_time(body: &mut Body<'_>) -> Result<bool, Malformed> {
    // Flags of the request, and the owner of locks.
    body.skip(12)?;
    Ok(body.u32()? & O_NOATIME != 0)
}

impl Front {
    pub(super) fn read(&self, ino: Ino, mut body: Body<'_>, reply: &mut Reply) -> Answered {
        // Without opening, the kernel has no other handle than `Handle::NONE`.
        let handle = Handle(body.u64()?);
        let (offset, size) = (body.u64()?, body.u32()?);
        let quiet = keeps_access_time(&mut body)?;
        let space = reply.space(size as usize);
        let got = keeping_access_times(quiet, || self.fs.read(ino, handle, offset, space))?;
        reply.took(got.min(size as usize));
        Ok(())
    }

    pub(super) fn write(
        &self,
        head: &Header,
        ino: Ino,
        mut body: Body<'_>,
        reply: &mut Reply,
    ) -> Answered {
        let handle = Handle(body.u64()?);
        let (offset, size, write_bits) = (body.u64()?, body.u32()?, body.u32()?);
        body.skip(8)?;
        let open_flags = body.u32()?;
        body.skip(4)?;
        let data = body.bytes(size as usize)?;
        if write_bits & write_flags::KILL_SUIDGID != 0 {
            self.drop_privileges(head, ino)?;
        }
        let from_cache = write_bits & write_flags::CACHE != 0;
        // Of pages of a mapping the kernel sends no open flags; they have their place in any case.
        let caller = Self::caller_by(head, handle);
        let taken = if from_cache {
            self.fs.write_cached(&caller, ino, handle, offset, data)?
        } else {
            self.fs.write(&caller, ino, handle, offset, data)?
        };
        if from_cache && taken < data.len() {
            // No caller waits for a count: fsync or close returns the page's error.
            return Err(Refusal::Protocol(errno::ENOSPC));
        }
        if !from_cache && open_flags & O_DSYNC != 0 {
            self.fs.fsync(&caller, ino, false)?;
        }
        // At most `size`.
        reply.written(taken as u32);
        Ok(())
    }
}
