//! The number of metadata changes that share a write, by workload and by the interval of group
//! commit.
//!
//! Only counts are measured, so there is no real time in it: origin and cache device are in memory,
//! the cache runs without threads, and a simulated clock advances by the time of each request
//! behind a link of 0.35 ms. The figures are the same on every machine.

use crate::plot::Bars;
use crate::report::Section;
use crate::stats::thousands;
use crate::{Bench, machine};
use anyhow::Result;
use std::sync::Arc;
use weft::block::{BlockDevice, MemoryDevice, Rng};
use weft::cache::{AttachOptions, Cache, CreateOptions, Mode, OpenOptions, OriginId, Stats};

const CACHE_BYTES: u64 = 64 << 20;
const BLOCK_BYTES: u64 = 4096;
const SEED: u64 = 1;

/// The intervals of group commit that are measured, in milliseconds. The default is 1000.
const INTERVALS_MS: [u64; 5] = [1, 10, 100, 1000, 10_000];

/// The times of requests on the simulated clock, in microseconds.
const ORIGIN_US: u64 = 350;
const CACHE_US: u64 = 20;
const FLUSH_US: u64 = 500;

/// A workload on a cached volume.
struct Workload {
    name: &'static str,
    mode: Mode,
    /// The size of the origin, as a multiple of the cache.
    origin: u64,
    request_bytes: usize,
    access: Access,
    /// Writes between two flushes; 0: only the last flush.
    flush_every: u64,
    writes: bool,
}

#[derive(Clone, Copy)]
enum Access {
    Sequential,
    Uniform,
    /// The n-th most popular block is read in proportion to 1/n.
    Zipf,
}

fn workloads() -> Vec<Workload> {
    let read = |name, request_bytes, origin, access| Workload {
        name,
        mode: Mode::WriteThrough,
        origin,
        request_bytes,
        access,
        flush_every: 0,
        writes: false,
    };
    let write = |name, mode, flush_every| Workload {
        name,
        mode,
        origin: 2,
        request_bytes: 4096,
        access: Access::Uniform,
        flush_every,
        writes: true,
    };
    vec![
        read("sequential read", 128 << 10, 2, Access::Sequential),
        read("random read", 4096, 2, Access::Uniform),
        read("popular read", 4096, 16, Access::Zipf),
        write("write-through", Mode::WriteThrough, 0),
        write("write-back", Mode::WriteBack, 0),
        write("write-back, flush of 16", Mode::WriteBack, 16),
    ]
}

/// Measures the table and the plot.
pub fn batching(bench: &Bench) -> Result<()> {
    let requests: u64 = if bench.quick { 5_000 } else { 50_000 };
    let mut section = Section::new("cache-batching", "Cache metadata: updates that share a write");
    section.line(&format!(
        "{} requests of 4 KiB (sequential: 1 in 32 as many, of 128 KiB) on a cache of 64 MiB in \
         blocks of 4 KiB; uniform over an origin of 128 MiB, popular by Zipf's law (exponent 1) over \
         1 GiB. Devices in memory, a simulated clock: {ORIGIN_US} us for what goes to the origin, \
         {CACHE_US} us for the cache, {FLUSH_US} us for a flush. An update is a change of what the \
         cache knows of a slot; batched ones cost no write of their own, as they joined a block of \
         the log that was waiting to be written. Written are the writes of the log. The seed paid a \
         write for each fill.",
        thousands(requests)
    ));
    let mut rows = Vec::new();
    let mut series = Vec::new();
    for workload in workloads() {
        let mut bars = Vec::new();
        for interval in INTERVALS_MS {
            let stats = run(&workload, interval, requests)?;
            let per_update = stats.log_writes as f64 / stats.metadata_updates.max(1) as f64;
            rows.push(vec![
                workload.name.to_owned(),
                thousands(interval),
                thousands(stats.fills),
                thousands(stats.metadata_updates),
                thousands(stats.batched_updates),
                thousands(stats.log_writes),
                thousands(stats.log_blocks),
                format!("{per_update:.4}"),
                format!(
                    "{:.3}",
                    (stats.flash_bytes_written - stats.data_bytes_written) as f64
                        / stats.data_bytes_written.max(1) as f64
                ),
            ]);
            bars.push(per_update * 1000.0);
        }
        series.push((workload.name.to_owned(), bars));
    }
    section.table(
        &[
            "workload",
            "interval, ms",
            "fills",
            "updates",
            "batched",
            "written",
            "blocks of 4 KiB",
            "written for an update",
            "metadata bytes for a byte of data",
        ],
        &rows,
    );
    let labels: Vec<String> =
        INTERVALS_MS.iter().map(|ms| format!("{} ms", thousands(*ms))).collect();
    let chart = Bars {
        title: "Cache metadata: writes for 1,000 updates, by group-commit interval",
        y_label: "writes",
        labels: &labels,
        series: &series,
    };
    bench.plot("cache-batching.svg", &chart.svg())?;
    section.line("![Metadata writes for 1,000 updates](plots/cache-batching.svg)");
    section.signed(&machine::describe(), "weft-bench cache-batching").save(&bench.report)
}

