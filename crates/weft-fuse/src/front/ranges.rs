//! Operations on ranges of files: allocate, punch, copy.

use weft_vfs::{FallocateMode, Handle, Ino};

use super::{Answered, Front, Refusal};
use crate::wire::{Body, Header, Reply, errno, falloc};

/// The most bytes that one `copy_file_range` copies before it answers, so that it does not occupy a
/// thread for long; the caller continues from there.
const COPY_MAX_BYTES: u64 = 32 << 20;

impl Front {
    pub(super) fn fallocate(&self, head: &Header, ino: Ino, mut body: Body<'_>) -> Answered {
        let handle = Handle(body.u64()?);
        let (offset, len, mode) = (body.u64()?, body.u64()?, body.u32()?);
        let keep_size = mode & falloc::KEEP_SIZE != 0;
        let mode = match mode & !falloc::KEEP_SIZE {
            0 => FallocateMode::Allocate { keep_size },
            falloc::PUNCH_HOLE => FallocateMode::PunchHole,
            falloc::ZERO_RANGE => FallocateMode::ZeroRange { keep_size },
            _ => return Err(Refusal::Protocol(errno::EOPNOTSUPP)),
        };
        self.fs.fallocate(&Self::caller_by(head, handle), ino, mode, offset, len)?;
        // For these calls the kernel sends only the user, and no request to drop privileges.
        if head.uid == 0 { Ok(()) } else { self.drop_privileges(head, ino) }
    }

    pub(super) fn copy_file_range(
        &self,
        head: &Header,
        ino: Ino,
        mut body: Body<'_>,
        reply: &mut Reply,
    ) -> Answered {
        body.skip(8)?;
        let (from_offset, to) = (body.u64()?, self.ino(body.u64()?));
        let caller = Self::caller_by(head, Handle(body.u64()?));
        let (to_offset, len) = (body.u64()?, body.u64()?.min(COPY_MAX_BYTES));
        let done = self.fs.copy_range(&caller, ino, from_offset, to, to_offset, len)?;
        if done > 0 && head.uid != 0 {
            let head = Header { node: self.node(to), ..*head };
            self.drop_privileges(&head, to)?;
        }
        // At most `COPY_MAX_BYTES`.
        reply.written(done as u32);
        Ok(())
    }
}
