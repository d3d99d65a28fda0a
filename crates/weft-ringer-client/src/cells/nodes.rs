//! The mapping of inode numbers for cells inside. The outermost cell keeps its own numbers; those
//! of the others are mapped here.
//!
//! Invariants:
//! - A number stands for one inode of one location while the front end has a reference on it, and
//!   no two such inodes have the same.
//! - No number is one of the outermost cell: those do not begin with the bits 10.
//! - The number is a hash of the location and the inode, unless another referenced inode has that
//!   one. So it is, almost certainly, the same on every mount and after each start.

use std::collections::HashMap;

/// The first number of the range, which has 2^62 numbers.
const FIRST: u64 = 0b10 << 62;

/// Returns true if an inode number belongs to a cell inside.
pub(super) fn is_mapped(number: u64) -> bool {
    number >> 62 == 0b10
}

/// An inode of a location, which has a key of its own.
#[derive(Debug)]
struct Node<P> {
    key: u64,
    place: P,
    ino: u64,
    references: u64,
}

/// The result of giving back references.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Forgotten<P> {
    /// The location, no longer in the table if that was the last reference on one of its inodes.
    pub(super) place: P,
    pub(super) ino: u64,
    /// The number of references given back.
    pub(super) count: u64,
}

/// The inodes that the front end has references on.
#[derive(Debug)]
pub(super) struct Nodes<P> {
    nodes: HashMap<u64, Node<P>>,
    /// The number of each, by key and inode.
    numbers: HashMap<(u64, u64), u64>,
    /// The mask of the bits after the prefix.
    mask: u64,
}

impl<P: Clone> Nodes<P> {
    pub(super) fn new() -> Self {
        Self { nodes: HashMap::new(), numbers: HashMap::new(), mask: (1 << 62) - 1 }
    }

    /// The number of an inode, or the one that it would almost certainly get.
    pub(super) fn number(&self, key: u64, ino: u64) -> u64 {
        self.numbers.get(&(key, ino)).copied().unwrap_or_else(|| self.hash(key, ino))
    }

    fn hash(&self, key: u64, ino: u64) -> u64 {
        FIRST | (hash(&[key, ino]) & self.mask)
    }

    /// Takes a reference on an inode, and returns its number. An existing inode keeps its location.
    pub(super) fn enter(&mut self, key: u64, ino: u64, place: impl FnOnce() -> P) -> u64 {
        let mut number = self.number(key, ino);
        while self.nodes.get(&number).is_some_and(|node| (node.key, node.ino) != (key, ino)) {
            number = FIRST | ((number + 1) & self.mask);
        }
        let new = || Node { key, place: place(), ino, references: 0 };
        self.nodes.entry(number).or_insert_with(new).references += 1;
        self.numbers.insert((key, ino), number);
        number
    }

    /// The inode with a number.
    pub(super) fn find(&self, number: u64) -> Option<(&P, u64)> {
        self.nodes.get(&number).map(|node| (&node.place, node.ino))
    }

    /// Gives back references, at most as many as there are.
    pub(super) fn forget(&mut self, number: u64, count: u64) -> Option<Forgotten<P>> {
        let node = self.nodes.get_mut(&number)?;
        let count = count.min(node.references);
        node.references -= count;
        let (place, ino) = (node.place.clone(), node.ino);
        if node.references == 0 {
            self.numbers.remove(&(node.key, node.ino));
            self.nodes.remove(&number);
        }
        Some(Forgotten { place, ino, count })
    }
}

/// Hashes a list of numbers to one, almost certainly unique.
pub(super) fn hash(of: &[u64]) -> u64 {
    let mut hasher = blake3::Hasher::new_derive_key("weft-ringer 2026 inode of a cell inside");
    for number in of {
        hasher.update(&number.to_le_bytes());
    }
    let hash = hasher.finalize();
    hash.as_bytes().first_chunk().map_or(0, |first| u64::from_le_bytes(*first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        Enter(u64, u64),
        Forget(usize, u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => (0..3_u64, 1..12_u64).prop_map(|(key, ino)| Step::Enter(key, ino)),
            2 => (any::<usize>(), 1..4_u64).prop_map(|(which, count)| Step::Forget(which, count)),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        /// With so few numbers that most inodes collide.
        #[test]
        fn nodes_agree_with_a_model(steps in steps(), bits in 6..9_u32) {
            let mut nodes = Nodes { mask: (1 << bits) - 1, ..Nodes::new() };
            let mut known: Vec<((u64, u64), u64, u64)> = Vec::new();
            for step in steps {
                match step {
                    Step::Enter(key, ino) => {
                        let number = nodes.enter(key, ino, || key * 100);
                        prop_assert!(is_mapped(number));
                        match known.iter_mut().find(|k| k.0 == (key, ino)) {
                            Some(one) => {
                                prop_assert_eq!(one.1, number, "it is stable while it is known");
                                one.2 += 1;
                            }
                            None => known.push(((key, ino), number, 1)),
                        }
                    }
                    Step::Forget(which, count) if !known.is_empty() => {
                        let at = which % known.len();
                        let (of, number, references) = known[at];
                        let count_there = count.min(references);
                        let forgotten = nodes.forget(number, count);
                        let (place, ino) = (of.0 * 100, of.1);
                        prop_assert_eq!(forgotten, Some(Forgotten { place, ino, count: count_there }));
                        known[at].2 -= count_there;
                        if known[at].2 == 0 {
                            known.remove(at);
                            prop_assert_eq!(nodes.find(number), None);
                        }
                    }
                    Step::Forget(..) => prop_assert_eq!(nodes.forget(FIRST, 1), None),
                }
                for ((key, ino), number, _) in &known {
                    prop_assert_eq!(nodes.find(*number), Some((&(key * 100), *ino)));
                    prop_assert_eq!(nodes.number(*key, *ino), *number);
                }
                // And nothing else is kept.
                prop_assert_eq!(nodes.nodes.len(), known.len());
                prop_assert_eq!(nodes.numbers.len(), known.len());
            }
        }
    }

    #[test]
    fn numbers_are_stable_over_restarts() {
        let (mut first, mut second) = (Nodes::new(), Nodes::new());
        second.enter(9, 9, || ());
        let number = first.enter(7, 1 << 62, || ());
        assert_eq!(second.enter(7, 1 << 62, || ()), number);
        assert_eq!(first.forget(number, 5).map(|f| f.count), Some(1));
        assert_eq!(first.number(7, 1 << 62), number);
        assert!(!is_mapped(1) && !is_mapped(u64::MAX) && !is_mapped(0b11 << 62));
    }
}
