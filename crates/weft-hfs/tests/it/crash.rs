//! Power cuts at every block write: the volume is recovered, sound, and has its synced content.

use crate::model::{Driver, Model};
use crate::volume::{assert_sound, name, quiet};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use weft_block::{
    BlockDevice, Event, Image, MemoryDevice, Partition, PartitionInfo, PartitionType, Recorder,
    Rng, SECTOR_BYTES,
};
use weft_hfs::layout::{CatalogRecord, Fork, Name, ROOT_ID};
use weft_hfs::mkfs::{MkfsOptions, mkfs};
use weft_hfs::volume::New;
use weft_hfs::{Hfs, OpenOptions, fsck};
use weft_patch::{JournalMode, Options, Policy};
use weft_vfs::FileSystem;

const JOURNAL_BYTES: u64 = 2 << 20;

/// The volume at the front of a device, its journal behind it.
#[allow(clippy::needless_pass_by_value)]
fn parts(device: Arc<dyn BlockDevice>, bytes: u64) -> (Arc<dyn BlockDevice>, Arc<dyn BlockDevice>) {
    let part = |start_bytes, len_bytes| -> Arc<dyn BlockDevice> {
        let info = PartitionInfo {
            number: 1,
            start_bytes,
            len_bytes,
            kind: PartitionType::Mbr(0xaf),
            id: None,
            name: String::new(),
        };
        Arc::new(Partition::new(Arc::clone(&device), &info).unwrap())
    };
    (part(0, bytes), part(bytes, JOURNAL_BYTES))
}

fn open(device: Arc<dyn BlockDevice>, bytes: u64, policy: Policy) -> weft_hfs::Result<Arc<Hfs>> {
    let (volume, journal) = parts(device, bytes);
    let journaled = matches!(policy, Policy::Journal(_));
    let engine = Options { policy, background: false, ..Options::default() };
    Hfs::open(volume, OpenOptions { engine, journal: journaled.then_some(journal), ..quiet() })
}

/// The synced state, and the items that were changed since.
#[derive(Clone)]
struct Promise {
    event: usize,
    model: Model,
    touched: BTreeSet<u32>,
}

impl Promise {
    /// One item of `now` is durable, and with it where it lies.
    fn with_item(&self, event: usize, now: &Model, id: u32) -> Self {
        let mut promise = Self { event, ..self.clone() };
        promise.model.items.insert(id, now.items[&id].clone());
        promise.touched.remove(&id);
        promise
    }
}

/// All items of a volume by id.
fn contents(fs: &Hfs) -> BTreeMap<u32, (u32, Name, CatalogRecord)> {
    let mut all = BTreeMap::new();
    let mut folders = vec![ROOT_ID];
    while let Some(folder) = folders.pop() {
        for (name, record) in fs.items(folder).unwrap() {
            let id = record.id().unwrap();
            if matches!(record, CatalogRecord::Directory(_)) {
                folders.push(id);
            }
            assert!(all.insert(id, (folder, name, record)).is_none(), "item {id} twice");
        }
    }
    all
}

fn kept(fs: &Hfs, promise: &Promise) {
    let there = contents(fs);
    for (id, item) in &promise.model.items {
        if promise.touched.contains(id) {
            continue;
        }
        let Some((parent, found, _)) = there.get(id) else {
            panic!("item {id} ({}) was synced and is gone", item.name)
        };
        assert_eq!((*parent, found.as_bytes()), (item.parent, item.name.as_bytes()));
        let Some(forks) = &item.forks else { continue };
        for fork in Fork::ALL {
            let want = &forks[fork.index()];
            let mut got = vec![0; want.len() + 1];
            let n = fs.read_fork(*parent, found, fork, 0, &mut got).unwrap();
            if &got[..n] != want.as_slice() {
                let at = got[..n].iter().zip(want).position(|(a, b)| a != b);
                panic!(
                    "{fork:?} fork of synced item {id} ({}) has changed: {n} bytes for {}, first at \
                     {at:?}",
                    item.name,
                    want.len()
                );
            }
        }
    }
}

