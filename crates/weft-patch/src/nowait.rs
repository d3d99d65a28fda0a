//! Calls that must not wait: a thread that answers many callers in turn tries a call like that, and
//! gives it to another thread if it would wait for the device.
//!
//! Like `RWF_NOWAIT` of Linux's `preadv2(2)`, for calls of any kind: [`without_waiting`] marks the
//! thread, and whatever would wait fails with [`Error::WouldWait`] instead, before it has changed
//! anything. After the first change of such a call nothing fails for this reason any more: a call
//! that is half done cannot be tried again, and waits.

use crate::{Error, Result};
use std::cell::Cell;

thread_local! {
    static MAY_WAIT: Cell<bool> = const { Cell::new(true) };
}

/// Sets the mark back, also after a panic.
struct Restore(bool);

impl Drop for Restore {
    fn drop(&mut self) {
        MAY_WAIT.set(self.0);
    }
}

/// Runs `call`, in which this thread waits for no device, no memory and no other thread's device
/// request: the engine's calls fail with [`Error::WouldWait`] instead. A call that fails like that
/// has changed nothing, and can be made again where waiting is no harm.
///
/// Locks that are held while a processor computes are taken nevertheless. So is a wait after the
/// first change that `call` makes.
pub fn without_waiting<R>(call: impl FnOnce() -> R) -> R {
    let _restore = Restore(MAY_WAIT.replace(false));
    call()
}

/// Fails in a call [`without_waiting`], as what follows would wait.
///
/// # Errors
/// [`Error::WouldWait`].
pub fn about_to_wait() -> Result<()> {
    if MAY_WAIT.get() { Ok(()) } else { Err(Error::WouldWait) }
}

/// The call has changed something: it can no longer be tried again.
pub(crate) fn has_changed() {
    MAY_WAIT.set(true);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_ends_with_the_call() {
        assert!(about_to_wait().is_ok());
        without_waiting(|| {
            assert!(matches!(about_to_wait(), Err(Error::WouldWait)));
            has_changed();
            assert!(about_to_wait().is_ok(), "half done");
            without_waiting(|| assert!(about_to_wait().is_err()));
        });
        assert!(about_to_wait().is_ok());
        let panicked = std::panic::catch_unwind(|| without_waiting(|| panic!("in the call")));
        assert!(panicked.is_err());
        assert!(about_to_wait().is_ok(), "after a panic");
    }
}
