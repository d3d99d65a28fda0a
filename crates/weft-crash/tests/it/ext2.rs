//! weft's own ext2 and ext3, under every policy.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use weft_crash::{Bounds, Campaign, Config, Ext2Target, Kind, Report, explore};
use weft_patch::{JournalMode, Options, Policy};

const JOURNAL: Policy = Policy::Journal(JournalMode::Metadata);
const ORDERED: Policy = Policy::Journal(JournalMode::Ordered);
const FULL: Policy = Policy::Journal(JournalMode::Full);

/// Explores, prints what was done, and fails with every violation and its replay command.
fn clean(config: &Config) -> Report {
    let report = explore(config, &|_| {}).unwrap();
    println!(
        "{}: {} distinct images ({} with leaks) of {} workloads, {} runs of e2fsck, {} repairs, \
         {} used without repair",
        config.target.options(),
        report.images,
        report.counts.leaky,
        report.workloads,
        report.counts.e2fsck,
        report.counts.repairs,
        report.counts.aftermaths,
    );
    let told: String = report.violations.iter().map(|v| format!("\n{v}\n")).collect();
    assert!(told.is_empty(), "{told}");
    report
}

fn short(target: Ext2Target, images: u64) {
    let report = clean(&Config { images, ..Config::new(Arc::new(target)) });
    assert!(report.images >= images, "{report:?}");
    if weft_crash::e2fsck::find_e2fsck().is_none() {
        println!("skipped: e2fsck is not installed; weft's own checks stand alone");
    } else {
        assert!(report.counts.e2fsck > 0, "{report:?}");
    }
}

#[test]
fn soft_updates_leave_nothing_but_leaks() {
    short(Ext2Target::new(Policy::Soft), 3000);
}

#[test]
fn soft_updates_with_large_blocks_and_small_inodes() {
    short(Ext2Target::new(Policy::Soft).block_bytes(4096).inode_bytes(128), 1000);
}

#[test]
fn soft_updates_without_any_optimisation() {
    let plain = Options {
        hard_patches: false,
        merge: false,
        ready_lists: false,
        cancel: false,
        ..Options::default()
    };
    short(Ext2Target::new(Policy::Soft).engine(plain), 700);
}

#[test]
fn a_metadata_journal_leaves_nothing_at_all() {
    short(Ext2Target::new(JOURNAL), 700);
}

#[test]
fn an_ordered_journal_leaves_nothing_at_all() {
    short(Ext2Target::new(ORDERED), 1000);
    short(Ext2Target::new(ORDERED).block_bytes(4096), 300);
}

#[test]
fn a_full_journal_leaves_nothing_at_all() {
    short(Ext2Target::new(FULL), 700);
}

/// The judges can see: without dependencies the same workloads leave damaged volumes.
#[test]
fn without_dependencies_damage_is_found() {
    let target = Arc::new(Ext2Target::new(Policy::Async));
    let config = Config { violations: 20, shrink: false, ..Config::new(target) };
    let report = explore(&config, &|_| {}).unwrap();
    let kinds: BTreeSet<Kind> =
        report.violations.iter().flat_map(|v| &v.faults).map(|f| f.kind).collect();
    assert!(kinds.contains(&Kind::Damage) && kinds.contains(&Kind::Promise), "{kinds:?}");
    let told: String = report.violations.iter().map(ToString::to_string).collect();
    assert!(told.contains("f001v901"), "stale data of the removed file turns up: {told}");
}

/// Every pair of operations with every placement of fsync, fdatasync and sync, then random
/// workloads, for `WEFT_LONG_SECONDS` divided by `share`.
fn long(policy: Policy, share: u32) {
    let seconds = std::env::var("WEFT_LONG_SECONDS").ok().and_then(|s| s.parse().ok());
    let config = Config {
        campaign: Campaign::Long,
        // A new part of the space in each run; a failure prints its seed.
        seed: std::process::id().into(),
        bounds: Bounds { all_subsets_of: 8, samples: 48, tears: 4, states: 1000 },
        states_per_workload: 300,
        images: u64::MAX,
        time: Some(Duration::from_secs(seconds.unwrap_or(600)) / share),
        e2fsck_every: 2,
        repair_every: 8,
        ..Config::new(Arc::new(Ext2Target::new(policy)))
    };
    clean(&config);
}

#[test]
#[ignore = "long: make test-long"]
fn long_soft() {
    long(Policy::Soft, 2);
}

#[test]
#[ignore = "long: make test-long"]
fn long_ordered() {
    long(ORDERED, 4);
}

#[test]
#[ignore = "long: make test-long"]
fn long_journal() {
    long(JOURNAL, 8);
    long(FULL, 8);
}
