//! Reading ahead of a sequential reader: what it does, and what it must never do.

use crate::rig::{BLOCK, block, read, write};
use crate::torture::Flaky;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::ThreadId;
use std::time::{Duration, Instant};
use weft_block::{BlockDevice, Change, ChangeKind, Filter, MemoryDevice};
use weft_cache::admission::{AdmissionOptions, SequentialBypass};
use weft_cache::{
    AttachOptions, Cache, CachedDevice, CreateOptions, Mode, OpenOptions, OriginId, PolicyKind,
};
use weft_testing::wait_until;
use weft_testing::{At, GateDevice};

const BLOCKS: u64 = 2048;
/// Blocks in one read.
const PIECE: u64 = 16;
/// Far beyond what a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(300);

fn origin() -> MemoryDevice {
    let origin = MemoryDevice::new(BLOCKS * BLOCK as u64);
    (0..BLOCKS).for_each(|number| write(&origin, number, 0).unwrap());
    origin
}

fn open(
    cache_bytes: u64,
    origin: Arc<dyn BlockDevice>,
    options: OpenOptions,
) -> (Arc<Cache>, Arc<CachedDevice>) {
    open_with(cache_bytes, origin, options, &CreateOptions::default(), Mode::WriteThrough)
}

fn id() -> OriginId {
    let len_bytes = BLOCKS * BLOCK as u64;
    OriginId { len_bytes, label: "origin".into(), ..OriginId::default() }
}

fn open_with(
    cache_bytes: u64,
    origin: Arc<dyn BlockDevice>,
    options: OpenOptions,
    create: &CreateOptions,
    mode: Mode,
) -> (Arc<Cache>, Arc<CachedDevice>) {
    let disk = Arc::new(MemoryDevice::new(cache_bytes));
    Cache::create(&*disk, create).unwrap();
    let cache = Cache::open(disk, options).unwrap();
    let device =
        cache.attach(origin, &id(), &AttachOptions { mode, ..Default::default() }).unwrap();
    (cache, device)
}

/// Counts the reads of one thread, and holds those of all until several of the others are there, if
/// asked.
struct Watched<D> {
    inner: D,
    reader: ThreadId,
    /// Reads of the reader.
    reads: AtomicU64,
    /// How many reads of others must come together, and how many are there.
    together: Mutex<(usize, usize)>,
    came: Condvar,
    /// The most reads of others at a time.
    most: AtomicU64,
}

impl<D: BlockDevice> Watched<D> {
    fn new(inner: D) -> Arc<Self> {
        Arc::new(Self {
            inner,
            reader: std::thread::current().id(),
            reads: AtomicU64::new(0),
            together: Mutex::default(),
            came: Condvar::new(),
            most: AtomicU64::new(0),
        })
    }

    fn wait<'a>(&self, held: Held<'a>) -> Held<'a> {
        let (held, waited) = self.came.wait_timeout(held, PATIENCE).unwrap();
        assert!(!waited.timed_out(), "no others come");
        held
    }
}

type Held<'a> = MutexGuard<'a, (usize, usize)>;

impl<D: BlockDevice> Filter for Watched<D> {
    type Below = D;

    fn below(&self) -> &D {
        &self.inner
    }

    fn filter_read(&self, buf: &mut [u8], offset: u64) -> weft_block::Result<()> {
        if std::thread::current().id() == self.reader {
            self.reads.fetch_add(1, SeqCst);
            let mut together = self.together.lock().unwrap();
            while together.0 > 0 {
                together = self.wait(together);
            }
            drop(together);
            return self.inner.read_at(buf, offset);
        }
        let mut together = self.together.lock().unwrap();
        together.1 += 1;
        self.most.fetch_max(together.1 as u64, SeqCst);
        self.came.notify_all();
        while together.1 < together.0 {
            together = self.wait(together);
        }
        // Those who came together go on together.
        together.0 = 0;
        drop(together);
        self.came.notify_all();
        let read = self.inner.read_at(buf, offset);
        self.together.lock().unwrap().1 -= 1;
        read
    }
}

