//! The workloads of a campaign, after ACE (Mohan et al., "Finding Crash-Consistency Bugs with
//! Bounded Black-Box Crash Testing", OSDI 2018): every single operation and every pair of them on a
//! small tree, with every placement of fsync, fdatasync and sync; and random ones by seed.

use crate::model::State;
use crate::target::Tree;
use crate::workload::{Op, Workload};
use std::sync::Arc;
use weft_block::Rng;

/// The tree that the operations work on: two directories with files, an empty one, one to be moved,
/// a file with indirect blocks and one with a hole. The free blocks contain the data of a deleted
/// file, so that stale data can appear.
const SETUP: &str = "creat junk; write junk 0 200k; sync; unlink junk; sync; \
    mkdir A; mkdir B; mkdir E; mkdir D; mkdir L; creat LONG0; creat LONG1; creat LONG2; creat A/a; write A/a 0 5000; creat A/b; \
    write A/b 0 2500; setxattr A/b old 40; creat B/c; write B/c 0 700; creat D/in; \
    write D/in 0 100; creat big; write big 0 40k; creat holes; write holes 9000 1000; symlink A/a s";

/// The operations, each with the file or directory whose fsync makes it durable and the directory
/// whose fsync does.
const OPS: &[(&str, &str, &str)] = &[
    ("creat A/n", "A/n", "A"),
    ("mkdir A/m", "A/m", "A"),
    ("mkfifo B/p", "B/p", "B"),
    ("write A/a 0 4096", "A/a", "A"),
    ("write A/a 1500 3000", "A/a", "A"),
    ("write A/b 20000 1000", "A/b", "A"),
    ("append A/a 3000", "A/a", "A"),
    ("append big 30k", "big", "/"),
    ("write holes 2000 5000", "holes", "/"),
    ("falloc A/a 0 16k", "A/a", "A"),
    ("falloc A/b 4k 8k keep", "A/b", "A"),
    ("punch big 5000 20k", "big", "/"),
    ("truncate A/a 0", "A/a", "A"),
    ("truncate A/a 1300", "A/a", "A"),
    ("truncate A/b 9000", "A/b", "A"),
    ("truncate big 14k", "big", "/"),
    ("link A/a A/l", "A/l", "A"),
    ("link A/a B/l", "B/l", "B"),
    ("symlink short B/s", "B/s", "B"),
    (
        "symlink a-target-that-is-longer-than-the-sixty-bytes-that-fit-into-an-inode-itself A/s",
        "A/s",
        "A",
    ),
    ("unlink A/a", "A", "A"),
    ("unlink big", "/", "/"),
    ("rmdir E", "/", "/"),
    ("remove A/b", "A", "A"),
    ("rename A/a A/z", "A/z", "A"),
    ("rename A/a B/z", "B/z", "A"),
    ("rename A/a A/b", "A/b", "A"),
    ("rename A/a B/c", "B/c", "B"),
    ("rename D D2", "D2", "/"),
    ("rename D B/D", "B/D", "B"),
    ("rename D E", "E", "/"),
    ("setxattr A/a x 30", "A/a", "A"),
    ("setxattr A/b old 300", "A/b", "A"),
    ("removexattr A/b old", "A/b", "A"),
    ("chmod A/a 600", "A/a", "A"),
    ("hold A/b", "A/b", "A"),
    ("exchange A/a B/c", "A/a", "A"),
];

/// Sequences whose operations depend on each other: the usual ways to replace a file.
const CHAINS: &[&str] = &[
    "creat A/tmp; write A/tmp 0 3000; fsync A/tmp; rename A/tmp A/a",
    "creat A/tmp; write A/tmp 0 3000; rename A/tmp A/a; fsync A",
    "mkdir A/new; rename A/a A/new/a; fsync A/new",
    "mkdir N; rename A/a N/a",
    "mkdir N; mkdir N/O; rename D N/O/D; fsync N/O/D",
    "unlink A/a; creat A/a; write A/a 0 2000; fsync A/a",
    "unlink big; creat B/big2; write B/big2 0 60k; sync",
    "hold A/a; unlink A/a; creat A/a; append A/a 100; fsync A/a",
    "creat A/n; append A/n 1000; fsync A/n; append A/n 1000; fdatasync A/n; append A/n 9000",
    "link A/a B/l; unlink A/a; fsync B",
    "mkdir N; creat N/f; fsync N/f; unlink N/f; rmdir N; mkdir N; sync",
    "truncate big 0; append big 20k; fsync big; truncate big 1k",
    "rename A/a A/t; rename A/b A/a; rename A/t A/b; fsync A",
    "rename LONG2 B/z; creat LONG3; fsync B",
    "rename LONG2 B/z; rename B/c LONG3; unlink LONG1; creat LONG2; fsync LONG2",
];

