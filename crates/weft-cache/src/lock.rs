//! The locks of a cache, and the one order in which a thread may take them.
//!
//! | rank | what it serialises |
//! |---|---|
//! | `Attaching` | attaching and detaching origins |
//! | `Forgetting` | dropping the blocks of forgotten origins |
//! | `Resizing` | changes of the cache's length |
//! | `WritingBack` | batches of write-back |
//! | `Checkpointing` | checkpoints |
//! | `Committing` | commits, and changes of the superblock |
//! | `Loader` | loading the checkpoint |
//! | `OriginFlush` | flushes of one origin |
//! | `State` | access to the cache's state; no thread does I/O under it |
//!
//! A thread that holds one takes only later ones, each once. A build with debug assertions checks
//! that at every lock, whether or not threads contend: an inversion panics at the place where it is
//! made, and is not a deadlock once in a thousand runs. An origin may be behind a cache of its own,
//! so the order is that of one cache: the locks of another cache, used on behalf of this one, have
//! an order of their own.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The position of a lock in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    Attaching,
    Forgetting,
    Resizing,
    WritingBack,
    Checkpointing,
    Committing,
    Loader,
    OriginFlush,
    State,
}

/// Identifies the locks of one cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LockOrder(#[cfg(debug_assertions)] u64);

/// A lock with a position in the order.
#[derive(Debug)]
pub(crate) struct Lock<T> {
    rank: Rank,
    order: LockOrder,
    inner: Mutex<T>,
}

/// Access to the value of a [`Lock`], until it is dropped.
#[derive(Debug)]
pub(crate) struct Guard<'a, T> {
    inner: MutexGuard<'a, T>,
    held: Held,
}

impl<T> Lock<T> {
    pub(crate) fn new(order: LockOrder, rank: Rank, value: T) -> Self {
        Self { rank, order, inner: Mutex::new(value) }
    }

    /// Takes the lock.
    ///
    /// # Panics
    /// With debug assertions, if the order forbids it; if a thread panicked under the state's lock,
    /// as it has broken an invariant. All other locks only serialise operations.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        let held = self.order.enter(self.rank);
        let inner = match self.inner.lock() {
            Ok(inner) => inner,
            Err(poisoned) if self.rank != Rank::State => poisoned.into_inner(),
            Err(_) => panic!("no thread panics under the state's lock"),
        };
        Guard { inner, held }
    }
}

impl<T> Guard<'_, T> {
    /// Releases the lock until `changed` is notified.
    pub(crate) fn wait(self, changed: &Condvar) -> Self {
        let Self { inner, held } = self;
        let inner = changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
        Self { inner, held }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

#[cfg(not(debug_assertions))]
use unchecked::Held;

#[cfg(not(debug_assertions))]
mod unchecked {
    use super::{LockOrder, Rank};

    #[derive(Debug)]
    pub(crate) struct Held;

    impl LockOrder {
        pub(crate) fn new() -> Self {
            Self()
        }

        pub(super) fn enter(self, _rank: Rank) -> Held {
            Held
        }

        pub(crate) fn before_io(self) {}
    }
}

#[cfg(debug_assertions)]
use checked::Held;

#[cfg(debug_assertions)]
mod checked {
    use super::{LockOrder, Rank};
    use std::cell::RefCell;
    use std::panic::Location;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct Taken {
        order: LockOrder,
        rank: Rank,
        at: &'static Location<'static>,
    }

    thread_local! {
        /// The locks that this thread holds, in the order in which they were taken.
        static MINE: RefCell<Vec<Taken>> = const { RefCell::new(Vec::new()) };
    }

    /// A lock that this thread holds.
    #[derive(Debug)]
    pub(crate) struct Held {
        order: LockOrder,
        rank: Rank,
    }

    impl LockOrder {
        pub(crate) fn new() -> Self {
            static NEXT: AtomicU64 = AtomicU64::new(0);
            Self(NEXT.fetch_add(1, Ordering::Relaxed))
        }

        #[track_caller]
        pub(super) fn enter(self, rank: Rank) -> Held {
            let at = Location::caller();
            MINE.with_borrow_mut(|mine| {
                let later = mine.iter().find(|taken| taken.order == self && taken.rank >= rank);
                if let Some(later) = later {
                    panic!(
                        "lock order: {rank:?} at {at} after {:?}, taken at {}",
                        later.rank, later.at
                    );
                }
                mine.push(Taken { order: self, rank, at });
            });
            Held { order: self, rank }
        }

        /// Checks that this thread does not hold the state's lock, under which no I/O is done.
        #[track_caller]
        pub(crate) fn before_io(self) {
            MINE.with_borrow(|mine| {
                let state = mine.iter().find(|t| t.order == self && t.rank == Rank::State);
                if let Some(state) = state {
                    panic!("I/O under the state's lock, taken at {}", state.at);
                }
            });
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            // A thread that ends may have dropped its list already.
            let _ = MINE.try_with(|mine| {
                let mut mine = mine.borrow_mut();
                let at = mine.iter().rposition(|t| t.order == self.order && t.rank == self.rank);
                if let Some(at) = at {
                    mine.remove(at);
                }
            });
        }
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn an_inversion_is_a_panic_where_it_is_made_though_no_thread_waits() {
        let order = LockOrder::new();
        let first = Lock::new(order, Rank::WritingBack, ());
        let second = Lock::new(order, Rank::Checkpointing, ());
        drop((first.lock(), second.lock()));
        let inverted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _second = second.lock();
            let _first = first.lock();
        }));
        let said = inverted.unwrap_err().downcast::<String>().unwrap();
        assert!(said.contains("WritingBack") && said.contains("after Checkpointing"), "{said}");
        // After the release any order is allowed, and another cache has an order of its own.
        drop((first.lock(), second.lock()));
        let other = Lock::new(LockOrder::new(), Rank::Attaching, ());
        let _last = second.lock();
        drop(other.lock());
    }

    #[test]
    fn no_io_is_done_under_the_state() {
        let order = LockOrder::new();
        let state = Lock::new(order, Rank::State, ());
        order.before_io();
        let guard = state.lock();
        let io = std::panic::catch_unwind(|| order.before_io());
        assert!(io.is_err());
        drop(guard);
        order.before_io();
    }
}
