//! Busy directories: names of every length that come, go and move while blocks are written back.
//!
//! Each flush leaves an image that a crash may leave. Hundreds of operations on one directory are
//! judged at every one of them, beside the usual subsets and torn writes of shorter ones.

use crate::ext2::clean;
use std::sync::Arc;
use std::time::Duration;
use weft_block::{MemoryDevice, Rng};
use weft_crash::judge::{Depth, Judge};
use weft_crash::record::{prepare, record_full};
use weft_crash::states::epochs;
use weft_crash::{
    Bounds, Campaign, Config, Ext2Target, HfsTarget, Report, Target, Tree, Workload, generate,
};
use weft_patch::{JournalMode, Options, Policy};

const ORDERED: Policy = Policy::Journal(JournalMode::Ordered);

/// What every flush leaves, and nothing else: hundreds of operations fit into the budget.
const FLUSHES: Bounds = Bounds { all_subsets_of: 0, samples: 0, tears: 0, states: 1 };

fn given(target: Arc<dyn Target>, workloads: &[&str]) -> Report {
    let list = workloads.iter().map(|text| text.parse().unwrap()).collect();
    let states_per_workload = usize::MAX;
    clean(&Config {
        campaign: Campaign::Given(list),
        states_per_workload,
        e2fsck_every: 1,
        ..Config::new(target)
    })
}

/// The workload that is meant by one with `name<20>` for a name with 20 letters behind it.
fn with_letters(text: &str) -> String {
    let mut parts = text.split('<');
    let mut workload = parts.next().unwrap().to_owned();
    for part in parts {
        let (count, rest) = part.split_once('>').unwrap();
        workload += &"n".repeat(count.parse().unwrap());
        workload += rest;
    }
    workload
}

/// The record that takes the place of one that a join has swallowed follows the join: rolled back,
/// the old length would lead into the middle of the new record.
#[test]
fn a_record_in_a_gap_follows_the_lengths_that_made_the_gap() {
    let (a, b, c, d) = ("a".repeat(21), "b".repeat(22), "c".repeat(4), "d".repeat(15));
    let last = "e".repeat(21);
    let moves = format!(
        "mkdir d | creat d/{a}; rename d/{a} d/{b}; rename d/{b} d/{c}; creat d/{d}; \
         rename d/{d} d/{last}; sync"
    );
    let swallowed = "mkdir d; creat d/aaaaaaaaaaaa; creat d/r | unlink d/aaaaaaaaaaaa; creat d/m; \
                     unlink d/m; creat d/p; unlink d/r; creat d/nnnnnnnnnnnn";
    for policy in [Policy::Soft, ORDERED] {
        given(Arc::new(Ext2Target::new(policy)), &[&moves, swallowed]);
    }
}

/// A directory goes after what moved out of it has arrived, and what it counted for counts until then.
#[test]
fn a_directory_that_is_removed_takes_nothing_with_it() {
    let workloads = [
        "mkdir d; mkdir e; creat e/x | rename e/x d/x; remove e",
        "mkdir d; mkdir e; mkdir e/x | rename e/x d/x; remove e",
        "mkdir d; mkdir e; creat e/x | link e/x d/x; unlink e/x; remove e",
        "mkdir e; creat e/x | rename e/x x; remove e",
        "mkdir d; mkdir d/e; creat d/e/x | rename d/e/x x; remove d/e; remove d",
        "mkdir e; creat e/x; mkdir g | rename e/x x; rename g e",
        "mkdir e; mkdir d; creat e/x | rename e/x d/x; rename d/x y; remove e; remove d",
        "mkdir d; mkdir e; mkdir e/x | rename e/x d/x; remove d/x",
    ];
    for policy in [Policy::Soft, ORDERED] {
        given(Arc::new(Ext2Target::new(policy)), &workloads);
        let without_links: Vec<_> =
            workloads.into_iter().filter(|text| !text.contains("link")).collect();
        given(Arc::new(HfsTarget::new(policy)), &without_links);
    }
}

/// Of an exchange, too, an old name goes only when the new one can be reached: here the way to it is
/// durable some writes later than its directory.
#[test]
fn an_exchange_waits_for_the_way_to_its_new_places() {
    let text = "mkdir d; mkdir e | creat d/0<11>; sync; mkdir d/7<51>; creat d/7<42>; \
        rename d/0<11> d/7<51>/5<24>; rename d/7<51>/5<24> d/5<22>; mkdir d/0<41>; \
        creat e/8<34>; creat d/9<30>; creat d/a<18>; creat d/5<49>; exchange d/a<18> d/0<41>; \
        creat d/7<59>; mkdir d/b<53>; creat d/5<6>; link d/5<49> d/b<34>; \
        rename d/5<22> e/9<26>; rename d/5<49> d/b<55>; mkdir d/a<18>/0<21>; \
        rename e/9<26> d/0<51>; creat d/a<18>/0<21>/8<54>; \
        exchange d/0<51> d/a<18>/0<21>/8<54>; rename d/0<51> d/5<14>; rename d/7<59> d/4<23>; \
        rename d/b<34> d/a<18>/1<14>";
    let workload = with_letters(text);
    given(Arc::new(Ext2Target::new(Policy::Soft)), &[&workload]);
}

