//! Atomic groups that can be aborted: their changes are undone, by a command, or as their process has
//! ended without a commit.
//!
//! A file or name that both the group and another process have changed cannot be undone without undoing
//! the other's change: the group is *shared* then, and its changes stay.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hashbrown::{HashMap, HashSet};
use rustix::io::Errno;
use smallvec::{SmallVec, smallvec};
use weft_patch::{AtomicLimits, Engagement, PatchGroup, PatchGroupError, PatchGroups};
use weft_vfs::{Caller, Error, FileSystem, Ino, Invalidate, Result};

use crate::atomic_file::BLOCKS_MIN;
use crate::commands::Failed;
use crate::process::Process;
use crate::recording::Recording;
use crate::undo::{Name, UndoLog, Undone};

/// The most such groups of a mount at a time.
const GROUPS_MAX: usize = 64;
/// The longest time for which the beginning of a group waits for calls in progress.
const CALLS_MAX: Duration = Duration::from_secs(2);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The inodes and names that a call changes.
#[derive(Debug, Default, Clone)]
pub(crate) struct Touch {
    inodes: SmallVec<[Ino; 1]>,
    names: SmallVec<[Name; 2]>,
}

impl Touch {
    pub fn inode(ino: Ino) -> Self {
        Self { inodes: smallvec![ino], ..Self::default() }
    }

    pub fn name(dir: Ino, name: &[u8]) -> Self {
        Self::names(smallvec![(dir, name.to_vec())])
    }

    pub fn names(names: SmallVec<[Name; 2]>) -> Self {
        Self { names, ..Self::default() }
    }

    fn meets(&self, other: &Self) -> bool {
        self.inodes.iter().any(|ino| other.inodes.contains(ino))
            || self.names.iter().any(|name| other.names.contains(name))
    }
}

/// The inodes and names that a group has changed.
#[derive(Debug, Default)]
struct Touched {
    inodes: HashSet<Ino>,
    names: HashSet<Name>,
    /// The inodes that it made: a name in one of them by others is shared, too.
    made: HashSet<Ino>,
    shared: bool,
    /// Set while its changes are undone.
    undoing: bool,
}

impl Touched {
    fn add(&mut self, touch: &Touch) {
        self.inodes.extend(&touch.inodes);
        self.names.extend(touch.names.iter().cloned());
    }

    fn meets(&self, touch: &Touch) -> bool {
        touch.inodes.iter().any(|ino| self.inodes.contains(ino) || self.made.contains(ino))
            || touch
                .names
                .iter()
                .any(|name| self.names.contains(name) || self.made.contains(&name.0))
    }
}

#[derive(Debug, Default)]
struct Calls {
    last: u64,
    /// The calls in progress, with the groups of their callers.
    in_progress: HashMap<u64, (Option<u32>, Touch)>,
    groups: HashMap<u32, Touched>,
}

/// The changes of open groups, and the calls in progress that may meet them.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    calls: Mutex<Calls>,
    /// Notified when a group has been undone.
    undone: Condvar,
}

impl Sharing {
    /// Notes a call that begins, of a caller in this group. Returns its number. Waits while changes are
    /// undone that it would change.
    ///
    /// # Errors
    /// [`Error::WouldBlock`], in a thread that must not wait.
    pub fn begin(&self, group: Option<u32>, touch: Touch) -> Result<u64> {
        let mut calls = locked(&self.calls);
        while calls.groups.values().any(|touched| touched.undoing && touched.meets(&touch)) {
            weft_patch::about_to_wait().map_err(|_| Error::WouldBlock)?;
            calls = self.undone.wait(calls).unwrap_or_else(PoisonError::into_inner);
        }
        calls.last += 1;
        let ticket = calls.last;
        calls.note(ticket, group, &touch);
        calls.in_progress.insert(ticket, (group, touch));
        Ok(ticket)
    }

    /// Adds to what a call changes.
    pub fn touch(&self, ticket: u64, touch: &Touch) {
        let mut calls = locked(&self.calls);
        let Some((group, _)) = calls.in_progress.get(&ticket) else { return };
        let group = *group;
        calls.note(ticket, group, touch);
        if let Some((_, all)) = calls.in_progress.get_mut(&ticket) {
            all.inodes.extend_from_slice(&touch.inodes);
            all.names.extend(touch.names.iter().cloned());
        }
    }

    /// Notes that a call has made an inode. Its number may be one that had another inode before.
    pub fn made(&self, ticket: u64, ino: Ino) {
        let mut calls = locked(&self.calls);
        let Some(&(of, _)) = calls.in_progress.get(&ticket) else { return };
        for (&group, touched) in &mut calls.groups {
            if Some(group) == of {
                touched.made.insert(ino);
            } else if touched.inodes.contains(&ino) || touched.made.contains(&ino) {
                touched.shared = true;
            }
        }
    }

    pub fn end(&self, ticket: u64) {
        locked(&self.calls).in_progress.remove(&ticket);
    }

