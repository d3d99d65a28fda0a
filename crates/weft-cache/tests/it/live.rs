//! What is done to a cache while it is used: detach, resize, attach beside commits, switches.

use crate::rig::{BLOCK, Open, Rig, block, read, write};
use crate::torture::Flaky;
use crate::watchdog::within;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weft_block::{
    BlockDevice, Change, ChangeKind, ExtentKind, Fault, Filter, MemoryDevice, Request, Rng, Rule,
};
use weft_cache::{
    AttachOptions, Cache, CachedDevice, CreateOptions, Error, Mode, OpenOptions, OriginId,
};

const LIMIT: Duration = Duration::from_secs(120);

/// What a user of the device must find after versions 1 of the first 64 blocks.
fn holds(device: &dyn BlockDevice, versions: impl Fn(u64) -> u64, what: &str) {
    for number in 0..256 {
        let got = read(device, number).unwrap_or_else(|e| panic!("{what}: block {number}: {e}"));
        assert!(got == block(number, versions(number)), "{what}: block {number}");
    }
}

#[test]
fn a_device_goes_on_as_the_bare_origin_after_a_detach() {
    for mode in Mode::ALL {
        for cut in [false, true] {
            let what = format!("{mode}, cut {cut}");
            let rig = Rig::new(mode, 4 << 20, 256);
            let open = rig.open();
            for number in 0..128 {
                read(&*open.device, number).unwrap();
            }
            for number in 0..64 {
                write(&*open.device, number, 1).unwrap();
            }
            open.cache.detach(&open.device).unwrap();
            let first = |number: u64| u64::from(number < 64);
            holds(&*open.device, first, &what);
            for number in 32..96 {
                write(&*open.device, number, 2).unwrap_or_else(|e| panic!("{what}: {e}"));
            }
            open.device.write_zeroes(96 * BLOCK as u64, BLOCK as u64).unwrap();
            open.device.discard(200 * BLOCK as u64, BLOCK as u64).unwrap();
            open.device.flush().unwrap_or_else(|e| panic!("{what}: flush: {e}"));
            let second = |number: u64| if (32..96).contains(&number) { 2 } else { first(number) };
            for number in 32..96 {
                assert!(rig.durable_origin_block(number) == block(number, 2), "{what}: {number}");
            }
            assert_eq!(read(&*open.device, 96).unwrap(), vec![0; BLOCK]);
            write(&*open.device, 96, 0).unwrap();
            write(&*open.device, 200, 0).unwrap();
            open.device.flush().unwrap();
            holds(&*open.device, second, &what);
            assert!(open.cache.detach(&open.device).is_err(), "it has no cache to be taken from");
            if cut {
                rig.cut(open);
            } else {
                open.cache.close().unwrap();
                holds(&*open.device, second, &what);
                open.device.flush().unwrap();
                drop(open);
            }
            // The cache believes nothing that it knew before.
            let open = rig.open();
            holds(&*open.device, second, &what);
        }
    }
}

/// Two views of one origin, one with and one without the cache, would go stale.
#[test]
fn an_origin_is_not_attached_again_while_somebody_uses_it_without_the_cache() {
    let rig = Rig::new(Mode::WriteBack, 4 << 20, 64);
    let open = rig.open();
    write(&*open.device, 1, 1).unwrap();
    open.cache.detach(&open.device).unwrap();
    assert!(matches!(rig.attach(&open.cache), Err(Error::OriginBusy(_))));
    let error = rig.attach(&open.cache).unwrap_err().to_string();
    assert!(error.contains("detached"), "it says what to drop: {error}");
    let Open { cache, device } = open;
    drop(device);
    let device = rig.attach(&cache).unwrap();
    assert_eq!(read(&*device, 1).unwrap(), block(1, 1));
}

/// A cache with threads in memory.
struct Live {
    origin: Arc<MemoryDevice>,
    cache: Arc<Cache>,
    device: Arc<CachedDevice>,
}

