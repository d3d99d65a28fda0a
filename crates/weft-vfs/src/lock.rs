//! Locks on files: what `fcntl(2)` and `flock(2)` ask of a file system that has its own, since others
//! than this machine's processes use it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Which of the two kinds of lock; they do not see each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LockStyle {
    /// Of `fcntl(2)`: of a range of bytes, owned by a process. A new one takes the place of what its
    /// owner has of the range.
    Posix,
    /// Of `flock(2)`: of the whole file, owned by an open file.
    Flock,
}

/// A lock that is held or asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileLock {
    /// Which kind.
    pub style: LockStyle,
    /// Whose: a number that the front gives a process (or an open file).
    pub owner: u64,
    /// Whether it excludes all others, and not only those that exclude all others.
    pub exclusive: bool,
    /// The first byte.
    pub first: u64,
    /// The last byte; `i64::MAX` for the end of the file, wherever it is.
    pub last: u64,
    /// The process, 0 if it is not of this machine.
    pub pid: u32,
}

/// Ends the waiting of a call.
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
    /// Ends the waiting, also one that begins later.
    pub fn raise(&self) {
        self.raised.store(true, Ordering::Release);
        if let Some(wake) = &*self.wake.lock().unwrap_or_else(PoisonError::into_inner) {
            wake();
        }
    }

    /// Whether the waiting is over.
    #[must_use]
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }

    /// What to do when it is raised from now on; the waiting call looks at
    /// [`is_raised`](Self::is_raised) after this.
    pub fn on_raise(&self, wake: impl Fn() + Send + 'static) {
        *self.wake.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(wake));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn who_waits_is_woken_once_and_who_comes_late_sees_it() {
        let interrupt = Interrupt::default();
        let woken = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&woken);
        interrupt.on_raise(move || seen.store(true, Ordering::Release));
        assert!(!interrupt.is_raised() && !woken.load(Ordering::Acquire));
        interrupt.raise();
        assert!(interrupt.is_raised() && woken.load(Ordering::Acquire));
    }
}
