//! Atomic patchgroups: after a crash all changes of the group are there, or none.
//!
//! A journal makes a transaction atomic; so a group is atomic if the transaction with its first change
//! is not committed before its last. A *hold* on the running transaction stands for that. It begins
//! with the first operation of the group, and ends with the group. Soft updates and async have no
//! transactions, and no atomic groups.
//!
//! Others go on meanwhile, in the same transaction, but what waits for its commit (a sync, an operation
//! for which the log has no room) waits for the group. So a group is limited in two ways, both known
//! before it begins ([`AtomicLimits`]):
//!
//! - In blocks: they are set aside in the log when the hold begins. An operation that could change
//!   more is refused before it changes anything.
//! - In time: if somebody waits for the commit of a group that has been open for longer, the
//!   transaction is committed, and the group is *cut*: it takes no more changes, and its end tells.

use crate::engine::Shared;
use crate::nowait::about_to_wait;
use crate::patchgroup::PatchGroup;
use crate::state::State;
use crate::transactions::Journal;
use crate::{Error, PatchGroupError, Result};
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

/// The share of a log that one atomic group may have: with what others change meanwhile, a
/// transaction stays below a quarter of the log.
const LOG_SHARE: u32 = 8;

/// The fewest blocks for which an atomic group is made: in fewer hardly any operation fits.
pub const HOLD_BLOCKS_MIN: u32 = 16;

/// The longest time after which one that waits for a commit looks again.
const COMMIT_WAIT: Duration = Duration::from_millis(100);

/// The limits of an atomic group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtomicLimits {
    /// The most blocks that it changes, each counted once: of metadata, and of file data that
    /// overwrites. Blocks that are newly allocated to file data do not count, but in
    /// [`JournalMode::Full`](crate::JournalMode::Full). An operation counts with the most that it
    /// could change until it has ended, then with what it has changed.
    pub max_blocks: u32,
    /// The time from the first change after which others no longer wait for it.
    pub open_max: Duration,
}

impl Default for AtomicLimits {
    /// As many blocks as the log allows, and five seconds.
    fn default() -> Self {
        Self { max_blocks: u32::MAX, open_max: Duration::from_secs(5) }
    }
}

/// An atomic group with changes in the running transaction.
#[derive(Debug)]
pub(crate) struct Hold {
    number: u64,
    /// Number of blocks that it may still change.
    blocks_left: u32,
    /// The time, on the engine's clock, from which others do not wait for it.
    until_ms: u64,
}

/// The state of an atomic group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Atomic {
    /// It has no changes yet.
    New(AtomicLimits),
    /// It has a hold with this number. If there is none, it was cut.
    Open(u64),
    Ended,
    Cut,
}

impl Journal {
    /// Returns the number of blocks that atomic groups may still change.
    pub fn held_blocks(&self) -> usize {
        self.holds.iter().map(|hold| hold.blocks_left as usize).sum()
    }

    /// Returns true if an atomic group holds the running transaction open at this time.
    pub fn is_held(&self, now_ms: u64) -> bool {
        self.holds.iter().any(|hold| hold.until_ms > now_ms)
    }

    /// Returns the most blocks that an atomic group of this journal may change.
    fn atomic_blocks_max(&self) -> u32 {
        // Descriptors of changed and revoked blocks come on top.
        let blocks = self.ring_blocks / LOG_SHARE;
        blocks.saturating_sub(self.blocks_needed(blocks as usize, blocks as usize) - blocks)
    }
}

impl State {
    /// Returns these limits as far as the journal allows them.
    ///
    /// # Errors
    /// [`PatchGroupError::NotAtomic`]: there is no journal, or none that is large enough.
    pub fn atomic_limits(&self, limits: AtomicLimits) -> Result<AtomicLimits, PatchGroupError> {
        let max = self.journal.as_ref().map_or(0, Journal::atomic_blocks_max);
        if max < HOLD_BLOCKS_MIN {
            return Err(PatchGroupError::NotAtomic);
        }
        Ok(AtomicLimits { max_blocks: limits.max_blocks.clamp(HOLD_BLOCKS_MIN, max), ..limits })
    }

    /// Returns true if the commit of the running transaction has to wait for atomic groups. Cuts those
    /// that have been open for too long.
    pub fn is_commit_held(&mut self) -> bool {
        let now_ms = self.now_ms();
        let Some(journal) = &mut self.journal else { return false };
        if journal.committing.is_some() {
            return false;
        }
        if !journal.is_held(now_ms) {
            journal.holds.clear();
        }
        journal.closing = !journal.holds.is_empty();
        journal.closing
    }