fn live(mode: Mode, cache_bytes: u64, blocks: u64, options: OpenOptions) -> Live {
    let disk = Arc::new(MemoryDevice::new(cache_bytes));
    Cache::create(&*disk, &CreateOptions::default()).unwrap();
    let origin = Arc::new(MemoryDevice::new(blocks * BLOCK as u64));
    let cache = Cache::open(disk, options).unwrap();
    let id =
        OriginId { len_bytes: blocks * BLOCK as u64, label: "live".into(), ..OriginId::default() };
    let attach = AttachOptions { mode, ..AttachOptions::default() };
    let device = cache.attach(origin.clone(), &id, &attach).unwrap();
    Live { origin, cache, device }
}

/// Writers that give their blocks new versions until they are told to stop, each with blocks of its
/// own; returns the last version of each block that was acknowledged.
fn write_meanwhile(
    device: &CachedDevice,
    blocks: u64,
    threads: u64,
    meanwhile: impl FnOnce(),
) -> Vec<u64> {
    let stop = AtomicBool::new(false);
    let acked: Vec<AtomicU64> = (0..blocks).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (stop, acked) = (&stop, &acked);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                while !stop.load(SeqCst) {
                    let number = rng.below(blocks / threads) * threads + thread;
                    let version = acked[number as usize].load(SeqCst) + 1;
                    write(device, number, version).expect("a write");
                    acked[number as usize].store(version, SeqCst);
                    if rng.chance(1, 8) {
                        device.flush().expect("a flush");
                    }
                    let got = read(device, number).expect("a read");
                    assert!(got == block(number, version), "block {number} version {version}");
                }
            });
        }
        meanwhile();
        stop.store(true, SeqCst);
    });
    acked.into_iter().map(AtomicU64::into_inner).collect()
}

fn has(device: &dyn BlockDevice, versions: &[u64], what: &str) {
    for (number, version) in versions.iter().enumerate().filter(|(_, version)| **version > 0) {
        let got = read(device, number as u64).unwrap();
        assert!(got == block(number as u64, *version), "{what}: block {number}");
    }
}

#[test]
fn writers_lose_nothing_to_a_detach_in_their_midst() {
    for mode in [Mode::WriteBack, Mode::WriteThrough, Mode::WriteOnly] {
        for seed in 0..6 {
            let Live { origin, cache, device } = live(mode, 8 << 20, 1024, OpenOptions::default());
            let versions = within(LIMIT, "a detach among writers", || {
                write_meanwhile(&device, 1024, 4, || {
                    std::thread::sleep(Duration::from_millis(5 + seed * 7));
                    cache.detach(&device).unwrap();
                    std::thread::sleep(Duration::from_millis(10));
                })
            });
            device.flush().unwrap();
            has(&*device, &versions, "through the device");
            has(&*origin, &versions, "on the origin");
        }
    }
}

#[test]
fn a_cache_shrinks_and_grows_while_write_back_works() {
    let options = OpenOptions {
        commit_interval_ms: 5,
        max_dirty_age_ms: 10,
        dirty_limit_bytes: Some(1 << 20),
        ..OpenOptions::default()
    };
    let Live { origin, cache, device } = live(Mode::WriteBack, 8 << 20, 4096, options);
    let versions = within(LIMIT, "resizes among writers", || {
        write_meanwhile(&device, 4096, 3, || {
            for round in 0..12 {
                let mib = [4, 8, 2, 6, 3, 8][round % 6];
                match cache.resize(mib << 20) {
                    Ok(()) | Err(Error::StillDirty { .. }) => {}
                    Err(error) => panic!("to {mib} MiB: {error}"),
                }
            }
        })
    });
    within(LIMIT, "the end", || {
        has(&*device, &versions, "after the resizes");
        cache.check_invariants();
        cache.detach(&device).unwrap();
        has(&*origin, &versions, "on the origin");
    });
}

/// One thread, and a log that is nearly full: what a shrink writes back does not fit it any more.
#[test]
fn a_shrink_ends_when_the_log_is_full() {
    let rig = Rig::new(Mode::WriteBack, 16 << 20, 4096);
    let open = rig.open();
    for number in 0..1900 {
        write(&*open.device, number, 1).unwrap();
    }
    open.cache.checkpoint_always().unwrap();
    for number in 0..10 {
        write(&*open.device, number, 2).unwrap();
        open.device.flush().unwrap();
    }
    within(Duration::from_secs(60), "a shrink with a full log", || {
        open.cache.resize(4 << 20).unwrap();
    });
    open.cache.check_invariants();
    for number in 0..1900 {
        let version = if number < 10 { 2 } else { 1 };
        assert!(read(&*open.device, number).unwrap() == block(number, version), "{number}");
    }
}

