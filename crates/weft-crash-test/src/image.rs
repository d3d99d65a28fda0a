//! The tree of a state: the tree at the beginning, with the changes that are durable or kept.

use std::collections::{BTreeMap, HashSet};

use weft_vfs::memfs::{Snapshot, SnapshotAttr, SnapshotNode};
use weft_vfs::{FileKind, Time};

use crate::calls::{Call, CallNr, NodeNr};
use crate::effects::{Change, PAGE_BYTES, Resizing};
use crate::model::{UnitNr, Units};
use crate::states::{Epoch, State, Torn, torn_ranges};
use crate::{Error, Result};

/// Applies changes to trees.
pub(crate) struct Images<'a> {
    units: &'a Units,
    calls: &'a [Call],
    /// The tree with all changes of the units before `upto`.
    prefix: Snapshot,
    upto: usize,
}

/// The trees of an epoch's states.
pub(crate) struct EpochImages<'a> {
    units: &'a Units,
    calls: &'a [Call],
    /// The tree with the durable changes of what no pending change changes.
    floor: Snapshot,
    /// The other changes, in order: the place of the pending unit, if it is one.
    rest: Vec<(Option<usize>, u32)>,
}

/// What a change changes, as far as two changes of it depend on their order.
#[derive(PartialEq, Eq, Hash)]
enum Object<'a> {
    /// That the inode exists: all else of it needs this, and nothing changes it.
    Existence(NodeNr),
    /// Its attributes and its size.
    Inode(NodeNr),
    Name(NodeNr, &'a [u8]),
    Page(NodeNr, u64),
    /// Everything of a file that is made shorter, which drops pages.
    File(NodeNr),
}

impl<'a> Images<'a> {
    pub(crate) fn new(base: &Snapshot, units: &'a Units, calls: &'a [Call]) -> Self {
        Self { units, calls, prefix: base.clone(), upto: 0 }
    }

    /// Prepares the trees of an epoch; epochs must be given in order.
    pub(crate) fn epoch(&mut self, epoch: &Epoch) -> Result<EpochImages<'a>> {
        let units = self.units;
        let done = units.units.partition_point(|unit| unit.call < epoch.end);
        let first = epoch.pending.first().map_or(done, |unit| unit.index());
        while self.upto < first.min(done) {
            for effect in &units.units[self.upto].effects {
                apply(&mut self.prefix, units, self.calls, *effect, None)?;
            }
            self.upto += 1;
        }
        let window =
            || (first..done).flat_map(|u| units.units[u].effects.iter().map(move |e| (u, *e)));
        let mut shorter = HashSet::new();
        for (_, effect) in window() {
            if let Change::Size { node, why: Resizing::Shrink, .. } =
                &units.effects[effect as usize].change
            {
                shorter.insert(*node);
            }
        }
        let object = |effect: u32| match &units.effects[effect as usize].change {
            Change::Name { dir, name, .. } => Object::Name(*dir, name),
            Change::Node(new) => Object::Existence(new.node),
            change if shorter.contains(&change.node()) => Object::File(change.node()),
            Change::Page { node, bytes } => Object::Page(*node, bytes.page),
            change => Object::Inode(change.node()),
        };
        let place = |unit: usize| epoch.pending.binary_search(&UnitNr(unit as u32)).ok();
        let open: HashSet<Object<'_>> = window()
            .filter(|(unit, _)| place(*unit).is_some())
            .map(|(_, effect)| object(effect))
            .collect();
        let mut floor = self.prefix.clone();
        let mut rest = Vec::new();
        for (unit, effect) in window() {
            let place = place(unit);
            // An inode comes first: what is durable of it may stand in the floor.
            let is_new = matches!(units.effects[effect as usize].change, Change::Node(_));
            if place.is_some() || (!is_new && open.contains(&object(effect))) {
                rest.push((place, effect));
            } else {
                apply(&mut floor, units, self.calls, effect, None)?;
            }
        }
        Ok(EpochImages { units, calls: self.calls, floor, rest })
    }
}

