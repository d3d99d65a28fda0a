//! The opening of a large cache: the time to the first read, the time to load, the memory of a
//! block.
//!
//! The cache is a sparse file full of blocks of zeroes: every slot is taken and has its record, the
//! data are holes. A separate process opens it, so that its memory is that of the cache alone,
//! after the file was dropped from the host's page cache.

use crate::report::Section;
use crate::stats::{Times, thousands};
use crate::{Bench, machine};
use anyhow::{Context, Result, bail, ensure};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft::block::{
    BlockDevice, Change, ChangeKind, Error, FileDevice, Filter, Geometry, OpenMode,
    Result as BlockResult, check_range,
};
use weft::cache::{AttachOptions, Cache, CreateOptions, OpenOptions, OriginId};

const BLOCK_BYTES: u64 = 4096;

/// The size of one request while filling, in bytes.
const FILL_BYTES: u64 = 1 << 20;

/// Longest wait for a cache to load.
const PATIENCE: Duration = Duration::from_secs(120);

/// The figures of the process that opened a cache.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Opening {
    /// Seconds from the call that opens until an origin is attached and a read has returned.
    first_read_secs: f64,
    /// Seconds until a read came from the cache.
    first_hit_secs: f64,
    /// Seconds until everything was loaded.
    loaded_secs: f64,
    /// Blocks in the cache at that time.
    blocks: u64,
    /// Growth of the resident set until that time, in bytes.
    rss_bytes: u64,
    /// Size of the cache's tables, as the cache reports it, in bytes.
    tables_bytes: u64,
}

/// Measures the table.
pub fn opening(bench: &Bench) -> Result<()> {
    let sizes_gib: &[u64] = if bench.quick { &[1, 4] } else { &[4, 16, 64] };
    let mut section = Section::new("cache-open", "A large cache, opened");
    section.line(
        "A sparse file full of cached blocks of 4 KiB, opened in a new process after it was dropped \
         from the page cache. Seconds from opening to the first read that was served (while the cache \
         loads, by the origin if need be), to the first that came from the cache, and until all is \
         loaded; memory is the growth of the resident set by then.",
    );
    let mut rows = Vec::new();
    for gib in sizes_gib {
        eprintln!("filling a cache of {gib} GiB");
        let path = bench.work.join("large-cache.img");
        let _ = std::fs::remove_file(&path);
        fill(&path, gib << 30)?;
        let [mut first, mut hit, mut loaded]: [Times; 3] = Default::default();
        let mut last = Opening::default();
        for _ in 0..bench.pairs {
            drop_from_page_cache(&path)?;
            last = Opening::in_a_process(&path, gib << 30)?;
            first.push(last.first_read_secs);
            hit.push(last.first_hit_secs);
            loaded.push(last.loaded_secs);
        }
        std::fs::remove_file(&path)?;
        let each = |bytes: u64| format!("{:.1}", bytes as f64 / last.blocks.max(1) as f64);
        rows.push(vec![
            format!("{gib} GiB"),
            thousands(last.blocks),
            first.show(),
            hit.show(),
            loaded.show(),
            each(last.rss_bytes),
            each(last.tables_bytes),
        ]);
    }
    section.table(
        &[
            "cache",
            "blocks",
            "first read, s",
            "first hit, s",
            "all loaded, s",
            "memory, B a block",
            "its tables",
        ],
        &rows,
    );
    section.signed(&machine::describe(), "weft-bench cache-open").save(&bench.report)
}

fn origin_id(len_bytes: u64) -> OriginId {
    OriginId { len_bytes, label: "zeroes".into(), ..OriginId::default() }
}

/// Makes a cache with room for `len_bytes` of data and fills it to the last slot.
fn fill(path: &Path, len_bytes: u64) -> Result<()> {
    // 1/64 of the data is more than the metadata needs.
    let device: Arc<dyn BlockDevice> =
        Arc::new(Holes(FileDevice::create(path, len_bytes + len_bytes / 64 + (64 << 20))?));
    Cache::create(&device, &CreateOptions::default())?;
    let cache = Cache::open(device, OpenOptions::default())?;
    // The origin has more blocks than the cache has slots.
    let origin_bytes = len_bytes * 2;
    let volume = cache.attach(
        Arc::new(Zeroes(origin_bytes)),
        &origin_id(origin_bytes),
        &AttachOptions::default(),
    )?;
    let mut buffer = vec![0; usize::try_from(FILL_BYTES)?];
    let places = origin_bytes / FILL_BYTES;
    // Several passes over the origin, because fills continue in the background.
    for i in 0..places * 8 {
        let stats = cache.stats();
        if stats.used_slots >= stats.slots {
            break;
        }
        // Not in order, as a cache may not admit a sequential reader's blocks.
        let place = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % places;
        volume.read_at(&mut buffer, place * FILL_BYTES)?;
    }
    let stats = cache.stats();
    ensure!(
        stats.used_slots * 100 >= stats.slots * 99,
        "only {} of {} slots were filled",
        stats.used_slots,
        stats.slots
    );
    drop(volume);
    cache.close()?;
    Ok(())
}

