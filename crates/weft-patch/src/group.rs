//! Group commit: callers that sync at the same time share rounds, commits and their flushes.
//!
//! A caller joins the group of those that wait, with what it wants to be durable. If no thread
//! leads the group, it leads: it runs *steps* until its own wish has come true, then wakes another
//! of those that wait to lead on. A step is one round of writes for all of them, or under a journal
//! one commit with the file data that they wait for. Those that come during a step share the next
//! one; a caller that is alone waits for nobody.
//!
//! Invariants:
//! - The patches that a caller needs are chosen by the leader, under `io`: nothing is in flight then
//!   but failed writes, so none is missed.
//! - Every caller advances in every step: the step writes something that it needs. Otherwise callers
//!   that come with ready blocks could for ever be in front of one that needs a part of a block.
//! - A caller returns when all that it needs is durable, or with the error of a write that it needs.
//!   An error of another caller's block is not told to it.
//! - Whenever no thread leads and a caller waits, one of those that wait has been woken.

use crate::batch::Write;
use crate::engine::Shared;
use crate::graph::{Kind, NONE};
use crate::journal::Prepared;
use crate::state::State;
use crate::writeback::Goal;
use crate::{Error, Owner, PatchId, Result};
use hashbrown::HashSet;
use std::thread::Thread;

/// What a caller wants to be durable.
#[derive(Debug)]
pub(crate) enum Wanted {
    /// All changes.
    All,
    /// The dirty blocks of an owner, these patches, and all they depend on.
    Owner(Owner, Vec<PatchId>),
    /// These patches.
    Patches(Vec<PatchId>),
    /// The transactions that are not committed yet.
    Commits,
}

/// What a caller waits for, once it is chosen.
///
/// A walk of the graph finds it. If there were one in each step, a sync of a deep graph would take a time
/// that grows with the square of its depth: so what one walk has found is kept, as far as it stays true.
#[derive(Debug, Default)]
struct Needed {
    /// The patches that are not durable, and perhaps some that are.
    roots: Vec<PatchId>,
    /// If these are all that there were: the number of the last one.
    until: Option<u32>,
    /// The mark of the blocks that they need, if no others were marked since.
    mark: Option<u64>,
}

/// A caller that waits.
#[derive(Debug)]
struct Waiter {
    ticket: u64,
    thread: Thread,
    /// What it wants, until a leader has chosen the patches.
    wanted: Option<Wanted>,
    /// Whether all blocks are written for it, not only those that it needs.
    all: bool,
    needed: Needed,
    outcome: Option<Result<()>>,
}

impl Waiter {
    /// Returns true if the next writes are for this one too.
    fn is_admitted(&self) -> bool {
        self.wanted.is_none() && self.outcome.is_none()
    }

    fn settle(&mut self, outcome: Result<()>) {
        self.outcome = Some(outcome);
        self.thread.unpark();
    }
}

/// The callers that wait, in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Group {
    waiters: Vec<Waiter>,
    /// Whether a thread leads.
    led: bool,
    tickets: u64,
}

impl Group {
    /// Returns the number of callers that ever waited.
    pub fn tickets(&self) -> u64 {
        self.tickets
    }

    fn join(&mut self, wanted: Wanted) -> u64 {
        self.tickets += 1;
        self.waiters.push(Waiter {
            ticket: self.tickets,
            thread: std::thread::current(),
            wanted: Some(wanted),
            all: false,
            needed: Needed::default(),
            outcome: None,
        });
        self.tickets
    }

    /// Returns the outcome for a caller, which leaves the group with it; `None` while it is open.
    fn leave(&mut self, ticket: u64) -> Option<Result<()>> {
        let at = self.waiters.iter().position(|w| w.ticket == ticket && w.outcome.is_some())?;
        self.waiters.remove(at).outcome
    }

    fn is_open(&self, ticket: u64) -> bool {
        self.waiters.iter().any(|w| w.ticket == ticket && w.outcome.is_none())
    }

    fn admitted(&self) -> impl Iterator<Item = &Waiter> {
        self.waiters.iter().filter(|w| w.is_admitted())
    }
}

