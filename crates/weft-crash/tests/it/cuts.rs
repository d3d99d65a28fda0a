//! Files that are written anywhere and cut anywhere, again and again, with blocks of every depth of the
//! map: changes of the inode replace each other, and pointers are set and cleared before anything is
//! written.

use crate::ext2::clean;
use std::fmt::Write as _;
use std::sync::Arc;
use weft_block::Rng;
use weft_crash::{Bounds, Campaign, Config, Ext2Target, Workload};
use weft_patch::{Options, Policy};

/// A position in a file of blocks of 1 KiB: around the first block of each level of the map.
fn position(rng: &mut Rng) -> u64 {
    let firsts = [0, 12, 12 + 256, 12 + 2 * 256];
    (firsts[rng.index(firsts.len())] + rng.below(6)) * 1024 + rng.below(2) * rng.below(1024)
}

fn workload(seed: u64, operations: usize) -> Workload {
    let mut rng = Rng::new(seed);
    let mut text = "creat f; creat g; write g 12k 2k | ".to_owned();
    for _ in 0..operations {
        let file = if rng.index(5) == 0 { "g" } else { "f" };
        let at = position(&mut rng);
        let _ = match rng.index(24) {
            0..=9 => write!(text, "write {file} {at} {}; ", 1 + rng.below(3000)),
            10..=19 => write!(text, "truncate {file} {at}; "),
            20 | 21 => write!(text, "writeback; "),
            22 => write!(text, "fsync {file}; "),
            _ => write!(text, "punch {file} {at} 4k; "),
        };
    }
    text.trim_end_matches("; ").parse().unwrap()
}

fn cuts(engine: &Options, seeds: std::ops::Range<u64>, operations: usize, bounds: Bounds) {
    // More of them, once: `WEFT_SEEDS`.
    let many = std::env::var("WEFT_SEEDS").ok().and_then(|s| s.parse().ok());
    let seeds = seeds.start..many.map_or(seeds.end, |many: u64| seeds.start + many);
    clean(&Config {
        campaign: Campaign::Given(seeds.map(|seed| workload(seed, operations)).collect()),
        bounds,
        states_per_workload: 80,
        images: u64::MAX,
        ..Config::new(Arc::new(Ext2Target::new(Policy::Soft).engine(engine)))
    });
}

const FLUSHES: Bounds = Bounds { all_subsets_of: 0, samples: 0, tears: 0, states: 1 };

#[test]
fn a_file_that_is_cut_again_and_again() {
    cuts(&Options::default(), 0..40, 14, Bounds::default());
    cuts(&Options::default(), 1000..1004, 150, FLUSHES);
}

#[test]
fn a_file_that_is_cut_again_and_again_with_each_block_indexed() {
    let indexed = Options { indexed_patches: 0, ..Options::default() };
    cuts(&indexed, 2000..2030, 14, Bounds::default());
    cuts(&indexed, 3000..3004, 150, FLUSHES);
}

/// A new indirect block below one that the volume has: its pointers follow what they point to, as
/// that block may be written before the inode. If the inode is cut before, the data is cancelled.
#[test]
fn a_new_indirect_block_below_a_durable_one_points_to_what_is_there() {
    let workloads = [
        "creat f; creat g | write g 3072 796; write f 277504 936; write f 538624 1305; fsync f; \
         truncate f 4096; writeback; write f 539549 844; truncate f 277504; write g 4096 20; \
         write f 274784 2130; truncate f 3072",
        "creat f; creat g | write g 536685 1824; writeback; write f 541696 2772; \
         truncate f 13312; fsync f; writeback; write g 278402 1575; truncate g 4163",
        "creat f; creat g; write g 12288 2048 | write f 2048 41; write f 13778 2431; \
         write f 541123 2519; write f 278103 1086; writeback; truncate f 13312; fsync f; \
         write f 539648 1867; truncate f 2239; write f 3072 1050; write f 16299 900; \
         write f 278528 142; truncate g 3072; fsync f; write f 538196 1856; \
         write g 539852 2363; truncate f 5120",
    ];
    clean(&Config {
        campaign: Campaign::Given(workloads.iter().map(|text| text.parse().unwrap()).collect()),
        states_per_workload: usize::MAX,
        ..Config::new(Arc::new(Ext2Target::new(Policy::Soft)))
    });
}