    fn add_group(&self, number: u32) {
        locked(&self.calls).groups.insert(number, Touched::default());
    }

    fn remove_group(&self, number: u32) {
        locked(&self.calls).groups.remove(&number);
        self.undone.notify_all();
    }

    /// Begins to undo the changes of a group, until it is removed. Returns false if others have changed
    /// what it has changed.
    fn begin_undoing(&self, number: u32) -> bool {
        let mut calls = locked(&self.calls);
        let Some(touched) = calls.groups.get_mut(&number) else { return true };
        touched.undoing = !touched.shared;
        touched.undoing
    }
}

impl Calls {
    fn note(&mut self, ticket: u64, of: Option<u32>, touch: &Touch) {
        let met = self
            .in_progress
            .iter()
            .any(|(&other, (group, also))| other != ticket && *group != of && touch.meets(also));
        for (&group, touched) in &mut self.groups {
            if Some(group) == of {
                touched.add(touch);
                touched.shared |= met;
            } else {
                touched.shared |= touched.meets(touch);
            }
        }
    }
}

/// An atomic group that can be aborted.
#[derive(Debug)]
pub(crate) struct Abortable {
    pub number: u32,
    pub patchgroup: PatchGroup,
    pub log: Mutex<UndoLog>,
    pub block_bytes: u32,
    /// `None` if the volume is open in this process only.
    owner: Option<Process>,
    /// By which the changes are undone, in the group. `None` once it has ended.
    engagement: Mutex<Option<Engagement>>,
    open: AtomicBool,
}

impl Abortable {
    /// Returns true until it has ended. To be asked with its log locked.
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }
}

/// The atomic groups of a volume that can be aborted.
pub(crate) struct Abortables {
    below: Arc<dyn FileSystem>,
    groups: Mutex<HashMap<u32, Arc<Abortable>>>,
    /// Number of groups, those included that are being made.
    count: AtomicUsize,
    /// Number of calls in progress of which [`Sharing`] does not know.
    unnoted: AtomicUsize,
    sharing: Sharing,
    sink: Mutex<Option<Arc<dyn Invalidate>>>,
}

/// A call in progress that began when there were no groups.
pub(crate) struct Unnoted<'a>(&'a Abortables);

