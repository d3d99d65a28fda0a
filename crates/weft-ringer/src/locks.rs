//! Locks on files, as `fcntl(2)` and `flock(2)` have them: the locks of one client on one file, and
//! which locks conflict.
//!
//! The locks of a file may be changed under a lease of their own, the *lock lease*, which one
//! client holds at a time. Its holder knows what all other clients have locked, and no other client
//! can lock anything; so it takes locks without a message. Its locks stay when it releases the
//! lease: the server tells the next holder. To unlock takes no lease.

use crate::types::{ClientId, RnodeId, Token};
use crate::wire::{wire_enum, wire_struct};

/// The most locks of one client on one file.
pub const LOCKS_MAX: usize = 8192;

/// The kind of lock; locks of the two kinds do not conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LockStyle {
    /// Of `fcntl(2)`.
    Posix,
    /// Of `flock(2)`.
    Flock,
}
wire_enum!(LockStyle { 1 => Posix, 2 => Flock });

/// A lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lock {
    /// The kind.
    pub style: LockStyle,
    /// The owner, a number within its client.
    pub owner: u64,
    /// Whether it conflicts with every other lock, and not only with exclusive ones.
    pub exclusive: bool,
    /// The first byte.
    pub first: u64,
    /// The last byte.
    pub last: u64,
    /// The process that took it, for diagnostics.
    pub pid: u32,
}
wire_struct!(Lock { style, owner, exclusive, first, last, pid });

impl Lock {
    fn overlaps(&self, first: u64, last: u64) -> bool {
        self.first <= last && first <= self.last
    }

    /// Returns true if two locks of different owners conflict.
    #[must_use]
    pub fn excludes(&self, other: &Self) -> bool {
        self.style == other.style
            && (self.exclusive || other.exclusive)
            && self.overlaps(other.first, other.last)
    }

    fn is_of(&self, style: LockStyle, owner: u64) -> bool {
        (self.style, self.owner) == (style, owner)
    }
}

/// The locks of one client on one file, and those it waits for.
///
/// Invariant: no two locks of one owner and style overlap, and none could be merged with its
/// neighbour.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileLocks {
    /// The locks held.
    pub held: Vec<Lock>,
    /// The locks waited for: to detect deadlocks.
    pub waits: Vec<Lock>,
}
wire_struct!(FileLocks { held, waits });

/// The locks of another client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientLocks {
    /// The client.
    pub client: ClientId,
    /// Its locks.
    pub locks: FileLocks,
}
wire_struct!(ClientLocks { client, locks });

/// A client's locks on a file, reclaimed from a restarted server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockClaim {
    /// The file.
    pub rnode: RnodeId,
    /// The grant of the lock lease, if the client has it.
    pub token: Option<Token>,
    /// The locks.
    pub locks: FileLocks,
}
wire_struct!(LockClaim { rnode, token, locks });