    fn hold(&self, number: u64) -> Option<&Hold> {
        self.journal.as_ref()?.holds.iter().find(|hold| hold.number == number)
    }

    /// Returns the number of blocks that an atomic group may still change, or `None` if it was cut.
    pub fn hold_blocks_left(&self, number: u64) -> Option<u32> {
        self.hold(number).map(|hold| hold.blocks_left)
    }

    /// Returns the number of blocks that the running transaction changes and revokes.
    pub fn running_blocks(&self) -> usize {
        let running = self.journal.as_ref().and_then(|j| j.running.as_ref());
        running.map_or(0, |t| t.blocks.len() + t.revokes.len())
    }

    /// Notes that an operation of an atomic group has added so many blocks to the transaction.
    pub fn charge_hold(&mut self, number: u64, blocks: usize) {
        let holds = self.journal.iter_mut().flat_map(|journal| &mut journal.holds);
        for hold in holds.filter(|hold| hold.number == number) {
            let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
            hold.blocks_left = hold.blocks_left.saturating_sub(blocks);
        }
    }

    fn begin_hold(&mut self, limits: AtomicLimits) -> u64 {
        let open_ms = u64::try_from(limits.open_max.as_millis()).unwrap_or(u64::MAX);
        let until_ms = self.now_ms().saturating_add(open_ms);
        let journal = self.journal.as_mut().expect("an atomic group has a journal");
        journal.holds_made += 1;
        let number = journal.holds_made;
        journal.holds.push(Hold { number, blocks_left: limits.max_blocks, until_ms });
        number
    }

    /// Ends a hold. Returns false if the group was cut.
    pub fn end_hold(&mut self, number: u64) -> bool {
        let Some(journal) = &mut self.journal else { return false };
        let at = journal.holds.iter().position(|hold| hold.number == number);
        at.map(|at| journal.holds.swap_remove(at)).is_some()
    }
}

impl Shared {
    /// Returns true if atomic groups hold the running transaction open.
    pub fn is_held(&self) -> bool {
        let state = self.lock();
        state.journal.as_ref().is_some_and(|journal| journal.is_held(state.now_ms()))
    }

    /// Waits until an operation that changes so many blocks may begin.
    ///
    /// # Errors
    /// As [`Engine::begin`](crate::Engine::begin).
    pub fn wait_to_begin<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        max_blocks: u32,
    ) -> Result<MutexGuard<'a, State>> {
        let atomic = self.atomic_groups();
        if atomic.is_empty() {
            return self.wait_for_room(state, max_blocks);
        }
        self.wait_for_holds(state, &atomic, max_blocks)
    }

    /// Waits until an operation of atomic groups that changes so many blocks may begin. The first one
    /// begins the hold.
    ///
    /// # Errors
    /// As [`Engine::begin`](crate::Engine::begin); [`Error::AtomicTooLarge`];
    /// [`PatchGroupError::Cut`].
    fn wait_for_holds<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        groups: &[PatchGroup],
        max_blocks: u32,
    ) -> Result<MutexGuard<'a, State>> {
        for group in groups {
            // Another thread of the group may be faster.
            while let Some(Atomic::New(limits)) = group.atomic() {
                state = self.wait_for_room(state, limits.max_blocks)?;
                if state.journal.as_ref().is_some_and(|journal| journal.closing) {
                    // Groups one after the other could keep a transaction open for ever.
                    about_to_wait()?;
                    let waited = self.room.wait_timeout(state, COMMIT_WAIT);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                } else if let Some(Atomic::New(_)) = group.atomic() {
                    let number = state.begin_hold(limits);
                    group.set_atomic(Atomic::Open(number));
                }
            }
        }
        for group in groups {
            let left = match group.atomic() {
                Some(Atomic::Open(number)) => state.hold_blocks_left(number),
                _ => None,
            };
            let left = left.ok_or(PatchGroupError::Cut)?;
            // Waiting for memory could be waiting for the end of this group.
            let memory = state.dirty_bytes() <= self.memory_budget_bytes.saturating_mul(2);
            if max_blocks > left || !memory {
                return Err(Error::AtomicTooLarge { needed: max_blocks, left });
            }
        }
        Ok(state)
    }

    /// Waits until an atomic group ends, or may be cut.
    pub fn wait_for_atomic_groups(&self) {
        let state = self.lock();
        let now_ms = state.now_ms();
        let holds = state.journal.iter().flat_map(|journal| &journal.holds);
        let Some(until_ms) = holds.map(|hold| hold.until_ms).max() else { return };
        let longest = Duration::from_millis(until_ms.saturating_sub(now_ms).max(1));
        let waited = self.unheld.wait_timeout(state, longest);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}
