//! The states that a volume went through, the parts of them that are guaranteed to be durable, and
//! the judgement of the tree found after a crash.
//!
//! State 0 is the one at the start of the recording, state i the one after operation i. At a crash
//! the operations before some point have begun and those before an earlier point have ended. For
//! each name, each file's content and each set of attributes, the ended fsyncs determine since
//! which state it is durable; it must then be as in that state or in a later one up to the last
//! that began.
//!
//! Names are judged as pairs of directory and name, not as paths: a directory that was renamed
//! keeps its names.

use crate::model::{Body, ModelNode, Name, NodeId, State};
use crate::observe::{Observed, Seen};
use crate::target::Promises;
use crate::workload::Op;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

const SECTOR: usize = weft_block::SECTOR_BYTES;

/// The progress of a workload at the power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Progress {
    /// Number of operations that had begun, at least.
    pub begun: usize,
    /// Number of operations that had ended.
    pub ended: usize,
}

/// The states of a run.
#[derive(Debug, Clone)]
pub struct History {
    /// State 0 and the state after each operation.
    pub states: Vec<State>,
    /// The operations.
    pub ops: Vec<Op>,
    /// Indices of the operations that failed: a failed fsync guarantees nothing.
    pub failed: BTreeSet<usize>,
}

/// For each item, the state since which it is durable.
#[derive(Debug, Default)]
struct Durable {
    everything: usize,
    names: BTreeMap<(NodeId, Name), usize>,
    dirs: BTreeMap<NodeId, usize>,
    content: BTreeMap<NodeId, usize>,
    attributes: BTreeMap<NodeId, usize>,
    exists: BTreeMap<NodeId, usize>,
}

impl Durable {
    fn name(&self, dir: NodeId, name: &Name) -> usize {
        let one = self.names.get(&(dir, name.clone())).copied().unwrap_or(0);
        self.dirs.get(&dir).copied().unwrap_or(0).max(one).max(self.everything)
    }

    fn of(&self, map: &BTreeMap<NodeId, usize>, id: NodeId) -> usize {
        map.get(&id).copied().unwrap_or(0).max(self.everything)
    }
}

impl History {
    /// Returns the items that the ended operations made durable.
    fn durable(&self, ended: usize) -> Durable {
        let mut durable = Durable::default();
        for (i, op) in self.ops.iter().take(ended).enumerate() {
            let (Some(state), number) = (self.states.get(i + 1), i + 1) else { break };
            if self.failed.contains(&i) {
                continue;
            }
            match op {
                Op::Sync => durable.everything = number,
                Op::Fdatasync(path) => {
                    if let Ok(id) = state.resolve(path) {
                        durable.content.insert(id, number);
                    }
                }
                Op::Fsync(path) => {
                    let Ok(id) = state.resolve(path) else { continue };
                    durable.content.insert(id, number);
                    durable.attributes.insert(id, number);
                    durable.exists.insert(id, number);
                    if state.names(id).is_some() {
                        durable.dirs.insert(id, number);
                    }
                    // Its name, if it has only one, and those of the directories above.
                    let mut at = id;
                    while let [(dir, name)] = &state.names_of(at)[..] {
                        durable.names.insert((*dir, name.clone()), number);
                        durable.exists.insert(*dir, number);
                        at = *dir;
                    }
                }
                _ => {}
            }
        }
        durable
    }

    /// Returns the progress at the end of the workload.
    #[must_use]
    pub fn at_end(&self) -> Progress {
        Progress { begun: self.ops.len(), ended: self.ops.len() }
    }

    fn states(&self, range: RangeInclusive<usize>) -> &[State] {
        let last = self.states.len() - 1;
        &self.states[(*range.start()).min(last)..=(*range.end()).min(last)]
    }