/// Streams of 256 KiB bypass the cache.
fn bypass() -> OpenOptions {
    let sequential_bytes = 256 << 10;
    let admission = AdmissionOptions { sequential_bytes, ..AdmissionOptions::default() };
    OpenOptions { admission, ..OpenOptions::default() }
}

/// Nothing does.
fn no_bypass() -> OpenOptions {
    let sequential = SequentialBypass::Never;
    let admission = AdmissionOptions { sequential, ..AdmissionOptions::default() };
    OpenOptions { admission, ..OpenOptions::default() }
}

/// The area that [`fill_up`] reads: behind that which is read in order.
const FILLER: std::ops::Range<u64> = BLOCKS / 2..BLOCKS;

/// Fills the cache by reads in falling order, which are no stream, until it has to give blocks up.
fn fill_up(cache: &Cache, device: &dyn BlockDevice) {
    for number in FILLER.rev() {
        read(device, number).unwrap();
    }
    settle(cache);
    let stats = cache.stats();
    assert!(stats.evictions > 0 && stats.read_ahead_bytes == 0, "{stats:?}");
}

/// Waits until nothing is on its way into the cache.
fn settle(cache: &Cache) {
    wait_until("nothing is on its way", || cache.is_quiet());
}

/// Reads 8 pieces in order, and waits until half a window after them is there: 4 pieces.
fn begin_in_order(cache: &Cache, device: &dyn BlockDevice) {
    read_in_order(device, 0..8);
    let bytes = 4 * PIECE * BLOCK as u64;
    wait_until("half a window is there", || cache.stats().read_ahead_bytes >= bytes);
    settle(cache);
}

/// Reads pieces in order, and holds each against the first version.
fn read_in_order(device: &dyn BlockDevice, pieces: std::ops::Range<u64>) {
    let mut got = vec![0; (PIECE as usize) * BLOCK];
    for piece in pieces {
        device.read_at(&mut got, piece * PIECE * BLOCK as u64).unwrap();
        for (number, bytes) in (piece * PIECE..).zip(got.chunks(BLOCK)) {
            assert!(bytes == block(number, 0), "block {number}");
        }
    }
}

#[test]
fn what_follows_a_sequential_reader_is_in_the_cache_before_it_asks() {
    let (cache, device) = open(16 << 20, Arc::new(origin()), OpenOptions::default());
    let pieces = 8;
    read_in_order(&*device, 0..pieces);
    // As much again as was read, or nearly: half a window at a time.
    let read = pieces * PIECE;
    wait_until("half of a window is there", || cache.stats().used_slots >= read + read / 2);
    let stats = cache.stats();
    assert!(stats.used_slots <= 2 * read, "never more than was read: {stats:?}");
    assert!(stats.read_ahead_bytes >= (read / 2) * BLOCK as u64, "{stats:?}");
    read_in_order(&*device, pieces..BLOCKS / PIECE);
    assert_eq!(cache.stats().bypasses, 0);
}

#[test]
fn random_reads_and_a_window_of_nothing_have_nothing_read_ahead() {
    let (cache, device) = open(16 << 20, Arc::new(origin()), OpenOptions::default());
    for number in 0..512_u64 {
        read(&*device, number * 997 % BLOCKS).unwrap();
    }
    assert_eq!(cache.stats().read_ahead_bytes, 0);
    let options = OpenOptions { readahead_bytes: 0, ..OpenOptions::default() };
    let (cache, device) = open(16 << 20, Arc::new(origin()), options);
    read_in_order(&*device, 0..BLOCKS / PIECE);
    cache.close().unwrap();
    assert_eq!(cache.stats().read_ahead_bytes, 0);
}

const POLICIES: [PolicyKind; 5] = [
    PolicyKind::S3Fifo,
    PolicyKind::WTinyLfu,
    PolicyKind::Lru,
    PolicyKind::SEED,
    PolicyKind::SetAssociative { ways: 16 },
];

