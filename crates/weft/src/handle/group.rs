//! A patchgroup as a handle: the same type for a volume that this process has opened, and for a mount.
//!
//! The groups that a thread is in are kept per thread: a caller that engages and disengages by two
//! calls, in another language, has no place for a guard.

use super::Volume;
use super::volume::Opened;
use crate::{Error, Result};
use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weft_order::{Fsync, MountedGroup, Scope};
use weft_patch::{EnteredAlone, PatchGroup, PatchGroupError};

thread_local! {
    /// The groups of volumes in process that this thread is in, with the sign that each is closed. No
    /// volume is held by it: a thread that ends could not close one.
    static ENGAGED: RefCell<Vec<(Arc<AtomicBool>, EnteredAlone)>> =
        const { RefCell::new(Vec::new()) };
}

/// Set while a group may be closed that some thread is in.
static CLOSED_ENGAGED: AtomicBool = AtomicBool::new(false);

/// A set of changes that are ordered as a whole ([`weft_patch::patchgroup`] says what that means), of
/// a volume in process or of a mount.
///
/// Dropping a group closes it: it takes no more changes, and the order of its changes stays.
#[derive(Debug)]
pub struct Group(Kind);

#[derive(Debug)]
enum Kind {
    InProcess(InProcess),
    Mounted(MountedGroup),
}

#[derive(Debug)]
struct InProcess {
    volume: Arc<Opened>,
    group: PatchGroup,
    /// True once the group is closed; also what tells one group from another.
    closed: Arc<AtomicBool>,
}

impl InProcess {
    /// Runs a call on the group while its volume is open.
    fn with<R>(&self, call: impl FnOnce(&PatchGroup) -> Result<R>) -> Result<R> {
        self.volume.with(|_| call(&self.group))
    }
}

/// Takes this thread out of the groups that another thread has closed.
pub(super) fn leave_closed() {
    if CLOSED_ENGAGED.load(Ordering::Acquire) {
        let _ = ENGAGED.try_with(|engaged| {
            engaged.borrow_mut().retain(|(closed, _)| !closed.load(Ordering::Acquire));
        });
    }
}

impl From<PatchGroupError> for Error {
    fn from(e: PatchGroupError) -> Self {
        Self::Group(e.into())
    }
}

