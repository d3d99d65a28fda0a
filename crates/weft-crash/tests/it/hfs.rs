//! weft's HFS, by ordered writes and with the journal beside it.

use crate::ext2::clean;
use crate::long_campaign;
use std::collections::BTreeSet;
use std::sync::Arc;
use weft_crash::{Bounds, Campaign, Config, HfsTarget, Kind, Tree, explore, generate};
use weft_patch::{JournalMode, Options, Policy};

const ORDERED: Policy = Policy::Journal(JournalMode::Ordered);

fn short(target: HfsTarget, images: u64) {
    let report = clean(&Config { images, ..Config::new(Arc::new(target)) });
    assert!(report.images >= images && report.unsupported == 0, "{report:?}");
    assert!(report.counts.repairs > 0 && report.counts.aftermaths > 0, "{report:?}");
}

#[test]
fn ordered_writes_are_whole_after_recovery() {
    short(HfsTarget::new(Policy::Soft), 3000);
}

/// Blocks are written in the middle of everything, and changes rolled back in them.
#[test]
fn ordered_writes_under_memory_pressure() {
    let tight =
        Options { memory_budget_bytes: 24 << 10, background_bytes: 12 << 10, ..Options::default() };
    short(HfsTarget::new(Policy::Soft).engine(&tight), 1000);
}

#[test]
fn a_journal_keeps_operations_whole_and_in_order() {
    short(HfsTarget::new(ORDERED), 1500);
    short(HfsTarget::new(Policy::Journal(JournalMode::Metadata)), 500);
}

/// File data has no order, the trees have theirs: what was synced stays.
#[test]
fn async_keeps_what_was_synced() {
    short(HfsTarget::new(Policy::Async), 1500);
}

/// Names enough that the catalog has several levels, and its nodes split and merge.
#[test]
fn with_a_catalog_of_several_levels() {
    let target = HfsTarget::new(Policy::Soft);
    let setup = "creat junk; write junk 0 200k; mkdir A; mkdir B; mkdir E; mkdir D; creat A/a; \
                 write A/a 0 5000; creat A/b; write A/b 0 2500; creat B/c; write B/c 0 700; \
                 creat big; write big 0 40k"
        .to_owned();
    let names: String = (0..200).map(|i| format!("; creat D/{i:03}{}", "n".repeat(27))).collect();
    let given = [
        "creat D/005zz; rename D/100nnnnnnnnnnnnnnnnnnnnnnnnnnn A/z; sync; unlink A/z",
        "rename D B/D; creat B/D/000; fsync B/D",
        "write junk 190k 300k; fsync junk; truncate junk 1000; append A/a 90k; sync",
        "unlink big; creat A/n; write A/n 0 60k; fsync A/n; rename A/n A/a",
    ];
    let removals: String = (0..200)
        .filter(|i| i % 7 != 0)
        .map(|i| format!("unlink D/{i:03}{}; ", "n".repeat(27)))
        .collect();
    let list = given.iter().map(|ops| (*ops).to_owned()).chain([format!("{removals} sync")]);
    let config = Config {
        campaign: Campaign::Given(
            list.map(|ops| format!("{setup}{names} | {ops}").parse().unwrap()).collect(),
        ),
        states_per_workload: 80,
        images: u64::MAX,
        ..Config::new(Arc::new(target))
    };
    let report = clean(&config);
    assert!(report.workloads == 5 && report.images > 100, "{report:?}");
}

/// What was moved out of a folder must not go with it: records of both folders and of the item are
/// in nodes of their own.
#[test]
fn a_folder_that_something_was_moved_out_of_is_removed() {
    let names: String = (0..40).map(|i| format!("; creat D/{i:03}{}", "n".repeat(27))).collect();
    let setup = format!(
        "mkdir X; mkdir X/C; creat X/C/f; write X/C/f 0 3000; mkdir X/Y; creat X/Y/g; \
         mkdir D{names}; mkdir E; mkdir E/E; mkdir Z"
    );
    let config = Config {
        campaign: Campaign::Given(
            [
                "rename X/C Z/C; remove X/Y/g; rmdir X/Y; rmdir X",
                "rename X/Y/g Z/g; rmdir X/Y; rename X/C E/C; rmdir X; sync",
                "rename X/Y/g Z/g; rename E/E X/Y; rename X/C E/C; rmdir X/Y; rmdir X",
            ]
            .map(|ops| format!("{setup} | {ops}").parse().unwrap())
            .to_vec(),
        ),
        bounds: Bounds { all_subsets_of: 10, samples: 200, tears: 1, states: 2000 },
        states_per_workload: 1500,
        images: u64::MAX,
        ..Config::new(Arc::new(HfsTarget::new(Policy::Soft)))
    };
    let report = clean(&config);
    assert!(report.workloads == 3 && report.images > 50, "{report:?}");
}

/// The judges can see: without dependencies the same workloads leave damaged volumes.
#[test]
fn without_dependencies_damage_is_found() {
    let target = Arc::new(HfsTarget::new(Policy::Async).unordered());
    let config = Config { violations: 20, shrink: false, ..Config::new(target) };
    let report = explore(&config, &|_| {}).unwrap();
    let kinds: BTreeSet<Kind> =
        report.violations.iter().flat_map(|v| &v.faults).map(|f| f.kind).collect();
    assert!(kinds.contains(&Kind::Promise) || kinds.contains(&Kind::Mount), "{kinds:?}");
    assert!(report.violations.len() >= 20, "{report:?}");
}

/// A [`long_campaign`].
fn long(policy: Policy, share: u32) {
    let config = long_campaign(Arc::new(HfsTarget::new(policy)), share);
    let pairs = generate::pairs(Tree::Macintosh).len();
    let seen = clean(&config).workloads;
    println!("{}: {seen} workloads; there are {pairs} pairs", config.target.options());
}

#[test]
#[ignore = "long: make test-long"]
fn long_soft() {
    long(Policy::Soft, 8);
}

#[test]
#[ignore = "long: make test-long"]
fn long_async() {
    long(Policy::Async, 16);
}

#[test]
#[ignore = "long: make test-long"]
fn long_ordered() {
    long(ORDERED, 16);
}
