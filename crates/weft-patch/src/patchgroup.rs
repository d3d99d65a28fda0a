//! Patchgroups: an application says which of its changes must reach the disk before which others,
//! and goes on without waiting for the disk.
//!
//! A [`PatchGroup`] is a set of changes. One that [depends](PatchGroup::depend) on another has the
//! guarantee of any two patches: **none of its changes is durable before all changes of the other
//! are**. Changes are added by being made in a thread that has [entered](Engagement::enter) the
//! group, whatever file system makes them. The life of a group makes cycles impossible:
//!
//! 1. It is new, and takes dependencies on other groups.
//! 2. It is released: it takes changes, and no more dependencies. The first engagement releases it.
//! 3. It is followed: another group depends on it. It takes neither.
//!
//! The interface is that of Featherstitch (Frost et al., "Generalized File System Dependencies", SOSP
//! 2007, section 5), with one addition: a [barrier](PatchGroup::barrier) divides a group into what
//! was changed before and what is changed after, as a new group that depends on the present one
//! would.
//!
//! In the graph a group is two sets of patches: the *befores*, which each of its changes waits for,
//! and the *end*, an empty patch that waits for all of its changes. What the commit policies make of
//! them:
//!
//! - Soft updates and async: dependencies like those of a file system. Async drops the dependencies
//!   of the file system and keeps these.
//! - Journal: a transaction contains all changes of metadata before its end, so that these need no
//!   more. File data is written before the transaction commits, also in
//!   [`JournalMode::Metadata`](crate::JournalMode::Metadata). Data that overwrites a block which an
//!   earlier transaction has given to its file could be durable before the group's befores are, and
//!   goes through the journal, whatever the mode.

use crate::atomic::{Atomic, AtomicLimits};
use crate::engine::Shared;
use crate::graph::{Kind, NONE};
use crate::group::Wanted;
use crate::nowait::about_to_wait;
use crate::state::State;
use crate::{Engine, PatchId, Result};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

thread_local! {
    /// The groups that the changes of this thread are added to.
    static ENTERED: RefCell<Vec<PatchGroup>> = const { RefCell::new(Vec::new()) };
}

/// A call that the life of a [`PatchGroup`] does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PatchGroupError {
    /// The groups are of different volumes.
    #[error("a patchgroup cannot depend on one of another volume")]
    OtherVolume,
    /// A group was to depend on itself.
    #[error("a patchgroup cannot depend on itself")]
    Itself,
    /// A dependency was given to a group that takes changes already, or that others depend on.
    #[error("the patchgroup is released: it takes no more dependencies")]
    Released,
    /// A group was engaged that others depend on.
    #[error("other patchgroups depend on this one: it takes no more changes")]
    Followed,
    /// A group was to be ended, or depended on, that still takes changes.
    #[error("the patchgroup is engaged: others can depend on it once it is disengaged")]
    Engaged,
    /// An atomic group was asked for where no journal is, or too small a one.
    #[error("atomic patchgroups need a journal of at least some mebibytes")]
    NotAtomic,
    /// An atomic group was open for longer than its limit while others waited for it: a crash may have
    /// left a part of its changes.
    #[error("the atomic patchgroup was open for too long, and is not atomic")]
    Cut,
}

impl PatchGroupError {
    /// Returns the errno nearest to this error: `EXDEV`, `EDEADLK`, `EBUSY`, `EOPNOTSUPP` or
    /// `ETIMEDOUT`.
    #[must_use]
    pub fn errno(self) -> i32 {
        match self {
            Self::OtherVolume => libc::EXDEV,
            Self::Itself => libc::EDEADLK,
            Self::Released | Self::Followed | Self::Engaged => libc::EBUSY,
            Self::NotAtomic => libc::EOPNOTSUPP,
            Self::Cut => libc::ETIMEDOUT,
        }
    }
}

/// The result of a call that only the life of a group can forbid.
type Allowed<T = ()> = std::result::Result<T, PatchGroupError>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Phase {
    New,
    Released,
    Followed,
}

#[derive(Debug)]
struct Members {
    phase: Phase,
    /// The patches that its changes wait for.
    befores: SmallVec<[PatchId; 2]>,
    /// Durable once all of its changes since the last barrier are, and its befores, if it has changes.
    end: Option<PatchId>,
    /// Set if each operation is ordered after the one before it.
    linear: bool,
    /// Set if it is atomic.
    atomic: Option<Atomic>,
}

struct Inner {
    shared: Arc<Shared>,
    /// The number of groups that exist.
    groups: Arc<AtomicUsize>,
    /// Number of engagements. It rises under the engine's lock only.
    engagements: AtomicUsize,
    /// Locked under the engine's lock.
    members: Mutex<Members>,
}

