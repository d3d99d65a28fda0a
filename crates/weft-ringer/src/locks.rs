//! Locks on files, as `fcntl(2)` and `flock(2)` have them: of one client on one file, and which are in
//! the way of which.
//!
//! Who may change them is decided by a lease of their own on each file, the *lock lease*, which one
//! client holds at a time. Its holder knows what all others have locked, and nobody else can lock
//! anything; so it takes locks without a message. What it has locked stays locked when it gives the
//! lease up: the server tells the next holder. To unlock takes no lease.

use crate::types::{ClientId, RnodeId, Token};
use crate::wire::{wire_enum, wire_struct};

/// Locks that one client may have on one file.
pub const LOCKS_MAX: usize = 8192;

/// Which of the two kinds of lock; they do not see each other.
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
    /// Which kind.
    pub style: LockStyle,
    /// Whose, among those of its client.
    pub owner: u64,
    /// Whether it excludes all others, and not only those that exclude all others.
    pub exclusive: bool,
    /// The first byte.
    pub first: u64,
    /// The last byte.
    pub last: u64,
    /// The process that took it, for people to read.
    pub pid: u32,
}
wire_struct!(Lock { style, owner, exclusive, first, last, pid });

impl Lock {
    fn overlaps(&self, first: u64, last: u64) -> bool {
        self.first <= last && first <= self.last
    }

    /// Whether two locks of different owners exclude each other.
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

/// What one client has locked of one file, and waits for.
///
/// Invariant: no two locks of one owner and style overlap, and none could be one with its neighbour.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileLocks {
    /// What is locked.
    pub held: Vec<Lock>,
    /// What is waited for: to find those who wait for each other.
    pub waits: Vec<Lock>,
}
wire_struct!(FileLocks { held, waits });

/// The locks of another client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientLocks {
    /// Whose.
    pub client: ClientId,
    /// Which.
    pub locks: FileLocks,
}
wire_struct!(ClientLocks { client, locks });

/// What a client tells of its locks on a file to a server that has forgotten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockClaim {
    /// On what.
    pub rnode: RnodeId,
    /// The grant of the lock lease, if the client has it.
    pub token: Option<Token>,
    /// The locks.
    pub locks: FileLocks,
}
wire_struct!(LockClaim { rnode, token, locks });

impl FileLocks {
    /// Whether there is nothing to tell.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.waits.is_empty()
    }

    /// Takes a lock that nobody is in the way of, in the place of what its owner has there.
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

    /// Gives up what `owner` has from byte `first` to byte `last`. Whether there was anything.
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

    /// Those that are in the way of a lock of the same client.
    pub fn in_the_way_of_own<'a>(&'a self, lock: &'a Lock) -> impl Iterator<Item = &'a Lock> {
        self.in_the_way(lock).filter(|held| held.owner != lock.owner)
    }

    /// Those that are in the way of a lock of another client.
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

    /// Byte by byte, who has it and how.
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
    fn ranges_are_what_a_map_of_bytes_says() {
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
    fn what_excludes_what() {
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
