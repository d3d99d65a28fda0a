//! The changes of an inode's names that may not be durable.
//!
//! A sync of the inode makes them durable. They also tell whether the volume can have a name at all:
//! one that was given and is taken away before any write has contained it ([`Status::Fresh`]) never
//! was there, and nothing has to wait for its removal. Nothing is known of names without an entry here
//! but that they are durable.
//!
//! A name is identified by its directory and its position there, which other names may get later.

use smallvec::SmallVec;
use weft_patch::{Op, PatchId};
use weft_vfs::Ino;

/// The position of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub dir: Ino,
    at: u64,
}

impl Position {
    /// The number of no position.
    const UNKNOWN: u64 = u64::MAX;

    /// The position of an entry of `dir` with this number, if the format has numbers for them.
    pub fn new(dir: Ino, at: Option<u64>) -> Self {
        Self { dir, at: at.unwrap_or(Self::UNKNOWN) }
    }

    /// Reports whether both are known, and the same.
    fn is(self, other: Self) -> bool {
        self == other && self.at != Self::UNKNOWN
    }
}

/// What the volume has of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// Not before the change that gave it, which nothing else had taken away there.
    Fresh,
    /// As `Fresh`, in the place of another inode, which has lost its name by it.
    Replacing,
    /// Perhaps, as it was given.
    Given,
    /// All the time: the change that took it away is the one that gave it again.
    Kept,
    /// It was there, and is removed.
    Gone,
    /// Perhaps it was there, and is removed.
    Removed,
}

#[derive(Debug, Clone, Copy)]
struct NameChange {
    name: Position,
    patch: PatchId,
    status: Status,
}

/// The changes of an inode's names that may not be durable.
#[derive(Debug, Default)]
pub(crate) struct NameChanges(SmallVec<[NameChange; 2]>);

impl NameChanges {
    /// Returns each change, with the directory of the name.
    pub fn iter(&self) -> impl Iterator<Item = (Ino, PatchId)> + '_ {
        self.0.iter().map(|change| (change.name.dir, change.patch))
    }

    /// Notes that a name was given. Returns the removal of the same name that the patch contains, too:
    /// a write has both or neither.
    pub fn give(&mut self, op: &Op<'_>, name: Position, patch: PatchId) -> Option<PatchId> {
        self.0.retain(|change| !op.is_durable(change.patch));
        let known = name.at != Position::UNKNOWN;
        let mut status = if known { Status::Fresh } else { Status::Given };
        let mut again = None;
        self.0.retain(|change| {
            if !change.name.is(name) {
                return true;
            }
            let with = change.patch.is_with(patch);
            match (change.status, with) {
                (Status::Gone, true) => status = Status::Kept,
                _ => status = Status::Given,
            }
            if with {
                again = Some(change.patch);
            }
            !with
        });
        self.0.push(NameChange { name, patch, status });
        again
    }

    /// Notes that the inode took the place of another one. (If it had the name before, nothing is known.)
    pub fn replace(&mut self, op: &Op<'_>, name: Position, patch: PatchId) {
        self.0.retain(|change| !op.is_durable(change.patch));
        let known = name.at != Position::UNKNOWN;
        let had = self.0.iter().any(|change| change.name.is(name));
        let status = if known && !had { Status::Replacing } else { Status::Given };
        self.0.push(NameChange { name, patch, status });
    }

    /// Notes that the inode was given a name of which the volume may have anything.
    pub fn exchange(&mut self, op: &Op<'_>, name: Position, patch: PatchId) {
        self.0.retain(|change| !op.is_durable(change.patch));
        self.0.push(NameChange { name, patch, status: Status::Given });
    }

    /// Notes that a name was removed.
    pub fn remove(&mut self, op: &Op<'_>, name: Position, cleared: PatchId) {
        self.0.retain(|change| !op.is_durable(change.patch));
        let mut status = Status::Gone;
        self.0.retain(|change| {
            let removed = matches!(change.status, Status::Gone | Status::Removed);
            if !change.name.is(name) || removed {
                return true;
            }
            if change.status != Status::Kept {
                status = Status::Removed;
            }
            // A sync waits for the removal, which follows it.
            false
        });
        if !op.is_durable(cleared) {
            self.0.push(NameChange { name, patch: cleared, status });
        }
    }

    /// Returns the change that gave a name which the volume does not have, if that is known.
    pub fn fresh(&self, name: Position) -> Option<PatchId> {
        let found = self.0.iter().rev().find(|change| change.name.is(name))?;
        matches!(found.status, Status::Fresh | Status::Replacing).then_some(found.patch)
    }

    /// Forgets a name that was taken back together with the change that gave it.
    pub fn forget(&mut self, name: Position) {
        self.0.retain(|change| {
            let fresh = matches!(change.status, Status::Fresh | Status::Replacing);
            !change.name.is(name) || !fresh
        });
    }

    /// Reports whether the removal of a fresh name needs to wait for nothing, for an inode that has
    /// another name: not if other changes wait for it to be there. These are the removals of the inode's
    /// other names, and if it is `relied_on`, others; they have no need to wait if one name is there
    /// all the time.
    pub fn may_be_forgotten(&self, name: Position, relied_on: bool) -> bool {
        let mut waits = relied_on;
        for change in &self.0 {
            match change.status {
                Status::Kept => return true,
                Status::Gone | Status::Removed => waits = true,
                Status::Replacing => waits |= change.name.is(name),
                Status::Fresh | Status::Given => {}
            }
        }
        !waits
    }

    /// Reports whether all of them are durable.
    pub fn are_durable(&self, op: &Op<'_>) -> bool {
        self.0.iter().all(|change| op.is_durable(change.patch))
    }
}