impl Group {
    /// Makes a group of an opened volume. It takes the changes that engaged threads make through
    /// [`Volume`] and [`File`](super::File).
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::File`] with `EROFS` if the volume is not open for writing.
    pub fn on_volume(volume: &Volume) -> Result<Self> {
        let group = volume.0.with(|stack| match stack.engine() {
            Some(engine) if !stack.is_read_only() => Ok(PatchGroup::new(engine)),
            _ => Err(Error::file("make a patchgroup of", b"/", weft_vfs::Error::ReadOnly)),
        })?;
        let volume = Arc::clone(&volume.0);
        let closed = Arc::new(AtomicBool::new(false));
        Ok(Self(Kind::InProcess(InProcess { volume, group, closed })))
    }

    /// Makes a group of the mount that `path` is on, a file or directory. It takes the changes that
    /// engaged threads make by system calls.
    ///
    /// # Errors
    /// [`Error::MountedGroup`].
    pub fn on_mount(path: &Path) -> Result<Self> {
        Ok(Self(Kind::Mounted(MountedGroup::new(path)?)))
    }

    /// Makes this group depend on another of the same volume or mount: none of its changes is durable
    /// before all changes of the other are. The other takes no more changes from now on.
    ///
    /// # Errors
    /// `EXDEV` for a group of another volume, `EDEADLK` for itself, `EBUSY` if this group takes
    /// changes already or the other is engaged.
    pub fn depend(&self, before: &Self) -> Result<()> {
        match (&self.0, &before.0) {
            (Kind::InProcess(after), Kind::InProcess(before)) => {
                after.with(|after| Ok(after.depend(&before.group)?))
            }
            (Kind::Mounted(after), Kind::Mounted(before)) => Ok(after.depend(before)?),
            _ => Err(PatchGroupError::OtherVolume.into()),
        }
    }

    /// Ends the dependencies of this group; the first engagement does it too.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::MountedGroup`].
    pub fn release(&self) -> Result<()> {
        match &self.0 {
            Kind::InProcess(group) => group.with(|group| {
                group.release();
                Ok(())
            }),
            Kind::Mounted(group) => Ok(group.release()?),
        }
    }

    /// Adds the changes that this thread makes from now on to the group, until
    /// [`disengage`](Self::disengage). A thread that is engaged already stays so; one may be in several
    /// groups.
    ///
    /// # Errors
    /// `EBUSY` if another group depends on this one.
    pub fn engage(&self) -> Result<()> {
        match &self.0 {
            Kind::InProcess(group) => group.with(|patchgroup| {
                ENGAGED.with_borrow_mut(|engaged| {
                    if !engaged.iter().any(|(known, _)| Arc::ptr_eq(known, &group.closed)) {
                        let entered = patchgroup.engage()?.enter_owned();
                        engaged.push((Arc::clone(&group.closed), entered));
                    }
                    Ok(())
                })
            }),
            Kind::Mounted(group) => Ok(group.engage(Scope::Thread, Fsync::Wait)?),
        }
    }

    /// Ends what [`engage`](Self::engage) has begun in this thread, if it has.
    ///
    /// # Errors
    /// [`Error::MountedGroup`].
    pub fn disengage(&self) -> Result<()> {
        match &self.0 {
            Kind::InProcess(group) => {
                leave(&group.closed);
                Ok(())
            }
            Kind::Mounted(group) => Ok(group.disengage(Scope::Thread)?),
        }
    }

    /// Runs `changes` with this thread engaged.
    ///
    /// # Errors
    /// Those of [`engage`](Self::engage), before anything is done.
    pub fn enter_for<R>(&self, changes: impl FnOnce() -> R) -> Result<R> {
        struct Disengaged<'a>(&'a Group);
        impl Drop for Disengaged<'_> {
            fn drop(&mut self) {
                // The mount may have ended.
                let _ = self.0.disengage();
            }
        }
        self.engage()?;
        let _disengaged = Disengaged(self);
        Ok(changes())
    }

    /// Orders the changes of the group from now on after those until now.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::MountedGroup`].
    pub fn barrier(&self) -> Result<()> {
        match &self.0 {
            Kind::InProcess(group) => group.with(|group| {
                group.barrier();
                Ok(())
            }),
            Kind::Mounted(group) => Ok(group.barrier()?),
        }
    }

    /// Waits until the changes of the group are durable, and what they depend on; no others are written
    /// for it.
    ///
    /// # Errors
    /// The error of the device, if it failed; [`Error::Closed`].
    pub fn sync(&self) -> Result<()> {
        match &self.0 {
            Kind::InProcess(group) => group.with(|group| Ok(group.sync()?)),
            Kind::Mounted(group) => Ok(group.sync()?),
        }
    }

    /// Returns true if they are.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::MountedGroup`].
    pub fn is_durable(&self) -> Result<bool> {
        match &self.0 {
            Kind::InProcess(group) => group.with(|group| Ok(group.is_durable())),
            Kind::Mounted(group) => Ok(group.is_durable()?),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Kind::InProcess(group) = &self.0 {
            group.closed.store(true, Ordering::Release);
            leave(&group.closed);
            // Another thread is in the group as long as it holds it.
            if Arc::strong_count(&group.closed) > 1 {
                CLOSED_ENGAGED.store(true, Ordering::Release);
            }
        }
    }
}

/// Takes this thread out of a group.
fn leave(left: &Arc<AtomicBool>) {
    let _ = ENGAGED.try_with(|engaged| {
        engaged.borrow_mut().retain(|(closed, _)| !Arc::ptr_eq(closed, left));
    });
}