/// Whether the stream is admitted or bypasses the cache.
#[test]
fn a_full_cache_is_read_ahead_of_as_one_with_room() {
    for policy in POLICIES {
        for options in [bypass(), no_bypass()] {
            let origin = Watched::new(origin());
            let create = CreateOptions { policy, ..CreateOptions::default() };
            let mode = Mode::WriteThrough;
            let (cache, device) = open_with(2 << 20, origin.clone(), options, &create, mode);
            // With few ways, the first blocks have a set of their own.
            (400..512).rev().for_each(|number| drop(read(&*device, number).unwrap()));
            fill_up(&cache, &*device);
            begin_in_order(&cache, &*device);
            let (reads, before) = (origin.reads.load(SeqCst), cache.stats());
            read_in_order(&*device, 8..12);
            assert_eq!(origin.reads.load(SeqCst), reads, "{policy}: the reader asked the origin");
            assert_eq!(cache.stats().misses, before.misses + 4 * PIECE, "{policy}: as ever");
            read_in_order(&*device, 12..FILLER.start / PIECE);
        }
    }
}

#[test]
fn a_full_cache_has_several_requests_ahead_of_a_reader() {
    let origin = Watched::new(origin());
    let (cache, device) = open(2 << 20, origin.clone(), bypass());
    fill_up(&cache, &*device);
    // Until half a window is enough for all threads.
    read_in_order(&*device, 0..32);
    settle(&cache);
    origin.together.lock().unwrap().0 = 4;
    read_in_order(&*device, 32..FILLER.start / PIECE);
    assert_eq!(origin.most.load(SeqCst), 4);
}

/// What is read again and again stays beside a long stream, and no block at all goes for one that
/// bypasses the cache.
#[test]
fn a_stream_that_bypasses_a_full_cache_displaces_nothing() {
    // With few ways, there are always sets with room.
    for policy in &POLICIES[..4] {
        let create = CreateOptions { policy: *policy, ..CreateOptions::default() };
        let origin = Watched::new(origin());
        let mode = Mode::WriteThrough;
        let (cache, device) = open_with(2 << 20, origin.clone(), bypass(), &create, mode);
        fill_up(&cache, &*device);
        // Up to where admission knows it for a long stream.
        begin_in_order(&cache, &*device);
        let hot = || FILLER.rev().step_by(29);
        (0..4).for_each(|_| hot().for_each(|number| drop(read(&*device, number).unwrap())));
        settle(&cache);
        let before = cache.stats();
        hot().for_each(|number| drop(read(&*device, number).unwrap()));
        let misses = cache.stats().misses - before.misses;
        settle(&cache);
        let before = cache.stats();
        read_in_order(&*device, 8..FILLER.start / PIECE);
        settle(&cache);
        let after = cache.stats();
        assert_eq!(after.evictions, before.evictions, "{policy}");
        assert_eq!(after.fills, before.fills, "{policy}: nothing is put into the cache");
        assert!(after.read_ahead_bytes > before.read_ahead_bytes, "{policy}: {after:?}");
        hot().for_each(|number| drop(read(&*device, number).unwrap()));
        let misses_after = cache.stats().misses - after.misses;
        assert!(misses_after <= misses, "{policy}: {misses_after} misses, and {misses} before");
    }
}

/// The clean slots of a cache that is nearly full of dirty data are left to the writes.
#[test]
fn the_last_clean_slots_are_left_to_writes() {
    // Nothing is due to be written back, and nothing is committed but for flushes.
    let options = OpenOptions {
        dirty_limit_bytes: Some(1 << 30),
        max_dirty_age_ms: u64::MAX,
        commit_interval_ms: u64::MAX / 2,
        ..no_bypass()
    };
    let origin = Watched::new(origin());
    let create = CreateOptions::default();
    let (cache, device) = open_with(2 << 20, origin.clone(), options, &create, Mode::WriteBack);
    fill_up(&cache, &*device);
    let slots = cache.stats().slots;
    let dirty = || cache.stats().dirty_bytes / BLOCK as u64;
    let mut number = FILLER.end;
    while dirty() + 16 < slots {
        number -= 1;
        write(&*device, number, 1).unwrap();
    }
    read_in_order(&*device, 0..4);
    settle(&cache);
    let before = cache.stats();
    // A miss is nobody's but the reader's: the few clean slots go round for what it reads.
    begin_in_order(&cache, &*device);
    let after = cache.stats();
    assert!(after.read_ahead_bytes > 0);
    assert!(after.evictions - before.evictions <= after.misses - before.misses, "{after:?}");
    let (evictions, used) = (after.evictions, after.used_slots);
    settle(&cache);
    assert_eq!((cache.stats().evictions, cache.stats().used_slots), (evictions, used));
    for _ in 0..8 {
        number -= 1;
        write(&*device, number, 1).unwrap();
    }
    assert_eq!(cache.stats().throttled_writes, before.throttled_writes);
}

