//! Locks of state that is consistent after each statement, whatever a thread that held one did.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks the mutex, also after a thread panicked while it held the lock.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
