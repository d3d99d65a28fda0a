//! Descriptors that this process has inherited, other than the standard streams.
//!
//! They belong to the shell or the service manager that has started weft: a lock, a connection, a
//! file that only its user may read. Programs that weft starts for its own work get none of them.
//! `unsafe`, because descriptors are named by their numbers.

use crate::cli::Verb;
use crate::cli::transform::Transform;
use rustix::io::{FdFlags, fcntl_setfd};
use std::os::fd::BorrowedFd;

/// Returns true for a verb that runs a command of its user, which gets what the user gives it.
fn runs_a_command(verb: &Verb) -> bool {
    match verb {
        Verb::Crash(_) | Verb::Order(_) => true,
        Verb::Transform(Transform::Push(push)) => push.during.is_some(),
        _ => false,
    }
}

/// Keeps inherited descriptors from the programs that this process starts.
pub fn keep_to_this_process(verb: &Verb) {
    if runs_a_command(verb) {
        return;
    }
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers =
        open.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let numbers: Vec<i32> = numbers.filter(|number| *number > 2).collect();
    for number in numbers {
        // SAFETY: only a flag of the descriptor is set. One that is closed meanwhile (that of the
        // directory itself) is an error without effect, because no other thread runs yet.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        let _ = fcntl_setfd(descriptor, FdFlags::CLOEXEC);
    }
}
