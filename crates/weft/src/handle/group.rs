//! A patchgroup as a handle: the same type for a volume that this process has opened, and for a mount.
//!
//! The groups that a thread is in are kept per thread: a caller that engages and disengages by two
//! calls, in another language, has no place for a guard.

use super::Volume;
use super::volume::{Open, Opened};
use crate::{Error, Result};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use weft_order::{Fsync, Kind, MountedGroup, Scope, UndoableGroup};
use weft_patch::{AtomicLimits, EnteredAlone, PatchGroup, PatchGroupError};

thread_local! {
    /// The groups of volumes in process that this thread is in. No volume is held open by it: a thread
    /// that ends could not close one.
    static ENGAGED: RefCell<Vec<(Arc<Member>, EnteredAlone)>> =
        const { RefCell::new(Vec::new()) };
}

/// The bytes that can be read once a group is durable: as many as a mount writes.
const TOLD_BYTES: usize = 4;

/// Set once a group has ended, which some thread may be in.
static ENDED_ENGAGED: AtomicBool = AtomicBool::new(false);

/// A set of changes that are ordered as a whole ([`weft_patch::patchgroup`] says what that means), of
/// a volume in process or of a mount.
///
/// Dropping a group closes it: it takes no more changes, and the order of its changes stays.
#[derive(Debug)]
pub struct Group(Of);

#[derive(Debug)]
enum Of {
    InProcess(InProcess),
    Mounted(MountedGroup),
}

#[derive(Debug)]
struct InProcess {
    volume: Arc<Opened>,
    member: Arc<Member>,
}

/// A group, as its volume and the threads in it know it.
#[derive(Debug)]
pub(super) struct Member {
    /// Set once threads that are in it have to leave.
    ended: AtomicBool,
    /// `None` once it is closed: it would keep the device of a closed volume open, and locked.
    made: Mutex<Option<Made>>,
}

#[derive(Debug, Clone)]
struct Made {
    group: PatchGroup,
    /// The same group, if it can be aborted.
    undoable: Option<UndoableGroup>,
}

impl Member {
    /// Closes the group. Threads that are in it leave at their next call; an atomic one ends at once, as
    /// others would wait for that.
    pub fn close(&self) {
        self.end();
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner).take();
        made.inspect(|made| made.group.end());
    }

    fn made(&self) -> Option<Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the engagements: threads that are in the group leave at their next call.
    fn end(&self) {
        self.ended.store(true, Ordering::Release);
        ENDED_ENGAGED.store(true, Ordering::Release);
    }
}

impl InProcess {
    /// Runs a call on the group while its volume is open.
    fn with<R>(&self, call: impl FnOnce(&PatchGroup) -> Result<R>) -> Result<R> {
        self.with_volume(|_, made| call(&made.group))
    }

    fn with_volume<R>(&self, call: impl FnOnce(&Open, &Made) -> Result<R>) -> Result<R> {
        let closed = Error::Closed("the patchgroup");
        self.volume.with(|open| call(open, &self.member.made().ok_or(closed)?))
    }

    /// Runs a call that ends the group, if it is atomic: it can no longer be aborted then.
    fn end_with<R>(&self, call: impl FnOnce(&PatchGroup) -> Result<R>) -> Result<R> {
        self.with_volume(|open, made| {
            if let Some(undoable) = &made.undoable {
                // Each thread that is in it holds it, too.
                if Arc::strong_count(&self.member) > 1 {
                    return Err(PatchGroupError::Engaged.into());
                }
                open.undoable.keep(undoable);
            }
            call(&made.group)
        })
    }
}

/// Takes this thread out of the groups that another thread has ended.
pub(super) fn leave_ended() {
    if ENDED_ENGAGED.load(Ordering::Acquire) {
        let _ = ENGAGED.try_with(|engaged| {
            engaged.borrow_mut().retain(|(member, _)| !member.ended.load(Ordering::Acquire));
        });
    }
}

/// Returns the groups that can be aborted which this thread is in.
pub(super) fn undoable_of_thread() -> SmallVec<[UndoableGroup; 1]> {
    let all = |engaged: &RefCell<Vec<(Arc<Member>, EnteredAlone)>>| {
        engaged.borrow().iter().filter_map(|(member, _)| member.made()?.undoable).collect()
    };
    ENGAGED.try_with(all).unwrap_or_default()
}