fn run(workload: &Workload, commit_interval_ms: u64, requests: u64) -> Result<Stats> {
    // The device has room for the metadata beside the data.
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(CACHE_BYTES + (8 << 20)));
    let origin_bytes = CACHE_BYTES * workload.origin;
    let origin: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(origin_bytes));
    let create = CreateOptions { uuid: Some([7; 16]), ..CreateOptions::default() };
    Cache::create(&device, &create)?;
    let open = OpenOptions { background: false, commit_interval_ms, ..OpenOptions::default() };
    let cache = Cache::open(device, open)?;
    let id = OriginId { len_bytes: origin_bytes, label: "origin".into(), ..OriginId::default() };
    let attach = AttachOptions { mode: workload.mode, ..AttachOptions::default() };
    let volume = cache.attach(origin, &id, &attach)?;

    let mut rng = Rng::new(SEED);
    let zipf =
        matches!(workload.access, Access::Zipf).then(|| Zipf::new(origin_bytes / BLOCK_BYTES));
    let len = workload.request_bytes as u64;
    let places = origin_bytes / len;
    let count = if len == BLOCK_BYTES { requests } else { requests * BLOCK_BYTES / len };
    let mut buffer = vec![0; workload.request_bytes];
    let mut clock_us: u64 = 0;
    for i in 0..count {
        let place = match &zipf {
            Some(zipf) => zipf.draw(&mut rng),
            None if matches!(workload.access, Access::Sequential) => i % places,
            None => rng.below(places),
        };
        let misses = cache.stats().misses;
        if workload.writes {
            buffer[..8].copy_from_slice(&i.to_le_bytes());
            volume.write_at(&buffer, place * len)?;
            clock_us += if workload.mode.writes_back() { CACHE_US } else { ORIGIN_US };
            if workload.flush_every > 0 && (i + 1) % workload.flush_every == 0 {
                volume.flush()?;
                clock_us += FLUSH_US;
            }
        } else {
            volume.read_at(&mut buffer, place * len)?;
            clock_us += if cache.stats().misses > misses { ORIGIN_US } else { CACHE_US };
        }
        cache.tick(clock_us / 1000)?;
    }
    volume.flush()?;
    // Pending changes are committed when the interval has passed.
    cache.tick(clock_us / 1000 + commit_interval_ms + 1)?;
    Ok(cache.stats())
}

/// Draws by Zipf's law with exponent 1, from the table of cumulative weights. Ranks are scattered
/// over the volume: popular blocks are not adjacent.
struct Zipf {
    cumulated: Vec<f64>,
}

impl Zipf {
    fn new(blocks: u64) -> Self {
        let mut sum = 0.0;
        let cumulated = (1..=blocks)
            .map(|rank| {
                sum += 1.0 / rank as f64;
                sum
            })
            .collect();
        Self { cumulated }
    }

    fn draw(&self, rng: &mut Rng) -> u64 {
        let all = self.cumulated.last().copied().unwrap_or(1.0);
        let at = rng.below(1 << 53) as f64 / (1_u64 << 53) as f64 * all;
        let blocks = self.cumulated.len() as u64;
        let rank = (self.cumulated.partition_point(|c| *c <= at) as u64).min(blocks - 1);
        // Multiplication by an odd factor is a permutation, as the number of blocks is a power of
        // two.
        rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) % blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_interval_never_writes_more() {
        for workload in workloads() {
            let short = run(&workload, 1, 1000).unwrap();
            let long = run(&workload, 1000, 1000).unwrap();
            assert!(long.log_writes <= short.log_writes, "{}", workload.name);
            assert!(short.metadata_updates > 0, "{}", workload.name);
        }
    }

    #[test]
    fn zipf_prefers_few() {
        let zipf = Zipf::new(1024);
        let mut rng = Rng::new(1);
        let mut counts = vec![0_u32; 1024];
        for _ in 0..10_000 {
            counts[zipf.draw(&mut rng) as usize] += 1;
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let top: u32 = counts[..10].iter().sum();
        // The ten most popular of 1024 have a weight of 2.93 of 7.51.
        assert!((3_500..4_300).contains(&top), "{top}");
    }
}