/// A set of changes of one volume that are ordered as a whole; see the [module](crate::patchgroup).
///
/// A clone is the same group. A group that is dropped keeps its order: nothing that was changed in
/// it overtakes its dependencies.
///
/// ```
/// # use std::sync::Arc;
/// # use weft_block::MemoryDevice;
/// # use weft_patch::{BlockNr, Engine, Options, PatchGroup};
/// # let engine = Engine::new(Arc::new(MemoryDevice::new(1 << 20)), 4096, Options::default())?;
/// let copied = PatchGroup::new(&engine);
/// copied.engage()?.enter_for(|| engine.begin(1)?.write(BlockNr(2), 0, b"the copy", &[]))?;
/// let removed = PatchGroup::new(&engine);
/// removed.depend(&copied)?;
/// // Never durable before the copy, and no call waits for the disk.
/// removed.engage()?.enter_for(|| engine.begin(1)?.write(BlockNr(1), 0, &[0; 8], &[]))?;
/// removed.sync()?;
/// assert!(copied.is_durable());
/// # Ok::<(), weft_patch::Error>(())
/// ```
#[derive(Clone)]
pub struct PatchGroup(Arc<Inner>);

impl std::fmt::Debug for PatchGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PatchGroup").field(&*self.0.members()).finish()
    }
}

impl Inner {
    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the group, which is not engaged, if it is atomic.
    fn end_atomic(&self, state: &mut State, members: &mut Members) -> Allowed {
        let Some(atomic) = members.atomic else { return Ok(()) };
        members.phase = Phase::Followed;
        let whole = match atomic {
            Atomic::Open(number) => state.end_hold(number),
            Atomic::New(_) | Atomic::Ended => true,
            Atomic::Cut => false,
        };
        members.atomic = Some(if whole { Atomic::Ended } else { Atomic::Cut });
        self.shared.unheld.notify_all();
        if whole { Ok(()) } else { Err(PatchGroupError::Cut) }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.groups.fetch_sub(1, Ordering::Relaxed);
        if !self.shared.owner.is_this() {
            return;
        }
        let members = self.members.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(Atomic::Open(number)) = members.atomic {
            self.shared.lock().end_hold(number);
            self.shared.unheld.notify_all();
        }
    }
}

impl Members {
    /// Returns the patches that are durable once the group is.
    fn ends(&self) -> SmallVec<[PatchId; 2]> {
        self.end.map_or_else(|| self.befores.clone(), |end| SmallVec::from_slice(&[end]))
    }

    /// Orders later changes after those that there are.
    fn divide(&mut self, state: &State) {
        self.befores = self.ends();
        self.befores.retain(|id| !state.is_durable(*id));
        self.end = None;
    }
}

/// The groups of an engine, for code that does not know the engine.
#[derive(Clone)]
pub struct PatchGroups(Arc<Shared>);

impl std::fmt::Debug for PatchGroups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PatchGroups").finish_non_exhaustive()
    }
}

impl PatchGroups {
    /// Makes a group without dependencies and without changes.
    #[must_use]
    pub fn create(&self) -> PatchGroup {
        PatchGroup::of(&self.0, false, None)
    }

    /// Makes a group in which each operation is ordered after the one before it, as if there were a
    /// [barrier](PatchGroup::barrier) between any two.
    #[must_use]
    pub fn create_linear(&self) -> PatchGroup {
        PatchGroup::of(&self.0, true, None)
    }

    /// Makes an atomic group: after a crash all of its changes are there, or none. It ends with
    /// [`commit`](PatchGroup::commit), with [`sync`](PatchGroup::sync), or when it is dropped.
    ///
    /// An operation of a thread that is in it fails with
    /// [`AtomicTooLarge`](crate::Error::AtomicTooLarge), before it has
    /// changed anything, if it could change more blocks than the group may. While the group is open, a
    /// sync by others waits for its end, and one by a thread that is in it for its
    /// [limit](AtomicLimits::open_max).
    ///
    /// # Errors
    /// [`PatchGroupError::NotAtomic`]: there is no journal, or one that is too small.
    pub fn create_atomic(&self, limits: AtomicLimits) -> Allowed<PatchGroup> {
        let limits = self.0.lock().atomic_limits(limits)?;
        Ok(PatchGroup::of(&self.0, false, Some(Atomic::New(limits))))
    }
}

impl Engine {
    /// Returns what makes groups of this engine.
    #[must_use]
    pub fn patchgroups(&self) -> PatchGroups {
        PatchGroups(Arc::clone(&self.shared))
    }
}