impl From<PatchGroupError> for Error {
    fn from(e: PatchGroupError) -> Self {
        Self::Group(e.into())
    }
}

impl Group {
    /// Makes an ordinary group of an opened volume. It takes the changes that engaged threads make through
    /// [`Volume`] and [`File`](super::File).
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::File`] with `EROFS` if the volume is not open for writing.
    pub fn on_volume(volume: &Volume) -> Result<Self> {
        Self::on_volume_of_kind(volume, Kind::Ordinary)
    }

    /// Makes a group of a kind. While an atomic one has changes and has not ended, a sync by others waits
    /// for its end, up to 5 seconds, and one by a thread in it so long, after which it is not atomic.
    ///
    /// # Errors
    /// As [`on_volume`](Self::on_volume); `EOPNOTSUPP` for [`Kind::Atomic`] without a journal, or with one
    /// that is too small. For [`Kind::Abortable`] [`Error::MountedGroup`], with `EOPNOTSUPP` for these
    /// and where changes cannot be undone (1,600 blocks of a journal are enough), with `EMFILE` for more
    /// than 64.
    pub fn on_volume_of_kind(volume: &Volume, kind: Kind) -> Result<Self> {
        let made = volume.0.with(|open| {
            let stack = &open.stack;
            let engine = stack.engine().filter(|_| !stack.is_read_only());
            let read_only = || Error::file("make a patchgroup of", b"/", weft_vfs::Error::ReadOnly);
            let groups = engine.ok_or_else(read_only)?.patchgroups();
            let group = match kind {
                Kind::Ordinary => groups.create(),
                Kind::Linear => groups.create_linear(),
                Kind::Atomic => groups.create_atomic(AtomicLimits::default())?,
                Kind::Abortable => {
                    let undoable = open.undoable.create(&groups)?;
                    let group = undoable.patchgroup().clone();
                    return Ok(Made { group, undoable: Some(undoable) });
                }
            };
            Ok(Made { group, undoable: None })
        })?;
        let made = Mutex::new(Some(made));
        let member = Arc::new(Member { ended: AtomicBool::new(false), made });
        volume.0.add(&member)?;
        Ok(Self(Of::InProcess(InProcess { volume: Arc::clone(&volume.0), member })))
    }

    /// Makes an ordinary group of the mount that `path` is on, a file or directory. It takes the changes
    /// that engaged threads make by system calls.
    ///
    /// # Errors
    /// [`Error::MountedGroup`].
    pub fn on_mount(path: &Path) -> Result<Self> {
        Self::on_mount_of_kind(path, Kind::Ordinary)
    }

    /// Makes a group of a kind.
    ///
    /// # Errors
    /// [`Error::MountedGroup`]: with `EOPNOTSUPP` the volume has no journal, or too small a one, or its
    /// changes cannot be undone; with `EPERM` the caller may not make an atomic group.
    pub fn on_mount_of_kind(path: &Path, kind: Kind) -> Result<Self> {
        Ok(Self(Of::Mounted(MountedGroup::of_kind(path, kind)?)))
    }

    /// Makes this group depend on another of the same volume or mount: none of its changes is durable
    /// before all changes of the other are. The other takes no more changes from now on.
    ///
    /// # Errors
    /// `EXDEV` for a group of another volume, `EDEADLK` for itself, `EBUSY` if this group takes
    /// changes already or the other is engaged.
    pub fn depend(&self, before: &Self) -> Result<()> {
        match (&self.0, &before.0) {
            (Of::InProcess(after), Of::InProcess(before)) => {
                // One after the other: a volume that is being closed admits no further call meanwhile.
                let after = after.with(|after| Ok(after.clone()))?;
                before.end_with(|before| Ok(after.depend(before)?))
            }
            (Of::Mounted(after), Of::Mounted(before)) => Ok(after.depend(before)?),
            _ => Err(PatchGroupError::OtherVolume.into()),
        }
    }

    /// Ends the dependencies of this group; the first engagement does it too.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::MountedGroup`].
    pub fn release(&self) -> Result<()> {
        match &self.0 {
            Of::InProcess(group) => group.with(|group| {
                group.release();
                Ok(())
            }),
            Of::Mounted(group) => Ok(group.release()?),
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
            Of::InProcess(group) => group.with(|patchgroup| {
                ENGAGED.with_borrow_mut(|engaged| {
                    if !engaged.iter().any(|(known, _)| Arc::ptr_eq(known, &group.member)) {
                        let entered = patchgroup.engage()?.enter_owned();
                        engaged.push((Arc::clone(&group.member), entered));
                    }
                    Ok(())
                })
            }),
            Of::Mounted(group) => Ok(group.engage(Scope::Thread, Fsync::Wait)?),
        }
    }

    /// Ends what [`engage`](Self::engage) has begun in this thread, if it has.
    ///
    /// # Errors
    /// [`Error::MountedGroup`].
    pub fn disengage(&self) -> Result<()> {
        match &self.0 {
            Of::InProcess(group) => {
                leave(&group.member);
                Ok(())
            }
            Of::Mounted(group) => Ok(group.disengage(Scope::Thread)?),
        }
    }

    /// Gives the group a label, for people: `weft order --list` shows it for a mount. At most
    /// [`LABEL_BYTES_MAX`](weft_order::LABEL_BYTES_MAX) bytes without control characters.
    ///
    /// # Errors
    /// `EINVAL` for another text; [`Error::NeedsMount`] on a volume in process, whose groups nobody lists;
    /// [`Error::MountedGroup`].
    pub fn set_label(&self, label: &str) -> Result<()> {
        match &self.0 {
            Of::InProcess(_) => Err(Error::NeedsMount),
            Of::Mounted(group) => Ok(group.set_label(label)?),
        }
    }

    /// Adds the changes of a scope to the group, until [`disengage_scope`](Self::disengage_scope):
    /// [`engage`](Self::engage) is this with [`Scope::Thread`] and [`Fsync::Wait`]. `fsync` is the meaning
    /// of `fsync(2)` to the engaged.
    ///
    /// # Errors
    /// Those of [`engage`](Self::engage); [`Error::NeedsMount`] on a volume in process, which has no
    /// other scope and no other meaning.
    pub fn engage_scope(&self, scope: Scope, fsync: Fsync) -> Result<()> {
        match &self.0 {
            Of::InProcess(_) if (scope, fsync) == (Scope::Thread, Fsync::Wait) => self.engage(),
            Of::InProcess(_) => Err(Error::NeedsMount),
            Of::Mounted(group) => Ok(group.engage(scope, fsync)?),
        }
    }

    /// Ends what [`engage_scope`](Self::engage_scope) has begun in this thread or process, if it has.
    ///
    /// # Errors
    /// As [`engage_scope`](Self::engage_scope).
    pub fn disengage_scope(&self, scope: Scope) -> Result<()> {
        match &self.0 {
            Of::InProcess(_) if scope == Scope::Thread => self.disengage(),
            Of::InProcess(_) => Err(Error::NeedsMount),
            Of::Mounted(group) => Ok(group.disengage(scope)?),
        }
    }

    /// Adds the changes that are made by an open file of the mount to the group, by whichever process,
    /// and no others, until [`disengage_file`](Self::disengage_file) or until the file is closed. The mount
    /// needs the option `open_files`; see [`MountedGroup::engage_file`].
    ///
    /// # Errors
    /// Those of [`MountedGroup::engage_file`]; [`Error::NeedsMount`] on a volume in process.
    pub fn engage_file(&self, file: impl AsFd, fsync: Fsync) -> Result<()> {
        match &self.0 {
            Of::InProcess(_) => Err(Error::NeedsMount),
            Of::Mounted(group) => Ok(group.engage_file(file, fsync)?),
        }
    }

    /// Ends the engagement of an open file.
    ///
    /// # Errors
    /// As [`engage_file`](Self::engage_file).
    pub fn disengage_file(&self, file: impl AsFd) -> Result<()> {
        match &self.0 {
            Of::InProcess(_) => Err(Error::NeedsMount),
            Of::Mounted(group) => Ok(group.disengage_file(file)?),
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
            Of::InProcess(group) => group.with(|group| {
                group.barrier();
                Ok(())
            }),
            Of::Mounted(group) => Ok(group.barrier()?),
        }
    }

    /// Ends an atomic group: from now on a crash leaves all of its changes, or none. Nothing is written, and
    /// it takes no more changes. One that could be aborted is kept. Does nothing to other groups.
    ///
    /// # Errors
    /// `EBUSY` if it is engaged; `ETIMEDOUT` if it was open for longer than 5 seconds while others waited:
    /// its changes are kept, and a crash may have left a part of them. [`Error::Closed`].
    pub fn commit(&self) -> Result<()> {
        match &self.0 {
            Of::InProcess(group) => group.end_with(|group| Ok(group.commit()?)),
            Of::Mounted(group) => Ok(group.commit()?),
        }
    }

    /// Undoes all changes of a group of [`Kind::Abortable`], and ends it and its engagements.
    ///
    /// # Errors
    /// `EBUSY` if others have changed what the group has changed: nothing is undone, and it can still be
    /// committed. `EINVAL` for a group of another kind, and one that has ended. With another error a part
    /// could not be undone, and is kept.
    pub fn abort(&self) -> Result<()> {
        match &self.0 {
            Of::InProcess(group) => group.with_volume(|open, made| {
                let undoable = made.undoable.as_ref().ok_or(Error::NotUndoable)?;
                open.undoable.abort(undoable)?;
                group.member.end();
                leave(&group.member);
                Ok(())
            }),
            Of::Mounted(group) => Ok(group.abort()?),
        }
    }

    /// Returns the most blocks that an atomic group may still change: 0 if it has ended, was cut, or is
    /// not atomic. A change that could need more fails with `EFBIG`, before it has changed anything.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::MountedGroup`].
    pub fn blocks_left(&self) -> Result<u32> {
        match &self.0 {
            Of::InProcess(group) => group.with(|g| Ok(g.atomic_blocks_left().unwrap_or(0))),
            Of::Mounted(group) => Ok(group.blocks_left()?),
        }
    }

    /// Returns a descriptor that polls readable once the changes made in the group until now are durable,
    /// and what they depend on: four bytes can be read then, whose values have no meaning. Nothing is
    /// written to the disk for it: that happens by age, or by a sync. It is at its end of file, with
    /// nothing to read, if the volume or the mount ends before.
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::Host`] if there is no descriptor left. [`Error::MountedGroup`]: with
    /// `EACCES` the mount is of another user, who is not root; with `EMFILE` 512 of the mount wait.
    pub fn tell_durable(&self) -> Result<OwnedFd> {
        match &self.0 {
            Of::InProcess(group) => group.with(|group| {
                // Not a pipe: a write to one that nobody reads any more is a signal, which ends a program
                // in C.
                let made =
                    socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
                let (told, tells) = made.map_err(|e| Error::host("make", "a socket pair", e))?;
                group.when_durable(move || {
                    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                    // Nobody may read it any more.
                    let _ = send(&tells, &[0; TOLD_BYTES], flags);
                });
                Ok(told)
            }),
            Of::Mounted(group) => Ok(group.tell_durable()?),
        }
    }

    /// Waits until the changes of the group are durable, and what they depend on; no others are written
    /// for it. An atomic group [ends](Self::commit) first.
    ///
    /// # Errors
    /// The error of the device, if it failed; those of [`commit`](Self::commit).
    pub fn sync(&self) -> Result<()> {
        match &self.0 {
            Of::InProcess(group) => group.end_with(|group| Ok(group.sync()?)),
            Of::Mounted(group) => Ok(group.sync()?),
        }
    }

    /// Returns true if they are.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::MountedGroup`].
    pub fn is_durable(&self) -> Result<bool> {
        match &self.0 {
            Of::InProcess(group) => group.with(|group| Ok(group.is_durable())),
            Of::Mounted(group) => Ok(group.is_durable()?),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Of::InProcess(group) = &self.0 {
            leave(&group.member);
            if group.volume.demand_owner().is_err() {
                return;
            }
            // If it or the volume is closed, its changes are kept already.
            let _ = group.with_volume(|open, made| {
                made.undoable.iter().for_each(|undoable| open.undoable.keep(undoable));
                Ok(())
            });
            // Another thread that is in the group holds it.
            if Arc::strong_count(&group.member) > 1 {
                group.member.close();
            }
        }
    }
}

/// Takes this thread out of a group.
fn leave(left: &Arc<Member>) {
    let _ = ENGAGED.try_with(|engaged| {
        engaged.borrow_mut().retain(|(member, _)| !Arc::ptr_eq(member, left));
    });
}