/// An exchange of two names in one sector is not one change: the record of one of them may wait for
/// something else, and the other name is written without it.
#[test]
fn an_exchange_in_one_sector_leaves_both_files_a_name() {
    let text = "mkdir d | creat d/7<37>; rename d/7<37> d/4<45>; sync; creat d/0<13>; \
        rename d/0<13> d/9<10>; link d/9<10> d/2<14>; remove d/2<14>; creat d/8<27>; \
        exchange d/8<27> d/4<45>";
    given(Arc::new(Ext2Target::new(Policy::Soft)), &[&with_letters(text)]);
}

/// An fsync of a file makes durable where it is, although nothing of it has changed.
#[test]
fn an_fsync_reaches_a_directory_that_was_moved() {
    let workloads = [
        "mkdir L; creat L/x | rename L b; fsync b/x",
        "mkdir B; mkdir L; creat L/x | rename L B/b; fsync B/b/x",
        "mkdir B; mkdir L; mkdir L/M; creat L/M/x | rename L B/b; fsync B/b/M",
        "mkdir A; mkdir B; mkdir D; creat D/in | rename D A/b; rename A/b B/z; fsync B/z/in",
        "mkdir A; mkdir B; creat A/x; creat B/y | exchange A/x B/y; sync; rename B C; fsync C/y",
        "mkdir A; creat x | link x A/y; unlink x; sync; rename A B; fsync B/y",
    ];
    for policy in [Policy::Soft, ORDERED] {
        given(Arc::new(Ext2Target::new(policy)), &workloads);
    }
}

/// A name that is given again follows the clearing of the entry that had it.
#[test]
fn a_name_that_is_given_again_is_never_there_twice() {
    let long = "n".repeat(60);
    let before = format!(
        "mkdir d; mkdir e | creat d/nnnnnnnnnnnnnnnnnnn; creat d/{long}; \
         rename d/nnnnnnnnnnnnnnnnnnn d/nnnnnnnnn; rename d/nnnnnnnnn e/n"
    );
    let made = format!("{before}; creat d/nnnnnnnnn");
    let linked = format!("{before}; link d/{long} d/nnnnnnnnn");
    let renamed = format!("{before}; rename d/{long} d/nnnnnnnnn");
    given(Arc::new(Ext2Target::new(Policy::Soft)), &[&made, &linked, &renamed]);
}

/// A torn write of a directory's block brings no change without the one that it follows. Three names
/// of 150 bytes fill a sector, so the next one lies in another.
#[test]
fn a_change_that_follows_one_in_another_sector_waits_for_its_write() {
    let [a, b, c, e] = ["a", "b", "c", "e"].map(|letter| letter.repeat(150));
    let left = format!("mkdir d; creat d/{a}; creat d/{c} | rename d/{a} d/{b}; creat d/{e}");
    let made_again = format!("{left}; creat d/{a}");
    let directory_again = format!("{left}; mkdir d/{a}");
    let linked_again = format!("{left}; link d/{c} d/{a}");
    let moved_again = format!("{left}; rename d/{c} d/{a}");
    let out = format!(
        "mkdir d; mkdir d/{a}; creat d/{b}; creat d/{c}; creat d/{a}/x | \
         rename d/{a}/x d/{e}; remove d/{a}"
    );
    let exchanged = format!(
        "mkdir d; creat d/{a}; creat d/{b}; creat d/{c}; creat d/{e} | exchange d/{a} d/{e}"
    );
    let across = "mkdir e; creat e/x; creat y | exchange e/x y; unlink y; rename e/x z";
    let workloads =
        [&made_again[..], &directory_again, &linked_again, &moved_again, &out, &exchanged, across];
    for policy in [Policy::Soft, ORDERED] {
        given(Arc::new(Ext2Target::new(policy)), &workloads);
    }
}

fn churn(target: Arc<dyn Target>, seed: u64, images: u64) {
    let config = Config {
        campaign: Campaign::Churn(200),
        seed,
        bounds: FLUSHES,
        states_per_workload: usize::MAX,
        images,
        e2fsck_every: 16,
        repair_every: 64,
        ..Config::new(target)
    };
    let report = clean(&config);
    assert!(report.images >= images, "{report:?}");
}

#[test]
fn a_busy_directory_under_soft_updates() {
    churn(Arc::new(Ext2Target::new(Policy::Soft)), 1, 8000);
    churn(Arc::new(Ext2Target::new(Policy::Soft).block_bytes(4096)), 2, 1500);
    churn(Arc::new(Ext2Target::new(Policy::Soft).inodes_in_memory(1)), 7, 1500);
}

/// From a number of pending patches on, a block's changes follow one another.
fn crowded() -> Options {
    Options { indexed_patches: 6, ..Options::default() }
}

