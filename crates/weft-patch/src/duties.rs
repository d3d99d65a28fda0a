//! The write-back thread: what it owes to age and to memory, and when it looks.
//!
//! Promises of age, whatever the load: a change is durable once it is [`max_age`] old, under soft
//! updates and async once it is twice as old if its block changes without a pause of a second; plus a [`TICK`]
//! for the look and the time that the device takes for what may be dirty. A journal commits a
//! transaction at [`max_age`].
//!
//! A step does *everything* that is due. No duty depends on whether another one had something to
//! write, or failed: under a steady load there is always a block that has just come of age, and a
//! step that returned after it would never come to the commit.
//!
//! The thread's steps can be made by a test, on a clock of its own.
//!
//! [`max_age`]: crate::Options::max_age

use crate::engine::{Engine, Shared};
use crate::group::Wanted;
use crate::state::State;
use crate::writeback::Goal;
use crate::{Error, PatchId, Result};
use std::sync::PoisonError;
use std::time::Duration;

/// Interval at which the write-back thread looks for old blocks.
pub(crate) const TICK: Duration = Duration::from_millis(500);

/// The greatest power of two by which the interval grows while writes fail.
const BACK_OFF_MAX: u32 = 5;

/// What decides when the write-back thread takes its next step.
#[derive(Debug, Default)]
pub struct Pace {
    /// Steps that failed, since one did not.
    failures: u32,
    /// Whether the last step wrote anything.
    wrote: bool,
    /// Time at which memory was last given back.
    tidied_ms: u64,
}

impl Pace {
    /// Returns the time to wait for a signal before the next step.
    fn wait(&self, state: &State, background_bytes: usize) -> Duration {
        let crowded = self.wrote && state.is_crowded(background_bytes);
        if self.failures == 0 && (state.signals.pressed || crowded) {
            return Duration::ZERO;
        }
        TICK * (1 << self.failures.min(BACK_OFF_MAX))
    }
}

/// What the duties of a step have come to.
#[derive(Debug, Default)]
struct Outcome {
    wrote: bool,
    first_error: Option<Error>,
}

impl Outcome {
    fn add(&mut self, duty: Result<bool>) {
        match duty {
            Ok(wrote) => self.wrote |= wrote,
            Err(e) => {
                self.first_error.get_or_insert(e);
            }
        }
    }
}

impl Engine {
    /// Does what the write-back thread does when it wakes, and returns how long it would sleep then
    /// if nothing woke it. For tests that play the thread, with [`background`] off and a [`Clock`]
    /// of their own. With `pressed` it is woken by an operation that waits for memory.
    ///
    /// # Errors
    /// [`Error::Halted`]. As with the thread, other errors are met again by the next step, and by
    /// the syncs that they concern.
    ///
    /// [`background`]: crate::Options::background
    /// [`Clock`]: crate::Clock
    pub fn write_back_step(&self, pace: &mut Pace, pressed: bool) -> Result<Duration> {
        let shared = &*self.shared;
        let mut state = shared.lock();
        state.signals.woken = false;
        state.signals.pressed |= pressed;
        shared.note_progress(state);
        shared.write_back_step(pace)?;
        let state = shared.lock();
        Ok(pace.wait(&state, shared.background_bytes))
    }
}

impl Shared {
    /// Runs the write-back thread.
    pub fn write_back(&self) {
        let mut pace = Pace::default();
        loop {
            let mut state = self.lock();
            state.signals.woken = false;
            let wait = pace.wait(&state, self.background_bytes);
            if !state.signals.stop && wait > Duration::ZERO {
                state =
                    self.work.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
            }
            if state.signals.stop {
                return;
            }
            self.note_progress(state);
            if self.write_back_step(&mut pace).is_err() {
                return;
            }
        }
    }

