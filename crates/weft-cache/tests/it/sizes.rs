//! Every size of a cache from the smallest that can be made, with every size of blocks: whatever is
//! written is taken, and the log never stays full.

use crate::rig::{BLOCK, block, read, write};
use crate::watchdog::within;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use weft_block::{
    BlockDevice, Change, Fault, FaultDevice, Filter, MemoryDevice, Request, Rng, Rule,
};
use weft_cache::{
    AttachOptions, Cache, CachedDevice, CreateOptions, Mode, OpenOptions, OriginId, PolicyKind,
};

const LIMIT: Duration = Duration::from_secs(300);
const UNIT: u64 = 4096;

/// The length of the smallest device that a cache can be made of.
fn smallest(create: &CreateOptions) -> u64 {
    let fits = |len: &u64| Cache::create(&MemoryDevice::new(*len), create).is_ok();
    (1..1024).map(|units| units * UNIT).find(fits).expect("four megabytes are enough")
}

/// The smallest sizes one by one, and then larger ones in steps that grow.
fn sizes(create: &CreateOptions, most: u64) -> Vec<u64> {
    let first = smallest(create);
    let mut sizes: Vec<u64> = (0..6).map(|n| first + n * UNIT).collect();
    let mut len = first + 6 * UNIT;
    while len < most {
        len = (len * 5 / 3) / UNIT * UNIT + UNIT;
        sizes.push(len.min(most));
    }
    // The size that people try first.
    sizes.extend((most > 16 << 20).then_some(16 << 20));
    sizes
}

struct Small {
    disk: Arc<MemoryDevice>,
    origin: Arc<MemoryDevice>,
    id: OriginId,
    options: OpenOptions,
    mode: Mode,
}

impl Small {
    fn new(len: u64, create: &CreateOptions, origin_bytes: u64, mode: Mode) -> Self {
        let disk = Arc::new(MemoryDevice::new(len));
        Cache::create(&*disk, create).unwrap();
        let id = OriginId { len_bytes: origin_bytes, label: "small".into(), ..OriginId::default() };
        let options = OpenOptions { background: false, ..OpenOptions::default() };
        Self { disk, origin: Arc::new(MemoryDevice::new(origin_bytes)), id, options, mode }
    }

    fn open(&self) -> (Arc<Cache>, Arc<CachedDevice>) {
        let cache = Cache::open(self.disk.clone(), self.options.clone()).unwrap();
        let attach = AttachOptions { mode: self.mode, ..AttachOptions::default() };
        let device = cache.attach(self.origin.clone(), &self.id, &attach).unwrap();
        (cache, device)
    }
}

/// Large writes, small ones with and without flushes, zeroes and discards, in a few lives; after
/// each the origin and the cache are one volume.
fn fill_and_empty(len: u64, create: &CreateOptions, mode: Mode) {
    let what = format!("{len} bytes, blocks of {}, {}, {mode}", create.block_bytes, create.policy);
    let blocks = (len / UNIT * 2).clamp(64, 2048);
    let small = Small::new(len, create, blocks * UNIT, mode);
    let mut rng = Rng::new(len);
    let mut versions = vec![0_u64; blocks as usize];
    let bytes = |number: u64, version: u64| match version {
        0 => vec![0; BLOCK],
        _ => block(number, version),
    };
    let mut next = 1;
    for life in 0..3 {
        let (cache, device) = small.open();
        let fail = |e: &dyn std::fmt::Display| -> ! { panic!("{what}, life {life}: {e}") };
        // As much as there is, at once.
        let all: Vec<u8> = (0..blocks).flat_map(|number| bytes(number, next)).collect();
        device.write_at(&all, 0).unwrap_or_else(|e| fail(&e));
        versions.fill(next);
        for step in 0..300_u64 {
            next += 1;
            let number = rng.below(blocks);
            match rng.below(20) {
                0 => {
                    let count = (1 + rng.below(40)).min(blocks - number);
                    let zeroed = device.write_zeroes(number * UNIT, count * UNIT);
                    zeroed.unwrap_or_else(|e| fail(&e));
                    versions[number as usize..(number + count) as usize].fill(0);
                }
                1 => cache.tick(step * 1000 + life * 1_000_000).unwrap_or_else(|e| fail(&e)),
                2 => drop(read(&*device, number).unwrap_or_else(|e| fail(&e))),
                _ => {
                    write(&*device, number, next).unwrap_or_else(|e| fail(&e));
                    versions[number as usize] = next;
                }
            }
            if rng.chance(1, 3) {
                device.flush().unwrap_or_else(|e| fail(&e));
            }
        }
        for (number, version) in (0..).zip(&versions) {
            let got = read(&*device, number).unwrap_or_else(|e| fail(&e));
            assert!(got == bytes(number, *version), "{what}, life {life}: block {number}");
        }
        cache.check_invariants();
        match life {
            0 => cache.close().unwrap_or_else(|e| fail(&e)),
            // As if it had been killed.
            1 => device.flush().unwrap_or_else(|e| fail(&e)),
            _ => {
                cache.detach(&device).unwrap_or_else(|e| fail(&e));
                for (number, version) in (0..).zip(&versions) {
                    let got = read(&*small.origin, number).unwrap();
                    assert!(got == bytes(number, *version), "{what}: the origin's block {number}");
                }
            }
        }
    }
}