impl PatchGroup {
    /// Makes a group without dependencies and without changes.
    #[must_use]
    pub fn new(engine: &Engine) -> Self {
        Self::of(&engine.shared, false, None)
    }

    fn of(shared: &Arc<Shared>, linear: bool, atomic: Option<Atomic>) -> Self {
        let groups = Arc::clone(&shared.lock().groups);
        groups.fetch_add(1, Ordering::Relaxed);
        Self(Arc::new(Inner {
            groups,
            shared: Arc::clone(shared),
            engagements: AtomicUsize::new(0),
            members: Mutex::new(Members {
                phase: Phase::New,
                befores: SmallVec::new(),
                end: None,
                linear,
                atomic,
            }),
        }))
    }

    /// Makes this group depend on another, which takes no more changes and dependencies from now on.
    ///
    /// # Errors
    /// [`PatchGroupError`], but [`Followed`](PatchGroupError::Followed); nothing is changed then.
    pub fn depend(&self, before: &Self) -> Allowed {
        if Arc::ptr_eq(&self.0, &before.0) {
            return Err(PatchGroupError::Itself);
        }
        if !Arc::ptr_eq(&self.0.shared, &before.0.shared) {
            return Err(PatchGroupError::OtherVolume);
        }
        let mut state = self.0.shared.lock();
        let (mut after, mut before_members) = (self.0.members(), before.0.members());
        if after.phase != Phase::New {
            return Err(PatchGroupError::Released);
        }
        if before.0.engagements.load(Ordering::Acquire) > 0 {
            return Err(PatchGroupError::Engaged);
        }
        before.0.end_atomic(&mut state, &mut before_members)?;
        let before = &mut *before_members;
        before.phase = Phase::Followed;
        after.befores.retain(|id| !state.is_durable(*id));
        for id in before.ends() {
            if !state.is_durable(id) && !after.befores.contains(&id) {
                after.befores.push(id);
            }
        }
        Ok(())
    }

    /// Ends the dependencies: this group takes no more of them.
    pub fn release(&self) {
        let _state = self.0.shared.lock();
        let mut members = self.0.members();
        if members.phase == Phase::New {
            members.phase = Phase::Released;
        }
    }

    /// Releases the group and announces changes: as long as the engagement exists no other group can
    /// depend on this one.
    ///
    /// # Errors
    /// [`PatchGroupError::Followed`].
    pub fn engage(&self) -> Allowed<Engagement> {
        let _state = self.0.shared.lock();
        let mut members = self.0.members();
        if members.phase == Phase::Followed {
            return Err(PatchGroupError::Followed);
        }
        members.phase = Phase::Released;
        self.0.engagements.fetch_add(1, Ordering::AcqRel);
        Ok(Engagement(self.clone()))
    }

    /// Orders the changes made in this group from now on after those made in it before. In an atomic
    /// group there is no before.
    pub fn barrier(&self) {
        let state = self.0.shared.lock();
        self.0.members().divide(&state);
    }

    /// Ends an atomic group: from now on a crash leaves all of its changes, or none, and others no longer
    /// wait for it. Nothing is written. It takes no more changes. Does nothing to other groups.
    ///
    /// # Errors
    /// [`PatchGroupError::Engaged`]; [`PatchGroupError::Cut`], if it is not atomic.
    pub fn commit(&self) -> Allowed {
        let mut state = self.0.shared.lock();
        let mut members = self.0.members();
        if members.atomic.is_some() && self.0.engagements.load(Ordering::Acquire) > 0 {
            return Err(PatchGroupError::Engaged);
        }
        self.0.end_atomic(&mut state, &mut members)
    }

    /// Ends an atomic group as [`commit`](Self::commit) does, also while it is engaged: changes of those
    /// who are fail with [`PatchGroupError::Cut`] from now on.
    pub fn end(&self) {
        let mut state = self.0.shared.lock();
        // That it was cut is told to those who commit it.
        let _ = self.0.end_atomic(&mut state, &mut self.0.members());
    }

    /// Returns the most blocks that an atomic group may still change, or `None` if it is not atomic, has
    /// ended, or was cut.
    #[must_use]
    pub fn atomic_blocks_left(&self) -> Option<u32> {
        let state = self.0.shared.lock();
        match self.atomic()? {
            Atomic::New(limits) => Some(limits.max_blocks),
            Atomic::Open(number) => state.hold_blocks_left(number),
            Atomic::Ended | Atomic::Cut => None,
        }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.0.shared
    }

