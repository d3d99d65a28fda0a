//! Helpers of the tests of all rooms: waiting for something, a seeded generator, a device that holds
//! a request back, one that notes all reads, copies of programs to run, and commands that run as an
//! ordinary user.
//!
//! Nothing here decides by time. A wait has a limit only so that a test that would hang fails
//! instead, with what it waited for; the limit is far above what the slowest machine needs.
#![warn(missing_docs)]

use std::fmt::Debug;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

mod gate;
mod reads;
mod user;

pub use gate::{At, GateDevice};
pub use reads::ReadsDevice;
pub use user::{ORDINARY_USERS, Said, User, as_user};
pub use weft_block::Rng;

/// The longest wait; what takes longer never comes.
pub const LIMIT: Duration = Duration::from_secs(300);
/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Waits until `is_so` returns true.
///
/// # Panics
/// After five minutes, with `what` was waited for.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_for(what, || is_so().then_some(()).ok_or("not so"));
}

/// Waits until `is_so` returns true, which another thread sees to at once: gives it the processor
/// instead of sleeping, for tests that wait thousands of times.
///
/// # Panics
/// After five minutes, with `what` was waited for.
pub fn yield_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "waited {LIMIT:?} until {what}");
        std::thread::yield_now();
    }
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

/// Copies the program `from` to `to`, contents and permissions, so that it can be run at once.
///
/// By a process of its own: a program that anyone has open for writing is refused (`ETXTBSY`), and if
/// this process wrote it, a child that another thread has started meanwhile has it open until its exec.
///
/// # Panics
/// If it cannot be copied.
pub fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("--").args([from, to]).status().expect("cp");
    assert!(copied.success(), "{} to {}: {copied}", from.display(), to.display());
}

/// Runs `work` on a thread of its own, and returns what it returned.
///
/// # Panics
/// After five minutes, with `what` was waited for; and if `work` panics, as it did.
pub fn ends<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    ends_within(LIMIT, what, work)
}

fn ends_within<T: Send + 'static>(
    limit: Duration,
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (done, is_done) = channel();
    let worker = std::thread::spawn(move || {
        let result = work();
        // Not sent by a panic, which drops the sender instead.
        let _ = done.send(());
        result
    });
    let ended = is_done.recv_timeout(limit) != Err(RecvTimeoutError::Timeout);
    assert!(ended, "waited {limit:?} until {what}");
    worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message_of(work: impl FnOnce() + std::panic::UnwindSafe) -> String {
        let panic = std::panic::catch_unwind(work).expect_err("it panics");
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .expect("a text")
    }

    #[test]
    fn work_that_ends_gives_its_result() {
        assert_eq!(ends("a sum is made", || 3 + 4), 7);
    }

    #[test]
    fn work_that_hangs_is_named() {
        // Nothing is sent, and the sender is dropped only after the panic.
        let (hold, held) = channel::<()>();
        let message = message_of(move || {
            ends_within(Duration::from_millis(1), "nothing is sent", move || held.recv().is_err());
        });
        assert!(message.contains("nothing is sent"), "{message}");
        drop(hold);
    }

    #[test]
    fn work_that_panics_fails_as_it_did() {
        let message = message_of(|| ends("it fails", || panic!("its own words")));
        assert_eq!(message, "its own words");
    }

    #[test]
    fn a_wait_ends_with_the_first_success() {
        let mut attempts = 0;
        let found = wait_for("the third attempt", || {
            attempts += 1;
            if attempts < 3 { Err("too early") } else { Ok(attempts) }
        });
        assert_eq!((found, attempts), (3, 3));
        wait_until("true is true", || true);
        yield_until("true is true", || true);
    }
}