    /// Returns the promises that `observed` breaks, one sentence each; empty if all are kept.
    #[must_use]
    pub fn judge(
        &self,
        observed: &Observed,
        progress: Progress,
        promises: Promises,
    ) -> Vec<String> {
        let durable = self.durable(progress.ended);
        let mut wrong: Vec<String> =
            observed.unreadable.iter().map(|what| format!("unreadable: {what}")).collect();
        self.judge_names(observed, progress, &durable, promises, &mut wrong);
        self.judge_existence(observed, progress, &durable, promises, &mut wrong);
        for (id, seen) in &observed.nodes {
            self.judge_node(*id, seen, progress, &durable, promises, &mut wrong);
        }
        if promises.operations_in_order && wrong.is_empty() {
            self.judge_order(observed, progress, &durable, &mut wrong);
        }
        wrong
    }

    /// Checks that each name is bound as in one of the states that are allowed for it.
    fn judge_names(
        &self,
        observed: &Observed,
        progress: Progress,
        durable: &Durable,
        promises: Promises,
        wrong: &mut Vec<String>,
    ) {
        for dir in observed.nodes.keys() {
            let Some(found) = observed.names(*dir) else { continue };
            let mut names: BTreeSet<&Name> = found.keys().collect();
            for state in self.states(0..=progress.begun) {
                names.extend(state.names(*dir).into_iter().flat_map(BTreeMap::keys));
            }
            for name in names {
                let since = durable.name(*dir, name);
                let seen = found.get(name).copied();
                let states = self.states(since..=progress.begun);
                let third = !promises.operations_in_order
                    && name.starts_with(b".exchanged-")
                    && (since..progress.begun).any(|i| self.exchanges(i, seen));
                if !third && states.iter().all(|s| s.binding(*dir, name) != seen) {
                    let may_be: BTreeSet<String> =
                        states.iter().map(|s| describe(s.binding(*dir, name))).collect();
                    wrong.push(format!(
                        "name {:?} in directory {} leads to {}; it may lead to {}",
                        String::from_utf8_lossy(name),
                        dir.0,
                        describe(seen),
                        may_be.into_iter().collect::<Vec<_>>().join(" or "),
                    ));
                }
            }
        }
    }

    /// Returns true if operation `i` swaps a name of this node with another. Without a journal, one
    /// of the two nodes has a third name in the meantime.
    fn exchanges(&self, i: usize, id: Option<NodeId>) -> bool {
        let (Some(Op::Exchange(p, q)), Some(before)) = (self.ops.get(i), self.states.get(i)) else {
            return false;
        };
        [p, q].into_iter().any(|path| before.resolve(path).ok() == id)
    }

    /// Checks that each node whose name is durable has a name; it may be renamed.
    fn judge_existence(
        &self,
        observed: &Observed,
        progress: Progress,
        durable: &Durable,
        promises: Promises,
        wrong: &mut Vec<String>,
    ) {
        let all = self.states(0..=progress.begun).iter().flat_map(|s| s.nodes.keys());
        for id in all.copied().collect::<BTreeSet<_>>() {
            let since = durable.of(&durable.exists, id);
            let states = self.states(since..=progress.begun);
            // Not guaranteed before state 0 contained it or an fsync ended; and after an operation
            // has removed one name, the other names, which were not synced, are not guaranteed.
            let always = states.iter().all(|s| s.node(id).is_some());
            let unnamed = !promises.operations_in_order
                && (since..progress.begun).any(|i| self.takes_name_of(i, id));
            if always && !unnamed && !observed.nodes.contains_key(&id) {
                wrong.push(format!(
                    "{} is gone; it was durable since state {since}",
                    describe(Some(id))
                ));
            }
        }
    }

    /// Returns true if operation `i` removes a name of `id` without giving it another.
    fn takes_name_of(&self, i: usize, id: NodeId) -> bool {
        let (Some(op), Some(before)) = (self.ops.get(i), self.states.get(i)) else { return false };
        match op {
            Op::Unlink(p) | Op::Rmdir(p) | Op::Remove(p) => before.resolve(p) == Ok(id),
            Op::Rename(_, new) => before.resolve(new) == Ok(id),
            _ => false,
        }
    }