/// The origin is slow to answer when it is looked at, and there are intents that a commit may
/// clear meanwhile.
#[test]
fn an_attach_and_a_commit_do_not_wait_for_each_other() {
    let mut rig = Rig::new(Mode::WriteThrough, 8 << 20, 4096);
    let open = rig.open();
    for number in (0..4096).step_by(4) {
        read(&*open.device, number).unwrap();
    }
    rig.pass_ms(&open, 60_000);
    for number in (0..128).step_by(4) {
        write(&*open.device, number, 1).unwrap();
    }
    open.device.flush().unwrap();
    open.cache.checkpoint_always().unwrap();
    rig.cut(open);
    rig.options =
        OpenOptions { commit_interval_ms: 1, intent_idle_ms: 0, ..OpenOptions::default() };
    let slow = Fault::Delay(Duration::from_millis(50));
    rig.origin_disk.add(Rule::every(Request::Read, slow));
    within(LIMIT, "an attach beside commits", || {
        let open = rig.open();
        assert!(open.cache.stats().slots > 0);
        open.cache.close().unwrap();
    });
}

/// Clean blocks are dropped when an origin is attached that was changed; that commits, and a commit
/// looks at what is attached.
#[test]
fn an_attach_that_invalidates_ends() {
    let rig = Rig::new(Mode::WriteAround, 8 << 20, 1024);
    let open = rig.open();
    for number in 0..200 {
        read(&*open.device, number).unwrap();
    }
    rig.pass_ms(&open, 60_000);
    for number in 600..700 {
        write(&*open.device, number, 1).unwrap();
    }
    // Told to the log by a commit that something else asks for.
    write(&*open.device, 1, 1).unwrap();
    open.cache.checkpoint_always().unwrap();
    rig.cut(open);
    let cache = rig.open_cache().unwrap();
    cache.checkpoint_always().unwrap();
    assert!(cache.stats().intents > 0, "{:?}", cache.stats());
    let id = OriginId { generation: 7, ..rig.id() };
    let attach = AttachOptions { invalidate: true, ..AttachOptions::default() };
    let device = within(Duration::from_secs(30), "an attach that invalidates", || {
        cache.attach(rig.origin_disk.clone(), &id, &attach).unwrap()
    });
    for number in 0..1024 {
        assert!(read(&*device, number).unwrap() == rig.origin_block(number), "block {number}");
    }
}

/// One request in twenty fails. What is written back is tried again behind; no writer is told.
#[test]
fn an_origin_that_fails_now_and_then_fails_no_write_of_write_back() {
    let disk = Arc::new(MemoryDevice::new(16 << 20));
    Cache::create(&*disk, &CreateOptions::default()).unwrap();
    let memory = Arc::new(MemoryDevice::new(80 << 20));
    let origin = Flaky::new(memory.clone(), 5);
    let cache = Cache::open(disk, OpenOptions::default()).unwrap();
    let id = OriginId { len_bytes: 80 << 20, label: "flaky".into(), ..OriginId::default() };
    let attach = AttachOptions { mode: Mode::WriteBack, ..AttachOptions::default() };
    let device = cache.attach(origin.clone(), &id, &attach).unwrap();
    origin.one_in.store(20, SeqCst);
    let mut failed = 0;
    within(LIMIT, "writes over an origin that fails", || {
        let mut rng = Rng::new(9);
        for number in 0..1250_u64 {
            // Far from each other: each block is a request of its own.
            let data: Vec<u8> = (0..16).flat_map(|n| block(number * 16 + n, 1)).collect();
            failed += u32::from(device.write_at(&data, number * 16 * BLOCK as u64).is_err());
            let other = rng.below(number * 16 + 1);
            failed += u32::from(write(&*device, other, 1).is_err());
        }
    });
    assert_eq!(failed, 0, "writes failed; {:?}", cache.stats());
    assert!(cache.stats().origin_errors > 10, "it did fail: {:?}", cache.stats());
    origin.one_in.store(0, SeqCst);
    cache.detach(&device).unwrap();
    for number in 0..20_000 {
        assert!(read(&*memory, number).unwrap() == block(number, 1), "block {number}");
    }
}