    /// Returns the patches that are durable once the group is.
    pub(crate) fn ends(&self) -> SmallVec<[PatchId; 2]> {
        self.0.members().ends()
    }

    pub(crate) fn atomic(&self) -> Option<Atomic> {
        self.0.members().atomic
    }

    pub(crate) fn set_atomic(&self, atomic: Atomic) {
        self.0.members().atomic = Some(atomic);
    }

    /// Makes the changes of this group durable, and what they depend on; no others are waited for. An
    /// atomic group [ends](Self::commit) first.
    ///
    /// # Errors
    /// As [`Engine::sync`] and [`commit`](Self::commit).
    pub fn sync(&self) -> Result<()> {
        about_to_wait()?;
        self.commit()?;
        let ends = {
            let state = self.0.shared.lock();
            let ends = self.0.members().ends();
            ends.into_iter().filter(|&id| !state.is_durable(id)).collect::<Vec<_>>()
        };
        if ends.is_empty() {
            return Ok(());
        }
        self.0.shared.reach(Wanted::Patches(ends))
    }

    /// Returns true if all changes made in this group so far are durable, and all that it depends on.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        let state = self.0.shared.lock();
        let ends = self.0.members().ends();
        ends.into_iter().all(|id| state.is_durable(id))
    }
}

/// The right to make changes in a group, until it is dropped. It may be entered in any thread, in
/// several at a time too.
#[derive(Debug)]
pub struct Engagement(PatchGroup);

impl Engagement {
    /// Adds all changes of this thread to the group until the result is dropped. A thread may be in
    /// several groups: its changes are added to each.
    #[must_use]
    pub fn enter(&self) -> Entered<'_> {
        ENTERED.with_borrow_mut(|entered| entered.push(self.0.clone()));
        Entered { engagement: self, thread: PhantomData }
    }

    /// As [`enter`](Self::enter), for a caller that cannot hold a borrow: an interface to another
    /// language, whose calls to begin and to end are two.
    #[must_use]
    pub fn enter_owned(self) -> EnteredAlone {
        ENTERED.with_borrow_mut(|entered| entered.push(self.0.clone()));
        EnteredAlone { engagement: self, thread: PhantomData }
    }

    /// Runs `changes` in the group.
    pub fn enter_for<R>(&self, changes: impl FnOnce() -> R) -> R {
        let _entered = self.enter();
        changes()
    }
}

impl Drop for Engagement {
    fn drop(&mut self) {
        self.0.0.engagements.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A thread that is in a group.
#[derive(Debug)]
pub struct Entered<'a> {
    engagement: &'a Engagement,
    /// Not to be sent to another thread.
    thread: PhantomData<*const ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        leave(&self.engagement.0);
    }
}

/// A thread that is in a group by an engagement of its own, which ends with it.
#[derive(Debug)]
pub struct EnteredAlone {
    engagement: Engagement,
    /// Not to be sent to another thread.
    thread: PhantomData<*const ()>,
}

impl Drop for EnteredAlone {
    fn drop(&mut self) {
        leave(&self.engagement.0);
    }
}

/// Takes this thread out of a group.
fn leave(left: &PatchGroup) {
    // A thread that ends may have dropped its list of groups before this.
    let _ = ENTERED.try_with(|entered| {
        let mut entered = entered.borrow_mut();
        let this = |group: &PatchGroup| Arc::ptr_eq(&group.0, &left.0);
        entered.iter().rposition(this).map(|at| entered.remove(at))
    });
}

/// The groups of an operation.
#[derive(Default)]
pub(crate) struct Joined(SmallVec<[PatchGroup; 1]>);

/// The patches of the operation in progress, as far as its groups need them.
#[derive(Debug, Default)]
pub(crate) struct Grouped {
    /// True if the operation is in a group.
    pub active: bool,
    /// The patches that all of its changes wait for.
    pub befores: SmallVec<[PatchId; 4]>,
    /// The ends of its groups when it began.
    pub ends: SmallVec<[PatchId; 1]>,
    /// Its changes.
    pub made: SmallVec<[PatchId; 8]>,
    /// The holds of the atomic groups that it is in.
    pub holds: SmallVec<[u64; 1]>,
    /// Number of blocks of the running transaction when it began.
    pub blocks_before: usize,
}

