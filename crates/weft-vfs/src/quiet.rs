//! Reads that leave the access time as it is: those by a descriptor with `O_NOATIME`.
//!
//! A program that makes a backup opens files like that, so that reading changes, and writes, no
//! inode. The flag belongs to the request and not to the file: a front need not open a file before
//! it reads it, and a program may set the flag later. So the front marks the thread while it makes
//! the call, as with [`without_waiting`](crate::FileSystem::without_waiting), and no layer in between
//! has to pass anything on.

use std::cell::Cell;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Sets the mark back, also after a panic.
struct Restore(bool);

impl Drop for Restore {
    fn drop(&mut self) {
        QUIET.set(self.0);
    }
}

/// Runs `call`; if `quiet` is set, what it reads in this thread leaves access times as they are.
pub fn keeping_access_times<R>(quiet: bool, call: impl FnOnce() -> R) -> R {
    let _restore = Restore(QUIET.replace(quiet));
    call()
}

/// Returns true in a call that leaves access times as they are.
#[must_use]
pub fn keeps_access_times() -> bool {
    QUIET.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_ends_with_the_call() {
        assert!(!keeps_access_times());
        keeping_access_times(true, || {
            assert!(keeps_access_times());
            keeping_access_times(false, || assert!(!keeps_access_times()));
            assert!(keeps_access_times());
        });
        assert!(!keeps_access_times());
        let call = || keeping_access_times(true, || panic!("in the call"));
        assert!(std::panic::catch_unwind(call).is_err());
        assert!(!keeps_access_times(), "after a panic");
    }
}