fn ops(tree: Tree, text: &str) -> Vec<Op> {
    // Two names of this length fit into a sector of a directory; or the name has the maximum
    // length.
    let letters = match tree {
        Tree::Unix => 200,
        Tree::Macintosh => 30,
    };
    let text = text.replace("LONG", &format!("L/{}", "n".repeat(letters)));
    // The lists above are constants; a test parses them all.
    text.parse::<Workload>().map(|w| w.ops).unwrap_or_default()
}

/// Returns true if such trees support an operation.
fn is_possible(tree: Tree, op: &Op) -> bool {
    let unix_only = matches!(
        op,
        Op::Mkfifo(_)
            | Op::Symlink(..)
            | Op::Link(..)
            | Op::Exchange(..)
            | Op::Punch(..)
            | Op::Chmod(..)
            | Op::Setxattr(..)
            | Op::Removexattr(..)
    );
    tree == Tree::Unix || !unix_only
}

/// Returns the operations that prepare the small tree, without those that such a tree does not
/// support.
#[must_use]
pub fn setup(tree: Tree) -> Arc<[Op]> {
    ops(tree, SETUP).into_iter().filter(|op| is_possible(tree, op)).collect()
}

/// Returns the operations that may follow an operation: none, or one that makes it durable.
fn placements(file: &str, dir: &str) -> Vec<Option<Op>> {
    vec![
        None,
        Some(Op::Fsync(file.to_owned())),
        Some(Op::Fdatasync(file.to_owned())),
        Some(Op::Fsync(dir.to_owned())),
        Some(Op::Sync),
    ]
}

/// The prepared tree, computed once: a campaign tries tens of thousands of sequences on it.
struct Prepared {
    tree: Tree,
    setup: Arc<[Op]>,
    state: State,
}

impl Prepared {
    fn new(tree: Tree) -> Self {
        let setup = setup(tree);
        let mut state = State::default();
        for (i, op) in setup.iter().enumerate() {
            // The setup is a constant; a test applies it all.
            let _ = state.apply(op, i);
        }
        Self { tree, setup, state }
    }

    /// Returns the workload, if its operations are possible in this order.
    fn workload(&self, ops: Vec<Op>) -> Option<Workload> {
        let mut state = self.state.clone();
        let sense = ops
            .iter()
            .enumerate()
            .all(|(i, op)| is_possible(self.tree, op) && state.apply(op, i).is_ok());
        sense.then(|| Workload { setup: Arc::clone(&self.setup), ops })
    }

    /// Returns the sequences of the picked operations, with every placement after each.
    fn sequence(&self, picked: &[usize]) -> Vec<Workload> {
        let mut list: Vec<Vec<Op>> = vec![Vec::new()];
        for index in picked {
            let (text, file, dir) = OPS[*index];
            list = list
                .into_iter()
                .flat_map(|before| {
                    placements(file, dir).into_iter().map(move |persist| {
                        before.iter().cloned().chain(ops(self.tree, text)).chain(persist).collect()
                    })
                })
                .collect();
        }
        list.into_iter().filter_map(|ops| self.workload(ops)).collect()
    }
}

/// Returns every single operation with every placement.
#[must_use]
pub fn singles(tree: Tree) -> Vec<Workload> {
    let prepared = Prepared::new(tree);
    (0..OPS.len()).flat_map(|i| prepared.sequence(&[i])).collect()
}

/// Returns the usual sequences of several operations.
#[must_use]
pub fn chains(tree: Tree) -> Vec<Workload> {
    let prepared = Prepared::new(tree);
    CHAINS.iter().filter_map(|text| prepared.workload(ops(tree, text))).collect()
}

/// Returns every pair of operations, each with every placement after both: some tens of thousands.
/// Pairs that are impossible in this order are left out.
#[must_use]
pub fn pairs(tree: Tree) -> Vec<Vec<Workload>> {
    let prepared = &Prepared::new(tree);
    let n = OPS.len();
    (0..n)
        .flat_map(|i| (0..n).map(move |j| prepared.sequence(&[i, j])))
        .filter(|placements| !placements.is_empty())
        .collect()
}

