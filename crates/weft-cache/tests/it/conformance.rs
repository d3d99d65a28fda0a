//! A device behind a cache goes through the conformance suite of the block plug.

use std::sync::Arc;
use weft_block::conformance::{Limits, forwarding, run, run_filter};
use weft_block::{BlockDevice, Filter, MemoryDevice, ReadOnly};
use weft_cache::trace::{TraceDevice, TraceRecorder};
use weft_cache::{AttachOptions, Cache, CachedDevice, CreateOptions, Mode, OpenOptions, OriginId};

/// No multiple of a block.
const ORIGIN_BYTES: u64 = (1 << 20) + 1536;

/// A device behind a cache of half its size.
struct Cached(Arc<CachedDevice>);

impl Cached {
    fn new(origin: impl BlockDevice + 'static, mode: Mode, background: bool) -> Self {
        let disk = Arc::new(MemoryDevice::new(1 << 20));
        Cache::create(&*disk, &CreateOptions::default()).unwrap();
        let options = OpenOptions { background, ..OpenOptions::default() };
        let cache = Cache::open(disk, options).unwrap();
        let id = OriginId { len_bytes: ORIGIN_BYTES, label: "o".to_owned(), ..OriginId::default() };
        let attach = AttachOptions { mode, ..AttachOptions::default() };
        Self(cache.attach(Arc::new(origin), &id, &attach).unwrap())
    }
}

impl Filter for Cached {
    type Below = CachedDevice;

    fn below(&self) -> &CachedDevice {
        &self.0
    }
}

#[test]
fn a_cached_device_conforms_in_every_mode() {
    let limits = Limits { random_runs: 2, ..Limits::default() };
    for mode in Mode::ALL {
        println!("{mode:?}");
        run(|| Cached::new(MemoryDevice::new(ORIGIN_BYTES), mode, false), &limits);
    }
    run(|| Cached::new(MemoryDevice::new(ORIGIN_BYTES), Mode::WriteBack, true), &limits);
}

#[test]
fn a_cached_device_that_is_read_only_conforms() {
    let filled = || {
        let memory = MemoryDevice::new(ORIGIN_BYTES);
        memory.write_at(&[7; 300_000], 5000).unwrap();
        ReadOnly::new(memory)
    };
    run(|| Cached::new(filled(), Mode::WriteThrough, false), &Limits::default());
}

#[test]
fn a_recorded_device_conforms_and_all_but_discards_are_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = || {
        let path = dir.path().join("trace");
        let _ = std::fs::remove_file(&path);
        TraceRecorder::create(&path, 4096, u64::MAX).unwrap()
    };
    let limits = Limits { holes: true, random_runs: 2, ..Limits::default() };
    run_filter(|below| TraceDevice::new(below, recorder()), &limits);
    let device = TraceDevice::new(MemoryDevice::new(1 << 20), recorder());
    let records = || device.recorder().records();
    assert_eq!(forwarding::bypasses(&device, records), ["discard"]);
}
