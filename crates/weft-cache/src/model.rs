//! Random operations on a cache whose devices lose unflushed data, compared with a model: the
//! versions that each sector may have.

use crate::{
    AttachOptions, Cache, CachedDevice, CreateOptions, Mode, OpenOptions, OriginId, PolicyKind,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use weft_block::{BlockDevice, CrashDevice, Error, Geometry, MemoryDevice, Result, Rng};

const SECTOR: usize = 512;
const ORIGIN_BYTES: u64 = 3 * (1 << 20) + 1536;

/// A device that fails after a number of requests to it and its siblings, as in a power cut.
struct Fused {
    inner: Arc<CrashDevice<MemoryDevice>>,
    left: Arc<AtomicI64>,
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
}

/// The contents that a sector may have, the oldest first; 0 is zeroes, others are repeated.
#[derive(Clone)]
struct Sector {
    may: Vec<u64>,
    /// Whether its present content is the last of these; the others may return after a crash.
    known: bool,
}

impl Sector {
    fn write(&mut self, id: u64) {
        if !self.known {
            // Not read since the crash: any of them may still return.
            self.known = true;
        }
        self.may.push(id);
    }
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
    cached: Option<Arc<CachedDevice>>,
}

impl Rig {
    fn new(seed: u64, subs: u32) -> Self {
        let mut rng = Rng::new(seed);
        let device = |bytes, seed| Arc::new(CrashDevice::new(MemoryDevice::new(bytes), seed));
        let cache_bytes = (40 + 8 * rng.below(40)) * 4096 * u64::from(subs).min(4);
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
            model: vec![Sector { may: vec![0], known: true }; ORIGIN_BYTES as usize / SECTOR],
            next: 1,
            now_ms: 0,
            open,
            cached: None,
            rng,
        }
    }

    fn fused(&self, inner: &Arc<CrashDevice<MemoryDevice>>) -> Arc<dyn BlockDevice> {
        Arc::new(Fused { inner: Arc::clone(inner), left: Arc::clone(&self.left) })
    }

    fn device(&mut self) -> crate::Result<Arc<CachedDevice>> {
        if let Some(cached) = &self.cached {
            return Ok(Arc::clone(cached));
        }
        let cache = Cache::open(self.fused(&self.disk), self.open.clone())?;
        let id =
            OriginId { len_bytes: ORIGIN_BYTES, label: "origin".to_owned(), ..OriginId::default() };
        let options = AttachOptions { mode: self.mode, ..AttachOptions::default() };
        let cached = cache.attach(self.fused(&self.origin), &id, &options)?;
        self.cached = Some(Arc::clone(&cached));
        Ok(cached)
    }

    fn range(&mut self) -> (usize, usize) {
        let sectors = self.model.len();
        // Half of the operations use a small part, where blocks are used repeatedly.
        let bound = if self.rng.chance(1, 2) { 200 } else { sectors };
        let len = if self.rng.chance(1, 20) {
            600
        } else if self.rng.chance(1, 2) {
            8
        } else {
            40
        };
        let mut first = self.rng.index(bound);
        let mut count = 1 + self.rng.index(len);
        if self.rng.chance(2, 3) {
            first = first / 8 * 8;
            count = count.next_multiple_of(8);
        }
        (first, count.min(sectors - first))
    }

    /// Runs one step; an error means that the power was cut.
    fn step(&mut self) -> Result<()> {
        let cached = self.device()?;
        let (first, count) = self.range();
        let offset = (first * SECTOR) as u64;
        match self.rng.below(100) {
            0..36 => {
                let id = self.next;
                self.next += 1;
                // Whether it succeeded or not, the version may be there after a crash.
                for sector in &mut self.model[first..first + count] {
                    sector.write(id);
                }
                let bytes: Vec<u8> =
                    id.to_le_bytes().iter().copied().cycle().take(count * SECTOR).collect();
                cached.write_at(&bytes, offset)?;
            }
            36..40 => {
                for sector in &mut self.model[first..first + count] {
                    sector.write(0);
                }
                cached.write_zeroes(offset, (count * SECTOR) as u64)?;
            }
            40..75 => {
                let mut bytes = vec![0; count * SECTOR];
                cached.read_at(&mut bytes, offset)?;
                self.compare(first, &bytes);
            }
            75..85 => {
                let mut states = Vec::new();
                for sector in &self.model {
                    states.push(sector.may.len());
                }
                cached.flush()?;
                for (sector, len) in self.model.iter_mut().zip(states) {
                    // The present content is durable; where it is not known, all versions stay
                    // possible.
                    if sector.known {
                        sector.may.drain(..len - 1);
                    }
                }
            }
            85..94 => {
                self.now_ms += self.rng.below(2500);
                cached.cache().tick(self.now_ms)?;
            }
            94..96 => {
                self.mode = *self.rng.pick(&Mode::ALL).unwrap();
                cached.set_mode(self.mode)?;
            }
            96..97 => cached.write_back_all()?,
            _ => {
                cached.cache().close()?;
                self.now_ms = 0;
                self.cached = None;
                for sector in &mut self.model {
                    if sector.known {
                        let keep = sector.may.len() - 1;
                        sector.may.drain(..keep);
                    }
                }
            }
        }
        if self.rng.chance(1, 30) {
            cached.cache().check_invariants();
        }
        Ok(())
    }

    /// Compares a read with the model. A sector that was written in this life has its last written
    /// version. One that was not, since a crash, has one of several versions, and keeps the one
    /// that was read first.
    fn compare(&mut self, first: usize, bytes: &[u8]) {
        for (index, got) in (first..).zip(bytes.chunks_exact(SECTOR)) {
            let id = u64::from_le_bytes(got[..8].try_into().unwrap());
            assert!(got.chunks_exact(8).all(|w| w == &got[..8]), "sector {index} mixes versions");
            let Sector { may, known } = &mut self.model[index];
            let fits = if *known { may.last() == Some(&id) } else { may.contains(&id) };
            assert!(
                fits,
                "sector {index} is version {id}, and not one of {may:?} (known: {known})"
            );
            if !*known {
                // Older versions can never return, newer ones were lost.
                let at = may.iter().rposition(|v| *v == id).unwrap_or(0);
                *may = vec![may[at]];
                *known = true;
            }
        }
    }

    fn cut(&mut self) {
        self.cached = None;
        self.left.store(i64::MAX, Ordering::SeqCst);
        for device in [&self.origin, &self.disk] {
            device.crash().unwrap();
            device.power_on();
        }
        for sector in &mut self.model {
            sector.known = sector.may.len() == 1;
        }
        self.now_ms = 0;
    }
}

fn run(seed: u64, subs: u32, steps: u64) {
    let mut rig = Rig::new(seed, subs);
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
            _ => rig.cut(),
        }
    }
    // All of it, twice: a version that was read once stays.
    let cached = rig.device().unwrap();
    for _ in 0..2 {
        let mut bytes = vec![0; ORIGIN_BYTES as usize];
        cached.read_at(&mut bytes, 0).unwrap();
        rig.compare(0, &bytes);
    }
}

fn campaign(subs: u32, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let result = std::panic::catch_unwind(|| run(seed, subs, 600));
        assert!(result.is_ok(), "seed {seed} with {subs} sub-blocks a block");
    }
}

#[test]
fn nothing_flushed_is_lost_with_blocks_of_4_kib() {
    campaign(1, 0..40);
}

#[test]
fn nothing_flushed_is_lost_with_blocks_of_16_kib() {
    campaign(4, 100..120);
}

#[test]
fn nothing_flushed_is_lost_with_blocks_of_64_kib() {
    campaign(16, 200..215);
}
