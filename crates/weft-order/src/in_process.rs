//! Atomic groups that can be aborted, on a volume that this process has opened itself. For a mount
//! [`OrderedFs`](crate::OrderedFs) finds the groups of a caller; here the calling thread says them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::Builder;

use rustix::io::Errno;
use weft_patch::{PatchGroup, PatchGroups};
use weft_vfs::FileSystem;

use crate::abort::{Abortable, Abortables};
use crate::client::{Error, Result};
use crate::commands::Failed;

/// An atomic group that can be aborted. A clone is the same group.
#[derive(Debug, Clone)]
pub struct UndoableGroup(Arc<Abortable>);

impl UndoableGroup {
    /// Returns the group as the engine knows it. It can be committed or synced, and others can depend on
    /// it, once its changes are [kept](UndoableGroups::keep).
    #[must_use]
    pub fn patchgroup(&self) -> &PatchGroup {
        &self.0.patchgroup
    }
}

/// The groups of a volume in process that can be aborted. All calls that change the volume go through
/// [`with_fs`](Self::with_fs).
pub struct UndoableGroups {
    abortables: Abortables,
    last: AtomicU32,
}

impl std::fmt::Debug for UndoableGroups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UndoableGroups").finish_non_exhaustive()
    }
}

impl UndoableGroups {
    /// Makes the groups of a file system: none at first.
    #[must_use]
    pub fn new(fs: Arc<dyn FileSystem>) -> Self {
        Self { abortables: Abortables::new(fs), last: AtomicU32::new(0) }
    }

    /// Makes a group. `groups` are those of the engine below the file system.
    ///
    /// # Errors
    /// [`Error::NotAtomic`], if the volume has no journal, or one that is too small, or cannot undo
    /// changes. [`Error::Refused`]: with `EMFILE` there are 64 such groups; with `EAGAIN` calls in progress
    /// took too long.
    pub fn create(&self, groups: &PatchGroups) -> Result<UndoableGroup> {
        let refused = |e| error("creation", e);
        let made = self.abortables.make(groups).map_err(refused)?;
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        self.abortables.add(number, made, None).map(UndoableGroup).map_err(refused)
    }

    /// Runs a call on the file system, of a thread that is in these groups: those of other volumes do not
    /// count.
    ///
    /// # Errors
    /// Those of the call; [`Busy`](weft_vfs::Error::Busy) if two of them are of this volume.
    pub fn with_fs<R>(
        &self,
        groups: &[UndoableGroup],
        call: impl FnOnce(&dyn FileSystem) -> weft_vfs::Result<R>,
    ) -> weft_vfs::Result<R> {
        let groups = groups.iter().map(|group| &*group.0);
        self.abortables.run(groups.filter(|group| self.abortables.has(group)), call)
    }

    /// Keeps the changes of a group: it can no longer be aborted.
    pub fn keep(&self, group: &UndoableGroup) {
        self.abortables.keep(group.0.number);
    }

    /// Keeps the changes of all groups.
    pub fn keep_all(&self) {
        self.abortables.keep_all();
    }

    /// Undoes the changes of a group, and ends it. Threads that are in it can change nothing more until
    /// they have left it.
    ///
    /// # Errors
    /// [`Error::Shared`]: nothing is undone, and its changes can still be kept. [`Error::Refused`]: with
    /// `EINVAL` it has ended; with another error a part could not be undone, and is kept.
    pub fn abort(&self, group: &UndoableGroup) -> Result<()> {
        let abort = || self.abortables.abort(group.0.number);
        // In a thread of its own: the undoing must not join the groups that this thread is in.
        let undone = std::thread::scope(|scope| {
            let thread = Builder::new().name("weft-undo".into()).spawn_scoped(scope, abort);
            let undone = thread.map(|thread| thread.join().map_err(|_| Errno::IO));
            undone.unwrap_or(Err(Errno::AGAIN))
        });
        match undone.map_err(Failed::from).flatten() {
            Ok(_) => Ok(()),
            Err(e) if e == Errno::BUSY.into() => Err(Error::Shared),
            Err(e) => Err(error("abort", e)),
        }
    }
}

fn error(what: &'static str, failed: Failed) -> Error {
    let errno = match failed {
        Failed::Errno(errno) => Errno::from_raw_os_error(errno),
        Failed::WouldWait => Errno::AGAIN,
    };
    match errno {
        Errno::OPNOTSUPP => Error::NotAtomic,
        errno => Error::Refused { what, source: errno.into() },
    }
}