    /// Runs one step of the thread, and notes in `pace` what it came to.
    ///
    /// # Errors
    /// [`Error::Halted`].
    fn write_back_step(&self, pace: &mut Pace) -> Result<()> {
        let now_ms = self.lock().now_ms();
        let Outcome { wrote, first_error } = self.do_duties(now_ms);
        pace.wrote = wrote;
        match first_error {
            None => pace.failures = 0,
            Some(Error::Halted) => return Err(Error::Halted),
            Some(e) => {
                pace.failures = pace.failures.saturating_add(1);
                tracing::warn!("write-back failed, will be tried again: {e}");
                self.room.notify_all();
            }
        }
        // Under a steady load there is always something to write.
        if pace.failures == 0 && (!wrote || now_ms - pace.tidied_ms >= self.max_age_ms) {
            pace.tidied_ms = now_ms;
            self.give_memory_back();
        }
        Ok(())
    }

    /// Does all that is due: what age demands, then what memory does.
    fn do_duties(&self, now_ms: u64) -> Outcome {
        let (crowded, pressed) = {
            let mut state = self.lock();
            let crowded = state.dirty_bytes() > self.background_bytes;
            (crowded, std::mem::take(&mut state.signals.pressed))
        };
        let mut outcome = Outcome::default();
        if let Some(before_ms) = now_ms.checked_sub(self.max_age_ms) {
            outcome.add(self.commit_old(before_ms));
            outcome.add(self.write_old(before_ms));
        }
        outcome.add(self.end_chains(now_ms));
        if crowded || pressed {
            outcome.add(self.make_room(now_ms, pressed));
        }
        outcome
    }

    /// Writes the blocks that changes keep from ever being ready, with all that they wait for: those
    /// with half of the maximum number of patches, and those that are overdue.
    fn end_chains(&self, now_ms: u64) -> Result<bool> {
        let sealed = {
            let mut state = self.lock();
            let half_full = self.log.is_none() && state.half_full_blocks > 0;
            let half_full = if half_full { state.seal_half_full() } else { Default::default() };
            [half_full, state.seal_overdue(now_ms, self.max_age_ms)]
        };
        let roots: Vec<PatchId> =
            sealed.iter().flat_map(|sealed| sealed.patches.iter().copied()).collect();
        if roots.is_empty() {
            return Ok(false);
        }
        self.reach(Wanted::Patches(roots))?;
        let mut state = self.lock();
        sealed.iter().for_each(|sealed| state.note_written(sealed));
        Ok(true)
    }

    /// Commits the running transaction if it was begun before this time. If atomic groups hold it
    /// open, no more of them begin until it is committed, by a later step.
    fn commit_old(&self, before_ms: u64) -> Result<bool> {
        let due = {
            let mut state = self.lock();
            state.commit_due(before_ms) && !state.is_commit_held()
        };
        if due {
            self.commit()?;
        }
        Ok(due)
    }

    /// Writes the blocks that have been dirty since before this time, and are ready: round after
    /// round, as each makes others ready. What changes meanwhile is younger, so it ends.
    fn write_old(&self, before_ms: u64) -> Result<bool> {
        let mut any = false;
        loop {
            let (wrote, result) = {
                let _io = self.lock_io()?;
                self.round(Goal::Background { before_ms, data: false })
            };
            result?;
            if !wrote {
                return Ok(any);
            }
            any = true;
        }
    }

    /// Writes so that memory becomes free: file data first, as metadata will soon be changed again;
    /// if there is nothing else, what the journal holds back.
    fn make_room(&self, now_ms: u64, pressed: bool) -> Result<bool> {
        let old_ms = now_ms.saturating_sub(self.max_age_ms);
        let goals = [
            Some(Goal::Background { before_ms: old_ms, data: true }),
            Some(Goal::Background { before_ms: now_ms, data: true }),
            pressed.then_some(Goal::All),
        ];
        for goal in goals.into_iter().flatten() {
            let (wrote, result) = {
                let _io = self.lock_io()?;
                self.round(goal)
            };
            result?;
            if wrote {
                return Ok(true);
            }
        }
        if self.log.is_none() || self.is_held() {
            return Ok(false);
        }
        self.commit()?;
        Ok(true)
    }
}