/// Returns a random workload of `len` operations on the small tree.
#[must_use]
pub fn random(tree: Tree, rng: &mut Rng, len: usize) -> Workload {
    let Prepared { setup, mut state, .. } = Prepared::new(tree);
    let mut ops = Vec::new();
    let mut tries = 0;
    while ops.len() < len && tries < len * 50 {
        tries += 1;
        let op = random_op(rng, &state);
        let mut next = state.clone();
        if !is_possible(tree, &op) {
            continue;
        }
        if next.apply(&op, ops.len()).is_ok() {
            state = next;
            ops.push(op);
        }
    }
    Workload { setup, ops }
}

/// The initial tree of churns: two empty directories.
const CHURN_SETUP: &str = "mkdir d; mkdir e";

/// Maximum number of live names in a churn: a volume of 128 inodes must suffice.
const CHURN_NAMES: usize = 30;

/// Returns a random workload of `len` operations on two directories, nearly all of them in the
/// first: names of every length are created, removed, moved, and reuse the space of others in every
/// possible way, while blocks are written back in between.
///
/// A small workload with names of one length does not reach these cases: the records of a directory
/// depend on each other through their lengths, which only such a mix joins, splits and joins again.
#[must_use]
pub fn churn(tree: Tree, rng: &mut Rng, len: usize) -> Workload {
    let setup: Arc<[Op]> = ops(tree, CHURN_SETUP).into();
    let mut state = State::default();
    for (i, op) in setup.iter().enumerate() {
        // The setup is a constant; a test applies it all.
        let _ = state.apply(op, i);
    }
    let longest = match tree {
        Tree::Unix => [24, 24, 24, 60, 255][rng.index(5)],
        Tree::Macintosh => 31,
    };
    let mut list = Vec::new();
    let mut tries = 0;
    while list.len() < len && tries < len * 50 {
        tries += 1;
        let op = churn_op(rng, &state, longest);
        let mut next = state.clone();
        if is_possible(tree, &op) && next.apply(&op, list.len()).is_ok() {
            state = next;
            list.push(op);
        }
    }
    Workload { setup, ops: list }
}

fn churn_op(rng: &mut Rng, state: &State, longest: usize) -> Op {
    let mut known = Vec::new();
    let mut dirs = Vec::new();
    for (path, id) in crate::record::paths(state) {
        let path = path[1..].to_owned();
        if path.contains('/') {
            dirs.extend(state.names(id).is_some().then(|| path.clone()));
            known.push(path);
        }
    }
    let old = rng.pick(&known).cloned().unwrap_or_else(|| "d".to_owned());
    // Few stems, so that names recur; letters after them, so that lengths are mixed.
    let dir = match rng.below(16) {
        0 => "e".to_owned(),
        // An entry of a directory that may itself be removed.
        1 | 2 => rng.pick(&dirs).cloned().unwrap_or_else(|| "e".to_owned()),
        _ => "d".to_owned(),
    };
    let stem = format!("{:x}", rng.below(12));
    let letters = rng.index(longest - stem.len() + 1);
    let fresh = format!("{dir}/{stem}{}", "n".repeat(letters));
    let full = known.len() >= CHURN_NAMES;
    match rng.below(20) {
        0..=4 if full => Op::Remove(old),
        0..=3 => Op::Creat(fresh),
        4 => Op::Mkdir(fresh),
        5..=8 => Op::Remove(old),
        9..=11 => Op::Rename(old, fresh),
        // A name that existed a moment ago.
        12 => Op::Rename(old, rng.pick(&known).cloned().unwrap_or(fresh)),
        13 if rng.chance(1, 2) => Op::Exchange(old, rng.pick(&known).cloned().unwrap_or(fresh)),
        13 => Op::Link(old, fresh),
        14 => Op::Append(old, 1 + rng.below(900)),
        15 => Op::Fsync(old),
        16 if rng.chance(1, 3) => Op::Sync,
        16 => Op::Fsync(dir),
        _ => Op::WriteBack,
    }
}

