//! Interrupts of calls that wait: the caller was killed, or gets a signal, or the mount ends.
//!
//! The interrupt belongs to a request, as [`keeping_access_times`](crate::keeping_access_times) does:
//! the front sets it for the thread that makes the call, and whatever waits in that thread looks at
//! it ([`check_interrupt`]), in however many layers below. Only calls that change nothing, or that can
//! stop at any point, get one, so that a layer need not ask whether it may stop.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::mutex::locked;
use crate::{Error, Result};

thread_local! {
    static CURRENT: RefCell<Option<Arc<Interrupt>>> = const { RefCell::new(None) };
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

/// Sets the interrupt of a thread back, also after a panic.
struct Restore(Option<Arc<Interrupt>>);

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.replace(self.0.take());
    }
}

/// Runs `call`, whose waits in this thread are ended by `interrupt`.
pub fn interruptible<R>(interrupt: Arc<Interrupt>, call: impl FnOnce() -> R) -> R {
    let _restore = Restore(CURRENT.replace(Some(interrupt)));
    call()
}

/// Returns the interrupt of the call that this thread makes; `None` if nothing interrupts it.
#[must_use]
pub fn current_interrupt() -> Option<Arc<Interrupt>> {
    CURRENT.with_borrow(Clone::clone)
}

/// Checks whether the call that this thread makes was interrupted. A wait looks at short intervals,
/// and long work between its steps.
///
/// # Errors
/// [`Error::Interrupted`].
pub fn check_interrupt() -> Result<()> {
    let is_raised = |current: &Option<Arc<Interrupt>>| {
        current.as_ref().is_some_and(|interrupt| interrupt.is_raised())
    };
    if CURRENT.with_borrow(is_raised) { Err(Error::Interrupted) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn the_interrupt_of_a_thread_ends_with_the_call() {
        let interrupt = Arc::new(Interrupt::default());
        interrupt.raise();
        assert!(current_interrupt().is_none() && check_interrupt().is_ok());
        interruptible(Arc::clone(&interrupt), || {
            assert!(matches!(check_interrupt(), Err(Error::Interrupted)));
            interruptible(Arc::default(), || assert!(check_interrupt().is_ok()));
            assert!(check_interrupt().is_err());
        });
        assert!(check_interrupt().is_ok());
        let call = || interruptible(interrupt, || panic!("in the call"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err());
        assert!(check_interrupt().is_ok(), "after a panic");
    }
}