impl EpochImages<'_> {
    /// The tree of a state.
    pub(crate) fn tree(&self, state: &State) -> Result<Snapshot> {
        let mut tree = self.floor.clone();
        for (place, effect) in &self.rest {
            let torn = match place {
                Some(place) if !state.kept.contains(*place) => continue,
                Some(place) => state.torn.filter(|torn| torn.place as usize == *place),
                None => None,
            };
            apply(&mut tree, self.units, self.calls, *effect, torn)?;
        }
        Ok(tree)
    }
}

/// Makes the changes of all calls before `end` in a tree.
pub(crate) fn apply_until(
    tree: &mut Snapshot,
    units: &Units,
    calls: &[Call],
    end: CallNr,
) -> Result<()> {
    for unit in units.units.iter().take_while(|unit| unit.call < end) {
        for effect in &unit.effects {
            apply(tree, units, calls, *effect, None)?;
        }
    }
    Ok(())
}

fn apply(
    tree: &mut Snapshot,
    units: &Units,
    calls: &[Call],
    effect: u32,
    torn: Option<Torn>,
) -> Result<()> {
    let effect = &units.effects[effect as usize];
    change(tree, &effect.change, time_of(calls, effect.call), torn)
        .map_err(Error::fs("building a state"))
}

/// The time that a call's changes are given: programs compare times of files.
fn time_of(calls: &[Call], nr: CallNr) -> Time {
    let nanos = calls.get(nr.index()).map_or(0, |call| call.at_nanos);
    let (secs, nanos) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    Time { secs: secs.cast_signed(), nanos: nanos as u32 }
}

fn change(
    tree: &mut Snapshot,
    change: &Change,
    now: Time,
    torn: Option<Torn>,
) -> weft_vfs::Result<()> {
    let attr_of = |tree: &Snapshot, node: NodeNr| tree.node(node.0).map(|node| node.attr());
    match change {
        Change::Node(new) => {
            let attr = SnapshotAttr {
                perm: new.perm,
                uid: new.uid,
                gid: new.gid,
                rdev: new.rdev,
                atime: now,
                mtime: now,
                ctime: now,
                btime: now,
            };
            let node = match new.kind {
                FileKind::Symlink => SnapshotNode::symlink(&new.target, &attr),
                kind => SnapshotNode::new(kind, &attr),
            };
            tree.insert(new.node.0, node)
        }
        Change::Name { dir, name, node: Some(node), .. } => tree.set_entry(dir.0, name, node.0),
        Change::Name { dir, name, node: None, .. } => tree.remove_entry(dir.0, name),
        Change::Size { node, size_bytes, .. } => {
            tree.set_size(node.0, *size_bytes)?;
            let Some(attr) = attr_of(tree, *node) else { return Ok(()) };
            tree.set_attr(node.0, &SnapshotAttr { mtime: now, ctime: now, ..attr })
        }
        Change::Page { node, bytes } => {
            let start = bytes.page * PAGE_BYTES;
            let own = bytes.start..bytes.start + bytes.len;
            let kept: Vec<_> = match torn {
                Some(torn) => torn_ranges(torn).collect(),
                None => vec![own.clone()],
            };
            for range in kept {
                let (from, to) = (range.start.max(own.start), range.end.min(own.end));
                if from >= to {
                    continue;
                }
                match bytes.bytes() {
                    Some(data) => {
                        let part = &data[from - own.start..to - own.start];
                        tree.write(node.0, start + from as u64, part)?;
                    }
                    None => tree.zero(node.0, start + from as u64, (to - from) as u64)?,
                }
            }
            Ok(())
        }
        Change::Attributes { node, perm, uid, gid } => {
            let Some(attr) = attr_of(tree, *node) else { return Ok(()) };
            let (perm, uid, gid) = (*perm, *uid, *gid);
            tree.set_attr(node.0, &SnapshotAttr { perm, uid, gid, ctime: now, ..attr })
        }
        Change::Xattr { node, name, value: Some(value) } => tree.set_xattr(node.0, name, value),
        Change::Xattr { node, name, value: None } => tree.remove_xattr(node.0, name),
        // Trees of a volume are read from it.
        Change::Block { .. } => Ok(()),
    }
}

/// The sizes of the files of a tree, in bytes.
pub(crate) fn sizes(base: &Snapshot) -> BTreeMap<NodeNr, u64> {
    base.nodes().map(|(nr, node)| (NodeNr(nr), node.size_bytes())).collect()
}