fn every_size(block_bytes: u32, most: u64) {
    let policies = [
        PolicyKind::S3Fifo,
        PolicyKind::WTinyLfu,
        PolicyKind::Lru,
        PolicyKind::SetAssociative { ways: 4 },
    ];
    within(LIMIT, "every size of a cache", || {
        let plain = CreateOptions { block_bytes, ..CreateOptions::default() };
        for (n, len) in sizes(&plain, most).into_iter().enumerate() {
            let create = CreateOptions { policy: policies[n % policies.len()], ..plain.clone() };
            fill_and_empty(len, &create, Mode::WriteBack);
            fill_and_empty(len, &create, Mode::ALL[n % Mode::ALL.len()]);
        }
    });
}

#[test]
fn every_size_takes_everything_with_blocks_of_4_kib() {
    every_size(4 << 10, 20 << 20);
}

#[test]
fn every_size_takes_everything_with_blocks_of_8_kib() {
    every_size(8 << 10, 8 << 20);
}

#[test]
fn every_size_takes_everything_with_blocks_of_16_kib() {
    every_size(16 << 10, 8 << 20);
}

#[test]
fn every_size_takes_everything_with_blocks_of_32_kib() {
    every_size(32 << 10, 8 << 20);
}

#[test]
fn every_size_takes_everything_with_blocks_of_64_kib() {
    every_size(64 << 10, 20 << 20);
}

/// One large write into the sizes that people try first.
#[test]
fn one_large_write_fits_any_log() {
    for (len, block_bytes) in [(16 << 20, 4 << 10), (200 << 20, 64 << 10), (2 << 20, 4 << 10)] {
        let create = CreateOptions { block_bytes, ..CreateOptions::default() };
        let small = Small::new(len, &create, 64 << 20, Mode::WriteBack);
        let (cache, device) = small.open();
        let data: Vec<u8> = (0..4096).flat_map(|number| block(number, 1)).collect();
        within(LIMIT, "one large write", || {
            device.write_at(&data, 0).unwrap_or_else(|e| panic!("{len}/{block_bytes}: {e}"));
            device.flush().unwrap_or_else(|e| panic!("{len}/{block_bytes}: {e}"));
            device.discard(0, 1 << 20).unwrap();
            cache.detach(&device).unwrap();
        });
        for number in 256..4096 {
            assert!(read(&*small.origin, number).unwrap() == block(number, 1), "{number}");
        }
    }
}

/// As fio does it with fsync=1 and iodepth=32.
/// A cache device that looks at the log while it is written to.
struct Looking {
    inner: MemoryDevice,
    cache: OnceLock<Weak<Cache>>,
    most: AtomicU64,
}

impl Looking {
    fn look(&self) {
        if let Some(cache) = self.cache.get().and_then(Weak::upgrade) {
            self.most.fetch_max(cache.stats().log_used_blocks, Ordering::Relaxed);
        }
    }
}

impl Filter for Looking {
    type Below = MemoryDevice;

    fn below(&self) -> &Self::Below {
        &self.inner
    }

    fn filter_change(&self, change: Change<'_>) -> weft_block::Result<()> {
        self.look();
        change.apply(&self.inner)
    }

    fn filter_flush(&self) -> weft_block::Result<()> {
        self.look();
        self.inner.flush()
    }
}

#[test]
fn nobody_sees_more_in_the_log_than_it_holds() {
    let create = CreateOptions::default();
    let inner = MemoryDevice::new(smallest(&create));
    let disk = Arc::new(Looking { inner, cache: OnceLock::new(), most: AtomicU64::new(0) });
    Cache::create(&*disk, &create).unwrap();
    let options = OpenOptions { background: false, ..OpenOptions::default() };
    let cache = Cache::open(disk.clone(), options).unwrap();
    disk.cache.set(Arc::downgrade(&cache)).unwrap();
    let origin = Arc::new(MemoryDevice::new(64 * UNIT));
    let id = OriginId { len_bytes: 64 * UNIT, label: "small".to_owned(), ..OriginId::default() };
    let attach = AttachOptions { mode: Mode::WriteBack, ..AttachOptions::default() };
    let device = cache.attach(origin, &id, &attach).unwrap();
    for version in 1..200 {
        write(&*device, version % 64, version).unwrap();
        device.flush().unwrap();
    }
    let most = disk.most.load(Ordering::Relaxed);
    let all = disk.geometry().len_bytes / UNIT;
    assert!(most > 0 && most < all, "{most} blocks of a device that has {all}");
}

