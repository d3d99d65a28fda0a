//! The check in the background of a mount after a crash: it reclaims all that soft updates leave, and
//! leaves nothing but further names of directories.

use crate::ext2::clean;
use std::sync::Arc;
use weft_block::MemoryDevice;
use weft_crash::{Bounds, Campaign, Config, Ext2Target, Target as _};
use weft_patch::{JournalMode, Policy};
use weft_vfs::Caller;

/// Judges states of each workload, with a mount, its check and e2fsck.
fn healed(workloads: &[&str]) {
    healed_on(
        [Ext2Target::new(Policy::Soft), Ext2Target::new(Policy::Soft).block_bytes(4096)],
        workloads,
    );
}

fn healed_on(targets: impl IntoIterator<Item = Ext2Target>, workloads: &[&str]) {
    let many = std::env::var_os("WEFT_LONG_SECONDS");
    let many = many.as_ref();
    for target in targets {
        let report = clean(&Config {
            campaign: Campaign::Given(workloads.iter().map(|text| text.parse().unwrap()).collect()),
            bounds: Bounds { all_subsets_of: 6, samples: 24, tears: 4, states: 1000 },
            // All of them, once: `WEFT_LONG_SECONDS`.
            states_per_workload: many.map_or(250, |_| usize::MAX),
            images: u64::MAX,
            e2fsck_every: 1,
            repair_every: 1,
            ..Config::new(Arc::new(target))
        });
        assert!(report.counts.leaky > 0, "no state has anything to reclaim: {report:?}");
    }
}

/// The name of a directory may be gone before those in it are: their blocks are freed with it, and
/// not written.
#[test]
fn directories_that_are_emptied_and_removed() {
    healed(&[
        "mkdir d; creat d/a; write d/a 0 5000; creat d/b; sync | unlink d/a; unlink d/b; remove d",
        "mkdir d; mkdir d/e; creat d/e/a; mkdir d/e/f; sync | \
         unlink d/e/a; remove d/e/f; remove d/e; remove d",
        "mkdir d; creat d/a; link d/a b; sync | unlink d/a; remove d; writeback; mkdir c; creat c/x",
    ]);
}

/// Names in a new directory may be there before its own.
#[test]
fn directories_that_are_new() {
    healed(&[
        "mkdir d; sync | mkdir d/e; creat d/e/a; write d/e/a 0 5000; mkdir d/e/f; creat d/e/f/b",
        "creat a; sync | mkdir d; link a d/a; mkdir d/e; link a d/e/a; writeback; creat d/e/b",
    ]);
}

#[test]
fn directories_that_are_renamed() {
    healed(&[
        "mkdir a; mkdir b; mkdir a/s; creat a/s/f; sync | rename a/s b/s",
        "mkdir a; mkdir b; mkdir a/s; mkdir b/t; sync | rename a/s b/s; rename b/t a/t; rename b/s a/u",
        "mkdir a; mkdir b; mkdir a/s; mkdir b/s; creat b/s/f; sync | exchange a/s b/s",
        "mkdir a; mkdir b; mkdir a/s; mkdir b/s; creat a/s/f; sync | rename a/s b/s; remove a",
        "mkdir a; mkdir a/s; mkdir a/s/t; creat a/s/t/f; sync | rename a/s/t t; remove a/s; remove a; \
         mkdir b; rename t b/t",
    ]);
}

/// A volume that lacks lost+found gets one when it is needed.
#[test]
fn directories_without_a_name_on_a_volume_without_lost_and_found() {
    let target = Ext2Target::new(Policy::Soft);
    let device = Arc::new(MemoryDevice::from_image(target.fresh().unwrap()));
    let fs = target.mount(device.clone()).unwrap().fs;
    fs.rmdir(&Caller::ROOT, fs.root(), b"lost+found").unwrap();
    fs.unmount().unwrap();
    let workload = "creat a | mkdir d; mkdir d/e; creat d/e/a; creat d/e/b";
    healed_on([target.on_image(device.snapshot())], &[workload]);
}

/// Under a journal there is nothing to reclaim, and nothing is moved.
#[test]
fn a_journal_leaves_nothing_to_reclaim() {
    let target = Ext2Target::new(Policy::Journal(JournalMode::Ordered));
    assert!(target.promises().clean_after_recovery);
    clean(&Config {
        campaign: Campaign::Given(vec![
            "mkdir d; creat d/a; sync | mkdir d/e; creat d/e/b; unlink d/a; rename d/e e; remove d"
                .parse()
                .unwrap(),
        ]),
        images: u64::MAX,
        repair_every: 1,
        ..Config::new(Arc::new(target))
    });
}