fn random_op(rng: &mut Rng, state: &State) -> Op {
    let known: Vec<String> =
        crate::record::paths(state).into_keys().map(|p| p[1..].to_owned()).collect();
    let old = rng.pick(&known).cloned().unwrap_or_default();
    // In the root, no name that differs from a folder's only by case.
    let dir = ["r", "A/", "B/", "E/", "D/"][rng.index(5)];
    let fresh = format!("{dir}{}", ["a", "b", "c", "n", "m", "z"][rng.index(6)]);
    let target = if rng.chance(1, 3) { rng.pick(&known).cloned() } else { None };
    let target = target.unwrap_or_else(|| fresh.clone());
    let (at, len) = (rng.below(16_000), 1 + rng.below(9000));
    match rng.below(24) {
        0 | 1 => Op::Creat(fresh),
        2 => Op::Mkdir(fresh),
        3..=5 => Op::Write(old, at, len),
        6 | 7 => Op::Append(old, len),
        8 => Op::Falloc(old, at, len, rng.chance(1, 2)),
        9 => Op::Punch(old, at, len),
        10 => Op::Truncate(old, at),
        11 => Op::Link(old, fresh),
        12 => Op::Symlink("x".repeat(1 + rng.index(80)), fresh),
        13 | 14 => Op::Remove(old),
        15..=17 => Op::Rename(old, target),
        18 => Op::Setxattr(old, ["x", "old"][rng.index(2)].into(), len % 200),
        19 => Op::Chmod(old, (len % 0o1000) as u16),
        20 => Op::Fsync(old),
        21 => Op::WriteBack,
        22 => Op::Fdatasync(old),
        _ => Op::Sync,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_listed_operation_parses_and_appears() {
        let singles = singles(Tree::Unix);
        let first: BTreeSet<String> = singles.iter().map(|w| w.ops[0].to_string()).collect();
        assert_eq!(first.len(), OPS.len(), "each is possible on the small tree");
        assert!(singles.len() >= 4 * OPS.len(), "{}", singles.len());
        assert_eq!(chains(Tree::Unix).len(), CHAINS.len());
        let all: Vec<Workload> = pairs(Tree::Unix).into_iter().flatten().collect();
        assert!(all.len() > 15_000, "{}", all.len());
        let mut kinds: BTreeSet<String> = BTreeSet::new();
        for op in all.iter().flat_map(|w| &w.ops) {
            kinds.extend(op.to_string().split(' ').next().map(str::to_owned));
        }
        assert_eq!(kinds.len(), 22, "{kinds:?}");
    }

    #[test]
    fn a_macintosh_is_asked_for_nothing_that_it_does_not_have() {
        let tree = Tree::Macintosh;
        let mut list = [singles(tree), chains(tree)].concat();
        list.extend(pairs(tree).into_iter().flatten());
        list.extend((0..200).map(|seed| random(tree, &mut Rng::new(seed), 8)));
        assert!(list.len() > 5000, "{}", list.len());
        for workload in &list {
            for op in workload.setup.iter().chain(&workload.ops) {
                assert!(is_possible(tree, op), "{op}");
                let words = op.to_string();
                let names = words.split([' ', '/']);
                assert!(names.clone().all(|name| name.len() <= 31), "{op}");
            }
        }
    }

    #[test]
    fn a_churn_mixes_the_lengths_of_names_and_repeats_by_seed() {
        for tree in [Tree::Unix, Tree::Macintosh] {
            let workload = churn(tree, &mut Rng::new(5), 200);
            assert_eq!(workload.ops.len(), 200);
            assert_eq!(workload, churn(tree, &mut Rng::new(5), 200));
            let lengths: BTreeSet<usize> = workload
                .ops
                .iter()
                .filter_map(|op| match op {
                    Op::Creat(p) | Op::Mkdir(p) | Op::Rename(_, p) => Some(p.len()),
                    _ => None,
                })
                .collect();
            assert!(lengths.len() > 10, "{lengths:?}");
            assert!(workload.ops.contains(&Op::WriteBack));
            assert_eq!(workload.to_string().parse::<Workload>().unwrap(), workload);
        }
    }

    #[test]
    fn random_workloads_make_sense_and_repeat_by_seed() {
        let workload = random(Tree::Unix, &mut Rng::new(5), 12);
        assert_eq!(workload.ops.len(), 12);
        assert_eq!(
            Prepared::new(Tree::Unix).workload(workload.ops.clone()),
            Some(workload.clone())
        );
        assert_eq!(workload, random(Tree::Unix, &mut Rng::new(5), 12));
    }
}
