//! Groups for a program on a mount, by `ioctl(2)`, which is `unsafe` as the kernel writes as much memory
//! as the number of the command says.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::ioctl::{Updater, ioctl};
use rustix::pipe::{PipeFlags, pipe_with};

use weft_patch::OwnerProcess;

use crate::commands::{self, Covered, Fsync, Kind, Scope, encode};
use crate::listing::{LABEL_ARGUMENT_BYTES, LISTED_BYTES, ListedGroup, encode_label, is_label};

/// An error of a group on a mount.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The directory could not be opened.
    #[error("cannot open {path}: {source}")]
    Open {
        /// The directory.
        path: String,
        /// The reason.
        source: io::Error,
    },
    /// The directory is on no mount with groups.
    #[error("not on a volume that weft has mounted for writing")]
    NoGroups,
    /// An atomic group was asked for on a volume without a journal, or with too small a one.
    #[error("atomic changes need a volume with a journal of at least some mebibytes")]
    NotAtomic,
    /// A single open file was to be engaged on a mount that does not know open files apart.
    #[error("this mount does not know open files apart: mount it with -o open_files")]
    NoOpenFiles,
    /// An atomic group was open for too long while others waited for it: a power cut before this may
    /// have left a part of its changes.
    #[error("the changes took longer than 5 seconds while others waited, and are not atomic")]
    Cut,
    /// Others have changed what an atomic group has changed, too: it is not undone.
    #[error("others have changed what was changed here, too: it is not undone")]
    Shared,
    /// The mount refused the command: see [`commands`] for the errors.
    #[error("{what} of a patchgroup: {source}")]
    Refused {
        /// The command.
        what: &'static str,
        /// The reason.
        source: io::Error,
    },
}

impl Error {
    /// Returns the errno of this error: see [`commands`].
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Open { source, .. } | Self::Refused { source, .. } => {
                source.raw_os_error().unwrap_or(Errno::IO.raw_os_error())
            }
            Self::NoGroups => Errno::NOTTY.raw_os_error(),
            Self::NotAtomic | Self::NoOpenFiles => Errno::OPNOTSUPP.raw_os_error(),
            Self::Cut => Errno::TIMEDOUT.raw_os_error(),
            Self::Shared => Errno::BUSY.raw_os_error(),
        }
    }
}

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A group of a mount: what [`PatchGroup`](weft_patch::PatchGroup) is in process. It belongs to the
/// process that made it; dropping it there closes it, and the order of its changes stays. Dropping the copy
/// that a child of `fork` has does nothing.
#[derive(Debug)]
pub struct MountedGroup {
    directory: Arc<File>,
    number: u32,
    owner: OwnerProcess,
}

impl MountedGroup {
    /// Makes a group of the mount that `directory` is on.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::NoGroups`], [`Error::Refused`].
    pub fn new(directory: &Path) -> Result<Self> {
        Self::of_kind(directory, Kind::Ordinary)
    }

    /// Makes a group of a kind.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`Error::NotAtomic`].
    pub fn of_kind(directory: &Path, kind: Kind) -> Result<Self> {
        Self::on(&Arc::new(open(directory)?), kind)
    }