impl Drop for Unnoted<'_> {
    fn drop(&mut self) {
        self.0.unnoted.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Abortables {
    pub fn new(below: Arc<dyn FileSystem>) -> Self {
        Self {
            below,
            groups: Mutex::default(),
            count: AtomicUsize::new(0),
            unnoted: AtomicUsize::new(0),
            sharing: Sharing::default(),
            sink: Mutex::default(),
        }
    }

    /// Runs a call of a caller who is in these groups. It is recorded if the volume has such groups.
    ///
    /// # Errors
    /// Those of the call; [`Error::Busy`] for two groups: the log of one would not have what the other
    /// undoes.
    pub fn run<'a, R>(
        &self,
        mut groups: impl Iterator<Item = &'a Abortable>,
        call: impl FnOnce(&dyn FileSystem) -> Result<R>,
    ) -> Result<R> {
        if let Some(_call) = self.begin_unnoted() {
            return call(&*self.below);
        }
        let group = groups.next();
        if groups.any(|other| group.is_some_and(|group| group.number != other.number)) {
            return Err(Error::Busy);
        }
        call(&Recording { below: &*self.below, sharing: &self.sharing, group })
    }

    /// Begins a call if there are no such groups; otherwise it must be recorded.
    fn begin_unnoted(&self) -> Option<Unnoted<'_>> {
        self.unnoted.fetch_add(1, Ordering::SeqCst);
        let call = Unnoted(self);
        (self.count.load(Ordering::SeqCst) == 0).then_some(call)
    }

    /// Returns true if changes of this volume can be undone.
    fn is_supported(&self) -> bool {
        let root = self.below.root();
        // The root has a name, and nothing is done.
        let answer = self.below.restore_name(&Caller::ROOT, root, root, b"..");
        !matches!(answer, Err(Error::Unsupported(_))) && !self.below.is_stateful()
    }

    /// Makes a patchgroup whose changes can be undone.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the volume has no journal, or one that is too small, or cannot undo changes.
    pub fn make(&self, groups: &PatchGroups) -> Result<PatchGroup, Failed> {
        let made = groups.create_atomic(AtomicLimits::default())?;
        let is_large = made.atomic_blocks_left().is_some_and(|left| left >= BLOCKS_MIN);
        if is_large && self.is_supported() {
            return Ok(made);
        }
        Err(PatchGroupError::NotAtomic.into())
    }

    /// Waits until each call in progress is one that is noted, and adds a group.
    ///
    /// # Errors
    /// `EMFILE` for too many; `EAGAIN` where calls take too long; `EBUSY` if others depend on the group.
    pub fn add(
        &self,
        number: u32,
        patchgroup: PatchGroup,
        owner: Option<Process>,
    ) -> Result<Arc<Abortable>, Failed> {
        let block_bytes = self.below.statfs().map_or(512, |space| space.block_bytes);
        let engagement = patchgroup.engage()?;
        let uncount = || self.count.fetch_sub(1, Ordering::SeqCst);
        if self.count.fetch_add(1, Ordering::SeqCst) >= GROUPS_MAX {
            uncount();
            return Err(Errno::MFILE.into());
        }
        let until = Instant::now() + CALLS_MAX;
        while self.unnoted.load(Ordering::SeqCst) > 0 {
            let waits = weft_patch::about_to_wait();
            if waits.is_err() || Instant::now() > until {
                uncount();
                waits?;
                return Err(Errno::AGAIN.into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let group = Arc::new(Abortable {
            number,
            patchgroup,
            log: Mutex::default(),
            block_bytes,
            owner,
            engagement: Mutex::new(Some(engagement)),
            open: AtomicBool::new(true),
        });
        self.sharing.add_group(number);
        locked(&self.groups).insert(number, Arc::clone(&group));
        Ok(group)
    }

    pub fn get(&self, number: u32) -> Option<Arc<Abortable>> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        locked(&self.groups).get(&number).cloned()
    }

    /// Returns true for a group of this volume that has not ended.
    pub fn has(&self, group: &Abortable) -> bool {
        self.get(group.number).is_some_and(|own| std::ptr::eq(&raw const *own, group))
    }

    /// Ends a group whose changes stay.
    pub fn keep(&self, number: u32) {
        let Some(group) = self.get(number) else { return };
        let mut log = locked(&group.log);
        self.remove(&group);
        log.end(&*self.below);
    }

    /// Ends all groups, and their changes stay.
    pub fn keep_all(&self) {
        self.numbers().into_iter().for_each(|number| self.keep(number));
    }

    fn numbers(&self) -> Vec<u32> {
        locked(&self.groups).keys().copied().collect()
    }

    fn remove(&self, group: &Abortable) {
        group.open.store(false, Ordering::Release);
        locked(&group.engagement).take();
        if locked(&self.groups).remove(&group.number).is_some() {
            self.sharing.remove_group(group.number);
            self.count.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Undoes the changes of a group, and ends it. Returns what to announce.
    ///
    /// # Errors
    /// `EBUSY` if others have changed what it has changed: it stays open; `EINVAL` if it cannot be
    /// aborted, or has ended; the error of an undoing that failed: it has ended, and a part of its
    /// changes is kept.
    pub fn abort(&self, number: u32) -> Result<Undone, Failed> {
        weft_patch::about_to_wait()?;
        let group = self.get(number).ok_or(Errno::INVAL)?;
        let mut log = locked(&group.log);
        if !group.is_open() {
            return Err(Errno::INVAL.into());
        }
        if !self.sharing.begin_undoing(number) {
            return Err(Errno::BUSY.into());
        }
        let engagement = locked(&group.engagement).take();
        let undone = match &engagement {
            Some(engagement) if group.patchgroup.atomic_blocks_left().is_some() => {
                engagement.enter_for(|| log.undo(&*self.below))
            }
            // Cut: a part may be durable, and is undone as any change is made.
            _ => log.undo(&*self.below),
        };
        group.patchgroup.end();
        drop(engagement);
        self.remove(&group);
        log.end(&*self.below);
        undone.map_err(|e| {
            tracing::error!("an atomic patchgroup could not be undone, and is kept in part: {e}");
            Failed::Errno(e.errno())
        })
    }

    pub fn set_invalidate(&self, sink: Arc<dyn Invalidate>) {
        *locked(&self.sink) = Some(sink);
    }

    /// Announces what was undone to the caches above, and waits for that: who has aborted a group looks
    /// at once.
    pub fn announce(&self, undone: Undone) {
        let Some(sink) = locked(&self.sink).clone() else { return };
        for (dir, name) in undone.names {
            sink.entry(dir, &name);
            sink.inode(dir, true);
        }
        undone.inodes.into_iter().for_each(|ino| sink.inode(ino, true));
        sink.settle();
    }

    /// Undoes the changes of processes that have ended. Returns the other processes that have groups.
    pub fn sweep(&self) -> Vec<Arc<OwnedFd>> {
        let groups: Vec<_> = locked(&self.groups).values().cloned().collect();
        let owned = groups.iter().filter_map(|group| Some((group.number, group.owner.as_ref()?)));
        let (alive, ended): (Vec<_>, Vec<_>) = owned.partition(|(_, owner)| owner.is_alive());
        ended.into_iter().for_each(|(number, _)| self.undo_or_keep(number));
        alive.into_iter().map(|(_, owner)| Arc::clone(&owner.ended)).collect()
    }

    /// Undoes the changes of all groups.
    pub fn undo_all(&self) {
        self.numbers().into_iter().for_each(|number| self.undo_or_keep(number));
    }

    /// Undoes the changes of a group that nobody will commit; those that others share are kept.
    fn undo_or_keep(&self, number: u32) {
        match self.abort(number) {
            Ok(undone) => self.announce(undone),
            Err(_) => self.keep(number),
        }
    }
}
