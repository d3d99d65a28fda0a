//! Few names, which come, go and move to and fro with hardly a write in between: their changes cancel
//! each other, and link counts are lowered late.

use crate::ext2::clean;
use std::collections::BTreeMap;
use std::sync::Arc;
use weft_block::Rng;
use weft_crash::{Bounds, Campaign, Config, Ext2Target, Workload};
use weft_patch::{Options, Policy};

const FLUSHES: Bounds = Bounds { all_subsets_of: 0, samples: 0, tears: 0, states: 1 };

/// What a name names.
#[derive(Clone, Copy)]
struct File {
    is_dir: bool,
    id: usize,
}

/// The names of a volume.
struct Names {
    names: BTreeMap<String, File>,
    made: usize,
}

impl Names {
    fn new(setup: &[(&str, bool)]) -> Self {
        let mut names = Self { names: BTreeMap::new(), made: 0 };
        setup.iter().for_each(|(name, is_dir)| names.make(name, *is_dir));
        names
    }

    fn make(&mut self, name: &str, is_dir: bool) {
        self.made += 1;
        self.names.insert(name.to_owned(), File { is_dir, id: self.made });
    }

    fn is_empty(&self, dir: &str) -> bool {
        let below = format!("{dir}/");
        !self.names.keys().any(|name| name.starts_with(&below))
    }

    fn pick(&self, rng: &mut Rng, wanted: impl Fn(&str, bool) -> bool) -> Option<String> {
        let some: Vec<&String> = self
            .names
            .iter()
            .filter(|(name, is_dir)| wanted(name, is_dir.is_dir))
            .map(|n| n.0)
            .collect();
        rng.pick(&some).map(|name| (*name).clone())
    }

    fn rename(&mut self, from: &str, to: &str) {
        let below = format!("{from}/");
        self.names.retain(|name, _| name != to);
        let moved: Vec<String> =
            self.names.keys().filter(|n| *n == from || n.starts_with(&below)).cloned().collect();
        for name in moved {
            let file = self.names.remove(&name).unwrap();
            self.names.insert(format!("{to}{}", &name[from.len()..]), file);
        }
    }

    /// Returns a name that may be there or not, in a directory that is.
    fn any(&self, rng: &mut Rng, long: bool) -> String {
        let dir = self.pick(rng, |_, is_dir| is_dir).unwrap();
        let name = ["a", "b", "c"][rng.index(3)];
        // Three names of 150 bytes fill a sector.
        let letters = if long && name != "c" { 150 } else { 1 };
        format!("{dir}/{}", name.repeat(letters))
    }

    /// Makes a change, and returns it in the language of workloads.
    fn change(&mut self, rng: &mut Rng, long: bool) -> Option<String> {
        let new = self.any(rng, long);
        let there = self.names.get(&new).copied();
        let top = |name: &str| !name.contains('/');
        match rng.below(20) {
            0..=2 if there.is_none() => {
                self.make(&new, false);
                Some(format!("creat {new}"))
            }
            3 | 4 if there.is_none() => {
                self.make(&new, true);
                Some(format!("mkdir {new}"))
            }
            5..=7 => {
                let old =
                    self.pick(rng, |name, is_dir| !top(name) && (!is_dir || self.is_empty(name)))?;
                self.names.remove(&old);
                Some(format!("remove {old}"))
            }
            8 if there.is_none() => {
                let old = self.pick(rng, |_, is_dir| !is_dir)?;
                self.names.insert(new.clone(), self.names[&old]);
                Some(format!("link {old} {new}"))
            }
            9..=16 => {
                let old = self.pick(rng, |name, _| !top(name))?;
                let File { is_dir, id } = self.names[&old];
                let fits = there.is_none_or(|other| {
                    other.is_dir == is_dir && other.id != id && (!is_dir || self.is_empty(&new))
                });
                if !fits || new.starts_with(&format!("{old}/")) {
                    return None;
                }
                self.rename(&old, &new);
                Some(format!("rename {old} {new}"))
            }
            17 => Some("writeback".to_owned()),
            18 => {
                let name = self.pick(rng, |_, _| true)?;
                Some(format!("fsync {name}"))
            }
            19 if rng.chance(1, 3) => {
                let (one, other) =
                    (self.pick(rng, |n, d| !top(n) && !d)?, self.pick(rng, |n, d| !top(n) && !d)?);
                let [a, b] = [&one, &other].map(|name| self.names[name]);
                self.names.extend([(one.clone(), b), (other.clone(), a)]);
                (a.id != b.id).then(|| format!("exchange {one} {other}"))
            }
            _ => None,
        }
    }
}