impl Joined {
    /// Notes in the state that the groups of this thread begin an operation.
    pub fn begin(shared: &Shared, state: &mut State) -> Self {
        let mut joined = Self::default();
        ENTERED.with_borrow(|entered| {
            let of_volume = entered.iter().filter(|g| std::ptr::eq(&*g.0.shared, shared));
            joined.0.extend(of_volume.cloned());
        });
        if !joined.0.is_empty() {
            state.grouped.active = true;
            let holds = joined.0.iter().filter_map(|group| match group.atomic()? {
                Atomic::Open(number) => Some(number),
                Atomic::New(_) | Atomic::Ended | Atomic::Cut => None,
            });
            state.grouped.holds = holds.collect();
            state.grouped.blocks_before = state.running_blocks();
            for group in &joined.0 {
                let members = group.0.members();
                state.grouped.ends.extend(members.end);
                for &id in &members.befores {
                    if !state.is_durable(id) && !state.grouped.befores.contains(&id) {
                        state.grouped.befores.push(id);
                    }
                }
            }
        }
        joined
    }

    /// Adds the changes of the operation to its groups.
    pub fn end(&self, state: &mut State) {
        if self.0.is_empty() {
            return;
        }
        let grouped = std::mem::take(&mut state.grouped);
        let blocks = state.running_blocks().saturating_sub(grouped.blocks_before);
        for &number in &grouped.holds {
            state.charge_hold(number, blocks);
        }
        if grouped.made.is_empty() {
            return;
        }
        for group in &self.0 {
            let mut members = group.0.members();
            members.end = Some(match members.end {
                Some(end) => state.extend_end(end, &grouped.made),
                None => state.join(&[&members.befores[..], &grouped.made].concat()),
            });
            if members.linear {
                members.divide(state);
            }
        }
    }
}

impl Shared {
    /// Returns the atomic groups that this thread is in.
    pub(crate) fn atomic_groups(&self) -> SmallVec<[PatchGroup; 1]> {
        ENTERED.with_borrow(|entered| {
            let of_volume = entered.iter().filter(|g| std::ptr::eq(&*g.0.shared, self));
            of_volume.filter(|group| group.atomic().is_some()).cloned().collect()
        })
    }
}

/// Returns true if changes of this thread are added to a group of any volume.
#[must_use]
pub fn in_patchgroup() -> bool {
    ENTERED.with_borrow(|entered| !entered.is_empty())
}

impl State {
    /// Notes a change of the operation in progress for its groups.
    pub fn note_grouped(&mut self, id: PatchId) {
        if self.grouped.active && self.grouped.made.last() != Some(&id) {
            self.grouped.made.push(id);
        }
    }

    /// Returns a patch that is durable once the present end of a group and these patches are. The
    /// present one takes them if nothing waits for it, as that makes no cycle: so a group has one patch
    /// for many operations.
    fn extend_end(&mut self, end: PatchId, made: &[PatchId]) -> PatchId {
        let Some(index) = self.open_end(end) else {
            return self.join(&[&[end], made].concat());
        };
        // Operations one after the other often share a patch.
        let newest: SmallVec<[u32; 8]> = self.graph.befores(index).take(8).collect();
        let made = made.iter().filter_map(|&id| self.graph.find(id));
        let made: SmallVec<[u32; 8]> = made.filter(|patch| !newest.contains(patch)).collect();
        self.add_befores(index, &made);
        end
    }

    /// Returns true for an end of a group that waits for a block which the operation in progress frees, and
    /// may wait for what frees it instead: a journal has that in the transaction of what gave the block, or
    /// else the end is that of the operation's own group, and nothing waits for it.
    ///
    /// Otherwise a file that comes and goes between two syncs of others, such as a rollback journal of
    /// SQLite without fsync, would be written for nothing: Subversion wrote four times as much.
    pub fn may_wait_for_removal(&self, end: u32) -> bool {
        let patch = &self.graph[end];
        if self.journal.is_some() {
            return patch.kind == Kind::Empty
                && !patch.sealed
                && Some(end) != self.running_commit();
        }
        self.grouped.ends.iter().any(|&id| self.open_end(id) == Some(end))
    }

    /// Returns the patch of an end that takes more befores.
    fn open_end(&self, end: PatchId) -> Option<u32> {
        let index = self.graph.find(end)?;
        let patch = &self.graph[index];
        let is_open = patch.kind == Kind::Empty && patch.afters == NONE && !patch.sealed;
        is_open.then_some(index)
    }

    /// Returns the befores of a change: those of the file system, and those of the groups.
    pub fn with_groups<'a>(
        &self,
        befores: &'a [PatchId],
        room: &'a mut SmallVec<[PatchId; 8]>,
    ) -> &'a [PatchId] {
        if self.grouped.befores.is_empty() {
            return befores;
        }
        room.extend(befores.iter().chain(&self.grouped.befores).copied());
        room
    }
}
