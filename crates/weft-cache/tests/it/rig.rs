//! A small cache over devices that can be made to fail, for tests of one thing at a time.
//!
//! Nothing runs behind: [`Rig::tick`] is the clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use weft_block::{
    BlockDevice, CrashDevice, Fault, FaultDevice, Image, MemoryDevice, Request, Rule, RuleId,
};
use weft_cache::{
    AttachOptions, Cache, CachedDevice, CreateOptions, Mode, OpenOptions, OriginId, Result,
};

pub const BLOCK: usize = 4096;

/// A device that can fail, over one that loses what was not flushed.
pub type Device = FaultDevice<CrashDevice<MemoryDevice>>;

/// Counts requests of one kind.
pub struct Counter<'a>(&'a Device, RuleId);

impl<'a> Counter<'a> {
    pub fn new(device: &'a Device, on: Request) -> Self {
        Self(device, device.add(Rule::every(on, Fault::Delay(Duration::ZERO))))
    }

    /// How many there were since it was made.
    pub fn count(&self) -> u64 {
        self.0.fired(self.1)
    }
}

impl Drop for Counter<'_> {
    fn drop(&mut self) {
        self.0.remove(self.1);
    }
}

/// The two disks, and the time.
pub struct Rig {
    pub cache_disk: Arc<Device>,
    pub origin_disk: Arc<Device>,
    pub options: OpenOptions,
    pub mode: Mode,
    now_ms: AtomicU64,
}

/// A cache of a rig while it is open.
pub struct Open {
    pub cache: Arc<Cache>,
    pub device: Arc<CachedDevice>,
}

/// A block that says whose it is: `version` of block `number`.
pub fn block(number: u64, version: u64) -> Vec<u8> {
    (0..BLOCK as u64 / 8)
        .flat_map(|i| weft_block::mix(version << 48 ^ number << 16 ^ i).to_le_bytes())
        .collect()
}

impl Rig {
    /// A cache device of so many bytes before an origin of so many blocks, which hold version 0.
    pub fn new(mode: Mode, cache_bytes: u64, origin_blocks: u64) -> Self {
        Self::with(mode, cache_bytes, origin_blocks, &CreateOptions::default())
    }

    pub fn with(mode: Mode, cache_bytes: u64, origin_blocks: u64, create: &CreateOptions) -> Self {
        let device = |len| Arc::new(FaultDevice::new(CrashDevice::new(MemoryDevice::new(len), 1)));
        let cache_disk: Arc<Device> = device(cache_bytes);
        let origin_disk: Arc<Device> = device(origin_blocks * BLOCK as u64);
        for number in 0..origin_blocks {
            origin_disk.write_at(&block(number, 0), number * BLOCK as u64).unwrap();
        }
        origin_disk.flush().unwrap();
        Cache::create(&*cache_disk, create).unwrap();
        cache_disk.flush().unwrap();
        let options = OpenOptions { background: false, ..OpenOptions::default() };
        Self { cache_disk, origin_disk, options, mode, now_ms: AtomicU64::new(0) }
    }

    /// A rig like this one on disks with other contents.
    pub fn on(&self, cache: &Image, origin: &Image) -> Self {
        let device = |image: &Image| {
            let medium = MemoryDevice::from_image(image.clone());
            Arc::new(FaultDevice::new(CrashDevice::new(medium, 1)))
        };
        Self {
            cache_disk: device(cache),
            origin_disk: device(origin),
            options: self.options.clone(),
            mode: self.mode,
            now_ms: AtomicU64::new(self.now_ms.load(SeqCst)),
        }
    }

    pub fn id(&self) -> OriginId {
        OriginId {
            len_bytes: self.origin_disk.geometry().len_bytes,
            uuid: Some([7; 16]),
            label: "origin".into(),
            generation: 0,
        }
    }

    pub fn open_cache(&self) -> Result<Arc<Cache>> {
        let device: Arc<dyn BlockDevice> = self.cache_disk.clone();
        Cache::open(device, self.options.clone())
    }

    pub fn attach(&self, cache: &Arc<Cache>) -> Result<Arc<CachedDevice>> {
        let origin: Arc<dyn BlockDevice> = self.origin_disk.clone();
        cache.attach(origin, &self.id(), &AttachOptions { mode: self.mode, ..Default::default() })
    }

    pub fn try_open(&self) -> Result<Open> {
        let cache = self.open_cache()?;
        let device = self.attach(&cache)?;
        Ok(Open { cache, device })
    }

    pub fn open(&self) -> Open {
        self.try_open().expect("opens and attaches")
    }

    /// Lets time pass, in steps in which everything that is due happens.
    pub fn pass_ms(&self, open: &Open, ms: u64) {
        for _ in 0..10 {
            let now = self.now_ms.fetch_add(ms / 10, SeqCst) + ms / 10;
            // What cannot be done now is due again: tests look at what came of it.
            drop(open.cache.tick(now));
        }
    }

    /// Cuts the power of both disks while the cache is open, and puts it back on.
    pub fn cut(&self, open: Open) {
        self.cache_disk.inner().crash().unwrap();
        self.origin_disk.inner().crash().unwrap();
        drop(open);
        self.cache_disk.inner().power_on();
        self.origin_disk.inner().power_on();
    }

    /// What the bare origin holds of a block.
    pub fn origin_block(&self, number: u64) -> Vec<u8> {
        read(&*self.origin_disk, number).unwrap()
    }

    /// What would be left of the origin if its power went now.
    pub fn durable_origin_block(&self, number: u64) -> Vec<u8> {
        read(self.origin_disk.inner().inner(), number).unwrap()
    }
}

/// Reads one block.
pub fn read(device: &dyn BlockDevice, number: u64) -> weft_block::Result<Vec<u8>> {
    let mut buf = vec![0; BLOCK];
    device.read_at(&mut buf, number * BLOCK as u64)?;
    Ok(buf)
}

/// Writes a version of one block.
pub fn write(device: &dyn BlockDevice, number: u64, version: u64) -> weft_block::Result<()> {
    device.write_at(&block(number, version), number * BLOCK as u64)
}

/// Whether every sector of a block is that of one of some versions: a write that no flush followed
/// may be torn.
pub fn is_of(got: &[u8], number: u64, versions: impl IntoIterator<Item = u64>) -> bool {
    let versions: Vec<Vec<u8>> = versions.into_iter().map(|v| block(number, v)).collect();
    (0..got.len())
        .step_by(512)
        .all(|at| versions.iter().any(|version| version[at..at + 512] == got[at..at + 512]))
}