#[test]
fn a_flush_after_each_write_of_many_threads_fits_any_log() {
    for block_bytes in [4 << 10, 64 << 10] {
        let create = CreateOptions { block_bytes, ..CreateOptions::default() };
        let mut small = Small::new(16 << 20, &create, 64 << 20, Mode::WriteBack);
        small.options.background = true;
        let (cache, device) = small.open();
        within(LIMIT, "flushes of many threads", || {
            std::thread::scope(|scope| {
                for thread in 0..32_u64 {
                    let device = &device;
                    scope.spawn(move || {
                        let mut rng = Rng::new(thread);
                        for version in 1..60 {
                            let number = rng.below(512) * 32 + thread;
                            write(&**device, number, version).unwrap();
                            device.flush().unwrap();
                            assert!(read(&**device, number).unwrap() == block(number, version));
                        }
                    });
                }
            });
            cache.detach(&device).unwrap();
        });
    }
}

/// A cache device that has refused writes for a while may be back when the cache is opened again. It
/// has no old block then, whether or not it could be marked as out of date; unless writes were told to
/// pass all the same.
#[test]
fn a_failed_cache_that_comes_back_has_nothing_old() {
    for (name, marked, pass) in
        [("marked", true, false), ("not marked", false, false), ("passed", false, true)]
    {
        let disk = Arc::new(FaultDevice::new(MemoryDevice::new(8 << 20)));
        Cache::create(&*disk, &CreateOptions::default()).unwrap();
        let origin = Arc::new(MemoryDevice::new(8 << 20));
        for number in 0..2048 {
            write(&*origin, number, 9).unwrap();
        }
        let id = OriginId { len_bytes: 8 << 20, label: "o".into(), ..OriginId::default() };
        let attach = AttachOptions { samples: 0, ..AttachOptions::default() };
        let options =
            OpenOptions { background: false, pass_when_failed: pass, ..OpenOptions::default() };
        let cache = Cache::open(disk.clone(), options.clone()).unwrap();
        let device = cache.attach(origin.clone(), &id, &attach).unwrap();
        for number in 0..512 {
            read(&*device, number).unwrap();
        }
        cache.checkpoint_always().unwrap();
        let fault = Rule::every(Request::Write, Fault::EIO);
        disk.add(if marked { Rule { times: Some(1), ..fault } } else { fault });
        let expected = if marked || pass { 1 } else { 9 };
        for number in 256..768 {
            let written = write(&*device, number, 1);
            let must = number >= 512 || expected == 1;
            assert_eq!(written.is_ok(), must, "{name}: block {number}: {written:?}");
            let version = if must { 1 } else { 9 };
            assert!(read(&*device, number).unwrap() == block(number, version), "{name}: {number}");
        }
        drop((cache, device));
        disk.clear();
        let cache = Cache::open(disk, options).unwrap();
        let device = cache.attach(origin.clone(), &id, &attach).unwrap();
        let old = (0..2048).filter(|n| read(&*device, *n).unwrap() != read(&*origin, *n).unwrap());
        assert!(pass || old.count() == 0, "{name}: old blocks are served");
    }
}

/// What only a cache that has failed knows of must not be changed behind its back.
#[test]
fn a_failed_cache_with_dirty_data_lets_nobody_change_the_origin() {
    let disk = Arc::new(FaultDevice::new(MemoryDevice::new(8 << 20)));
    Cache::create(&*disk, &CreateOptions::default()).unwrap();
    let origin = Arc::new(MemoryDevice::new(8 << 20));
    for number in 0..2048 {
        write(&*origin, number, 9).unwrap();
    }
    let id = OriginId { len_bytes: 8 << 20, label: "o".into(), ..OriginId::default() };
    let options = OpenOptions { background: false, ..OpenOptions::default() };
    let attach = AttachOptions { mode: Mode::WriteBack, ..AttachOptions::default() };
    let open = || {
        let cache = Cache::open(disk.clone(), options.clone()).unwrap();
        let device = cache.attach(origin.clone(), &id, &attach).unwrap();
        (cache, device)
    };
    let (cache, device) = open();
    for number in 1024..1536 {
        read(&*device, number).unwrap();
    }
    for number in 0..64 {
        write(&*device, number, 1).unwrap();
    }
    device.flush().unwrap();
    disk.add(Rule::every(Request::Write, Fault::EIO));
    assert!(write(&*device, 1, 2).is_err(), "it has failed");
    let mut told = 0;
    told += u32::from(device.discard(1024 * UNIT, 2 << 20).is_err());
    told += u32::from(device.write_zeroes(1024 * UNIT, 2 << 20).is_err());
    told += u32::from(write(&*device, 1100, 2).is_err());
    assert_eq!(told, 3, "each of them would change the origin unannounced");
    for number in 1024..1536 {
        assert!(read(&*origin, number).unwrap() == block(number, 9), "block {number}");
    }
    drop((cache, device));
    disk.clear();
    let (_cache, device) = open();
    for number in 1..64 {
        assert!(read(&*device, number).unwrap() == block(number, 1), "block {number}");
    }
}
