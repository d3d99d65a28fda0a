//! File locks (`fcntl(2)` and `flock(2)`) of a file system that keeps its own, because other
//! machines use it too.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::mutex::locked;

/// The kind of a lock; locks of different kinds do not conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LockStyle {
    /// A record lock of `fcntl(2)`: on a range of bytes, owned by a process. A new one replaces the
    /// locks of its owner in the range.
    Posix,
    /// A lock of `flock(2)`: on the whole file, owned by an open file.
    Flock,
}

/// A lock that is held or requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileLock {
    /// The kind of lock.
    pub style: LockStyle,
    /// The owner: a number that the front gives a process (or an open file).
    pub owner: u64,
    /// Whether it is exclusive (a write lock), not shared.
    pub exclusive: bool,
    /// The first byte.
    pub first: u64,
    /// The last byte; `i64::MAX` for the end of the file, wherever it is.
    pub last: u64,
    /// The process, 0 if it is on another machine.
    pub pid: u32,
}

/// Interrupts a waiting call.
#[derive(Default)]
pub struct Interrupt {
    raised: AtomicBool,
    wake: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl std::fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Interrupt").field("raised", &self.is_raised()).finish_non_exhaustive()
    }
}

impl Interrupt {
    /// Interrupts the call, also if it begins to wait later.
    pub fn raise(&self) {
        self.raised.store(true, Ordering::Release);
        if let Some(wake) = &*locked(&self.wake) {
            wake();
        }
    }

    /// Returns true if the call was interrupted.
    #[must_use]
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }

    /// Sets the action for an interrupt from now on; the waiting call checks
    /// [`is_raised`](Self::is_raised) after this.
    pub fn on_raise(&self, wake: impl Fn() + Send + 'static) {
        *locked(&self.wake) = Some(Box::new(wake));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn interrupt_wakes_a_waiter_once_and_stays_raised() {
        let interrupt = Interrupt::default();
        let woken = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&woken);
        interrupt.on_raise(move || seen.store(true, Ordering::Release));
        assert!(!interrupt.is_raised() && !woken.load(Ordering::Acquire));
        interrupt.raise();
        assert!(interrupt.is_raised() && woken.load(Ordering::Acquire));
    }
}
