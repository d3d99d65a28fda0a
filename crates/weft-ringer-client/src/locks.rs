//! File locks for the front end.
//!
//! Invariant: a handle through which a lock was taken permits no more reads and writes once the
//! lock was lost with the client's epoch. Its owner relies on exclusive access.

use weft_ringer::client::{Call, Outcome};
use weft_ringer::locks::{Lock, LockStyle};
use weft_ringer::{Epoch, RnodeId};
use weft_vfs::{Error, FileLock, Handle, Interrupt, Result};

use super::client_fs::ClientFs;
use super::mutex::locked;

fn style(style: weft_vfs::LockStyle) -> LockStyle {
    match style {
        weft_vfs::LockStyle::Posix => LockStyle::Posix,
        weft_vfs::LockStyle::Flock => LockStyle::Flock,
    }
}

fn lock_of(lock: &FileLock) -> Lock {
    let FileLock { owner, exclusive, first, last, pid, .. } = *lock;
    Lock { style: style(lock.style), owner, exclusive, first, last, pid }
}

impl ClientFs {
    pub(super) fn lock(
        &self,
        id: RnodeId,
        handle: Handle,
        lock: &FileLock,
        wait: Option<&Interrupt>,
    ) -> Result<()> {
        // The epoch is read before: if it ends meanwhile, the lock counts as lost.
        let epoch = self.engine.epoch();
        let call = Call::Lock { id, lock: lock_of(lock), wait: wait.is_some() };
        let outcome = match wait {
            Some(interrupt) => self.engine.call_interruptibly(call, interrupt)?.0,
            None => self.engine.call(call)?.0,
        };
        match outcome {
            Outcome::Refused(why) => Err(self.refused(id, why)),
            _ => {
                self.set_locked(handle, Some(epoch));
                Ok(())
            }
        }
    }

    pub(super) fn unlock(
        &self,
        id: RnodeId,
        handle: Handle,
        kind: weft_vfs::LockStyle,
        owner: u64,
        (first, last): (u64, u64),
    ) {
        let style = style(kind);
        // Every close comes here, and most files are never locked.
        if !self.engine.has_locks(id, style, owner) {
            return;
        }
        let _ = self.engine.call(Call::Unlock { id, style, owner, first, last });
        if !self.engine.has_locks(id, style, owner) {
            self.set_locked(handle, None);
        }
    }

    pub(super) fn find_lock(&self, id: RnodeId, lock: &FileLock) -> Result<Option<FileLock>> {
        match self.engine.call(Call::FindLock { id, lock: lock_of(lock) })?.0 {
            Outcome::InTheWay(found) => Ok(found.map(|(found, is_others)| {
                let Lock { owner, exclusive, first, last, pid, .. } = found;
                let pid = if is_others { 0 } else { pid };
                FileLock { style: lock.style, owner, exclusive, first, last, pid }
            })),
            Outcome::Refused(why) => Err(self.refused(id, why)),
            _ => Ok(None),
        }
    }

    fn set_locked(&self, handle: Handle, epoch: Option<Epoch>) {
        if let Some(open) = locked(&self.handles).get_mut(handle) {
            open.locked_in = epoch;
        }
    }

    /// Checks that a handle has lost no lock, so that it may be used to read and write.
    pub(super) fn check_locks(&self, handle: Handle) -> Result<()> {
        let locked_in = locked(&self.handles).get(handle).and_then(|open| open.locked_in);
        match locked_in {
            Some(epoch) if epoch != self.engine.epoch() => {
                let message =
                    "lock lost: the client's lease expired while it was cut off from the server"
                        .into();
                Err(Error::Io { errno: 5, message })
            }
            _ => Ok(()),
        }
    }
}