/// Opens the volume that a power cut has left, and examines it.
fn judge(image: Image, bytes: u64, policy: Policy, promise: &Promise) -> Image {
    let device = Arc::new(MemoryDevice::from_image(image));
    let fs = open(Arc::clone(&device) as Arc<dyn BlockDevice>, bytes, policy)
        .unwrap_or_else(|e| panic!("cannot be opened: {e}"));
    kept(&fs, promise);
    fs.unmount().unwrap();
    drop(fs);
    let (volume, _) = parts(Arc::clone(&device) as Arc<dyn BlockDevice>, bytes);
    assert_sound(&*volume);
    assert!(fsck::check(&*volume).unwrap().unmounted);
    device.snapshot()
}

/// Plays events `from..to`, of those that no flush covers only the ones that a power cut may leave.
fn cut(image: &mut Image, pending: &[&Event], rng: &mut Rng) {
    let harsh = rng.below(101);
    for event in pending {
        let Event::Write { offset, data, .. } = event else { continue };
        for (i, sector) in data.chunks(SECTOR_BYTES).enumerate() {
            // Each sector by itself: a long write is many.
            if rng.chance(harsh, 100) {
                image.write(sector, offset + (i * SECTOR_BYTES) as u64).unwrap();
            }
        }
    }
}

fn apply(image: &mut Image, event: &Event) {
    if let Event::Write { offset, data, .. } = event {
        image.write(data, *offset).unwrap();
    }
}

/// Runs operations with syncs, then cuts the power after each write of the recording; `every`-th
/// only for long runs. Returns how many cuts there were.
fn explore(
    seed: u64,
    bytes: u64,
    steps: usize,
    policy: Policy,
    every: usize,
    setup: impl FnOnce(&mut Driver),
) -> usize {
    println!("seed {seed}, {bytes} bytes, {steps} steps, {policy:?}");
    let base = Arc::new(MemoryDevice::new(bytes + JOURNAL_BYTES));
    let whole = Arc::clone(&base) as Arc<dyn BlockDevice>;
    mkfs(&*parts(whole, bytes).0, &MkfsOptions::new(name("Cut"), 1)).unwrap();
    let start = base.snapshot();
    let recorder = Arc::new(Recorder::new(base));
    let fs = open(Arc::clone(&recorder) as Arc<dyn BlockDevice>, bytes, policy).unwrap();
    let mut driver = Driver::new(seed);
    driver.items = 60;
    driver.names = 80;
    driver.write_bytes = 3000;
    setup(&mut driver);
    let mut promises =
        vec![Promise { event: 0, model: Model::default(), touched: BTreeSet::new() }];
    for _ in 0..steps {
        driver.touched.clear();
        driver.step(&fs);
        let last = promises.last_mut().unwrap();
        last.touched.extend(&driver.touched);
        match driver.rng.below(12) {
            0 => {
                fs.sync().unwrap();
                let event = recorder.event_count();
                let model = driver.model.clone();
                promises.push(Promise { event, model, touched: BTreeSet::new() });
            }
            1 => fs.engine().write_back().unwrap(),
            n if driver.syncs_items && (n == 2 || driver.urgent.is_some()) => {
                if let Some(id) = driver.sync_item(&fs) {
                    let event = recorder.event_count();
                    let promise = last.with_item(event, &driver.model, id);
                    promises.push(promise);
                }
            }
            _ => {}
        }
    }
    fs.sync().unwrap();
    let events = recorder.events();
    let mut rng = Rng::stream(seed, 1);
    let (mut durable, mut flushed, mut cuts) = (start, 0, 0);
    let mut promise = 0;
    for at in 0..events.len() {
        while promises.get(promise + 1).is_some_and(|p| p.event <= at) {
            promise += 1;
        }
        if let Event::Flush { covers } = &events[at] {
            for event in &events[flushed..*covers] {
                apply(&mut durable, event);
            }
            flushed = *covers;
            continue;
        }
        if at % every != 0 {
            continue;
        }
        let pending: Vec<&Event> = events[flushed..=at].iter().collect();
        let mut image = durable.clone();
        cut(&mut image, &pending, &mut rng);
        cuts += 1;
        let again = image.clone();
        let result = std::panic::catch_unwind(|| judge(image, bytes, policy, &promises[promise]));
        if let Err(panic) = result {
            eprintln!("cut at event {at} of seed {seed}");
            if let Ok(path) = std::env::var("WEFT_HFS_KEEP") {
                let mut raw = vec![0; bytes as usize];
                again.read(&mut raw, 0).unwrap();
                std::fs::write(path, raw).unwrap();
            }
            std::panic::resume_unwind(panic);
        }
        if cuts % 16 == 0 {
            recovery_is_cut(&again, bytes, policy, &promises[promise], &mut rng);
        }
    }
    println!("{cuts} cuts");
    cuts
}

