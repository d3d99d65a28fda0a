//! A cache of a bounded number of descriptors: the least recently used are closed, and opened again
//! when they are needed.
//!
//! An inode has a weak reference to its descriptor; this cache has the strong one. A call that uses
//! a descriptor, or must keep an inode alive, holds a strong one meanwhile.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::mutex::locked;

/// Returns a path to the inode of a descriptor, independent of its names.
pub(super) fn magic(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// A descriptor that may be closed when no call holds it.
#[derive(Debug)]
pub(super) struct Descriptor {
    nr: u64,
    fd: OwnedFd,
    /// Used since the last scan: gets a second chance.
    used: AtomicBool,
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Descriptor {
    pub(super) fn touch(&self) {
        self.used.store(true, Ordering::Relaxed);
    }
}

/// The cache of descriptors; see the module page.
#[derive(Debug)]
pub(super) struct Descriptors {
    max: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    by_number: HashMap<u64, Arc<Descriptor>>,
    /// In order of the last scan, the oldest first; may contain numbers of closed descriptors.
    queue: VecDeque<u64>,
    next: u64,
}

impl Open {
    /// Removes the least recently used descriptors, until at most `max` are left.
    fn take_beyond(&mut self, max: usize) -> Vec<Arc<Descriptor>> {
        let mut taken = Vec::new();
        while self.by_number.len() > max {
            let Some(nr) = self.queue.pop_front() else { break };
            let Some(descriptor) = self.by_number.get(&nr) else { continue };
            if descriptor.used.swap(false, Ordering::Relaxed) {
                self.queue.push_back(nr);
            } else {
                taken.extend(self.by_number.remove(&nr));
            }
        }
        // Removes the numbers of descriptors that were closed elsewhere.
        if self.queue.len() > 2 * max + 16 {
            self.queue.retain(|nr| self.by_number.contains_key(nr));
        }
        taken
    }
}

impl Descriptors {
    pub(super) fn new(max: usize) -> Self {
        Self { max: max.max(1), open: Mutex::default() }
    }

    /// Adds a descriptor, and closes others if there are too many.
    pub(super) fn keep(&self, fd: OwnedFd) -> Arc<Descriptor> {
        let mut open = locked(&self.open);
        open.next += 1;
        let nr = open.next;
        let descriptor = Arc::new(Descriptor { nr, fd, used: AtomicBool::new(false) });
        open.by_number.insert(nr, descriptor.clone());
        open.queue.push_back(nr);
        let taken = open.take_beyond(self.max);
        drop(open);
        // Closed without the lock.
        drop(taken);
        descriptor
    }

    /// Closes a descriptor as soon as no call holds it.
    pub(super) fn close(&self, descriptor: &Descriptor) {
        let taken = locked(&self.open).by_number.remove(&descriptor.nr);
        drop(taken);
    }

    /// Closes half of the descriptors: other parts of this process need more than the limit leaves
    /// them.
    pub(super) fn make_room(&self) {
        let mut open = locked(&self.open);
        let half = open.by_number.len() / 2;
        let taken = open.take_beyond(half);
        drop(open);
        drop(taken);
    }

    pub(super) fn close_all(&self) {
        let all = std::mem::take(&mut *locked(&self.open));
        drop(all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fd() -> OwnedFd {
        std::fs::File::open("/dev/null").expect("there").into()
    }

    #[test]
    fn least_recently_used_descriptors_are_closed() {
        let descriptors = Descriptors::new(3);
        let weak = |descriptor: Arc<Descriptor>| Arc::downgrade(&descriptor);
        let first = weak(descriptors.keep(fd()));
        let second = weak(descriptors.keep(fd()));
        let held = descriptors.keep(fd());
        first.upgrade().expect("open").touch();
        let fourth = weak(descriptors.keep(fd()));
        assert!(first.upgrade().is_some() && second.upgrade().is_none(), "a second chance");
        for _ in 0..3 {
            descriptors.keep(fd());
        }
        assert!(first.upgrade().is_none() && fourth.upgrade().is_none());
        held.touch();
        for _ in 0..1000 {
            let one = descriptors.keep(fd());
            descriptors.close(&one);
        }
        let open = locked(&descriptors.open);
        assert!(open.by_number.len() <= 3 && open.queue.len() <= 23);
    }
}
