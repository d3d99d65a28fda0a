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

/// The state of a name on the volume.
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

    /// Reports whether the removal of a fresh name, in a move to the name `to`, need wait for nothing:
    /// not if other changes wait for the old name to be there. These are the removals of names that
    /// the inode had before, and if it is `relied_on`, of names below it. They need not wait if the new
    /// name is there all the time.
    pub fn may_be_forgotten(&self, name: Position, to: Position, relied_on: bool) -> bool {
        let mut waits = relied_on;
        for change in &self.0 {
            match change.status {
                Status::Kept if change.name.is(to) => return true,
                Status::Gone | Status::Removed => waits = true,
                Status::Replacing => waits |= change.name.is(name),
                Status::Fresh | Status::Given | Status::Kept => {}
            }
        }
        !waits
    }

    /// Returns the changes that removed names.
    pub fn removals(&self) -> impl Iterator<Item = PatchId> + '_ {
        let removed = |c: &&NameChange| matches!(c.status, Status::Gone | Status::Removed);
        self.0.iter().filter(removed).map(|change| change.patch)
    }

    /// Reports whether all of them are durable.
    pub fn are_durable(&self, op: &Op<'_>) -> bool {
        self.0.iter().all(|change| op.is_durable(change.patch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use weft_block::MemoryDevice;
    use weft_patch::{BlockNr, Engine, Options};

    const A: Position = Position { dir: Ino(2), at: 12 };
    const B: Position = Position { dir: Ino(3), at: 12 };
    const UNKNOWN: Position = Position { dir: Ino(2), at: Position::UNKNOWN };

    fn engine() -> Arc<Engine> {
        let options = Options { background: false, ..Options::default() };
        Engine::new(Arc::new(MemoryDevice::new(1 << 16)), 1024, options).unwrap()
    }

    fn patch(op: &mut Op<'_>, nr: u64) -> PatchId {
        op.write(BlockNr(nr), 0, &[1], &[]).unwrap()
    }

    #[test]
    fn a_new_name_is_fresh_until_it_is_durable() {
        let engine = engine();
        let mut op = engine.begin(1).unwrap();
        let named = patch(&mut op, 1);
        let mut names = NameChanges::default();
        assert_eq!(names.give(&op, A, named), None);
        assert_eq!((names.fresh(A), names.fresh(B)), (Some(named), None));
        assert!(names.may_be_forgotten(A, B, false) && !names.may_be_forgotten(A, B, true));
        drop(op);
        engine.sync().unwrap();
        let op = engine.begin(0).unwrap();
        assert!(names.are_durable(&op));
        names.remove(&op, B, PatchId::DURABLE);
        names.replace(&op, A, named);
        assert_eq!(names.iter().count(), 1);
    }

    #[test]
    fn a_name_that_is_given_again_is_not_fresh() {
        let engine = engine();
        let mut op = engine.begin(2).unwrap();
        let (first, second) = (patch(&mut op, 1), patch(&mut op, 2));
        let mut names = NameChanges::default();
        names.remove(&op, A, first);
        // In another patch: the volume may be without it meanwhile.
        assert_eq!(names.give(&op, A, second), None);
        assert_eq!(names.fresh(A), None);
        assert!(!names.may_be_forgotten(B, A, false));
    }

    #[test]
    fn a_name_that_its_removal_gives_again_is_kept() {
        let engine = engine();
        let mut op = engine.begin(2).unwrap();
        let (first, second) = (patch(&mut op, 1), patch(&mut op, 2));
        let mut names = NameChanges::default();
        // It was there, moved to B, and comes back.
        names.give(&op, B, second);
        names.remove(&op, A, first);
        assert!(!names.may_be_forgotten(B, A, false), "A goes when B is there");
        assert_eq!(names.give(&op, A, first), Some(first));
        assert_eq!(names.fresh(A), None);
        assert!(names.may_be_forgotten(B, A, true), "A is there all the time");
        assert!(!names.may_be_forgotten(B, UNKNOWN, true));
        names.forget(B);
        assert_eq!(names.iter().collect::<Vec<_>>(), [(A.dir, first)]);
        // It goes again: then it was there.
        names.remove(&op, A, first);
        assert_eq!(names.give(&op, A, first), Some(first));
        assert!(names.may_be_forgotten(B, A, true));
    }

    #[test]
    fn a_name_in_the_place_of_another_is_forgotten_only_with_its_inode() {
        let engine = engine();
        let mut op = engine.begin(1).unwrap();
        let named = patch(&mut op, 1);
        let mut names = NameChanges::default();
        names.replace(&op, A, named);
        assert_eq!(names.fresh(A), Some(named));
        assert!(!names.may_be_forgotten(A, B, false));
    }

    #[test]
    fn nothing_is_known_of_names_without_a_position() {
        let engine = engine();
        let mut op = engine.begin(1).unwrap();
        let named = patch(&mut op, 1);
        let mut names = NameChanges::default();
        names.give(&op, UNKNOWN, named);
        names.remove(&op, UNKNOWN, named);
        assert_eq!(names.give(&op, UNKNOWN, named), None);
        assert_eq!(names.fresh(UNKNOWN), None);
    }
}