/// The power goes again while the volume is recovered.
fn recovery_is_cut(image: &Image, bytes: u64, policy: Policy, promise: &Promise, rng: &mut Rng) {
    let recorder = Arc::new(Recorder::new(MemoryDevice::from_image(image.clone())));
    drop(open(Arc::clone(&recorder) as Arc<dyn BlockDevice>, bytes, policy).unwrap());
    let events = recorder.events();
    let at = rng.below(events.len() as u64 + 1) as usize;
    let mut durable = image.clone();
    let mut flushed = 0;
    for event in &events[..at] {
        if let Event::Flush { covers } = event {
            for event in &events[flushed..*covers] {
                apply(&mut durable, event);
            }
            flushed = *covers;
        }
    }
    cut(&mut durable, &events[flushed..at].iter().collect::<Vec<_>>(), rng);
    judge(durable, bytes, policy, promise);
}

#[test]
fn ordered_writes() {
    let mut cuts = 0;
    for seed in 0..8 {
        cuts += explore(seed, 1 << 20, 400, Policy::Soft, 1, |_| {});
    }
    assert!(cuts > 2000, "{cuts}");
}

/// Small files, many names: the catalog splits and merges.
#[test]
fn growing_and_shrinking_catalog() {
    for seed in 50..54 {
        explore(seed, 2 << 20, 1500, Policy::Soft, 3, |driver| {
            driver.items = 600;
            driver.names = 5000;
            driver.write_bytes = 30;
            driver.syncs_only_by_test = true;
        });
    }
}

/// Many files, removed in a row: nodes of the index go with the leaves below them.
fn swept(seed: u64) -> usize {
    explore(seed, 2 << 20, 900, Policy::Soft, 4, |driver| {
        driver.items = 900;
        driver.names = 5000;
        driver.write_bytes = 30;
        driver.churn = 80;
        driver.sweeps = 2;
        driver.syncs_only_by_test = true;
        driver.syncs_items = true;
    })
}

#[test]
fn folders_emptied_in_order() {
    let cuts: usize = (300..304).map(swept).sum();
    assert!(cuts > 300, "{cuts}");
}

/// The nodes that an emptied folder leaves go together, not one after the other.
#[test]
fn emptying_a_folder_takes_few_flushes() {
    let bytes = 4 << 20;
    let base = Arc::new(MemoryDevice::new(bytes + JOURNAL_BYTES));
    let whole = Arc::clone(&base) as Arc<dyn BlockDevice>;
    mkfs(&*parts(whole, bytes).0, &MkfsOptions::new(name("Cut"), 1)).unwrap();
    let recorder = Arc::new(Recorder::new(base));
    let fs = open(Arc::clone(&recorder) as Arc<dyn BlockDevice>, bytes, Policy::Soft).unwrap();
    let names: Vec<Name> = (0..2000).map(|i| name(&format!("file{i:06}"))).collect();
    for name in &names {
        fs.create_item(ROOT_ID, name, &New::FILE).unwrap();
    }
    fs.sync().unwrap();
    let before = recorder.event_count();
    for name in &names {
        fs.delete_item(ROOT_ID, name).unwrap();
    }
    fs.sync().unwrap();
    let events = recorder.events();
    let flushes = events[before..].iter().filter(|e| matches!(e, Event::Flush { .. })).count();
    assert!(flushes <= 16, "{flushes} flushes");
}

#[test]
fn nearly_full_and_in_pieces() {
    for seed in 100..104 {
        explore(seed, 400 << 10, 800, Policy::Soft, 2, |driver| driver.items = 40);
    }
}