/// A write, a discard and zeroes overtake what waits for a reader, in every mode.
#[test]
fn a_write_counts_against_what_was_read_ahead_before() {
    let modes = [Mode::WriteThrough, Mode::WriteBack, Mode::WriteAround, Mode::WriteInvalidate];
    for (mode, options) in modes.into_iter().flat_map(|m| [(m, bypass()), (m, no_bypass())]) {
        let origin = Watched::new(origin());
        let create = CreateOptions::default();
        let (cache, device) = open_with(2 << 20, origin.clone(), options, &create, mode);
        fill_up(&cache, &*device);
        begin_in_order(&cache, &*device);
        let at = 8 * PIECE;
        write(&*device, at + 3, 1).unwrap();
        // Half of one block and half of the next.
        let half = BLOCK as u64 / 2;
        let both = [block(at + 10, 0), block(at + 11, 0)].concat();
        let patch = vec![7; BLOCK];
        device.write_at(&patch, (at + 10) * BLOCK as u64 + half).unwrap();
        device.write_zeroes((at + 20) * BLOCK as u64, BLOCK as u64).unwrap();
        let patched = [&both[..BLOCK / 2], &patch, &both[BLOCK + BLOCK / 2..]].concat();
        let mut got = vec![0; 4 * PIECE as usize * BLOCK];
        device.read_at(&mut got, at * BLOCK as u64).unwrap();
        for (number, bytes) in (at..).zip(got.chunks(BLOCK)) {
            let expected = match number - at {
                3 => block(number, 1),
                10 => patched[..BLOCK].to_vec(),
                11 => patched[BLOCK..].to_vec(),
                20 => vec![0; BLOCK],
                _ => block(number, 0),
            };
            assert!(bytes == expected, "{mode}: block {number}");
        }
        cache.detach(&device).unwrap();
        assert!(read(&*origin, at + 3).unwrap() == block(at + 3, 1), "{mode}");
    }
}

/// The origin is another one when it is attached again.
#[test]
fn what_was_read_ahead_of_a_detached_origin_is_forgotten() {
    let origin = Watched::new(origin());
    let (cache, device) = open(2 << 20, origin.clone(), bypass());
    fill_up(&cache, &*device);
    begin_in_order(&cache, &*device);
    cache.detach(&device).unwrap();
    drop(device);
    (0..BLOCKS / 2).for_each(|number| write(&*origin, number, 1).unwrap());
    for _ in 0..3 {
        // So that it gets a number that was given back.
        wait_until("its blocks are forgotten", || cache.stats().used_slots == 0);
        let device = cache.attach(origin.clone(), &id(), &AttachOptions::default()).unwrap();
        (8 * PIECE..12 * PIECE).for_each(|n| assert!(read(&*device, n).unwrap() == block(n, 1)));
        cache.detach(&device).unwrap();
    }
}

/// A reader that catches up with a request ahead of it waits for it, and a write that comes between
/// counts.
#[test]
fn a_write_counts_against_a_full_caches_request_ahead_that_a_reader_waits_for() {
    let gate = GateDevice::new(origin());
    let watched = Watched::new(gate.clone());
    let create = CreateOptions::default();
    // What is dirty is not pushed out by what was read before.
    let mode = Mode::WriteBack;
    let (cache, device) = open_with(2 << 20, watched.clone(), no_bypass(), &create, mode);
    fill_up(&cache, &*device);
    let at = 200;
    gate.arm(At::ReadDone, at * BLOCK as u64..(at + 1) * BLOCK as u64);
    read_in_order(&*device, 0..8);
    gate.wait_held();
    let (waiting, overtaken) = (at + 1, at);
    let reads = watched.reads.load(SeqCst);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| read(&*device, waiting).unwrap());
        write(&*device, overtaken, 1).unwrap();
        gate.release();
        assert!(waits.join().unwrap() == block(waiting, 0));
    });
    settle(&cache);
    assert!(read(&*device, overtaken).unwrap() == block(overtaken, 1));
    assert!(read(&*device, overtaken + 2).unwrap() == block(overtaken + 2, 0));
    assert_eq!(watched.reads.load(SeqCst), reads, "all of it was read ahead");
    cache.detach(&device).unwrap();
    assert!(read(&*gate, overtaken).unwrap() == block(overtaken, 1));
}

