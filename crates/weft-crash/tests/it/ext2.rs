//! weft's own ext2 and ext3, under every policy.

use crate::long_campaign;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;
use weft_block::Rng;
use weft_crash::judge::{Depth, Judge};
use weft_crash::record::{prepare, record};
use weft_crash::states::epochs;
use weft_crash::{
    Bounds, Campaign, Config, Ext2Target, Kind, Report, Tree, Workload, explore, generate,
};
use weft_patch::{JournalMode, Options, Policy};

const JOURNAL: Policy = Policy::Journal(JournalMode::Metadata);
const ORDERED: Policy = Policy::Journal(JournalMode::Ordered);
const FULL: Policy = Policy::Journal(JournalMode::Full);

/// Explores, prints what was done, and fails with every violation and its replay command.
pub fn clean(config: &Config) -> Report {
    let report = explore(config, &|_| {}).unwrap();
    println!(
        "{}: {} distinct images ({} with leaks) of {} workloads, {} runs of e2fsck, {} repairs, \
         {} made clean in the background, {} used without repair",
        config.target.options(),
        report.images,
        report.counts.leaky,
        report.workloads,
        report.counts.e2fsck,
        report.counts.repairs,
        report.counts.healed,
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

/// Two sectors an inode: a torn write may bring either.
#[test]
fn soft_updates_with_inodes_over_sectors() {
    short(Ext2Target::new(Policy::Soft).block_bytes(4096).inode_bytes(1024), 1500);
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
    short(Ext2Target::new(Policy::Soft).engine(&plain), 700);
}

#[test]
fn soft_updates_over_several_groups() {
    short(Ext2Target::new(Policy::Soft).len_blocks(3 * 8192), 700);
}

/// Blocks are written in the middle of everything, and changes rolled back in them.
#[test]
fn soft_updates_under_memory_pressure() {
    let tight =
        Options { memory_budget_bytes: 24 << 10, background_bytes: 12 << 10, ..Options::default() };
    short(Ext2Target::new(Policy::Soft).engine(&tight), 1000);
}

/// An inode is dropped from memory as soon as it is durable, and read again.
#[test]
fn soft_updates_with_hardly_any_inode_in_memory() {
    short(Ext2Target::new(Policy::Soft).inodes_in_memory(1), 2000);
}

/// Long enough to go round the journal, so that old transactions are in the way of new ones.
#[test]
fn a_journal_that_wraps_is_recovered() {
    let mut text = "mkdir A; creat A/f |".to_owned();
    for i in 0..90 {
        let at = i * 700;
        let _ = write!(text, "write A/f {at} 3000; creat A/n{i}; fsync A/f;");
    }
    for policy in [JOURNAL, ORDERED, FULL] {
        let config = Config {
            campaign: Campaign::Given(vec![text.parse().unwrap()]),
            states_per_workload: 250,
            bounds: Bounds { states: 12, samples: 4, tears: 1, all_subsets_of: 3 },
            ..Config::new(Arc::new(Ext2Target::new(policy)))
        };
        let report = clean(&config);
        assert!(report.images > 100, "{report:?}");
    }
}

/// Explores all of these workloads under every policy that orders writes; each run of them has more
/// than `images_min` images.
fn no_cut_harms(workloads: &[&str], images_min: u64) {
    for policy in [Policy::Soft, JOURNAL, ORDERED, FULL] {
        let list = workloads.iter().map(|text| text.parse().unwrap()).collect();
        let config = Config {
            campaign: Campaign::Given(list),
            images: u64::MAX,
            ..Config::new(Arc::new(Ext2Target::new(policy)))
        };
        let report = clean(&config);
        let all = report.workloads == workloads.len() as u64 && report.unsupported == 0;
        assert!(all && report.images > images_min, "{report:?}");
    }
}

/// Free space is given back to the device between removals that are durable and such that are not,
/// and is used again: no cut finds a file that was fsynced without its content.
#[test]
fn a_cut_about_a_trim_loses_nothing() {
    let workloads = [
        "mkdir A; creat A/f; write A/f 0 9000; creat A/g; write A/g 0 30000 | unlink A/g; trim; \
         creat A/h; write A/h 0 20000; fsync A/h; unlink A/f; trim",
        "creat f; write f 0 20000; creat g; write g 0 9000 | truncate f 3000; trim; append f 9000; \
         fsync f; write g 0 9000; trim; fsync g; rename f g; trim",
        "mkdir A; creat A/f; write A/f 0 40000 | punch A/f 4000 20000; trim; write A/f 5000 9000; \
         fdatasync A/f; hold A/f; unlink A/f; trim; mkdir B; creat B/x; write B/x 0 9000; fsync B/x",
        "creat f; write f 0 9000; sync | unlink f; writeback; creat g; write g 0 9000; trim; \
         writeback; unlink g; writeback; trim; creat h; write h 0 9000; sync; trim",
    ];
    no_cut_harms(&workloads, 100);
}

/// Files that are made without a name, and then given one.
#[test]
fn a_cut_about_an_unnamed_file_leaves_it_whole_or_not_at_all() {
    let workloads = [
        "mkdir A | tmpfile A/f; write A/f 0 9000; fsync A/f; tmpfile A/g; rename A/g A/f; sync",
        "mkdir A; creat x | tmpfile A/f; writeback; tmpfile A/g; hold x; unlink x; tmpfile x; \
         writeback; append A/g 3000; fsync x; unlink A/f; tmpfile A/f; fsync A",
    ];
    no_cut_harms(&workloads, 20);
}

/// A volume with long names packed by mke2fs, so that entries cross sectors, and a hash tree.
#[test]
fn a_volume_that_mke2fs_filled() {
    let Some(image) = crate::foreign::volume() else { return };
    let mut rng = Rng::new(1);
    let list = (0..60).map(|_| crate::foreign::workload(&mut rng)).collect();
    let config = Config {
        campaign: Campaign::Given(list),
        images: u64::MAX,
        ..Config::new(Arc::new(Ext2Target::new(Policy::Soft).on_image(image)))
    };
    let report = clean(&config);
    assert!(report.workloads + report.unsupported == 60 && report.images > 1000, "{report:?}");
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
    let config = Config { violations: 200, shrink: false, ..Config::new(target) };
    let report = explore(&config, &|_| {}).unwrap();
    let kinds: BTreeSet<Kind> =
        report.violations.iter().flat_map(|v| &v.faults).map(|f| f.kind).collect();
    assert!(kinds.contains(&Kind::Damage) && kinds.contains(&Kind::Promise), "{kinds:?}");
}

#[test]
fn without_dependencies_stale_data_turns_up() {
    let target = Ext2Target::new(Policy::Async);
    let ops = "creat A/n; write A/n 0 9000; fsync A/n".parse::<Workload>().unwrap().ops;
    let workload = Workload { setup: generate::setup(Tree::Unix), ops };
    let prepared = prepare(&target, &workload.setup).unwrap();
    let recording = record(&target, &prepared, &workload).unwrap();
    let mut judge = Judge::new(&target).unwrap();
    let depth = Depth { e2fsck: false, repair: false, aftermath: false };
    let mut rng = Rng::new(1);
    let mut told = String::new();
    for (i, epoch) in epochs(&recording.base, &recording.events, 1024).unwrap().iter().enumerate() {
        for state in epoch.states(i, Bounds::default(), &mut rng) {
            let image = epoch.image(&state).unwrap();
            let (_, observed) = judge.image(&image, &recording, depth).unwrap();
            let faults = judge.promises(&observed, &recording, &state);
            told.extend(faults.into_iter().map(|f| f.what + "\n"));
        }
    }
    assert!(told.contains("f001v901"), "the removed file's data must be recognised: {told}");
}

/// A [`long_campaign`].
fn long(policy: Policy, share: u32) {
    let long = long_campaign(Arc::new(Ext2Target::new(policy)), share);
    let config = Config { e2fsck_every: 2, ..long };
    let pairs = generate::pairs(Tree::Unix).len();
    let until =
        (generate::chains(Tree::Unix).len() + generate::singles(Tree::Unix).len() + pairs) as u64;
    let seen = clean(&config).workloads;
    if seen < until {
        println!("{}: cut off before the last of {pairs} pairs", config.target.options());
    } else {
        println!("{}: all {pairs} pairs of operations", config.target.options());
    }
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