/// The leadership of the group; given up on drop, also by a panic.
struct Lead<'a> {
    shared: &'a Shared,
    /// The caller that leads.
    ticket: u64,
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let group = &mut state.group;
        group.led = false;
        // If its outcome is open, it returns by an error or a panic of its own.
        group.waiters.retain(|w| w.ticket != self.ticket || w.outcome.is_some());
        if let Some(next) = group.waiters.iter().find(|w| w.outcome.is_none()) {
            next.thread.unpark();
        }
    }
}

/// The next step.
enum Planned {
    /// Nobody waits.
    Nothing,
    /// A caller waits for a transaction that atomic groups hold open.
    Held,
    Writes(Step),
}

/// The writes of one step.
struct Step {
    batch: Vec<Write>,
    /// The transaction that is committed with them, and the file data that it waits for.
    commit: Option<Prepared>,
}

impl Shared {
    /// Makes durable what is wanted, together with what other callers want.
    ///
    /// # Errors
    /// That of a write or a commit that it needs.
    pub fn reach(&self, wanted: Wanted) -> Result<()> {
        let mut state = self.lock_here()?;
        if state.is_reached(&wanted) {
            return Ok(());
        }
        let ticket = state.group.join(wanted);
        loop {
            if let Some(outcome) = state.group.leave(ticket) {
                return outcome;
            }
            if state.group.led {
                drop(state);
                std::thread::park();
                state = self.lock();
                continue;
            }
            state.group.led = true;
            drop(state);
            let lead = Lead { shared: self, ticket };
            self.lead(ticket)?;
            drop(lead);
            state = self.lock();
        }
    }

    /// Runs steps until the outcome for this caller is known.
    fn lead(&self, ticket: u64) -> Result<()> {
        while self.lock().group.is_open(ticket) {
            self.step()?;
        }
        Ok(())
    }

    /// Runs a step for all that wait.
    ///
    /// # Errors
    /// [`Error::Halted`]; every other error is noted for the callers that it concerns.
    fn step(&self) -> Result<()> {
        let io = self.lock_io()?;
        let planned = self.lock().plan_step();
        let step = match planned {
            Planned::Writes(step) => step,
            Planned::Nothing => return Ok(()),
            Planned::Held => {
                drop(io);
                self.wait_for_atomic_groups();
                return Ok(());
            }
        };
        let committed = match step.commit {
            Some(prepared) => self.write_commit(step.batch, &prepared),
            None => {
                // Those that it concerns find it among the failed writes.
                let _ = self.write_planned(step.batch);
                Ok(())
            }
        };
        let mut state = self.lock();
        state.note_reached();
        state.note_failed();
        if let Err(e) = committed {
            state.fail_commits(&e);
        }
        Ok(())
    }
}

impl State {
    /// Returns true if nothing has to be written, and nothing is being written, for an owner.
    fn is_reached(&self, wanted: &Wanted) -> bool {
        match wanted {
            Wanted::Owner(owner, also) => {
                self.cache.dirty_of(*owner).next().is_none()
                    && also.iter().all(|&id| self.is_durable(id))
            }
            Wanted::All | Wanted::Patches(_) | Wanted::Commits => false,
        }
    }

    /// Chooses what the next step writes.
    fn plan_step(&mut self) -> Planned {
        self.admit_waiters();
        self.note_reached();
        if self.group.admitted().next().is_none() {
            return Planned::Nothing;
        }
        if self.is_commit_wanted() && self.is_commit_held() {
            return Planned::Held;
        }
        let commit = self.prepare_wanted_commit();
        let data = commit.as_ref().map_or(&[][..], |c| &c.data);
        let batch = self.plan_for_group(data);
        let commit = match commit {
            Some(c) if self.is_in_flight(&c.data) => Some(c),
            // Some of the data can be written in a later round only, and the commit after it.
            _ => None,
        };
        if commit.is_none() && batch.is_empty() {
            self.each_admitted(|_, _| Some(Err(cycle())));
            return Planned::Nothing;
        }
        Planned::Writes(Step { batch, commit })
    }