    /// Makes another group of the same mount, an ordinary one.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn another(&self) -> Result<Self> {
        Self::on(&self.directory, Kind::Ordinary)
    }

    fn on(directory: &Arc<File>, kind: Kind) -> Result<Self> {
        let argument = [0, kind.encode()];
        let [number, _] =
            command::<{ commands::CREATE }, _>(directory.as_fd(), argument, "creation")?;
        Ok(Self { directory: Arc::clone(directory), number, owner: OwnerProcess::this() })
    }

    /// Makes this group depend on another one of the same mount.
    ///
    /// # Errors
    /// [`Error::Refused`], with `EXDEV` for a group of another mount.
    pub fn depend(&self, before: &Self) -> Result<()> {
        // The number of a group of another mount may be that of one here, too.
        if !Arc::ptr_eq(&self.directory, &before.directory) {
            self.check_is_here(before.directory.as_fd(), "dependency")?;
        }
        self.command::<{ commands::DEPEND }>(before.number, "dependency").map(drop)
    }

    /// Fails if a file is on another mount: a number of a group here may be that of one there, too.
    fn check_is_here(&self, file: BorrowedFd<'_>, what: &'static str) -> Result<()> {
        let refused = |source| Error::Refused { what, source };
        let device = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).map(|found| found.st_dev);
        let device = |fd| device(fd).map_err(|e| refused(e.into()));
        if device(self.directory.as_fd())? == device(file)? {
            return Ok(());
        }
        Err(refused(Errno::XDEV.into()))
    }

    /// Ends the dependencies of this group.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn release(&self) -> Result<()> {
        self.command::<{ commands::RELEASE }>(0, "release").map(drop)
    }

    /// Adds the changes of the caller to the group, until [`disengage`](Self::disengage), or until the
    /// group is dropped, or the process ends. It survives `execve(2)`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn engage(&self, scope: Scope, fsync: Fsync) -> Result<()> {
        let value = encode(Covered::Scope(scope), fsync);
        self.command::<{ commands::ENGAGE }>(value, "engagement").map(drop)
    }

    /// Ends an engagement.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn disengage(&self, scope: Scope) -> Result<()> {
        let value = encode(Covered::Scope(scope), Fsync::Wait);
        self.command::<{ commands::DISENGAGE }>(value, "end of the engagement").map(drop)
    }

    /// Adds the changes that are made by an open file of this mount to the group, by whichever process,
    /// and no others: until [`disengage_file`](Self::disengage_file), until the group is dropped, or until
    /// the last descriptor of it is closed (the mount is told of that a moment later). `fsync` is the
    /// meaning of fsync to this file.
    ///
    /// # Errors
    /// [`Error::NoOpenFiles`]; [`Error::NoGroups`] for a file whose content is transformed;
    /// [`Error::Refused`], with `EINVAL` for a directory, and `EXDEV` for a file of another mount.
    pub fn engage_file(&self, file: impl AsFd, fsync: Fsync) -> Result<()> {
        self.command_on_file::<{ commands::ENGAGE }>(file.as_fd(), fsync, "engagement")
    }

    /// Ends the engagement of an open file.
    ///
    /// # Errors
    /// As [`engage_file`](Self::engage_file).
    pub fn disengage_file(&self, file: impl AsFd) -> Result<()> {
        let what = "end of the engagement";
        self.command_on_file::<{ commands::DISENGAGE }>(file.as_fd(), Fsync::Wait, what)
    }

    fn command_on_file<const NUMBER: u32>(
        &self,
        file: BorrowedFd<'_>,
        fsync: Fsync,
        what: &'static str,
    ) -> Result<()> {
        self.check_is_here(file, what)?;
        let argument = [self.number, encode(Covered::OpenFile, fsync)];
        command::<NUMBER, _>(file, argument, what).map(drop)
    }

    /// Gives the group a label, by which people know it when the groups of the mount are
    /// [listed](list): at most [`LABEL_BYTES_MAX`](crate::LABEL_BYTES_MAX) bytes without control characters.
    ///
    /// # Errors
    /// [`Error::Refused`], with `EINVAL` for another text.
    pub fn set_label(&self, label: &str) -> Result<()> {
        const WHAT: &str = "label";
        if !is_label(label) {
            return Err(Error::Refused { what: WHAT, source: Errno::INVAL.into() });
        }
        let argument = encode_label(self.number, label);
        command::<{ commands::LABEL }, _>(self.directory.as_fd(), argument, WHAT).map(drop)
    }

    /// Orders the changes of the group from now on after those until now.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn barrier(&self) -> Result<()> {
        self.command::<{ commands::BARRIER }>(0, "barrier").map(drop)
    }

    /// Ends an atomic group, which is not engaged: from now on a crash leaves all of its changes, or none.
    /// It takes no more. Does nothing to other groups.
    ///
    /// # Errors
    /// [`Error::Cut`] if it was open for too long; [`Error::Refused`].
    pub fn commit(&self) -> Result<()> {
        self.command::<{ commands::COMMIT }>(0, "commit").map(drop)
    }

    /// Undoes all changes of a group of [`Kind::Abortable`], and ends it and its engagements.
    ///
    /// # Errors
    /// [`Error::Shared`]: nothing is undone, and the group can still be committed. [`Error::Refused`]: with
    /// `EINVAL` it has ended, or cannot be aborted; with another error a part could not be undone, and
    /// is kept.
    pub fn abort(&self) -> Result<()> {
        match self.command::<{ commands::ABORT }>(0, "abort") {
            Err(e) if e.errno() == Errno::BUSY.raw_os_error() => Err(Error::Shared),
            result => result.map(drop),
        }
    }

    /// Returns the most blocks that an atomic group may still change: 0 if it has ended, was cut, or is
    /// not atomic.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn blocks_left(&self) -> Result<u32> {
        self.command::<{ commands::BLOCKS_LEFT }>(0, "limit")
    }

    /// Waits until the changes of the group are durable, and what they depend on. An atomic group
    /// [ends](Self::commit) first.
    ///
    /// # Errors
    /// [`Error::Refused`], with the error of the device if it failed.
    pub fn sync(&self) -> Result<()> {
        self.command::<{ commands::SYNC }>(0, "sync").map(drop)
    }

    /// Returns true if they are.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn is_durable(&self) -> Result<bool> {
        self.command::<{ commands::IS_DURABLE }>(0, "state").map(|value| value != 0)
    }

    /// Returns a descriptor that polls readable once the changes made in the group until now are durable:
    /// four bytes can be read then, the number of the group. Nothing is written for it, so that happens
    /// by age, or by a sync. It is at its end of file, with nothing to read, if the mount ends before.
    ///
    /// # Errors
    /// [`Error::Refused`]: with `EACCES` the mount is of another user, who is not root.
    pub fn tell_durable(&self) -> Result<OwnedFd> {
        let what = "descriptor";
        let refused = |e: Errno| Error::Refused { what, source: e.into() };
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(refused)?;
        let descriptor = u32::try_from(write.as_raw_fd()).unwrap_or(u32::MAX);
        self.command::<{ commands::TELL }>(descriptor, what)?;
        Ok(read)
    }

    fn command<const NUMBER: u32>(&self, value: u32, what: &'static str) -> Result<u32> {
        command::<NUMBER, _>(self.directory.as_fd(), [self.number, value], what)
            .map(|[_, value]| value)
    }
}

