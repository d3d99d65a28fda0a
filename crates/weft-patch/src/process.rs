//! An engine belongs to the process that opened it.
//!
//! A child of `fork(2)` has a copy of the cache, without the write-back thread, and with locks as other threads
//! held them. If it wrote, it and its parent would overwrite each other's blocks: what one has made durable
//! would be lost, although every call succeeds. So in a child every call that could change or write anything
//! fails with [`Error::OtherProcess`], and dropping the engine does nothing.

use crate::engine::{Engine, Shared};
use crate::state::State;
use crate::{Error, Result};
use std::mem::forget;
use std::sync::{MutexGuard, PoisonError};

impl Shared {
    /// Returns an error in a process that was forked from the one that opened the engine. Before any
    /// lock is taken: a thread that is not in this process may have held it.
    ///
    /// # Errors
    /// [`Error::OtherProcess`].
    pub fn demand_owner(&self) -> Result<()> {
        if self.owner.is_this() { Ok(()) } else { Err(Error::OtherProcess) }
    }

    /// Takes the lock of the state, for a call from outside.
    ///
    /// # Errors
    /// As [`demand_owner`](Self::demand_owner).
    pub fn lock_here(&self) -> Result<MutexGuard<'_, State>> {
        self.demand_owner()?;
        Ok(self.lock())
    }
}

impl Engine {
    /// Stops the write-back thread.
    pub(crate) fn stop(&self) {
        self.shared.lock().signals.stop = true;
        self.shared.work.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic of the thread has been reported; there is nothing to add.
            let _ = thread.join();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.shared.owner.is_this() {
            return self.stop();
        }
        // There is no such thread here: neither can it be waited for, nor let go.
        forget(self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take());
    }
}