/// Counts the writes that are under way at a time.
struct Far {
    inner: MemoryDevice,
    now: AtomicU64,
    most: AtomicU64,
}

impl Filter for Far {
    type Below = MemoryDevice;

    fn below(&self) -> &Self::Below {
        &self.inner
    }

    fn filter_change(&self, change: Change<'_>) -> weft_block::Result<()> {
        self.most.fetch_max(self.now.fetch_add(1, SeqCst) + 1, SeqCst);
        std::thread::sleep(Duration::from_millis(2));
        self.now.fetch_sub(1, SeqCst);
        change.apply(&self.inner)
    }

    fn filter_flush(&self) -> weft_block::Result<()> {
        assert_eq!(self.now.load(SeqCst), 0, "a flush waits for what it covers");
        self.inner.flush()
    }
}

#[test]
fn write_back_has_many_requests_under_way() {
    let far = |most| {
        let disk = Arc::new(MemoryDevice::new(8 << 20));
        Cache::create(&*disk, &CreateOptions::default()).unwrap();
        let (now, counted) = (AtomicU64::new(0), AtomicU64::new(0));
        let origin = Arc::new(Far { inner: MemoryDevice::new(32 << 20), now, most: counted });
        let options = OpenOptions { writeback_requests: most, ..OpenOptions::default() };
        let cache = Cache::open(disk, options).unwrap();
        let id = OriginId { len_bytes: 32 << 20, label: "far".into(), ..OriginId::default() };
        let attach = AttachOptions { mode: Mode::WriteBack, ..AttachOptions::default() };
        let device = cache.attach(origin.clone(), &id, &attach).unwrap();
        for number in 0..400 {
            write(&*device, number * 7, 1).unwrap();
        }
        cache.detach(&device).unwrap();
        for number in 0..400 {
            assert!(read(&origin.inner, number * 7).unwrap() == block(number * 7, 1));
        }
        origin.most.load(SeqCst)
    };
    assert_eq!(far(1), 1);
    let most = far(16);
    assert!((8..=16).contains(&most), "{most} at a time");
}

/// A cache keeps what its origin knows of holes, and lays over it what is dirty.
#[test]
fn holes_are_known_through_a_cache() {
    for mode in Mode::ALL {
        let Live { origin, cache, device } = live(mode, 4 << 20, 1024, OpenOptions::default());
        write(&*origin, 512, 1).unwrap();
        let kind = |number: u64| {
            device.extent_at(number * BLOCK as u64, 4096).map(|extent| extent.kind).unwrap()
        };
        assert!(kind(100) == ExtentKind::Hole && kind(512) == ExtentKind::Data, "{mode}");
        let all = device.extent_at(0, 1024 * BLOCK as u64).unwrap();
        assert_eq!((all.len_bytes, all.kind), (512 * BLOCK as u64, ExtentKind::Hole), "{mode}");
        write(&*device, 100, 1).unwrap();
        assert!(kind(99) == ExtentKind::Hole && kind(100) == ExtentKind::Data, "{mode}");
        let before = device.extent_at(0, 1024 * BLOCK as u64).unwrap();
        assert_eq!((before.len_bytes, before.kind), (100 * BLOCK as u64, ExtentKind::Hole));
        cache.detach(&device).unwrap();
        assert!(kind(99) == ExtentKind::Hole && kind(100) == ExtentKind::Data, "{mode}");
    }
}