impl Drop for MountedGroup {
    fn drop(&mut self) {
        // A copy in a child of the process that made it: the group goes on.
        if !self.owner.is_this() {
            return;
        }
        // The mount may have ended.
        let _ = self.command::<{ commands::CLOSE }>(0, "end");
    }
}

/// Returns the groups of the mount that `directory` is on, by their numbers, and whether there are more: at
/// most `limit` of those that this process may see (its own, and those of the processes from which it
/// descends; root and the user who runs the mount see all).
///
/// # Errors
/// [`Error::Open`], [`Error::NoGroups`], [`Error::Refused`].
pub fn list(directory: &Path, limit: usize) -> Result<(Vec<ListedGroup>, bool)> {
    let file = open(directory)?;
    let mut groups: Vec<ListedGroup> = Vec::new();
    loop {
        let last = groups.last().map_or(0, |group| group.number);
        let argument = ListedGroup { number: last, ..ListedGroup::default() }.encode();
        let what = "listing";
        match command::<{ commands::NEXT }, _>(file.as_fd(), argument, what) {
            Ok(_) if groups.len() == limit => return Ok((groups, true)),
            Ok(bytes) => {
                // A mount that does not count up would be listed for ever.
                let group = ListedGroup::decode(&bytes).filter(|group| group.number > last);
                let unknown = || Error::Refused { what, source: Errno::PROTO.into() };
                groups.push(group.ok_or_else(unknown)?);
            }
            Err(e) if e.errno() == Errno::NOENT.raw_os_error() => return Ok((groups, false)),
            Err(e) => return Err(e),
        }
    }
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|source| Error::Open { path: path.display().to_string(), source })
}

/// The argument of a command.
trait Argument {}
impl Argument for [u32; 2] {}
impl Argument for [u8; LABEL_ARGUMENT_BYTES] {}
impl Argument for [u8; LISTED_BYTES] {}

fn command<const NUMBER: u32, A: Argument>(
    file: BorrowedFd<'_>,
    mut argument: A,
    what: &'static str,
) -> Result<A> {
    const { assert!(NUMBER >> 16 & 0x3FFF == size_of::<A>() as u32, "another command's argument") };
    // SAFETY: the number of the command encodes this length, for any file, and any bytes are such numbers.
    match unsafe { ioctl(file, Updater::<NUMBER, _>::new(&mut argument)) } {
        Ok(()) => Ok(argument),
        Err(Errno::NOTTY) => Err(Error::NoGroups),
        Err(Errno::OPNOTSUPP) if NUMBER == commands::CREATE => Err(Error::NotAtomic),
        Err(Errno::OPNOTSUPP) => Err(Error::NoOpenFiles),
        Err(Errno::TIMEDOUT) => Err(Error::Cut),
        Err(e) => Err(Error::Refused { what, source: e.into() }),
    }
}
