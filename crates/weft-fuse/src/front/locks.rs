//! Requests for locks, for file systems that have their own.

use weft_vfs::{FileLock, Handle, Ino, LockStyle, current_interrupt};

use super::{Answered, Front, Refusal};
use crate::wire::{Body, Opcode, Reply, errno, lk};

/// The lock parameters of a request.
struct Asked {
    handle: Handle,
    kind: u32,
    lock: FileLock,
}

fn asked(body: &mut Body<'_>) -> Result<Asked, Refusal> {
    let (handle, owner) = (Handle(body.u64()?), body.u64()?);
    let (first, last) = (body.u64()?, body.u64()?);
    let (kind, pid, flags) = (body.u32()?, body.u32()?, body.u32()?);
    if first > last || kind > lk::UNLOCK {
        return Err(Refusal::Protocol(errno::EINVAL));
    }
    let style = if flags & lk::FLOCK == 0 { LockStyle::Posix } else { LockStyle::Flock };
    let lock = FileLock { style, owner, exclusive: kind == lk::WRITE, first, last, pid };
    Ok(Asked { handle, kind, lock })
}

impl Front {
    pub(super) fn set_lock(&self, opcode: Opcode, ino: Ino, mut body: Body<'_>) -> Answered {
        let Asked { handle, kind, lock } = asked(&mut body)?;
        if kind == lk::UNLOCK {
            self.fs.unlock(ino, handle, lock.style, lock.owner, lock.first, lock.last);
            return Ok(());
        }
        if opcode == Opcode::SetLk {
            self.fs.lock(ino, handle, &lock, None)?;
        } else {
            let interrupt = current_interrupt().unwrap_or_default();
            self.fs.lock(ino, handle, &lock, Some(&interrupt))?;
        }
        if lock.style == LockStyle::Posix {
            self.open_file_locks.taken(ino, lock.owner, handle);
        }
        Ok(())
    }

    pub(super) fn get_lock(&self, ino: Ino, mut body: Body<'_>, reply: &mut Reply) -> Answered {
        let Asked { lock, .. } = asked(&mut body)?;
        let found = self.fs.find_lock(ino, &lock)?;
        let kind = |found: &FileLock| if found.exclusive { lk::WRITE } else { lk::READ };
        let kind = found.as_ref().map_or(lk::UNLOCK, kind);
        let FileLock { first, last, pid, .. } = found.unwrap_or(lock);
        reply.u64(first);
        reply.u64(last);
        reply.u32(kind);
        reply.u32(pid);
        Ok(())
    }

    /// Notes that the caller of a request got a signal.
    pub(super) fn interrupt(&self, mut body: Body<'_>) -> Answered {
        self.waits.interrupt(body.u64()?);
        Ok(())
    }

    /// Handles the closing of a descriptor: releases the locks of its process on the file.
    pub(super) fn flush(&self, ino: Ino, mut body: Body<'_>) -> Answered {
        let handle = Handle(body.u64()?);
        let flushed = self.fs.flush(ino, handle);
        if self.locks {
            body.skip(8)?;
            let owner = body.u64()?;
            self.fs.unlock(ino, handle, LockStyle::Posix, owner, 0, u64::MAX);
            self.open_file_locks.dropped(ino, owner);
        }
        Ok(flushed?)
    }

    /// Handles the closing of the last descriptor of an open file.
    pub(super) fn release(&self, ino: Ino, mut body: Body<'_>) -> Answered {
        let handle = Handle(body.u64()?);
        if self.locks {
            body.skip(4)?;
            let (flags, owner) = (body.u32()?, body.u64()?);
            if flags & crate::wire::RELEASE_FLOCK_UNLOCK != 0 {
                self.fs.unlock(ino, handle, LockStyle::Flock, owner, 0, u64::MAX);
            }
            for owner in self.open_file_locks.end_with(ino, handle) {
                self.fs.unlock(ino, handle, LockStyle::Posix, owner, 0, u64::MAX);
            }
        }
        self.release_handle(ino, handle)
    }

    /// Releases a lock whose reply the kernel did not accept because the caller was killed
    /// meanwhile: no other request will release it.
    pub(super) fn take_lock_back(&self, ino: Ino, mut body: Body<'_>) {
        if let Ok(Asked { handle, kind, lock }) = asked(&mut body)
            && kind != lk::UNLOCK
        {
            self.fs.unlock(ino, handle, lock.style, lock.owner, lock.first, lock.last);
        }
    }
}
