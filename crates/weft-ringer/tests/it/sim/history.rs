//! From calls to histories: what each call says of each file and each name.

use std::collections::{BTreeMap, BTreeSet};

use weft_ringer::client::{Call, Outcome};
use weft_ringer::mds::origin;
use weft_ringer::op::{Make, Op};
use weft_ringer::store::Store;
use weft_ringer::wire::{RequestBody, decode};
use weft_ringer::{Dirent, Name, Refusal, Rnode, RnodeId};
use weft_vfs::{FileKind, Time};

use super::audit::records;
use super::checker::{self, Entry, EntryKind, Operation, Register, RegisterKind, Verdict};
use super::value_of;
use super::world::{Called, World};

#[derive(Default)]
struct Histories {
    files: BTreeMap<RnodeId, Vec<Operation<RegisterKind>>>,
    names: BTreeMap<Place, Vec<Operation<EntryKind>>>,
    /// Renames that may have happened: when they were called, from where and to where.
    renames: Vec<(u64, Place, Place)>,
}

/// A name in a directory.
type Place = (RnodeId, Name);

/// Checks all histories; returns of how many it could not be told.
pub fn check(seed: u64, world: &World, expected: &[(u64, u64)]) -> usize {
    let expected: BTreeMap<u64, u64> = expected.iter().copied().collect();
    let mut histories = Histories::default();
    for (id, called) in &world.calls {
        histories.add(called, expected.get(id).copied());
    }
    histories.add_snapshots(world);
    histories.add_renames();
    let mut unknown = 0;
    for (file, mut history) in histories.files {
        let verdict = checker::check::<Register>(&0, &history);
        history.sort_by_key(|o| o.called);
        assert!(verdict != Verdict::Not, "seed {seed}: file {file}: {history:#?}");
        unknown += usize::from(verdict == Verdict::Unknown);
    }
    for (name, mut history) in histories.names {
        let verdict = checker::check::<Entry>(&None, &history);
        history.sort_by_key(|o| o.called);
        assert!(verdict != Verdict::Not, "seed {seed}: name {name:?}: {history:#?}");
        unknown += usize::from(verdict == Verdict::Unknown);
    }
    unknown
}

/// The time of the first request for a snapshot, and of the last reply, if there was one.
fn asked(world: &World, of: u64) -> Option<(u64, Option<u64>)> {
    let asks = |called: &&Called| {
        let Call::Ask { body } = &called.call else { return false };
        matches!(body, RequestBody::Snapshot { mark, .. } if *mark == of)
    };
    let asked: Vec<&Called> = world.calls.values().filter(asks).collect();
    let returned = asked.iter().map(|called| called.returned.as_ref().map(|(at, _)| *at));
    let returned = returned.collect::<Option<Vec<u64>>>().and_then(|all| all.into_iter().max());
    asked.iter().map(|called| called.called).min().map(|first| (first, returned))
}

impl Histories {
    /// A snapshot of the root has read all files, and the names in the root, at some moment between its
    /// call and its answer.
    fn add_snapshots(&mut self, world: &World) {
        for (_, value) in records(&world.store, b'p') {
            let ((root, _), (_, mark)) =
                decode::<((RnodeId, Time), (u64, u64))>(&value).expect("a snapshot");
            let (called, returned) = asked(world, mark).expect("a request");
            let all = world.store.range(b"r", b"s", usize::MAX).expect("memory");
            let rnodes = all.into_iter().map(|(_, r)| decode::<Rnode>(&r.value).expect("an rnode"));
            let rnodes: BTreeMap<RnodeId, Rnode> =
                rnodes.filter(|r| r.id.slot() == root.slot()).map(|r| (r.id, r)).collect();
            for rnode in rnodes.values() {
                let Some(value) = value_of(&rnode.body) else { continue };
                let kind = RegisterKind::Read(value);
                let file = self.files.entry(origin(rnode)).or_default();
                file.push(Operation { called, returned, kind });
            }
            for n in 0..3 {
                let name = Name::new(format!("n{n}").as_bytes()).expect("a name");
                let key = [&b"d"[..], &root.0.to_be_bytes(), name.bytes()].concat();
                let there = world.store.get(&key).expect("memory");
                let there = there.map(|r| decode::<Dirent>(&r.value).expect("a name"));
                // Which directory it was is not kept.
                if there.is_some_and(|dirent| dirent.kind == FileKind::Directory) {
                    continue;
                }
                let kind = EntryKind::Lookup(there.map(|dirent| origin(&rnodes[&dirent.id]).0));
                let history = self.names.entry((RnodeId::ROOT, name)).or_default();
                history.push(Operation { called, returned, kind });
            }
        }
    }

