//! A full cache, made without filling it: measures the time to open it, and to rewrite it.

use super::*;
use crate::format::checkpoint::push_entry;
use crate::format::superblock::OriginEntry;
use crate::policy::BlockKey;
use crate::store::zero_crc;
use crate::{AttachOptions, Mode, OriginId};
use std::time::{Duration, Instant};
use weft_block::{FileDevice, MemoryDevice};

const DIRTY: u64 = 1000;

/// Makes a sparse cache whose every slot holds a block of zeroes, the first of them dirty.
fn full_cache(path: &std::path::Path, len_bytes: u64, id: &OriginId) -> Arc<dyn BlockDevice> {
    let disk = FileDevice::create(path, len_bytes).unwrap();
    Cache::create(&disk, &CreateOptions::default()).unwrap();
    let mut sb = Superblock::load(&disk).unwrap();
    let entry = OriginEntry {
        id: id.clone(),
        region_shift: 20,
        quota_slots: 0,
        forgetting: false,
        fingerprint: None,
    };
    sb.origins[0] = Some(entry);
    sb.sequence += 1;
    let layout = AreaLayout::new(sb.slots, 1);
    let (sequence, area) = (2, sb.checkpoints[0]);
    let at = |block: u64| area + block * UNIT as u64;
    let mut out = Vec::new();
    for index in 0..layout.map_pages {
        let ones = [0xff; checkpoint::BITS_PER_PAGE / 8];
        encode_page(PageKind::Map, sequence, index as u32, 0, &ones, &mut out);
    }
    disk.write_at(&out, at(layout.map_at())).unwrap();
    let mut slot = 0;
    for first in (0..layout.entry_pages).step_by(256) {
        out.clear();
        for index in first..(first + 256).min(layout.entry_pages) {
            let mut payload = Vec::new();
            let mut count = 0;
            while slot < sb.slots && count < layout.entries_per_page {
                let mut record = Record::free(slot);
                // Adjacent blocks in the cache are far from each other in the origin.
                let block = u64::from(slot) * 7919 % (1 << 28);
                record.key = Some(BlockKey::new(0, block));
                record.valid = 1;
                record.dirty = u16::from(u64::from(slot) < DIRTY);
                record.crcs[0] = zero_crc();
                push_entry(&record, 1, &mut payload);
                slot += 1;
                count += 1;
            }
            encode_page(
                PageKind::Entries,
                sequence,
                index as u32,
                count as u32,
                &payload,
                &mut out,
            );
        }
        disk.write_at(&out, at(layout.entries_at() + first)).unwrap();
    }
    let entries = u64::from(sb.slots);
    let header = Header {
        sequence,
        life: 1,
        log_start: 1,
        slots: sb.slots,
        intent_pages: 0,
        entries,
        dirty: DIRTY,
        log_durable: 1,
    };
    disk.write_at(&header.encode(sb.tag()), area).unwrap();
    for at in sb.copy_offsets() {
        disk.write_at(&sb.encode(), at).unwrap();
    }
    disk.flush().unwrap();
    Arc::new(disk)
}

/// Returns the longest duration of a read of a cached block while `work` runs.
fn longest_read(cached: &crate::CachedDevice, offset: u64, work: impl FnOnce()) -> Duration {
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut longest, mut reads) = (Duration::ZERO, 0_u64);
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let began = Instant::now();
                cached.read_at(&mut [0; 4096], offset).unwrap();
                longest = longest.max(began.elapsed());
                reads += 1;
            }
            println!("  {reads} reads, the longest took {longest:?}");
            longest
        });
        let began = Instant::now();
        work();
        println!("  it took {:?}", began.elapsed());
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        reader.join().unwrap()
    })
}