impl FileLocks {
    /// Returns true if there are no locks held or waited for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.waits.is_empty()
    }

    /// Adds a lock that conflicts with no other, replacing its owner's locks in its range.
    pub fn set(&mut self, lock: Lock) {
        self.clear(lock.style, lock.owner, lock.first, lock.last);
        let mut lock = lock;
        self.held.retain(|held| {
            let near = held.last.checked_add(1) == Some(lock.first)
                || lock.last.checked_add(1) == Some(held.first);
            let one = near
                && held.is_of(lock.style, lock.owner)
                && (held.exclusive, held.pid) == (lock.exclusive, lock.pid);
            if one {
                lock.first = lock.first.min(held.first);
                lock.last = lock.last.max(held.last);
            }
            !one
        });
        self.held.push(lock);
    }

    /// Removes the locks of `owner` from byte `first` to byte `last`. Returns true if there were
    /// any.
    pub fn clear(&mut self, style: LockStyle, owner: u64, first: u64, last: u64) -> bool {
        let mut left = Vec::with_capacity(self.held.len() + 1);
        let mut changed = false;
        for held in self.held.drain(..) {
            if !held.is_of(style, owner) || !held.overlaps(first, last) {
                left.push(held);
                continue;
            }
            changed = true;
            if held.first < first {
                left.push(Lock { last: first - 1, ..held });
            }
            if held.last > last {
                left.push(Lock { first: last + 1, ..held });
            }
        }
        self.held = left;
        changed
    }

    /// Returns the locks that conflict with `lock`, of the same client.
    pub fn in_the_way_of_own<'a>(&'a self, lock: &'a Lock) -> impl Iterator<Item = &'a Lock> {
        self.in_the_way(lock).filter(|held| held.owner != lock.owner)
    }

    /// Returns the locks that conflict with `lock`, of another client. In no order.
    pub fn in_the_way<'a>(&'a self, lock: &'a Lock) -> impl Iterator<Item = &'a Lock> {
        self.held.iter().filter(|held| held.excludes(lock))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_block::Rng;

    const BYTES: u64 = 24;

    fn lock(owner: u64, exclusive: bool, first: u64, last: u64) -> Lock {
        Lock { style: LockStyle::Posix, owner, exclusive, first, last, pid: 0 }
    }

    /// Returns the lock mode of `owner` on each byte.
    fn drawn(locks: &FileLocks, owner: u64) -> Vec<Option<bool>> {
        let at = |byte| {
            let mut of = locks.held.iter().filter(|l| l.owner == owner && l.overlaps(byte, byte));
            let found = of.next().map(|l| l.exclusive);
            assert!(of.next().is_none(), "two locks of one owner on one byte");
            found
        };
        (0..BYTES).map(at).collect()
    }

    #[test]
    fn locked_ranges_agree_with_a_map_of_bytes() {
        for seed in 0..300 {
            let mut rng = Rng::new(seed);
            let mut locks = FileLocks::default();
            let mut model = [vec![None; BYTES as usize], vec![None; BYTES as usize]];
            for _ in 0..30 {
                let (a, b) = (rng.below(BYTES), rng.below(BYTES));
                let (first, last) = (a.min(b), a.max(b));
                let (owner, exclusive) = (rng.below(2), rng.below(2) == 0);
                let new = if rng.below(3) == 0 {
                    locks.clear(LockStyle::Posix, owner, first, last);
                    None
                } else {
                    locks.set(lock(owner, exclusive, first, last));
                    Some(exclusive)
                };
                model[owner as usize][first as usize..=last as usize].fill(new);
                for owner in [0, 1] {
                    assert_eq!(drawn(&locks, owner), model[owner as usize], "seed {seed}");
                    let runs = model[owner as usize].chunk_by(|a, b| a == b);
                    let runs = runs.filter(|run| run[0].is_some()).count();
                    let count = locks.held.iter().filter(|l| l.owner == owner).count();
                    assert_eq!(count, runs, "seed {seed}: neighbours are one");
                }
            }
        }
    }

    #[test]
    fn lock_conflicts() {
        let shared = lock(1, false, 0, 9);
        assert!(!shared.excludes(&lock(2, false, 0, 9)));
        assert!(shared.excludes(&lock(2, true, 9, 12)) && lock(2, true, 9, 12).excludes(&shared));
        assert!(!shared.excludes(&lock(2, true, 10, 12)));
        assert!(!shared.excludes(&Lock { style: LockStyle::Flock, ..lock(2, true, 0, 9) }));
        let mut all = FileLocks::default();
        all.set(lock(1, true, 0, u64::MAX));
        all.clear(LockStyle::Posix, 1, 5, u64::MAX);
        assert_eq!(all.held, [lock(1, true, 0, 4)]);
        assert_eq!(all.in_the_way_of_own(&lock(1, true, 0, 1)).count(), 0);
        assert_eq!(all.in_the_way(&lock(1, true, 0, 1)).count(), 1, "of another client");
    }
}
