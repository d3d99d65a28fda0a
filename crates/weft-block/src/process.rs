//! The process that made a handle: after `fork(2)` a copy of the handle is in a process that must not use it.
//!
//! A child has copies of its parent's memory: caches with changes that both would write, locks that threads
//! held which the child does not have, connections that both would read. A number of a process does not
//! tell them apart, as it is used again. So the mark of a process lies in a page that the kernel
//! clears in a child (`MADV_WIPEONFORK`, Linux 4.14): comparing it takes no system call, and whatever makes
//! the child (`fork`, `_Fork`, `clone`) cannot forget it.
//!
//! `unsafe` to map that page: it is mapped once, never unmapped, and used as one atomic number.

use std::fmt;
use std::mem::forget;
use std::ops::{Deref, DerefMut};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

/// Set in marks that are numbers of processes, on a kernel that clears no pages.
const IS_PID: u64 = 1 << 63;

/// The last mark that was given. A child goes on from its parent's.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The mark of this process, 0 in a child that has none yet; `None` if the kernel clears no pages.
fn page() -> Option<&'static AtomicU64> {
    static PAGE: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();
    *PAGE.get_or_init(|| {
        const LEN_BYTES: usize = 4096;
        let (access, how) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let at = unsafe { mmap_anonymous(null_mut(), LEN_BYTES, access, how) }.ok()?;
        // SAFETY: the range is that mapping, which holds nothing yet.
        unsafe { madvise(at, LEN_BYTES, Advice::LinuxWipeOnFork) }.ok()?;
        // SAFETY: it is aligned, zero, and mapped for as long as the process runs.
        Some(unsafe { AtomicU64::from_ptr(at.cast()) })
    })
}

/// The process that made something: its own copy of memory, which `fork` makes another of.
///
/// A child of `vfork` shares its parent's memory, and is the same process here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OwnerProcess(u64);

impl fmt::Debug for OwnerProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_this() { "this process" } else { "another process" })
    }
}

impl OwnerProcess {
    /// Returns this process.
    #[must_use]
    pub fn this() -> Self {
        let Some(mark) = page() else { return Self(u64::from(std::process::id()) | IS_PID) };
        let known = mark.load(Ordering::Acquire);
        if known != 0 {
            return Self(known);
        }
        let new = LAST.fetch_add(1, Ordering::AcqRel) + 1;
        Self(match mark.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(of_another_thread) => of_another_thread,
        })
    }

    /// Returns true in the process that it is, and false in its children.
    #[must_use]
    pub fn is_this(self) -> bool {
        match page() {
            Some(mark) => mark.load(Ordering::Acquire) == self.0,
            None => u64::from(std::process::id()) | IS_PID == self.0,
        }
    }
}

/// A value that is dropped only by the process that made it; a child leaves it alone, with all that
/// it refers to.
pub struct DroppedByOwner<T> {
    /// `None` only while it is dropped.
    value: Option<T>,
    owner: OwnerProcess,
}

impl<T> DroppedByOwner<T> {
    /// Makes this process the owner of a value.
    pub fn new(value: T) -> Self {
        Self { value: Some(value), owner: OwnerProcess::this() }
    }

    /// Returns true in the process that has made it.
    pub fn is_here(&self) -> bool {
        self.owner.is_this()
    }

    /// Returns the value, to be dropped by whoever has it; in a child the value remains as it is, and
    /// nothing is returned.
    pub fn into_inner(mut self) -> Option<T> {
        if self.is_here() { self.value.take() } else { None }
    }
}

impl<T: fmt::Debug> fmt::Debug for DroppedByOwner<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

impl<T> Deref for DroppedByOwner<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.value {
            Some(value) => value,
            None => unreachable!("it is taken only by those that end this"),
        }
    }
}

impl<T> DerefMut for DroppedByOwner<T> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.value {
            Some(value) => value,
            None => unreachable!("it is taken only by those that end this"),
        }
    }
}

impl<T> Drop for DroppedByOwner<T> {
    fn drop(&mut self) {
        if !self.is_here() {
            forget(self.value.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_one_in_all_threads() {
        let this = OwnerProcess::this();
        let others: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(OwnerProcess::this)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(this.is_this() && others.iter().all(|other| *other == this));
        assert!(!OwnerProcess(this.0 + 1).is_this());
    }

    #[test]
    fn only_the_owner_drops() {
        let value = std::rc::Rc::new(());
        let mut held = DroppedByOwner::new(std::rc::Rc::clone(&value));
        drop(DroppedByOwner::new(std::rc::Rc::clone(&value)));
        assert_eq!(std::rc::Rc::strong_count(&value), 2);
        assert_eq!(std::rc::Rc::strong_count(&held), 2);
        held.owner = OwnerProcess(held.owner.0 + 1);
        assert!(!held.is_here());
        drop(held);
        assert_eq!(std::rc::Rc::strong_count(&value), 2, "it stays as it is");
    }
}