#[test]
fn a_crowded_directory_under_soft_updates() {
    churn(Arc::new(Ext2Target::new(Policy::Soft).engine(&crowded())), 5, 3000);
    churn(Arc::new(HfsTarget::new(Policy::Soft).engine(&crowded())), 6, 300);
}

#[test]
fn a_busy_directory_under_a_journal() {
    churn(Arc::new(Ext2Target::new(ORDERED)), 3, 1000);
}

#[test]
fn a_busy_folder_on_hfs() {
    for policy in [Policy::Soft, ORDERED] {
        churn(Arc::new(HfsTarget::new(policy)), 4, 500);
    }
}

/// Busy directories on a volume that has next to no room: what is refused leaves nothing behind, in
/// memory or after a cut. Returns how many operations were refused.
fn full(policy: Policy, seeds: impl Iterator<Item = u64>) -> usize {
    let target = Ext2Target::new(policy);
    let mut judge = Judge::new(&target).unwrap();
    let device = Arc::new(MemoryDevice::from_image(target.fresh().unwrap()));
    let free = target.mount(device).unwrap().fs.statfs().unwrap().blocks_free;
    let (mut images, mut refused) = (0, 0);
    for seed in seeds {
        let mut rng = Rng::new(seed);
        let mut workload = generate::churn(Tree::Unix, &mut rng, 120);
        // Indirect blocks come to it.
        let len_bytes = 1024 * (free - free / 256 - 4 - rng.below(6));
        let fill = format!("creat fill; write fill 0 {len_bytes}").parse::<Workload>().unwrap();
        workload.setup = workload.setup.iter().chain(fill.ops.iter()).cloned().collect();
        let prepared = prepare(&target, &workload.setup).unwrap();
        let (run, here) = record_full(&target, &prepared, &workload).unwrap();
        refused += here;
        let epochs = epochs(&run.base, &run.events, 1024).unwrap();
        for (i, epoch) in epochs.iter().enumerate() {
            let bounds = Bounds { all_subsets_of: 2, samples: 1, tears: 1, states: 4 };
            for state in epoch.states(i, bounds, &mut rng) {
                images += 1;
                // What is used after the crash needs room.
                let (e2fsck, repair) = (images % 16 == 0, images % 64 == 0);
                let depth = Depth { e2fsck, repair, aftermath: false };
                let image = epoch.image(&state).unwrap();
                let (mut faults, observed) = judge.image(&image, &run, depth).unwrap();
                faults.extend(judge.promises(&observed, &run, &state));
                let what = format!("WEFT_SEED={seed}, {}, {state}: '{workload}'", target.options());
                assert!(faults.is_empty(), "{what}: {faults:?}");
            }
        }
    }
    refused
}

#[test]
fn a_busy_directory_on_a_full_volume() {
    let given = std::env::var("WEFT_SEED").ok().and_then(|s| s.parse().ok());
    for policy in [Policy::Soft, ORDERED] {
        let seeds = given.map_or(1..=10, |seed| seed..=seed);
        let refused = full(policy, seeds);
        assert!(refused > 3 || given.is_some(), "{policy:?}: {refused}");
    }
}

/// Shorter ones with every kind of state: subsets of the writes of an epoch, torn ones.
#[test]
fn a_busy_directory_cut_between_flushes() {
    let config = Config {
        campaign: Campaign::Churn(40),
        images: 2000,
        ..Config::new(Arc::new(Ext2Target::new(Policy::Soft)))
    };
    clean(&config);
}

fn over(target: impl Target + 'static) -> Arc<dyn Target> {
    Arc::new(target)
}

fn long(target: &Arc<dyn Target>, share: u32) {
    let seconds = std::env::var("WEFT_LONG_SECONDS").ok().and_then(|s| s.parse().ok());
    for (operations, bounds) in [(400, FLUSHES), (60, Bounds::default())] {
        clean(&Config {
            campaign: Campaign::Churn(operations),
            seed: std::process::id().into(),
            bounds,
            states_per_workload: if bounds == FLUSHES { usize::MAX } else { 60 },
            images: u64::MAX,
            time: Some(Duration::from_secs(seconds.unwrap_or(600)) / (2 * share)),
            e2fsck_every: 8,
            repair_every: 64,
            ..Config::new(Arc::clone(target))
        });
    }
}

#[test]
#[ignore = "long: make test-long"]
fn long_churn_soft() {
    long(&over(Ext2Target::new(Policy::Soft)), 4);
    long(&over(Ext2Target::new(Policy::Soft).engine(&crowded())), 4);
}

#[test]
#[ignore = "long: make test-long"]
fn long_churn_journals() {
    for mode in [JournalMode::Metadata, JournalMode::Ordered, JournalMode::Full] {
        long(&over(Ext2Target::new(Policy::Journal(mode))), 9);
    }
}

#[test]
#[ignore = "long: make test-long"]
fn long_churn_hfs() {
    for policy in [Policy::Soft, ORDERED] {
        long(&over(HfsTarget::new(policy)), 6);
    }
}
