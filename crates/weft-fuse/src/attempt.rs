//! Attempts to answer a request without a wait.
//!
//! A thread that serves many callers, one after the other, must not wait for a device in the place
//! of one of them. So it *tries* a request, with
//! [`FileSystem::without_waiting`](weft_vfs::FileSystem::without_waiting), and gives one that would
//! wait to a thread of its own ([`Workers`](crate::workers::Workers)). The thread of a ring's queue
//! does so, and the leader that reads `/dev/fuse`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use weft_vfs::FileSystem;

use crate::front::{Front, Outcome};
use crate::wire::{Header, O_DSYNC, Opcode, Reply, errno};

/// The least size of a read that another thread answers.
const LONG_READ_BYTES: u32 = 128 << 10;

/// Returns true if the calls of a file system can be kept from waiting.
pub(crate) fn is_possible(fs: &dyn FileSystem) -> bool {
    fs.without_waiting(&mut || {})
}

/// Answers a request if that needs no wait. [`Outcome::WouldWait`]: nothing was changed, and the
/// request is to be answered where a wait is no harm.
pub(crate) fn tried(front: &Front, request: &[u8], reply: &mut Reply<'_>) -> Outcome {
    if is_for_disk(request) || is_end(request) || is_long_read(request) {
        return Outcome::WouldWait;
    }
    tried_here(front, request, reply)
}

/// As [`tried`], for a request that may be long.
pub(crate) fn tried_here(front: &Front, request: &[u8], reply: &mut Reply<'_>) -> Outcome {
    let mut tried = Outcome::WouldWait;
    front.fs.without_waiting(&mut || tried = outcome(front, request, reply));
    tried
}

/// Answers a request, however long it takes. A panic in the file system fails that one request, not
/// the mount.
pub(crate) fn outcome(front: &Front, request: &[u8], reply: &mut Reply<'_>) -> Outcome {
    let answer = AssertUnwindSafe(|| front.answer(request, reply));
    catch_unwind(answer).unwrap_or_else(|_| {
        tracing::error!("a request made the file system panic");
        // The reply may be half-built; without a header there is no request to answer.
        if reply.is_begun() {
            reply.fail(errno::EIO);
            return Outcome::Answer;
        }
        Outcome::Silent
    })
}

/// Returns true if the request gives up references or an open file. It is not tried, see
/// [`FileSystem::without_waiting`].
pub(crate) fn is_end(request: &[u8]) -> bool {
    matches!(opcode_of(request), Some(Opcode::Forget | Opcode::BatchForget | Opcode::Release))
}

/// Returns true if the request changes nothing: when it is tried, it does not wait at all. One that
/// changes something may wait after its first change, as it can no longer be tried again.
pub(crate) fn only_reads(request: &[u8]) -> bool {
    matches!(
        opcode_of(request),
        Some(
            Opcode::Lookup
                | Opcode::GetAttr
                | Opcode::StatX
                | Opcode::ReadLink
                | Opcode::Read
                | Opcode::ReadDir
                | Opcode::ReadDirPlus
                | Opcode::StatFs
                | Opcode::GetXattr
                | Opcode::ListXattr
        )
    )
}

/// Returns true if the request reads so much that another CPU should do so, while the caller copies
/// what it has: the kernel reads ahead. A write's caller waits for it.
fn is_long_read(request: &[u8]) -> bool {
    opcode_of(request) == Some(Opcode::Read)
        && argument(request, 16).is_some_and(|size| size >= LONG_READ_BYTES)
}

/// Returns true if the request is a command of `ioctl(2)`.
pub(crate) fn is_command(request: &[u8]) -> bool {
    opcode_of(request) == Some(Opcode::Ioctl)
}

/// Returns true if the request is made to wait for the disk, or does the work of many.
pub(crate) fn is_for_disk(request: &[u8]) -> bool {
    match opcode_of(request) {
        Some(
            Opcode::FSync
            | Opcode::FSyncDir
            | Opcode::SyncFs
            | Opcode::FAllocate
            | Opcode::Ioctl
            | Opcode::CopyFileRange
            // Before a hole is reported the kernel writes its pages of it, by requests to this mount.
            | Opcode::LSeek,
        ) => true,
        // The flags with which the file was opened.
        Some(Opcode::Write) => argument(request, 32).is_some_and(|flags| flags & O_DSYNC != 0),
        _ => false,
    }
}

pub(crate) fn opcode_of(request: &[u8]) -> Option<Opcode> {
    Header::split(request).and_then(|(header, _)| Opcode::from_number(header.opcode))
}

/// Returns the number that stands `at` bytes behind the request's header.
pub(crate) fn argument(request: &[u8], at: usize) -> Option<u32> {
    let (_, mut body) = Header::split(request)?;
    body.skip(at).and_then(|()| body.u32()).ok()
}