    fn judge_node(
        &self,
        id: NodeId,
        seen: &Seen,
        progress: Progress,
        durable: &Durable,
        promises: Promises,
        wrong: &mut Vec<String>,
    ) {
        let versions = |since: usize| -> Vec<&Arc<ModelNode>> {
            let states = self.states(since..=progress.begun);
            states.iter().filter_map(|s| s.nodes.get(&id)).collect()
        };
        let who = describe(Some(id));
        let attributes = versions(durable.of(&durable.attributes, id));
        if attributes.iter().all(|v| v.xattrs != seen.xattrs) && !attributes.is_empty() {
            wrong.push(format!("{who} has attributes that it never had: {}", shown(&seen.xattrs)));
        }
        // A symbolic link's mode has no effect; each file system has its own.
        let moded = !matches!(seen.body, Body::Symlink(_)) && !attributes.is_empty();
        if moded && attributes.iter().all(|v| v.perm != seen.perm) {
            wrong.push(format!("{who} has mode {:o}, which it never had", seen.perm));
        }
        let content_since = durable.of(&durable.content, id);
        let bodies: Vec<&Body> = versions(content_since).iter().map(|v| &v.body).collect();
        if bodies.is_empty() {
            return; // It has no name in any state: judge_names has said so.
        }
        match &seen.body {
            Body::File(content) => {
                let files: Vec<&[u8]> = bodies
                    .iter()
                    .filter_map(|b| match b {
                        Body::File(content) => Some(&content[..]),
                        _ => None,
                    })
                    .collect();
                if files.is_empty() && bodies.iter().all(|b| **b != Body::Opaque) {
                    wrong.push(format!("{who} is a regular file, which it never was"));
                } else if let Err(e) = judge_content(content, &files, promises.no_stale_data) {
                    wrong.push(format!(
                        "{who} {e} (its content is durable since state {content_since})"
                    ));
                }
            }
            Body::Dir(_) => {
                if bodies.iter().all(|b| !matches!(b, Body::Dir(_))) {
                    wrong.push(format!("{who} is a directory, which it never was"));
                }
            }
            other => {
                if bodies.iter().all(|b| *b != other) {
                    wrong.push(format!("{who} is {other:?}, which it never was"));
                }
            }
        }
    }

    /// Checks that all names together are those of one state.
    fn judge_order(
        &self,
        observed: &Observed,
        progress: Progress,
        durable: &Durable,
        wrong: &mut Vec<String>,
    ) {
        let fits = |state: &State| {
            state.nodes.keys().chain(observed.nodes.keys()).all(|id| {
                match (state.node(*id).map(|n| &n.body), observed.nodes.get(id).map(|n| &n.body)) {
                    (Some(Body::Dir(a)), Some(Body::Dir(b))) => a == b,
                    (a, b) => a.is_some() == b.is_some(),
                }
            })
        };
        if !self.states(durable.everything..=progress.begun).iter().any(fits) {
            wrong.push("the names are not those that any one operation left".into());
        }
    }
}