/// As above, of the block that is waited for, and in a mode in which the origin alone has it.
#[test]
fn what_a_write_has_overtaken_is_neither_staged_nor_filled() {
    let gate = GateDevice::new(origin());
    let create = CreateOptions::default();
    let mode = Mode::WriteAround;
    let (cache, device) = open_with(2 << 20, gate.clone(), no_bypass(), &create, mode);
    fill_up(&cache, &*device);
    let at = 200;
    gate.arm(At::ReadDone, at * BLOCK as u64..(at + 1) * BLOCK as u64);
    read_in_order(&*device, 0..8);
    gate.wait_held();
    let misses = cache.stats().misses;
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| read(&*device, at).unwrap());
        wait_until("it is waited for", || cache.stats().misses > misses);
        write(&*device, at, 1).unwrap();
        gate.release();
        let got = waits.join().unwrap();
        assert!(got == block(at, 0) || got == block(at, 1));
    });
    settle(&cache);
    assert!(read(&*device, at).unwrap() == block(at, 1));
    settle(&cache);
    assert!(read(&*device, at).unwrap() == block(at, 1));
}

#[test]
fn what_is_being_written_is_not_read_ahead() {
    let gate = GateDevice::new(origin());
    let create = CreateOptions::default();
    for mode in [Mode::WriteAround, Mode::WriteThrough, Mode::WriteInvalidate] {
        let (cache, device) = open_with(2 << 20, gate.clone(), bypass(), &create, mode);
        (0..FILLER.start).for_each(|number| write(&*gate, number, 0).unwrap());
        fill_up(&cache, &*device);
        let at = 200;
        gate.arm(At::WriteStart, at * BLOCK as u64..(at + 1) * BLOCK as u64);
        std::thread::scope(|scope| {
            let writes = scope.spawn(|| write(&*device, at, 1).unwrap());
            gate.wait_held();
            read_in_order(&*device, 0..8);
            settle(&cache);
            assert!(cache.stats().read_ahead_bytes > 0, "{mode}");
            gate.release();
            writes.join().unwrap();
        });
        assert!(read(&*device, at).unwrap() == block(at, 1), "{mode}");
        assert!(read(&*device, at + 1).unwrap() == block(at + 1, 0), "{mode}");
        settle(&cache);
        assert!(read(&*device, at).unwrap() == block(at, 1), "{mode}");
        cache.detach(&device).unwrap();
    }
}

#[test]
fn nothing_is_displaced_by_what_nobody_has_asked_for() {
    let (cache, device) = open(2 << 20, Arc::new(origin()), no_bypass());
    let slots = cache.stats().slots;
    // Fills the cache by reads that follow each other in no order.
    let mut number = 0;
    let before = loop {
        let stats = cache.stats();
        if stats.used_slots == slots {
            break stats;
        }
        number = (number + 997) % BLOCKS;
        read(&*device, number).unwrap();
    };
    assert_eq!(before.read_ahead_bytes, 0);
    read_in_order(&*device, 0..BLOCKS / PIECE);
    let displaces = || cache.stats().evictions > before.evictions;
    wait_until("what was asked for displaces", displaces);
    cache.close().unwrap();
    let after = cache.stats();
    // In all, as what was asked for before may come into the cache after: each block that went made
    // room for one that a reader had missed.
    assert!(after.evictions + slots <= after.misses, "{after:?}");
}