fn drop_from_page_cache(path: &Path) -> Result<()> {
    let file = std::fs::File::open(path)?;
    file.sync_all()?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(())
}

impl Opening {
    /// Runs this program again, which opens the cache.
    fn in_a_process(path: &Path, len_bytes: u64) -> Result<Self> {
        let out = Command::new(std::env::current_exe()?)
            .arg("cache-opening")
            .arg(path)
            .arg(format!("--origin-bytes={}", len_bytes * 2))
            .output()?;
        ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr).trim());
        Self::parse(&String::from_utf8_lossy(&out.stdout))
    }

    /// Opens the cache in this process, and measures it.
    pub fn measure(path: &Path, origin_bytes: u64) -> Result<Self> {
        let before = resident_bytes()?;
        let began = Instant::now();
        let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(path, OpenMode::READ_WRITE)?);
        let cache = Cache::open(device, OpenOptions::default())?;
        let volume = cache.attach(
            Arc::new(Zeroes(origin_bytes)),
            &origin_id(origin_bytes),
            &AttachOptions::default(),
        )?;
        // Reads blocks across the origin until one comes from the cache: about every second one
        // does.
        let mut buffer = [0; 4096];
        let mut first_read_secs = 0.0;
        let mut place = 0;
        while cache.stats().hits == 0 {
            ensure!(began.elapsed() < PATIENCE, "nothing comes from the cache");
            volume.read_at(&mut buffer, place)?;
            if place == 0 {
                first_read_secs = began.elapsed().as_secs_f64();
            }
            place = (place + 7919 * BLOCK_BYTES) % origin_bytes;
        }
        let first_hit_secs = began.elapsed().as_secs_f64();
        while cache.stats().loading_pages > 0 {
            ensure!(began.elapsed() < PATIENCE, "the cache does not finish loading");
            std::thread::sleep(Duration::from_millis(2));
        }
        let loaded_secs = began.elapsed().as_secs_f64();
        let stats = cache.stats();
        let rss_bytes = resident_bytes()?.saturating_sub(before);
        drop(volume);
        cache.close()?;
        Ok(Self {
            first_read_secs,
            first_hit_secs,
            loaded_secs,
            blocks: stats.used_slots,
            rss_bytes,
            tables_bytes: stats.memory_bytes,
        })
    }

    /// Formats the figures in one line for the parent process.
    pub fn show(&self) -> String {
        format!(
            "{} {} {} {} {} {}",
            self.first_read_secs,
            self.first_hit_secs,
            self.loaded_secs,
            self.blocks,
            self.rss_bytes,
            self.tables_bytes
        )
    }

    fn parse(line: &str) -> Result<Self> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [first, hit, loaded, blocks, rss, tables] = fields[..] else {
            bail!("{line:?} is not what was asked for");
        };
        Ok(Self {
            first_read_secs: first.parse()?,
            first_hit_secs: hit.parse()?,
            loaded_secs: loaded.parse()?,
            blocks: blocks.parse()?,
            rss_bytes: rss.parse()?,
            tables_bytes: tables.parse()?,
        })
    }
}

/// The resident set of this process (proc(5), `VmRSS`).
fn resident_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib << 10)
}

/// An origin of any size that reads as zeroes and cannot be written.
struct Zeroes(u64);

impl BlockDevice for Zeroes {
    fn geometry(&self) -> Geometry {
        Geometry {
            len_bytes: self.0,
            logical_block_bytes: 512,
            physical_block_bytes: 4096,
            read_only: true,
        }
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> BlockResult<()> {
        check_range("read", offset, buf.len() as u64, self.0)?;
        buf.fill(0);
        Ok(())
    }

    fn write_at(&self, _: &[u8], _: u64) -> BlockResult<()> {
        Err(Error::ReadOnly)
    }

    fn flush(&self) -> BlockResult<()> {
        Ok(())
    }
}

/// A file that stays sparse: written zeroes become holes.
struct Holes(FileDevice);

impl Filter for Holes {
    type Below = FileDevice;

    fn below(&self) -> &FileDevice {
        &self.0
    }

    fn filter_change(&self, change: Change<'_>) -> BlockResult<()> {
        match change.kind {
            ChangeKind::Write(bufs) if bufs.iter().all(|buf| is_zero(buf)) => {
                self.0.write_zeroes(change.offset, change.len_bytes)
            }
            _ => change.apply(&self.0),
        }
    }
}

fn is_zero(buf: &[u8]) -> bool {
    buf.iter().all(|b| *b == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_that_was_filled_opens_with_every_slot() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.img");
        fill(&path, 64 << 20).unwrap();
        let seen = Opening::measure(&path, 128 << 20).unwrap();
        assert!(seen.blocks >= (64 << 20) / BLOCK_BYTES, "{seen:?}");
        assert!(seen.first_read_secs <= seen.first_hit_secs, "{seen:?}");
        assert_eq!(Opening::parse(&seen.show()).unwrap(), seen);
    }
}