/// Checks that each sector of a file is as in one of its versions, and its size between theirs. A
/// longer size may precede the data of an append that was not synced: a version is extended with
/// zeroes.
fn judge_content(content: &[u8], versions: &[&[u8]], no_stale_data: bool) -> Result<(), String> {
    let sizes = versions.iter().map(|v| v.len());
    let (Some(least), Some(most)) = (sizes.clone().min(), sizes.max()) else { return Ok(()) };
    if !(least..=most).contains(&content.len()) {
        return Err(format!("has {} bytes; it may have {least} to {most}", content.len()));
    }
    if !no_stale_data && versions.len() > 1 && versions.iter().any(|v| *v != versions[0]) {
        return Ok(());
    }
    for (i, sector) in content.chunks(SECTOR).enumerate() {
        let range = i * SECTOR..i * SECTOR + sector.len();
        let same = |v: &&[u8]| {
            let there = v.get(range.start.min(v.len())..range.end.min(v.len())).unwrap_or_default();
            sector[..there.len()] == *there && sector[there.len()..].iter().all(|b| *b == 0)
        };
        if versions.iter().any(same) {
            continue;
        }
        let start: String = sector.iter().take(48).map(|b| b.escape_ascii().to_string()).collect();
        let what = if sector.iter().all(|b| *b == 0) { "zeroes".into() } else { start };
        return Err(format!("holds at offset {} what no version of it had: {what}", i * SECTOR));
    }
    Ok(())
}

fn describe(id: Option<NodeId>) -> String {
    match id {
        None => "nothing".into(),
        Some(NodeId::ROOT) => "the root".into(),
        Some(NodeId(n)) if n >= NodeId::FOREIGN => format!("inode {}", n - NodeId::FOREIGN),
        Some(NodeId(n)) => format!("node {n}"),
    }
}

