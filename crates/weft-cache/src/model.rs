//! Random operations on a cache whose devices lose unflushed data, compared with a model: the
//! versions that each sector may have.
//!
//! Requests have every length from a sector to the whole origin, so that all limits at which a
//! request is cut or takes another path are crossed. (Some of these limits are smaller in this
//! build, see [`crate::device`].) The power goes at every request of a device, of both devices, of
//! one of them, or of none (`kill -9`).

use crate::{
    AttachOptions, Cache, CachedDevice, CreateOptions, Mode, OpenOptions, OriginId, PolicyKind,
};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};
use weft_block::{BlockDevice, CrashDevice, Error, Geometry, MemoryDevice, Result, Rng};

const SECTOR: usize = 512;
/// Longer than what one request of the cache zeroes ([`crate::device`]), with a part of a block.
const ORIGIN_BYTES: u64 = 4 * (1 << 20) + 1536;

/// A device that fails after a number of requests to it and its siblings, as in a power cut.
struct Fused {
    inner: Arc<CrashDevice<MemoryDevice>>,
    left: Arc<AtomicI64>,
    /// A discard zeroes; otherwise it does nothing.
    discards: bool,
}

impl Fused {
    fn burn(&self) -> Result<()> {
        if self.left.fetch_sub(1, Ordering::SeqCst) <= 0 {
            return Err(Error::io("any", 0, 0, std::io::Error::other("no power")));
        }
        Ok(())
    }
}

impl BlockDevice for Fused {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.burn()?;
        self.inner.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.burn()?;
        self.inner.write_at(buf, offset)
    }
    fn flush(&self) -> Result<()> {
        self.burn()?;
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.burn()?;
        if self.discards {
            self.inner.write_zeroes(offset, len_bytes)
        } else {
            self.inner.discard(offset, len_bytes)
        }
    }
    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.burn()?;
        self.inner.write_zeroes(offset, len_bytes)
    }
}

/// The versions that a sector may have; 0 is zeroes.
#[derive(Clone)]
struct Sector {
    /// What a read may return: one version, unless the sector was discarded, or not read since a
    /// cut; then the first read decides.
    now: Vec<u64>,
    /// What a cut may leave: these, which were there at the last flush,
    durable: Vec<u64>,
    /// and those that were begun since.
    since: Vec<u64>,
}

impl Sector {
    fn begin(&mut self, version: u64) {
        self.since.push(version);
    }

    fn end(&mut self, change: What) {
        match change {
            What::Discard if !self.now.contains(&0) => self.now.push(0),
            What::Discard => {}
            What::Write | What::Zero => self.now = self.since.last().copied().into_iter().collect(),
        }
    }

    fn flushed(&mut self) {
        if !self.since.is_empty() {
            self.durable.clone_from(&self.now);
            self.since.clear();
        }
    }

    /// `settled`: no device holds unflushed data any more.
    fn cut(&mut self, settled: bool) {
        self.now.clone_from(&self.durable);
        self.now.extend(&self.since);
        self.now.sort_unstable();
        self.now.dedup();
        if settled {
            self.durable.clone_from(&self.now);
            self.since.clear();
        }
    }

    /// Returns false if a read must not return this version.
    fn read(&mut self, version: u64) -> bool {
        if !self.now.contains(&version) {
            return false;
        }
        self.now = vec![version];
        if self.since.is_empty() {
            self.durable = vec![version];
        }
        true
    }
}

/// A kind of change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Write,
    Zero,
    Discard,
}

struct Rig {
    rng: Rng,
    origin: Arc<CrashDevice<MemoryDevice>>,
    disk: Arc<CrashDevice<MemoryDevice>>,
    left: Arc<AtomicI64>,
    model: Vec<Sector>,
    next: u64,
    now_ms: u64,
    open: OpenOptions,
    mode: Mode,
    discards: bool,
    generation: u64,
    cached: Option<Arc<CachedDevice>>,
}

impl Rig {
    fn new(seed: u64, subs: u32) -> Self {
        let mut rng = Rng::new(seed);
        let device = |bytes, seed| Arc::new(CrashDevice::new(MemoryDevice::new(bytes), seed));
        // From a small part of the origin to more than all of it.
        let blocks = if rng.chance(1, 3) { 1300 } else { 40 + 8 * rng.below(40) };
        let cache_bytes = blocks * 4096 * u64::from(subs).min(4);
        let disk = device(cache_bytes + (80 << 12), seed ^ 1);
        let policies = [
            PolicyKind::S3Fifo,
            PolicyKind::WTinyLfu,
            PolicyKind::Lru,
            PolicyKind::SetAssociative { ways: 16 },
        ];
        let create = CreateOptions {
            policy: *rng.pick(&policies).unwrap(),
            block_bytes: 4096 * subs,
            log_bytes: Some((16 + rng.below(16)) * 4096),
            uuid: Some([seed as u8; 16]),
            ..CreateOptions::default()
        };
        Cache::create(&*disk, &create).unwrap();
        let open = OpenOptions {
            background: false,
            lazy_load: rng.chance(1, 2),
            commit_records: 1 + rng.below(60) as u32,
            dirty_limit_bytes: rng.chance(1, 2).then(|| 4096 * (1 + rng.below(40))),
            max_dirty_age_ms: 3000,
            intent_idle_ms: rng.below(3) * 500,
            verify_always: rng.chance(1, 4),
            ..OpenOptions::default()
        };
        Self {
            mode: *rng.pick(&Mode::ALL).unwrap(),
            origin: device(ORIGIN_BYTES, seed ^ 2),
            disk,
            left: Arc::new(AtomicI64::new(i64::MAX)),
            model: vec![
                Sector { now: vec![0], durable: vec![0], since: Vec::new() };
                ORIGIN_BYTES as usize / SECTOR
            ],
            discards: rng.chance(1, 2),
            generation: 0,
            next: 1,
            now_ms: 0,
            open,
            cached: None,
            rng,
        }
    }