    /// Chooses the patches for those that have come since the last step.
    fn admit_waiters(&mut self) {
        for at in 0..self.group.waiters.len() {
            let Some(wanted) = self.group.waiters[at].wanted.take() else { continue };
            let all = matches!(wanted, Wanted::All);
            let commits = matches!(wanted, Wanted::Commits);
            let mut roots = match wanted {
                Wanted::All => self.seal_all(),
                Wanted::Owner(owner, also) => self.roots_of(owner, &also),
                Wanted::Patches(roots) => roots,
                Wanted::Commits => Vec::new(),
            };
            let journaled = self.journal.is_some();
            if journaled {
                self.put_commits_into(&mut roots, all || commits);
            }
            let everything = all && !journaled;
            let until = everything.then(|| self.graph.last_number());
            let waiter = &mut self.group.waiters[at];
            // With a journal, what is committed need not be in place.
            waiter.all = everything;
            waiter.needed = Needed { roots, until, mark: None };
        }
    }

    /// Takes the writes of the next round for all that wait, and for a transaction's data.
    fn plan_for_group(&mut self, data: &[PatchId]) -> Vec<Write> {
        let mut kept = false;
        let goal = if self.group.admitted().any(|w| w.all) {
            Goal::All
        } else {
            let (mark, is_kept) = self.mark_for_group(data);
            kept = is_kept;
            Goal::Marked(mark)
        };
        let repeated: HashSet<u32> = self.failed.iter().map(|w| w.buffer).collect();
        let (mut batch, partly_ready) = self.plan_whole(goal);
        let mut advance = |state: &mut Self, needed: &Needed| {
            if let Some(parts) = state.plain_parts(needed, &partly_ready, &repeated) {
                if state.plainly_advances(needed, &batch) {
                    return true;
                }
                state.take_parts(&parts, &mut batch);
                if state.plainly_advances(needed, &batch) {
                    return true;
                }
            }
            let roots = &needed.roots;
            if state.advances(roots, &batch, &repeated) {
                return true;
            }
            let mark = state.mark_needed(roots);
            let is_needed = |b: &u32| state.cache[*b].mark == mark && !state.cache[*b].in_flight;
            let parts: Vec<u32> = if kept {
                // More blocks may be needed by now than had the mark: as in any round, those that can
                // be written whole come first.
                let needed: Vec<u32> = state.cache.all().filter(is_needed).collect();
                state.take_whole(&needed, &mut batch);
                if state.advances(roots, &batch, &repeated) {
                    return true;
                }
                needed.into_iter().filter(|&b| state.cache[b].is_partly_ready()).collect()
            } else {
                partly_ready.iter().copied().filter(is_needed).collect()
            };
            state.take_parts(&parts, &mut batch);
            state.advances(roots, &batch, &repeated)
        };
        self.each_admitted(|state, needed| (!advance(state, needed)).then(|| Err(cycle())));
        if !advance(self, &Needed { roots: data.to_vec(), ..Needed::default() }) {
            self.fail_commits(&cycle());
        }
        self.end_plan(partly_ready, &mut batch);
        batch
    }

    /// Marks the blocks that those that wait need, and a transaction's data. Returns the mark, and
    /// whether it is one of an earlier step.
    fn mark_for_group(&mut self, data: &[PatchId]) -> (u64, bool) {
        let mut admitted = self.group.waiters.iter().filter(|w| w.is_admitted());
        let only = admitted.next().filter(|_| admitted.next().is_none() && data.is_empty());
        if let Some(mark) = only.and_then(|w| w.needed.mark)
            && mark == self.needed_mark
        {
            return (mark, true);
        }
        let roots: Vec<PatchId> =
            self.group.admitted().flat_map(|w| &w.needed.roots).chain(data).copied().collect();
        let mark = self.mark_needed(&roots);
        let mut admitted = self.group.waiters.iter_mut().filter(|w| w.is_admitted());
        // A transaction may still grow, until it is closed.
        let stays = data.is_empty() && self.journal.is_none();
        if let (Some(only), None, true) = (admitted.next(), admitted.next(), stays) {
            only.needed.mark = Some(mark);
        }
        (mark, false)
    }

    /// Returns the blocks a part of which a caller needs; `None` if only a walk of the graph shows them.
    fn plain_parts(
        &self,
        needed: &Needed,
        partly_ready: &[u32],
        repeated: &HashSet<u32>,
    ) -> Option<Vec<u32>> {
        let mark = needed.mark.filter(|mark| *mark == self.needed_mark);
        if !repeated.is_empty() || (mark.is_none() && needed.until.is_none()) {
            return None;
        }
        let is_needed = |&buffer: &u32| {
            let b = &self.cache[buffer];
            let old = needed
                .until
                .is_some_and(|until| b.oldest != NONE && !self.graph.is_after(b.oldest, until));
            !b.in_flight && (old || Some(b.mark) == mark)
        };
        Some(partly_ready.iter().copied().filter(is_needed).collect())
    }

