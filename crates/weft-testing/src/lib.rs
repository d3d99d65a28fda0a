//! What the tests of all rooms share: waiting for something, and a seeded generator.
//!
//! Nothing here decides by time. A wait has a limit only so that a test that would hang fails
//! instead, with what it waited for; the limit is far above what the slowest machine needs.
#![warn(missing_docs)]

use std::fmt::Debug;
use std::time::{Duration, Instant};

pub use weft_block::Rng;

/// The longest wait; what takes longer never comes.
const LIMIT: Duration = Duration::from_secs(300);
/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Waits until `is_so` returns true.
///
/// # Panics
/// After five minutes, with `what` was waited for.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_for(what, || is_so().then_some(()).ok_or("not so"));
}

/// Calls `attempt` until it succeeds, and returns what it returned.
///
/// # Panics
/// After five minutes, with `what` was waited for and the last error.
pub fn wait_for<T, E: Debug>(what: &str, mut attempt: impl FnMut() -> Result<T, E>) -> T {
    let end = Instant::now() + LIMIT;
    loop {
        match attempt() {
            Ok(found) => return found,
            Err(e) => assert!(Instant::now() < end, "waited {LIMIT:?} until {what}: {e:?}"),
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_the_first_success() {
        let mut attempts = 0;
        let found = wait_for("the third attempt", || {
            attempts += 1;
            if attempts < 3 { Err("too early") } else { Ok(attempts) }
        });
        assert_eq!((found, attempts), (3, 3));
        wait_until("true is true", || true);
    }
}