    fn add(&mut self, called: &Called, expected: Option<u64>) {
        let from = called.called;
        let Some((returned, outcome)) = &called.returned else {
            // Only what the server decides can have happened all the same.
            if let Call::Apply { op, .. } = &called.call {
                self.add_unknown(called, op);
            }
            return;
        };
        let (returned, void) = (Some(*returned), called.void);
        let mut name = |dir: RnodeId, name: &Name, kind: EntryKind| {
            let operation = Operation { called: from, returned, kind };
            self.names.entry((dir, name.clone())).or_default().push(operation);
        };
        let mut file = |id: RnodeId, kind: RegisterKind| {
            let operation = Operation { called: from, returned, kind };
            self.files.entry(id).or_default().push(operation);
        };
        match (&called.call, outcome) {
            (Call::Write { id, redo, .. }, Outcome::Done(_)) => {
                let value = redo[0].data.0[..].try_into().expect("eight bytes");
                let kind = RegisterKind::Write(u64::from_le_bytes(value));
                // A change that was undone may take effect later, or never.
                let returned = returned.filter(|_| !void);
                self.files.entry(*id).or_default().push(Operation { called: from, returned, kind });
            }
            (Call::Apply { op, .. }, Outcome::Refused(Refusal::Fenced)) => {
                self.add_unknown(called, op);
            }
            (Call::Apply { op, .. }, Outcome::Done(about)) if void => {
                self.add_void(called, op, *about);
            }
            _ if void => {}
            (Call::Lookup { dir, name: n }, Outcome::Found(found)) => {
                name(*dir, n, EntryKind::Lookup(found.map(|d| d.id.0)));
            }
            (Call::List { dir }, Outcome::Names(entries)) => {
                for n in 0..3 {
                    let n = Name::new(format!("n{n}").as_bytes()).expect("a name");
                    let found = entries.iter().find(|e| e.name == n).map(|e| e.dirent.id.0);
                    name(*dir, &n, EntryKind::Lookup(found));
                }
            }
            (Call::Get { id }, Outcome::Rnode(rnode)) => {
                if let Some(value) = value_of(&rnode.body) {
                    file(*id, RegisterKind::Read(value));
                }
            }
            (Call::Apply { op, .. }, Outcome::Done(about)) => match op {
                Op::Write { id, blocks, .. } => {
                    let value = written(blocks);
                    let kind = expected
                        .map_or(RegisterKind::Write(value), |old| RegisterKind::Swap(old, value));
                    file(*id, kind);
                }
                Op::Create { parent, name: n, .. } => {
                    name(*parent, n, EntryKind::Create(about.expect("made").0));
                }
                Op::Link { id, parent, name: n } => name(*parent, n, EntryKind::Create(id.0)),
                Op::Unlink { parent, name: n } | Op::Rmdir { parent, name: n } => {
                    name(*parent, n, EntryKind::Remove(about.expect("removed").0));
                }
                Op::Rename { parent, name: n, new_parent, new_name, .. } => {
                    // `None`: both names were of one rnode, and nothing was done.
                    if let Some(moved) = about {
                        name(*parent, n, EntryKind::Remove(moved.0));
                        name(*new_parent, new_name, EntryKind::Put(moved.0));
                    }
                }
                _ => {}
            },
            (Call::Apply { op, .. }, Outcome::Refused(why)) => match (op, why) {
                (
                    Op::Create { parent, name: n, .. } | Op::Link { parent, name: n, .. },
                    Refusal::Exists,
                ) => {
                    name(*parent, n, EntryKind::Exists);
                }
                (
                    Op::Unlink { parent, name: n } | Op::Rmdir { parent, name: n },
                    Refusal::NotFound,
                ) => name(*parent, n, EntryKind::Lookup(None)),
                (
                    Op::Unlink { parent, name: n } | Op::Rmdir { parent, name: n },
                    Refusal::IsADirectory | Refusal::NotEmpty,
                ) => name(*parent, n, EntryKind::Exists),
                _ => {}
            },
            _ => {}
        }
    }

