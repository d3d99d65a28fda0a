//! Whether a history of one thing is linearizable: whether there is an order of its operations, each
//! at a moment between its call and its return, in which every answer is right.
//!
//! The search is Wing and Gong's with Lowe's memory: depth first over which operation is next, never
//! twice from the same set of operations done with the same state. Sources: Wing and Gong, "Testing
//! and Verifying Concurrent Objects" (1993); Lowe, "Testing for Linearizability" (2017).

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;

/// One operation of a history.
#[derive(Debug, Clone)]
pub struct Operation<K> {
    pub called: u64,
    /// `None`: it never returned, or what it returned does not count. It may have happened at any
    /// time after its call, or not at all.
    pub returned: Option<u64>,
    pub kind: K,
}

/// The effect of an operation.
pub trait Model {
    type State: Clone + Eq + Hash + Debug;
    type Kind: Debug;
    /// The state after an operation, if its answer was right in `state`.
    fn step(state: &Self::State, kind: &Self::Kind) -> Option<Self::State>;
}

#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Linearizable,
    Not,
    /// The search was given up.
    Unknown,
}

/// States looked at before the search is given up.
const STATES_MAX: usize = 2_000_000;

pub fn check<M: Model>(initial: &M::State, history: &[Operation<M::Kind>]) -> Verdict {
    let mut search =
        Search::<M> { history, seen: HashSet::new(), done: vec![0; history.len().div_ceil(64)] };
    let order = {
        let mut order: Vec<usize> = (0..history.len()).collect();
        order.sort_by_key(|&i| history[i].called);
        order
    };
    match search.go(initial, &order) {
        Some(true) => Verdict::Linearizable,
        Some(false) => Verdict::Not,
        None => Verdict::Unknown,
    }
}

struct Search<'a, M: Model> {
    history: &'a [Operation<M::Kind>],
    seen: HashSet<(Vec<u64>, M::State)>,
    done: Vec<u64>,
}

impl<M: Model> Search<'_, M> {
    fn is_done(&self, i: usize) -> bool {
        self.done[i / 64] >> (i % 64) & 1 == 1
    }

    /// `None` if given up.
    fn go(&mut self, state: &M::State, order: &[usize]) -> Option<bool> {
        let left = order.iter().filter(|&&i| !self.is_done(i));
        let Some(first_return) = left.filter_map(|&i| self.history[i].returned).min() else {
            return Some(true); // Only such are left as need not have happened.
        };
        if !self.seen.insert((self.done.clone(), state.clone())) {
            return Some(false);
        }
        if self.seen.len() > STATES_MAX {
            return None;
        }
        for &i in order {
            if self.history[i].called > first_return {
                break;
            }
            if self.is_done(i) {
                continue;
            }
            let Some(next) = M::step(state, &self.history[i].kind) else { continue };
            self.done[i / 64] |= 1 << (i % 64);
            let found = self.go(&next, order);
            self.done[i / 64] &= !(1 << (i % 64));
            if found != Some(false) {
                return found;
            }
        }
        Some(false)
    }
}

/// A value that is written and read.
#[derive(Debug)]
pub struct Register;

#[derive(Debug, Clone)]
pub enum RegisterKind {
    Write(u64),
    Read(u64),
    /// Writes the second if the first is there, and has done so.
    Swap(u64, u64),
}

impl Model for Register {
    type State = u64;
    type Kind = RegisterKind;

    fn step(state: &u64, kind: &RegisterKind) -> Option<u64> {
        match *kind {
            RegisterKind::Write(new) => Some(new),
            RegisterKind::Read(value) => (value == *state).then_some(*state),
            RegisterKind::Swap(old, new) => (old == *state).then_some(new),
        }
    }
}

/// A name in a directory: the rnode it names.
#[derive(Debug)]
pub struct Entry;

#[derive(Debug, Clone)]
pub enum EntryKind {
    Lookup(Option<u64>),
    /// Made: there was none.
    Create(u64),
    /// There is one.
    Exists,
    /// Removed, or moved to another name: it was this.
    Remove(u64),
    /// Put by a rename, over whatever was there.
    Put(u64),
    /// Removed or put, but not known to have been.
    Either(Option<u64>),
}

impl Model for Entry {
    type State = Option<u64>;
    type Kind = EntryKind;

    fn step(state: &Option<u64>, kind: &EntryKind) -> Option<Option<u64>> {
        let right = match kind {
            EntryKind::Lookup(seen) => seen == state,
            EntryKind::Create(_) => state.is_none(),
            EntryKind::Exists => state.is_some(),
            EntryKind::Remove(id) => *state == Some(*id),
            EntryKind::Put(_) | EntryKind::Either(_) => true,
        };
        right.then_some(match kind {
            EntryKind::Create(id) | EntryKind::Put(id) => Some(*id),
            EntryKind::Remove(_) => None,
            EntryKind::Either(to) => *to,
            EntryKind::Lookup(_) | EntryKind::Exists => *state,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The client, for the reader of a printed history.
    fn op<K>(_client: usize, called: u64, returned: u64, kind: K) -> Operation<K> {
        let returned = (returned > 0).then_some(returned);
        Operation { called, returned, kind }
    }

    #[test]
    fn stale_reads_are_found() {
        use RegisterKind::{Read, Swap, Write};
        let write = op(0, 1, 2, Write(7));
        let good = [write.clone(), op(1, 1, 3, Read(0)), op(1, 4, 5, Read(7))];
        assert_eq!(check::<Register>(&0, &good), Verdict::Linearizable);
        let stale = [write.clone(), op(1, 3, 4, Read(0))];
        assert_eq!(check::<Register>(&0, &stale), Verdict::Not);
        let back = [op(0, 1, 9, Write(7)), op(1, 2, 3, Read(7)), op(2, 4, 5, Read(0))];
        assert_eq!(check::<Register>(&0, &back), Verdict::Not, "new, then old");
        let lost = [op(0, 1, 2, Swap(0, 1)), op(1, 3, 4, Swap(0, 2))];
        assert_eq!(check::<Register>(&0, &lost), Verdict::Not, "a lost update");
    }

    #[test]
    fn what_never_returned_may_have_happened_or_not() {
        use RegisterKind::{Read, Write};
        for seen in [0, 7] {
            let history = [op(0, 1, 0, Write(7)), op(1, 3, 4, Read(seen))];
            assert_eq!(check::<Register>(&0, &history), Verdict::Linearizable);
        }
        let both = [op(0, 1, 0, Write(7)), op(1, 3, 4, Read(7)), op(1, 5, 6, Read(0))];
        assert_eq!(check::<Register>(&0, &both), Verdict::Not);
    }

    #[test]
    fn a_name_is_made_once() {
        use EntryKind::{Create, Exists, Lookup, Remove};
        let twice = [op(0, 1, 5, Create(1)), op(1, 2, 6, Create(2))];
        assert_eq!(check::<Entry>(&None, &twice), Verdict::Not);
        let again = [
            op(0, 1, 2, Create(1)),
            op(1, 1, 6, Exists),
            op(0, 3, 4, Remove(1)),
            op(1, 5, 6, Lookup(None)),
        ];
        assert_eq!(check::<Entry>(&None, &again), Verdict::Linearizable);
    }
}
