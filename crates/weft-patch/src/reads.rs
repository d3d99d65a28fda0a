//! The reads of an operation in the blocks that it changes: a debug build checks that each change
//! follows the pending patches of the bytes that decided it.
//!
//! The rule behind it: if every patch follows the patches of the bytes that it *relied on*, and not
//! only of those that it overwrites, then any set of patches that is closed under "follows" is what
//! a shorter run of the same operations would have left. That is why a crash in the middle leaves a
//! consistent volume. A change that omits what it relied on works as long as both happen to be
//! written together, and destroys a directory when they are not.

use crate::BlockNr;
use std::ops::Range;

/// The part of a block that the operation has read.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Shown {
    /// All of it, for a search.
    Whole,
    /// This part, all of which the next change relies on.
    Part(Range<usize>),
}

/// The reads of an operation since its last change of each block. Empty in a release build.
#[derive(Debug, Default)]
pub(crate) struct Reads(Vec<(BlockNr, Shown)>);

impl Reads {
    pub fn whole(&mut self, nr: BlockNr) {
        if cfg!(debug_assertions) && !self.0.contains(&(nr, Shown::Whole)) {
            self.0.push((nr, Shown::Whole));
        }
    }

    pub fn part(&mut self, nr: BlockNr, range: Range<usize>) {
        if cfg!(debug_assertions) {
            self.0.push((nr, Shown::Part(range)));
        }
    }

    /// Handles a change of the block that names `relied`: forgets the reads of the block, and
    /// returns the parts whose patches the change must follow.
    ///
    /// # Panics
    /// If the operation searched the block and the change does not name the bytes that it relies
    /// on.
    pub fn changes(&mut self, nr: BlockNr, relied: &[Range<usize>]) -> Vec<Range<usize>> {
        let mut parts = Vec::new();
        self.0.retain(|(at, shown)| {
            if *at != nr {
                return true;
            }
            match shown {
                Shown::Whole => assert!(
                    !relied.is_empty(),
                    "this operation read block {nr} and changes it without naming the bytes that \
                     decided the change: use read_range or write_relying"
                ),
                Shown::Part(range) => parts.push(range.clone()),
            }
            false
        });
        parts
    }

    /// Handles a replacement of the block's content, which relies on no byte of the old one.
    pub fn replaced(&mut self, nr: BlockNr) {
        self.0.retain(|(at, _)| *at != nr);
    }
}

#[cfg(test)]
mod tests {
    use crate::{BlockNr, Engine, Options};
    use std::sync::Arc;
    use weft_block::{BlockDevice as _, MemoryDevice};

    const POINTER: BlockNr = BlockNr(1);
    const POINTEE: BlockNr = BlockNr(2);

    fn engine() -> (Arc<MemoryDevice>, Arc<Engine>) {
        let device = Arc::new(MemoryDevice::new(1 << 16));
        let options = Options { background: false, ..Options::default() };
        let engine = Engine::new(device.clone(), 1024, options).unwrap();
        (device, engine)
    }

    /// A length at byte 0 gives the position of a record. The length is pending, as is its before
    /// in another block; the record is put there because of it.
    fn record_by_length(relied: &[std::ops::Range<usize>]) -> [u8; 2] {
        let (device, engine) = engine();
        let mut op = engine.begin(2).unwrap();
        let pointee = op.write(POINTEE, 0, &[7], &[]).unwrap();
        // A change elsewhere waits for the block, so that its changes can be rolled back.
        let early = op.write(POINTER, 8, &[1], &[]).unwrap();
        op.write(POINTEE, 8, &[1], &[early]).unwrap();
        op.write(POINTER, 0, &[100], &[pointee]).unwrap();
        op.write_relying(POINTER, 100, &[9], relied, &[]).unwrap();
        drop(op);
        engine.write_back().unwrap();
        let mut block = [0; 1024];
        device.read_at(&mut block, 1024).unwrap();
        [block[0], block[100]]
    }

    #[test]
    fn a_change_follows_what_it_relied_on_in_its_block() {
        let unordered = record_by_length(&[]);
        assert_eq!(unordered, [0, 9], "nothing was said: the record is there without its length");
        let ordered = record_by_length(std::slice::from_ref(&(0..1)));
        assert!(ordered != [0, 9], "{ordered:?}");
    }

    #[test]
    #[should_panic(expected = "without naming the bytes that decided the change")]
    #[cfg(debug_assertions)]
    fn a_change_that_does_not_say_what_it_relied_on_is_found() {
        let (_, engine) = engine();
        let mut op = engine.begin(1).unwrap();
        op.read(POINTER).unwrap();
        op.write(POINTER, 0, &[1], &[]).unwrap();
    }

    #[test]
    #[should_panic(expected = "does not follow patch")]
    #[cfg(debug_assertions)]
    fn a_change_that_does_not_follow_what_was_read_is_found() {
        let (_, engine) = engine();
        let mut op = engine.begin(2).unwrap();
        let pointee = op.write(POINTEE, 0, &[7], &[]).unwrap();
        let early = op.write(POINTER, 8, &[1], &[]).unwrap();
        op.write(POINTEE, 8, &[1], &[early]).unwrap();
        op.write(POINTER, 0, &[100], &[pointee]).unwrap();
        op.read_range(POINTER, 0..1).unwrap();
        op.write(POINTER, 100, &[9], &[]).unwrap();
    }

    #[test]
    fn what_is_overwritten_need_not_be_named() {
        let (_, engine) = engine();
        let mut op = engine.begin(1).unwrap();
        let old = op.read_range(POINTER, 4..8).unwrap()[0];
        op.write(POINTER, 4, &[old + 1; 4], &[]).unwrap();
    }
}