/// What is forgotten of an origin is taken out of the cache behind, and its number is another's only
/// then. Whoever attaches faster than that waits for it.
#[test]
fn origins_come_and_go_faster_than_they_are_forgotten() {
    let disk: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(32 << 20));
    Cache::create(&*disk, &CreateOptions::default()).unwrap();
    let cache = Cache::open(disk, OpenOptions::default()).unwrap();
    let attach = AttachOptions { mode: Mode::WriteBack, add: true, ..AttachOptions::default() };
    for number in 0..64 {
        let origin: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(1 << 20));
        let id =
            OriginId { len_bytes: 1 << 20, label: format!("o{number}"), ..OriginId::default() };
        let device = cache.attach(origin, &id, &attach).unwrap_or_else(|e| panic!("{number}: {e}"));
        write(&*device, number, 1).unwrap();
        cache.detach(&device).unwrap();
    }
    // None of them is forgotten while it is attached.
    for number in 0..16 {
        let origin: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(1 << 20));
        let id =
            OriginId { len_bytes: 1 << 20, label: format!("p{number}"), ..OriginId::default() };
        cache.attach(origin, &id, &attach).unwrap_or_else(|e| panic!("{number}: {e}"));
    }
    let one_more: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(1 << 20));
    let id = OriginId { len_bytes: 1 << 20, label: "q".into(), ..OriginId::default() };
    assert!(matches!(cache.attach(one_more, &id, &attach), Err(Error::Invalid(_))));
}

/// A disk that does something once, as soon as it has a certain block.
struct Once {
    inner: MemoryDevice,
    on: Vec<u8>,
    then: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Once {
    fn new(len_bytes: u64, on: Vec<u8>) -> Arc<Self> {
        Arc::new(Self { inner: MemoryDevice::new(len_bytes), on, then: Mutex::default() })
    }
}

impl Filter for Once {
    type Below = MemoryDevice;

    fn below(&self) -> &Self::Below {
        &self.inner
    }

    fn filter_change(&self, change: Change<'_>) -> weft_block::Result<()> {
        change.apply(&self.inner)?;
        let ChangeKind::Write(bufs) = change.kind else { return Ok(()) };
        let is_now = bufs.iter().any(|buf| **buf == self.on[..]);
        let then = if is_now { self.then.lock().unwrap().take() } else { None };
        if let Some(then) = then {
            then();
        }
        Ok(())
    }
}

/// While a write is under way, the cache and the origin differ: one has the new version and the
/// other has the old one. Whoever has read the new one never gets the old one again, whichever mode
/// there is by then.
#[test]
fn a_version_that_was_read_is_not_taken_back_by_a_change_of_mode() {
    for mode in Mode::ALL {
        for before in Mode::ALL {
            let (old, new) = (block(7, 1), block(7, 2));
            let (disk, origin) = (Once::new(1 << 20, new.clone()), Once::new(1 << 20, new.clone()));
            Cache::create(&*disk, &CreateOptions::default()).unwrap();
            origin.write_at(&old, 7 * BLOCK as u64).unwrap();
            let options = OpenOptions { background: false, ..OpenOptions::default() };
            let cache = Cache::open(disk.clone(), options).unwrap();
            let id = OriginId { len_bytes: 1 << 20, label: "o".into(), ..OriginId::default() };
            let attach = AttachOptions { mode: before, ..AttachOptions::default() };
            let device = cache.attach(origin.clone(), &id, &attach).unwrap();
            assert!(read(&*device, 7).unwrap() == old);
            device.set_mode(mode).unwrap();

            let seen: Arc<Mutex<Vec<u64>>> = Arc::default();
            for once in [&disk, &origin] {
                let (reader, seen, new) = (Arc::clone(&device), Arc::clone(&seen), new.clone());
                *once.then.lock().unwrap() = Some(Box::new(move || {
                    for mode in Mode::ALL.into_iter().chain(Mode::ALL) {
                        // Not of a write that is not done.
                        reader.set_mode(mode).unwrap();
                        let got = read(&*reader, 7).unwrap();
                        seen.lock().unwrap().push(if got == new { 2 } else { 1 });
                    }
                }));
            }
            write(&*device, 7, 2).unwrap();
            seen.lock().unwrap().push(if read(&*device, 7).unwrap() == new { 2 } else { 1 });
            let seen = seen.lock().unwrap();
            assert!(
                seen.len() > 2 * Mode::ALL.len(),
                "{mode} after {before}: nobody read meanwhile"
            );
            assert!(seen.is_sorted() && seen.ends_with(&[2]), "{mode} after {before}: {seen:?}");
            for once in [&disk, &origin] {
                once.then.lock().unwrap().take();
            }
            cache.detach(&device).unwrap();
        }
    }
}
