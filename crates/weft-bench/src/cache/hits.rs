//! The cost of a cache hit beside a read of the cache's file without the cache.
//!
//! All data is in the page cache, so that only the processor's work is measured: the lookup, the
//! policy, the lock.

use crate::report::Section;
use crate::stats::Times;
use crate::{Bench, machine};
use anyhow::{Result, ensure};
use std::sync::Arc;
use std::time::Instant;
use weft::block::{BlockDevice, FileDevice, MemoryDevice, Rng};
use weft::cache::{AttachOptions, Cache, CachedDevice, CreateOptions, OpenOptions, OriginId};

const DATA_BYTES: u64 = 256 << 20;

/// Measures the table.
pub fn hits(bench: &Bench) -> Result<()> {
    let reads = if bench.quick { 50_000 } else { 500_000 };
    let path = bench.work.join("hits.img");
    let mut section = Section::new("cache-hits", "What a hit costs");
    section.line(&format!(
        "Random reads of a warm cache of {} MiB that lies in the page cache, in process, and of a \
         plain file of that size. Microseconds a read of 4 KiB and of 64 KiB.",
        DATA_BYTES >> 20
    ));
    let file: Arc<dyn BlockDevice> = {
        let path = bench.work.join("hits-plain.img");
        let file = FileDevice::create(&path, DATA_BYTES)?;
        (0..DATA_BYTES >> 20).try_for_each(|mib| file.write_at(&[1; 1 << 20], mib << 20))?;
        Arc::new(file)
    };
    let mut rows = Vec::new();
    for len_bytes in [4096, 65536] {
        let reads = reads / if len_bytes == 4096 { 1 } else { 4 };
        let [mut plain, mut once, mut always]: [Times; 3] = Default::default();
        for round in 0..=bench.pairs {
            let mut took = Vec::new();
            took.push(time(&*file, len_bytes, reads)?);
            for verify_always in [false, true] {
                let _ = std::fs::remove_file(&path);
                let device = warm(&path, verify_always)?;
                let before = device.cache().stats().misses;
                took.push(time(&*device, len_bytes, reads)?);
                let misses = device.cache().stats().misses - before;
                ensure!(misses == 0, "{misses} misses: the cache was not warm");
                device.cache().close()?;
            }
            // The first round is the warm-up.
            if round > 0 {
                for (times, took) in [&mut plain, &mut once, &mut always].into_iter().zip(took) {
                    times.push(took * 1e6 / f64::from(reads));
                }
            }
        }
        let ratio = |times: &Times| {
            times.ratio_to(&plain).map_or_else(String::new, |ratio| format!("{ratio:.2}"))
        };
        rows.push(vec![
            format!("{} KiB", len_bytes >> 10),
            plain.show(),
            once.show(),
            ratio(&once),
            always.show(),
            ratio(&always),
        ]);
    }
    section.table(
        &["read", "file", "a hit", "ratio", "a hit, checksums compared each time", "ratio"],
        &rows,
    );
    let _ = std::fs::remove_file(path);
    section.signed(&machine::describe(), "weft-bench cache-hits").save(&bench.report)
}

/// Makes a cache that holds its whole origin, with every block read once and so checked against its
/// checksum.
fn warm(path: &std::path::Path, verify_always: bool) -> Result<Arc<CachedDevice>> {
    let ssd: Arc<dyn BlockDevice> =
        Arc::new(FileDevice::create(path, DATA_BYTES + DATA_BYTES / 32 + (32 << 20))?);
    Cache::create(&ssd, &CreateOptions::default())?;
    let options = OpenOptions { verify_always, ..OpenOptions::default() };
    let cache = Cache::open(ssd, options)?;
    let id = OriginId { len_bytes: DATA_BYTES, label: "origin".into(), ..OriginId::default() };
    let origin = Arc::new(MemoryDevice::new(DATA_BYTES));
    let device = cache.attach(origin, &id, &AttachOptions::default())?;
    let mut buf = vec![0; 1 << 20];
    for mib in 0..DATA_BYTES >> 20 {
        device.read_at(&mut buf, mib << 20)?;
    }
    // Fills continue in the background.
    while cache.stats().used_slots < DATA_BYTES / 4096 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    device.flush()?;
    Ok(device)
}

/// Returns the seconds for `reads` reads of `len_bytes` at random offsets.
fn time(device: &dyn BlockDevice, len_bytes: u64, reads: u32) -> Result<f64> {
    let mut rng = Rng::new(1);
    let mut buf = vec![0; usize::try_from(len_bytes)?];
    let began = Instant::now();
    for _ in 0..reads {
        device.read_at(&mut buf, rng.below(DATA_BYTES / len_bytes) * len_bytes)?;
    }
    Ok(began.elapsed().as_secs_f64())
}