    fn fused(&self, inner: &Arc<CrashDevice<MemoryDevice>>) -> Arc<dyn BlockDevice> {
        let (inner, left) = (Arc::clone(inner), Arc::clone(&self.left));
        Arc::new(Fused { inner, left, discards: self.discards })
    }

    fn device(&mut self) -> crate::Result<Arc<CachedDevice>> {
        if let Some(cached) = &self.cached {
            return Ok(Arc::clone(cached));
        }
        let cache = Cache::open(self.fused(&self.disk), self.open.clone())?;
        // Now and then the clean blocks of another generation are invalidated.
        self.generation += u64::from(self.rng.chance(1, 8));
        let id = OriginId {
            len_bytes: ORIGIN_BYTES,
            label: "origin".to_owned(),
            generation: self.generation,
            uuid: None,
        };
        let options =
            AttachOptions { mode: self.mode, invalidate: true, add: true, ..Default::default() };
        let cached = cache.attach(self.fused(&self.origin), &id, &options)?;
        self.cached = Some(Arc::clone(&cached));
        Ok(cached)
    }

    /// A range of sectors, of every length; a third of them in no way aligned.
    fn range(&mut self) -> Range<usize> {
        let sectors = self.model.len();
        // Half of the operations use a small part, where blocks are used repeatedly.
        let bound = if self.rng.chance(1, 2) { 200 } else { sectors };
        let longest = *self.rng.pick(&[8, 8, 40, 40, 600, 2600, sectors]).unwrap();
        let mut first = self.rng.index(bound);
        let mut count = 1 + self.rng.index(longest);
        if self.rng.chance(2, 3) {
            first = first / 8 * 8;
            count = count.next_multiple_of(8);
        }
        first..(first + count).min(sectors)
    }

    /// Changes a range. Whether it succeeds or not, the version may be there after a cut.
    fn change(&mut self, cached: &CachedDevice, what: What, range: &Range<usize>) -> Result<()> {
        let id = if what == What::Write { self.next } else { 0 };
        self.next += 1;
        self.model[range.clone()].iter_mut().for_each(|sector| sector.begin(id));
        let (offset, len) = ((range.start * SECTOR) as u64, range.len() * SECTOR);
        match what {
            What::Write => {
                let bytes: Vec<u8> = id.to_le_bytes().iter().copied().cycle().take(len).collect();
                cached.write_at(&bytes, offset)
            }
            What::Zero => cached.write_zeroes(offset, len as u64),
            What::Discard => cached.discard(offset, len as u64),
        }?;
        self.model[range.clone()].iter_mut().for_each(|sector| sector.end(what));
        Ok(())
    }

    fn flush(&mut self, cached: &CachedDevice) -> Result<()> {
        cached.flush()?;
        self.model.iter_mut().for_each(Sector::flushed);
        Ok(())
    }

    /// Runs one step; an error means that the power was cut.
    fn step(&mut self) -> Result<()> {
        let cached = self.device()?;
        let range = self.range();
        match self.rng.below(100) {
            0..34 => self.change(&cached, What::Write, &range)?,
            34..40 => self.change(&cached, What::Zero, &range)?,
            40..46 => self.change(&cached, What::Discard, &range)?,
            46..50 => {
                // As a server does it for a request that is to be durable (FUA).
                let what = *self.rng.pick(&[What::Write, What::Zero, What::Discard]).unwrap();
                self.change(&cached, what, &range)?;
                self.flush(&cached)?;
            }
            50..75 => {
                let mut bytes = vec![0; range.len() * SECTOR];
                cached.read_at(&mut bytes, (range.start * SECTOR) as u64)?;
                self.compare(range.start, &bytes);
            }
            75..84 => self.flush(&cached)?,
            84..92 => {
                self.now_ms += self.rng.below(2500);
                cached.cache().tick(self.now_ms)?;
            }
            92..94 => {
                self.mode = *self.rng.pick(&Mode::ALL).unwrap();
                cached.set_mode(self.mode)?;
            }
            94..95 => {
                let units = self.disk.geometry().len_bytes / 4096 * (60 + self.rng.below(41)) / 100;
                match cached.cache().resize(units * 4096) {
                    Err(crate::Error::Invalid(_)) => {}
                    resized => resized?,
                }
            }
            95..96 => {
                cached.cache().detach(&cached)?;
                self.model.iter_mut().for_each(Sector::flushed);
                self.cached = None;
                self.close(cached.cache())?;
            }
            96..97 => {
                cached.write_back_all()?;
                self.model.iter_mut().for_each(Sector::flushed);
            }
            _ => self.close(cached.cache())?,
        }
        if self.rng.chance(1, 30) {
            cached.cache().check_invariants();
        }
        Ok(())
    }