/// Whatever the order of writes, synced content stays: also when the catalog's nodes split and
/// merge after that, without a sync.
#[test]
fn async_keeps_synced_content() {
    for seed in 400..404 {
        explore(seed, 2 << 20, 900, Policy::Async, 3, |driver| {
            driver.items = 600;
            driver.names = 5000;
            driver.write_bytes = 30;
            driver.churn = 50;
            driver.syncs_only_by_test = true;
            driver.syncs_items = true;
        });
    }
}

#[test]
fn with_a_journal() {
    let policy = Policy::Journal(JournalMode::Ordered);
    for seed in 200..204 {
        explore(seed, 1 << 20, 400, policy, 2, |_| {});
    }
}

/// Seeds that once lost something that was synced.
#[test]
fn seeds_that_lost_items() {
    // A node was taken out of the index before the node that had taken over half of its records
    // could be reached, as the index had split meanwhile.
    explore(10_411, (400 << 10) + 2 * 300_032, 1000, Policy::Soft, 1, |driver| {
        driver.items = 100;
        driver.names = 3000;
    });
    // A folder that something was moved out of was removed: its record was gone before what was
    // moved was at its new place.
    campaign(5109);
    // A folder came to lie in one that had just been moved out of it: on the disk it had not.
    campaign(40_029);
    // The power went again in a recovery: index keys were raised on the disk over stale copies that
    // were cut off in memory.
    campaign(50_043);
    // With a journal, a sync of one file did not know of data in a block that it shares.
    campaign(104);
}

/// The volume and the operations that a seed of the campaign stands for.
fn campaign(seed: u64) -> usize {
    campaign_in(seed, None)
}

/// As [`campaign`], in an order of writes that is not the seed's.
fn campaign_in(seed: u64, order: Option<Policy>) -> usize {
    let mut rng = Rng::stream(seed, 2);
    let mut pick = |from: &[u64]| from[rng.below(from.len() as u64) as usize];
    let policy = match pick(&[0, 0, 0, 1]) {
        0 => Policy::Soft,
        _ => Policy::Journal(JournalMode::Ordered),
    };
    let policy = order.unwrap_or(policy);
    let bytes = (400 << 10) + pick(&[0, 1, 2, 3, 4, 5, 6]) * 300_032;
    let items = pick(&[30, 100, 300, 800]);
    let names = items * pick(&[1, 5, 30]);
    let write_bytes = pick(&[20, 3000, 20_000]);
    let churn = pick(&[0, 50, 95]);
    let (steps, every) = if items > 200 { (2500, 4) } else { (1000, 1) };
    let (own_syncs, items_synced) = (pick(&[0, 1]) == 0, pick(&[0, 1]) == 0);
    explore(seed, bytes, steps, policy, every, |driver| {
        driver.items = items as usize;
        driver.names = names;
        driver.write_bytes = write_bytes;
        driver.churn = churn;
        driver.syncs_only_by_test = own_syncs;
        driver.syncs_items = items_synced;
    })
}

#[test]
fn a_bit_of_the_campaign() {
    let cuts: usize = (0..6).map(campaign).sum();
    assert!(cuts > 1000, "{cuts}");
    let cuts: usize = (6..8).map(|seed| campaign_in(seed, Some(Policy::Async))).sum();
    assert!(cuts > 300, "{cuts}");
}

/// For an eighth of `WEFT_LONG_SECONDS`, which it shares with the other campaigns.
#[test]
#[ignore = "a campaign: make test-long"]
fn long_power_cuts() {
    let seconds = std::env::var("WEFT_LONG_SECONDS").ok().and_then(|s| s.parse().ok());
    let end = std::time::Instant::now() + std::time::Duration::from_secs(seconds.unwrap_or(60) / 8);
    let first = std::env::var("WEFT_HFS_SEED").ok().and_then(|s| s.parse().ok());
    let mut seed = first.unwrap_or(100);
    let mut cuts = 0;
    while std::time::Instant::now() < end {
        cuts += campaign(seed) + swept(seed) + campaign_in(seed, Some(Policy::Async));
        seed += 1;
    }
    println!("{cuts} cuts");
}