/// A write overtakes what is being read ahead: its data counts, whatever the origin said before.
#[test]
fn a_write_counts_against_what_is_read_ahead_meanwhile() {
    let gate = GateDevice::new(origin());
    let (cache, device) = open(16 << 20, gate.clone(), OpenOptions::default());
    let at = 200;
    gate.arm(At::ReadDone, at * BLOCK as u64..(at + 1) * BLOCK as u64);
    // The first read that touches the block is one ahead of this reader.
    read_in_order(&*device, 0..8);
    gate.wait_held();
    write(&*device, at, 1).unwrap();
    gate.release();
    wait_until("what was held is over", || cache.stats().used_slots > 192);
    assert!(read(&*device, at).unwrap() == block(at, 1));
    cache.detach(&device).unwrap();
    assert!(read(&*gate, at).unwrap() == block(at, 1));
}

/// A failed prefetch is an error for the reader only if its own read of the block fails, too.
#[test]
fn failures_ahead_are_not_the_readers() {
    let flaky = Flaky::new(Arc::new(origin()), 7);
    let (cache, device) = open(16 << 20, flaky.clone(), OpenOptions::default());
    flaky.one_in.store(3, SeqCst);
    let mut got = vec![0; BLOCK];
    for number in 0..BLOCKS {
        // One of three requests fails; a few attempts always do.
        let done = (0..100).any(|_| device.read_at(&mut got, number * BLOCK as u64).is_ok());
        assert!(done && got == block(number, 0), "block {number}");
    }
    flaky.one_in.store(0, SeqCst);
    cache.detach(&device).unwrap();
    assert_eq!(cache.stats().dirty_bytes, 0);
}

/// A detached origin can be attached again: no prefetch thread keeps it alive.
#[test]
fn a_detach_waits_for_what_is_read_ahead() {
    let origin: Arc<dyn BlockDevice> = Arc::new(origin());
    let (cache, mut device) = open(16 << 20, Arc::clone(&origin), OpenOptions::default());
    // Fewer than the origins that a cache has room for, should it not have forgotten the old ones yet.
    for round in 0..12 {
        read_in_order(&*device, 0..4 + round % 16);
        cache.detach(&device).unwrap();
        drop(device);
        device = cache.attach(Arc::clone(&origin), &id(), &AttachOptions::default()).unwrap();
    }
}

/// Has a write-back begin between the zeroing of the origin and the return from it, and gives it time
/// that it must not use.
struct Between {
    inner: MemoryDevice,
    cached: Mutex<Option<Arc<CachedDevice>>>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Filter for Between {
    type Below = MemoryDevice;

    fn below(&self) -> &Self::Below {
        &self.inner
    }

    fn filter_change(&self, change: Change<'_>) -> weft_block::Result<()> {
        change.apply(&self.inner)?;
        if !matches!(change.kind, ChangeKind::Zero) {
            return Ok(());
        }
        let cached = self.cached.lock().unwrap().take();
        if let Some(cached) = cached {
            let thread = std::thread::spawn(move || cached.write_back_all().unwrap());
            let end = Instant::now() + Duration::from_millis(300);
            while !thread.is_finished() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
            *self.thread.lock().unwrap() = Some(thread);
        }
        Ok(())
    }
}

#[test]
fn write_back_does_not_overtake_long_zeroes() {
    let origin = Arc::new(Between {
        inner: MemoryDevice::new(BLOCKS * BLOCK as u64),
        cached: Mutex::default(),
        thread: Mutex::default(),
    });
    let create = CreateOptions::default();
    let options = OpenOptions { max_dirty_age_ms: u64::MAX, ..OpenOptions::default() };
    let (cache, device) = open_with(8 << 20, origin.clone(), options, &create, Mode::WriteBack);
    write(&*device, 5, 1).unwrap();
    *origin.cached.lock().unwrap() = Some(Arc::clone(&device));
    device.write_zeroes(0, 2 << 20).unwrap();
    origin.thread.lock().unwrap().take().expect("the origin was asked").join().unwrap();
    let zeroes = vec![0; BLOCK];
    assert!(
        read(&*device, 5).unwrap() == zeroes,
        "zeroes were acknowledged, and something else is read"
    );
    drop(cache);
}