fn workload(seed: u64, operations: usize) -> Workload {
    let mut rng = Rng::new(seed);
    let long = rng.chance(1, 3);
    let mut names = Names::new(&[("d", true), ("e", true), ("d/c", false), ("e/c", true)]);
    let mut text = "mkdir d; mkdir e; creat d/c; mkdir e/c | ".to_owned();
    let mut made = 0;
    while made < operations {
        if let Some(op) = names.change(&mut rng, long) {
            text += &op;
            text += "; ";
            made += 1;
        }
    }
    text.trim_end_matches("; ").parse().unwrap()
}

fn moves(target: Ext2Target, seeds: std::ops::Range<u64>, operations: usize, bounds: Bounds) {
    // More of them, once: `WEFT_SEEDS`.
    let many = std::env::var("WEFT_SEEDS").ok().and_then(|s| s.parse().ok());
    let seeds = seeds.start..many.map_or(seeds.end, |many: u64| seeds.start + many);
    clean(&Config {
        campaign: Campaign::Given(seeds.map(|seed| workload(seed, operations)).collect()),
        bounds,
        states_per_workload: 60,
        images: u64::MAX,
        e2fsck_every: 8,
        // Each of these makes a mount reclaim what is left, which is most where directories move.
        repair_every: 4,
        ..Config::new(Arc::new(target))
    });
}

#[test]
fn names_that_move_to_and_fro() {
    moves(Ext2Target::new(Policy::Soft), 0..60, 12, Bounds::default());
    moves(Ext2Target::new(Policy::Soft), 1000..1020, 120, FLUSHES);
}

#[test]
fn names_that_move_to_and_fro_with_each_block_indexed() {
    let indexed = Options { indexed_patches: 0, ..Options::default() };
    let target = || Ext2Target::new(Policy::Soft).engine(&indexed).block_bytes(4096);
    moves(target(), 2000..2040, 12, Bounds::default());
    moves(target(), 3000..3010, 120, FLUSHES);
}

#[test]
fn names_that_move_to_and_fro_with_few_inodes_in_memory() {
    let target = || Ext2Target::new(Policy::Soft).inodes_in_memory(1);
    moves(target(), 4000..4030, 14, Bounds::default());
    moves(target(), 5000..5010, 120, FLUSHES);
}

/// What is taken back may have been what others relied on.
#[test]
fn a_name_that_others_wait_for_is_not_taken_back() {
    let workloads = [
        // The old name goes when the last one is there, not one in between.
        "mkdir d; mkdir e; creat d/a | rename d/a e/b; rename e/b d/c",
        "mkdir d; mkdir e; mkdir f; creat d/a | rename d/a e/b; rename e/b f/c; rename f/c d/a",
        "mkdir d; mkdir e; mkdir f; creat d/a | rename d/a e/b; rename e/b f/c; rename f/c e/b",
        // A file in a directory whose name is taken back.
        "mkdir d; mkdir e; creat d/a | mkdir e/s; rename d/a e/s/a; rename e/s d/t",
        "mkdir d; mkdir e; creat d/a | mkdir e/s; rename d/a e/s/a; rename e/s/a d/b; remove e/s",
        "mkdir d; mkdir e; creat d/a | mkdir e/s; rename d/a e/s/a; rename e/s/a d/a; remove e/s",
        // The old content of a name goes when the new one is there.
        "mkdir d; mkdir e; creat d/f | creat d/t; rename d/t d/f; rename d/f e/g",
        "mkdir d; mkdir e; creat d/f; creat e/g | rename e/g d/f; rename d/f e/h; rename e/h e/g",
        // Directories that change places: none contains itself.
        "mkdir b; mkdir b/k; mkdir x | rename b/k x/k; rename b x/k/a",
        "mkdir b; mkdir b/p; mkdir b/p/k; mkdir x | rename b/p x/p; rename b x/p/k/b",
        "mkdir b; mkdir b/k; mkdir x; mkdir x/l | exchange b/k x/l; rename b x/k",
        // A count that waits for a block that is freed with its directory.
        "mkdir d; mkdir e; creat d/x; link d/x e/y; mkdir d/s; link d/x d/s/z | \
         unlink d/s/z; remove d/s; unlink e/y",
        "mkdir d; mkdir e; mkdir d/s | rename d/s e/s; remove e/s",
        "mkdir d; mkdir e; mkdir d/s; mkdir d/s/t | rename d/s/t e/t; remove d/s; remove e/t",
    ];
    for target in [Ext2Target::new(Policy::Soft), Ext2Target::new(Policy::Soft).block_bytes(4096)] {
        clean(&Config {
            campaign: Campaign::Given(workloads.iter().map(|text| text.parse().unwrap()).collect()),
            states_per_workload: usize::MAX,
            e2fsck_every: 1,
            repair_every: 1,
            ..Config::new(Arc::new(target))
        });
    }
}