fn shown(xattrs: &BTreeMap<Name, Vec<u8>>) -> String {
    let one = |(name, value): (&Name, &Vec<u8>)| {
        let value = String::from_utf8_lossy(&value[..value.len().min(24)]).into_owned();
        format!("{}={value:?}", String::from_utf8_lossy(name))
    };
    format!("{{{}}}", xattrs.iter().map(one).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Workload;

    const SOFT: Promises =
        Promises { clean_after_recovery: false, operations_in_order: false, no_stale_data: true };

    fn history(text: &str) -> History {
        let workload: Workload = text.parse().unwrap();
        let mut state = State::default();
        for (i, op) in workload.setup.iter().enumerate() {
            state.apply(op, 900 + i).unwrap();
        }
        let mut states = vec![state.clone()];
        for (i, op) in workload.ops.iter().enumerate() {
            state.apply(op, i).unwrap();
            states.push(state.clone());
        }
        History { states, ops: workload.ops, failed: BTreeSet::new() }
    }

    /// Returns a state as if it had been read back from a volume.
    fn seen(state: &State) -> Observed {
        let node = |n: &ModelNode| Seen {
            body: n.body.clone(),
            xattrs: n.xattrs.clone(),
            perm: n.perm,
            nlink: 1,
        };
        let nodes = state.nodes.iter().map(|(id, n)| (*id, node(n))).collect();
        Observed { nodes, unreadable: Vec::new() }
    }

    fn judge(h: &History, found: &Observed, begun: usize, ended: usize) -> Vec<String> {
        h.judge(found, Progress { begun, ended }, SOFT)
    }

    fn set_content(found: &mut Observed, id: u32, content: Vec<u8>) {
        found.nodes.get_mut(&NodeId(id)).unwrap().body = Body::File(Arc::new(content));
    }

    #[test]
    fn nothing_is_promised_without_fsync_and_everything_with_it() {
        let h = history("creat a; write a 0 700; fsync a");
        let (none, empty, full) = (seen(&h.states[0]), seen(&h.states[1]), seen(&h.states[2]));
        for found in [&none, &empty, &full] {
            assert_eq!(judge(&h, found, 3, 2), [""; 0]);
        }
        assert_eq!(judge(&h, &full, 3, 3), [""; 0]);
        assert!(judge(&h, &none, 3, 3).iter().any(|w| w.contains("gone")));
        assert!(judge(&h, &empty, 3, 3)[0].contains("has 0 bytes"));
        // No change may appear before its operation has begun.
        assert!(judge(&h, &empty, 0, 0)[0].contains("leads to node 1"));
        assert!(!judge(&h, &full, 1, 1).is_empty());
    }

    #[test]
    fn a_rename_is_old_or_new_or_both_but_never_neither() {
        let h = history("mkdir A; mkdir B; creat A/x | rename A/x B/y");
        let (a, b, x) = (NodeId(1), NodeId(2), NodeId(3));
        let with = |in_a: bool, in_b: bool| {
            let mut found = seen(&h.states[0]);
            let names = |is: bool, name: &str| {
                Body::Dir(is.then(|| (name.into(), x)).into_iter().collect())
            };
            found.nodes.get_mut(&a).unwrap().body = names(in_a, "x");
            found.nodes.get_mut(&b).unwrap().body = names(in_b, "y");
            if !in_a && !in_b {
                found.nodes.remove(&x);
            }
            judge(&h, &found, 1, 0)
        };
        assert_eq!(with(true, false), [""; 0]);
        assert_eq!(with(false, true), [""; 0]);
        assert_eq!(with(true, true), [""; 0]);
        assert!(with(false, false)[0].contains("node 3 is gone"));
    }

    #[test]
    fn other_files_data_and_lost_data_are_recognised() {
        let h = history("creat a; write a 0 1024; creat b; write b 0 1024 | append a 1024");
        let full = |s: &State, id: u32| match &s.node(NodeId(id)).unwrap().body {
            Body::File(content) => content.to_vec(),
            _ => unreachable!(),
        };
        let (new, other) = (full(&h.states[1], 1), full(&h.states[0], 2));
        let mut found = seen(&h.states[1]);
        assert_eq!(judge(&h, &found, 1, 0), [""; 0]);
        set_content(&mut found, 1, [&new[..1024], &other[..1024]].concat());
        assert!(judge(&h, &found, 1, 0)[0].contains("f002v903"), "stale data of the other file");
        set_content(&mut found, 1, [&new[..1024], &[0; 512][..]].concat());
        assert_eq!(judge(&h, &found, 1, 0), [""; 0], "the size may come before the data");
        set_content(&mut found, 1, [&new[..512], &[0; 512][..]].concat());
        assert!(judge(&h, &found, 1, 0)[0].contains("zeroes"), "but nothing that was there goes");
        set_content(&mut found, 1, new[..1536].to_vec());
        assert_eq!(judge(&h, &found, 1, 0), [""; 0], "an append may arrive in part");
        set_content(&mut found, 1, new[..1000].to_vec());
        assert!(judge(&h, &found, 1, 0)[0].contains("1024 to 2048"));
    }

    #[test]
    fn a_synced_removal_stays_removed() {
        let h = history("creat a | unlink a; fsync /; chmod / 700");
        assert_eq!(judge(&h, &seen(&h.states[0]), 2, 1), [""; 0]);
        assert!(judge(&h, &seen(&h.states[0]), 2, 2)[0].contains("it may lead to nothing"));
    }

    #[test]
    fn operations_in_order_must_fit_one_state() {
        let h = history("mkdir A | creat A/x; creat A/y");
        let mut found = seen(&h.states[2]);
        let names = BTreeMap::from([(b"y".to_vec(), NodeId(3))]);
        found.nodes.get_mut(&NodeId(1)).unwrap().body = Body::Dir(names);
        found.nodes.remove(&NodeId(2));
        assert_eq!(judge(&h, &found, 2, 0), [""; 0]);
        let ordered = Promises { operations_in_order: true, ..SOFT };
        let wrong = h.judge(&found, Progress { begun: 2, ended: 0 }, ordered);
        assert!(wrong[0].contains("any one operation"), "{wrong:?}");
    }

    #[test]
    fn fdatasync_promises_content_but_no_name() {
        let h = history("creat a; write a 0 100; fdatasync a; append a 50");
        assert_eq!(judge(&h, &seen(&h.states[0]), 3, 3), [""; 0]);
        assert!(!judge(&h, &seen(&h.states[1]), 3, 3).is_empty());
        assert_eq!(judge(&h, &seen(&h.states[2]), 4, 3), [""; 0]);
    }
}