    fn close(&mut self, cache: &Cache) -> Result<()> {
        cache.close()?;
        self.now_ms = 0;
        self.cached = None;
        self.model.iter_mut().for_each(Sector::flushed);
        Ok(())
    }

    /// Compares a read with the model.
    fn compare(&mut self, first: usize, bytes: &[u8]) {
        for (index, got) in (first..).zip(bytes.chunks_exact(SECTOR)) {
            let id = u64::from_le_bytes(got[..8].try_into().unwrap());
            assert!(got.chunks_exact(8).all(|w| w == &got[..8]), "sector {index} mixes versions");
            let sector = &mut self.model[index];
            assert!(
                sector.read(id),
                "sector {index} is version {id}, and not one of {:?}; durable {:?}, since {:?}",
                sector.now,
                sector.durable,
                sector.since
            );
        }
    }

    /// Cuts the power of some devices, and ends the process that uses them.
    fn cut(&mut self) {
        self.cached = None;
        self.left.store(i64::MAX, Ordering::SeqCst);
        let (origin, disk) = *self
            .rng
            .pick(&[(true, true), (true, true), (true, false), (false, true), (false, false)])
            .unwrap();
        for (device, goes) in [(&self.origin, origin), (&self.disk, disk)] {
            if goes {
                device.crash().unwrap();
                device.power_on();
            }
        }
        let settled = [&self.origin, &self.disk].iter().all(|device| device.pending_writes() == 0);
        self.model.iter_mut().for_each(|sector| sector.cut(settled));
        self.now_ms = 0;
    }
}

/// Returns the number of cuts.
fn run(seed: u64, subs: u32, steps: u64) -> u64 {
    let mut rig = Rig::new(seed, subs);
    let mut cuts = 0;
    for _ in 0..steps {
        let cut = rig.rng.chance(1, 60);
        if cut {
            let left = rig.rng.below(40) as i64;
            rig.left.store(left, Ordering::SeqCst);
        }
        let mut result = Ok(());
        for _ in 0..if cut { 30 } else { 1 } {
            result = rig.step();
            if result.is_err() {
                break;
            }
        }
        match result {
            Ok(()) if !cut => {}
            Err(error) if !cut => panic!("without a cut: {error}"),
            _ => {
                rig.cut();
                cuts += 1;
            }
        }
    }
    // All of it, twice: a version that was read once stays.
    let cached = rig.device().unwrap();
    for _ in 0..2 {
        let mut bytes = vec![0; ORIGIN_BYTES as usize];
        cached.read_at(&mut bytes, 0).unwrap();
        rig.compare(0, &bytes);
    }
    cuts
}

fn campaign(subs: u32, seeds: Range<u64>) {
    for seed in seeds {
        let result = std::panic::catch_unwind(|| run(seed, subs, 600));
        assert!(result.is_ok(), "seed {seed} with {subs} sub-blocks a block");
    }
}

#[test]
fn nothing_flushed_is_lost_with_blocks_of_4_kib() {
    campaign(1, 0..20);
}

#[test]
fn nothing_flushed_is_lost_with_blocks_of_16_kib() {
    campaign(4, 100..110);
}

#[test]
fn nothing_flushed_is_lost_with_blocks_of_64_kib() {
    campaign(16, 200..208);
}

/// As many seeds as fit `WEFT_MODEL_SECONDS`, or else the share of `WEFT_LONG_SECONDS` that is this
/// campaign's, from `WEFT_TORMENT_FIRST` on.
#[test]
#[ignore = "a campaign: scripts/torture-cache.sh"]
fn long_model() {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{name}={text} is no number")))
    };
    let share = || number("WEFT_LONG_SECONDS").unwrap_or(600) / 6;
    let seconds = number("WEFT_MODEL_SECONDS").unwrap_or_else(share);
    let (began, limit) = (Instant::now(), Duration::from_secs(seconds));
    let first = number("WEFT_TORMENT_FIRST").unwrap_or(1000);
    let (mut seed, mut cuts) = (first, 0);
    while began.elapsed() < limit {
        let subs = [1, 4, 16][seed as usize % 3];
        let result = std::panic::catch_unwind(|| run(seed, subs, 600));
        cuts += result.unwrap_or_else(|_| panic!("seed {seed} with {subs} sub-blocks a block"));
        seed += 1;
    }
    println!(
        "{cuts} cuts of modelled caches in {:.0} s, seeds {first} to {seed}, no promise broken",
        began.elapsed().as_secs_f64()
    );
}