    /// Records a change that was answered and then undone: it may take effect later, or never.
    fn add_void(&mut self, called: &Called, op: &Op, about: Option<RnodeId>) {
        let mut name = |dir: RnodeId, name: &Name, to: Option<u64>| {
            let kind = EntryKind::Either(to);
            let operation = Operation { called: called.called, returned: None, kind };
            self.names.entry((dir, name.clone())).or_default().push(operation);
        };
        match op {
            Op::Create { parent, name: n, make, .. } => {
                let _: &Make = make;
                name(*parent, n, about.map(|id| id.0));
            }
            Op::Link { id, parent, name: n } => name(*parent, n, Some(id.0)),
            Op::Unlink { parent, name: n } | Op::Rmdir { parent, name: n } => {
                name(*parent, n, None);
            }
            Op::Rename { parent, name: n, new_parent, new_name, .. } if about.is_some() => {
                name(*parent, n, None);
                name(*new_parent, new_name, about.map(|id| id.0));
            }
            Op::Write { id, blocks, .. } => {
                let kind = RegisterKind::Write(written(blocks));
                let operation = Operation { called: called.called, returned: None, kind };
                self.files.entry(*id).or_default().push(operation);
            }
            _ => {}
        }
    }

    /// Records a call that was never answered. A rename that the server decided may have happened.
    fn add_unknown(&mut self, called: &Called, op: &Op) {
        if let Op::Rename { parent, name, new_parent, new_name, .. } = op {
            let (from, to) = ((*parent, name.clone()), (*new_parent, new_name.clone()));
            self.renames.push((called.called, from, to));
        }
    }

    /// Adds the renames of unknown outcome: each entry that was ever at the old name may have been
    /// moved, also one that another such rename or a later call put there. Called last.
    fn add_renames(&mut self) {
        let was_there = |o: &Operation<EntryKind>| match o.kind {
            EntryKind::Create(id) | EntryKind::Put(id) | EntryKind::Remove(id) => Some(id),
            EntryKind::Lookup(found) | EntryKind::Either(found) => found,
            EntryKind::Exists => None,
        };
        let known = self.names.iter();
        let known = known.map(|(p, all)| (p.clone(), all.iter().filter_map(was_there).collect()));
        let mut there: BTreeMap<Place, BTreeSet<u64>> = known.collect();
        // Each round carries everything one rename further.
        for _ in &self.renames {
            for (_, from, to) in &self.renames {
                let moved = there.get(from).cloned().unwrap_or_default();
                there.entry(to.clone()).or_default().extend(moved);
            }
        }
        for (called, from, to) in std::mem::take(&mut self.renames) {
            let moved = there.get(&from).into_iter().flatten().map(|&id| (&to, Some(id)));
            for (place, to) in moved.chain([(&from, None)]) {
                let kind = EntryKind::Either(to);
                let operation = Operation { called, returned: None, kind };
                self.names.entry(place.clone()).or_default().push(operation);
            }
        }
    }
}

pub fn written(blocks: &[(u32, Option<weft_ringer::Block>)]) -> u64 {
    let hash = blocks[0].1.expect("a block").hash;
    u64::from_le_bytes(hash.0[..8].try_into().expect("eight bytes"))
}

/// A file that was created while its name was being renamed may have been moved, also twice.
#[test]
fn renames_of_unknown_outcome_may_have_moved_what_came_later() {
    let place = |n: u8| (RnodeId::ROOT, Name::new(&[n]).expect("a name"));
    let renames = vec![(2, place(b'b'), place(b'c')), (1, place(b'a'), place(b'b'))];
    let mut histories = Histories { renames, ..Histories::default() };
    let mut happens = |n, called, kind| {
        let operation = Operation { called, returned: Some(called + 1), kind };
        histories.names.entry(place(n)).or_default().push(operation);
    };
    happens(b'a', 5, EntryKind::Create(7));
    happens(b'c', 9, EntryKind::Remove(7));
    histories.add_renames();
    for history in histories.names.values() {
        assert_eq!(checker::check::<Entry>(&None, history), Verdict::Linearizable);
    }
}