    /// Returns true if the planned writes contain something that a caller needs, as far as this shows
    /// without a walk of the graph. A block that it needs may have changed since it was marked: the
    /// patches that the caller needs are sealed, and others are not, if it is alone.
    fn plainly_advances(&self, needed: &Needed, batch: &[Write]) -> bool {
        let mark = needed.mark.filter(|mark| *mark == self.needed_mark);
        batch.iter().any(|write| {
            let run = Some(write.run).filter(|run| *run != NONE);
            let marked = Some(self.cache[write.buffer].mark) == mark;
            write.patches.iter().copied().chain(run).any(|patch| {
                let old = needed.until.is_some_and(|until| !self.graph.is_after(patch, until));
                old || (marked && self.graph[patch].sealed)
            })
        })
    }

    /// Returns true if the planned writes contain something that these patches need, or if they
    /// wait for the commit of a transaction. The patches do not show that blocks of a run are written,
    /// nor that later changes of a block have to wait as a failed write of it is repeated.
    fn advances(&mut self, roots: &[PatchId], batch: &[Write], repeated: &HashSet<u32>) -> bool {
        let runs: HashSet<u32> = batch.iter().map(|w| w.run).filter(|&run| run != NONE).collect();
        roots.iter().all(|&id| self.is_durable(id))
            || self.needs(roots, |index, patch| match patch.kind {
                Kind::InFlight => true,
                Kind::Run => runs.contains(&index),
                Kind::Empty => patch.befores == NONE,
                _ => repeated.contains(&patch.buffer),
            })
    }

    /// Notes an outcome for each caller whose patches are chosen, if `outcome` returns one for them.
    fn each_admitted(
        &mut self,
        mut outcome: impl FnMut(&mut Self, &mut Needed) -> Option<Result<()>>,
    ) {
        for at in 0..self.group.waiters.len() {
            if !self.group.waiters[at].is_admitted() {
                continue;
            }
            let mut needed = std::mem::take(&mut self.group.waiters[at].needed);
            let outcome = outcome(self, &mut needed);
            let waiter = &mut self.group.waiters[at];
            waiter.needed = needed;
            if let Some(outcome) = outcome {
                waiter.settle(outcome);
            }
        }
    }

    fn note_reached(&mut self) {
        self.each_admitted(|state, needed| {
            if state.journal.is_some() {
                needed.roots.retain(|&id| !state.is_durable(id));
            } else {
                // It waits as long as the last one of them does, so that each is looked at once.
                while needed.roots.pop_if(|id| state.is_durable(*id)).is_some() {}
            }
            needed.roots.is_empty().then_some(Ok(()))
        });
    }

    /// Tells the errors of a step to those that need the blocks.
    fn note_failed(&mut self) {
        if !self.failed.is_empty() {
            self.each_admitted(|state, needed| state.failure_of(&needed.roots).map(Err));
        }
    }

    /// Tells the error of a commit to those that wait for one: a transaction is committed only
    /// after those before it.
    fn fail_commits(&mut self, error: &Error) {
        self.each_admitted(|state, needed| {
            let waits = needed.roots.iter().any(|&id| state.is_commit(id));
            waits.then(|| Err(error.clone()))
        });
    }

    fn is_commit_wanted(&self) -> bool {
        self.group.admitted().flat_map(|w| &w.needed.roots).any(|&id| self.is_commit(id))
    }

    /// Ends the running transaction if a caller waits for its commit, and returns the transaction
    /// to commit next.
    fn prepare_wanted_commit(&mut self) -> Option<Prepared> {
        if !self.is_commit_wanted() {
            return None;
        }
        if let Err(e) = self.close_transaction() {
            self.fail_commits(&e);
            return None;
        }
        self.prepare_commit()
    }
}

/// The error for callers for which nothing can be written: a bug of the engine.
fn cycle() -> Error {
    debug_assert!(false, "dirty patches and nothing to write: a cycle");
    Error::Internal("a cycle of dependent blocks cannot be written".into())
}
