//! The idle instances of a module, kept for the next call, of any file.
//!
//! One pool for all files of a mount: a file stays in memory as long as the kernel remembers it, and
//! an instance takes up to its limit of memory.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{GuestLimits, Kept};
use crate::Direction;

/// Maximum number of idle instances of a module: mostly as many as threads that call at a time.
const INSTANCES_MAX: usize = 16;

/// Maximum memory of all idle instances of a module, in bytes. One is kept whatever it takes: there
/// would have to be a new one for each block.
const BYTES_MAX: usize = 256 << 20;

/// What instances have in common that may serve the same calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    /// The hashes of the modules, with the arguments and directions, in execution order.
    pub(crate) members: Vec<(blake3::Hash, String, Direction)>,
    pub(crate) limits: GuestLimits,
}

/// An instance whose memory can be measured.
pub(crate) trait Measured {
    /// The size of its memory, in bytes.
    fn memory_bytes(&self) -> usize;
}

/// The idle instances, the least recently used one first.
pub(crate) struct Pool<I>(Mutex<VecDeque<(Key, I)>>);

impl<I> Default for Pool<I> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<I: Measured> Pool<I> {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(Key, I)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn take(&self, key: &Key) -> Option<I> {
        let mut idle = self.lock();
        let at = idle.iter().rposition(|(of, _)| of == key)?;
        idle.remove(at).map(|(_, instance)| instance)
    }

    /// Keeps an instance, whose last call must have succeeded, and drops the least recently used ones
    /// that are too many.
    pub(crate) fn put(&self, key: &Key, instance: I) {
        let mut idle = self.lock();
        idle.push_back((key.clone(), instance));
        let mut kept = count(&idle);
        let mut dropped = Vec::new();
        while idle.len() > 1 && (kept.instances > INSTANCES_MAX || kept.bytes > BYTES_MAX) {
            dropped.extend(idle.pop_front());
            kept = count(&idle);
        }
        // Not under the lock.
        drop(idle);
        drop(dropped);
    }

    pub(crate) fn kept(&self) -> Kept {
        count(&self.lock())
    }
}

fn count<I: Measured>(idle: &VecDeque<(Key, I)>) -> Kept {
    let bytes = idle.iter().map(|(_, instance)| instance.memory_bytes()).sum();
    Kept { instances: idle.len(), bytes }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    struct Fake(usize);

    impl Measured for Fake {
        fn memory_bytes(&self) -> usize {
            self.0
        }
    }

    fn key(argument: &str) -> Key {
        let members = vec![(blake3::hash(b"module"), argument.to_owned(), Direction::Forward)];
        let limits = GuestLimits { memory_bytes: 1 << 30, deadline: Duration::from_secs(1) };
        Key { members, limits }
    }

    #[test]
    fn what_is_taken_has_the_same_key_and_was_used_last() {
        let pool = Pool::default();
        pool.put(&key("a"), Fake(1));
        pool.put(&key("a"), Fake(2));
        pool.put(&key("b"), Fake(3));
        assert_eq!(pool.kept(), Kept { instances: 3, bytes: 6 });
        let taken = |argument: &str| pool.take(&key(argument)).map(|fake| fake.0);
        assert_eq!((taken("a"), taken("a"), taken("a")), (Some(2), Some(1), None));
        assert_eq!((taken("b"), taken("c")), (Some(3), None));
    }

    #[test]
    fn both_count_and_memory_are_bounded() {
        let pool = Pool::default();
        (0..3 * INSTANCES_MAX).for_each(|nr| pool.put(&key(&nr.to_string()), Fake(10)));
        assert_eq!(pool.kept(), Kept { instances: INSTANCES_MAX, bytes: 10 * INSTANCES_MAX });
        assert!(pool.take(&key("0")).is_none(), "the oldest");
        (0..20).for_each(|_| pool.put(&key("long"), Fake(BYTES_MAX / 4)));
        assert_eq!(pool.kept(), Kept { instances: 4, bytes: BYTES_MAX });
        pool.put(&key("longer"), Fake(BYTES_MAX * 4));
        assert_eq!(pool.kept(), Kept { instances: 1, bytes: BYTES_MAX * 4 }, "the last stays");
    }
}