/// Prints how long requests wait for a checkpoint and for resizes. These times are not asserted, as
/// machines differ; the test asserts that no data is lost.
fn works_while_it_is_rewritten(len_bytes: u64) {
    let dir = tempfile::tempdir().unwrap();
    let id = OriginId { len_bytes: 1 << 40, label: "o".to_owned(), ..OriginId::default() };
    let disk = full_cache(&dir.path().join("cache"), len_bytes, &id);
    let options = OpenOptions { background: false, ..OpenOptions::default() };
    let cache = Cache::open(disk, options).unwrap();
    let attach = AttachOptions { mode: Mode::WriteBack, samples: 0, ..AttachOptions::default() };
    let cached = cache.attach(Arc::new(MemoryDevice::new(id.len_bytes)), &id, &attach).unwrap();
    cache.load_all().unwrap();
    let before = cache.stats();
    let offset = 7919 * 3000 * 4096;
    println!("a checkpoint of {} slots:", before.slots);
    longest_read(&cached, offset, || cache.checkpoint_always().unwrap());
    let stats = cache.stats();
    assert_eq!((stats.used_slots, stats.dirty_bytes), (before.used_slots, before.dirty_bytes));
    println!("to half its size:");
    longest_read(&cached, offset, || cache.resize(len_bytes / 2).unwrap());
    println!("and back:");
    longest_read(&cached, offset, || cache.resize(len_bytes).unwrap());
    let stats = cache.stats();
    assert!(stats.used_slots >= before.slots / 2 - before.slots / 64, "{stats:?}");
    assert_eq!(stats.dirty_bytes, before.dirty_bytes);
    cache.check_invariants();
}

#[test]
fn a_full_cache_of_1_gib_works_while_it_is_rewritten() {
    works_while_it_is_rewritten(1 << 30);
}

#[test]
#[ignore = "takes 600 MB of disk and a GB of memory; scripts/test-long.sh runs it"]
fn a_full_cache_of_64_gib_works_while_it_is_rewritten() {
    works_while_it_is_rewritten(64 << 30);
}

fn serves_while_it_loads(len_bytes: u64) -> (Duration, Duration) {
    let dir = tempfile::tempdir().unwrap();
    let id = OriginId { len_bytes: 1 << 40, label: "o".to_owned(), ..OriginId::default() };
    let disk = full_cache(&dir.path().join("cache"), len_bytes, &id);
    let options = OpenOptions { background: false, ..OpenOptions::default() };
    let began = Instant::now();
    let cache = Cache::open(disk, options).unwrap();
    let attach = AttachOptions { mode: Mode::WriteBack, samples: 0, ..AttachOptions::default() };
    let origin = Arc::new(MemoryDevice::new(id.len_bytes));
    let cached = cache.attach(origin, &id, &attach).unwrap();
    let mut block = [1; 4096];
    // A dirty block, and one that is not loaded yet.
    for slot in [5, cache.stats().slots - 5] {
        cached.read_at(&mut block, slot * 7919 % (1 << 28) * 4096).unwrap();
        assert_eq!(block, [0; 4096]);
    }
    let opened = began.elapsed();
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.dirty_bytes), (1, 1, DIRTY * 4096));
    assert!(stats.loading_pages > 0, "it serves before all is loaded");
    let began = Instant::now();
    cache.load_all().unwrap();
    let loaded = began.elapsed();
    let stats = cache.stats();
    assert!(stats.used_slots >= stats.slots - 1, "{stats:?}");
    let per_slot = stats.memory_bytes as f64 / stats.slots as f64;
    println!(
        "{} slots: open {opened:?}, loaded {loaded:?}, {per_slot:.2} bytes a slot",
        stats.slots
    );
    assert!(per_slot <= 24.0, "{per_slot} bytes a slot");
    (opened, loaded)
}

#[test]
fn a_full_cache_of_2_gib_serves_while_it_loads() {
    serves_while_it_loads(2 << 30);
}

#[test]
#[ignore = "takes 300 MB of disk and 400 MB of memory; scripts/test-long.sh runs it"]
fn a_full_cache_of_64_gib_opens_in_less_than_a_second() {
    let (opened, _) = serves_while_it_loads(64 << 30);
    assert!(opened < Duration::from_secs(1), "{opened:?}");
}
