//! Write-back: writes dirty blocks to their origin, in the origin's order, neighbours together.
//!
//! Only blocks that a *durable* record marks as dirty are written back: until the origin was
//! flushed and a later record marks the block as clean, recovery after a crash finds it dirty, and
//! it is written back again. Blocks that are being written back may be read, and overwritten in the
//! cache (the new version goes to another slot); writes that pass to the origin wait.

use crate::cache::Cache;
use crate::origin::Origin;
use crate::pins::Pinned;
use crate::policy::BlockKey;
use crate::send::Dirty;
use crate::slots::Masks;
use crate::state::CacheState;
use crate::stats::Count;
use crate::{Error, Result, SUB_BLOCK_BYTES};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const SUB: u64 = SUB_BLOCK_BYTES as u64;

/// Maximum data that is written back between two flushes of the origin, in bytes.
const BATCH_BYTES: u64 = 8 << 20;

/// Number of retries of an explicit write-back when the origin accepts no data, and the pause
/// before the first retry; each pause is twice as long as the one before.
const TRIES_MAX: u32 = 4;
const RETRY_PAUSE: Duration = Duration::from_millis(2);

/// The dirty blocks to be written back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    /// All dirty blocks of one origin, or of all.
    All(Option<u16>),
    /// The blocks in regions that became dirty at this time or before, in milliseconds.
    OlderThan(u64),
}

impl Cache {
    /// Writes back all dirty data, and flushes the origins.
    ///
    /// # Errors
    /// [`Error::StillDirty`] if some data cannot be written back now, for example because its
    /// origin is not attached.
    pub fn write_back_all(&self) -> Result<()> {
        self.write_back_origin(None)
    }

    pub(crate) fn write_back_origin(&self, nr: Option<u16>) -> Result<()> {
        let dirty = |st: &CacheState| nr.map_or(st.dirty.subs(), |nr| st.origins.of(nr).dirty_subs);
        // Data that writers make dirty meanwhile need not be waited for, nor be distinguished.
        let enough = dirty(&self.lock()) * SUB * 2;
        let (mut total, mut idle, mut tries) = (0, 0, 0);
        let flush_failures = self.flush_failures(nr);
        while dirty(&self.lock()) > 0 && total <= enough {
            let done = self.write_back(Which::All(nr));
            let dirty_bytes = dirty(&self.lock()) * SUB;
            match done {
                Ok(0) if dirty_bytes > 0 => {
                    // This can happen once because of a writer: its block became dirty after the
                    // commit.
                    idle += 1;
                    if idle > 2 {
                        let why = "its origin is not attached, or it is damaged".to_owned();
                        return Err(Error::StillDirty { dirty_bytes, why });
                    }
                }
                Ok(bytes) => {
                    (idle, tries) = (0, 0);
                    total += bytes;
                }
                // A failed flush is reported at once; a write may be retried.
                Err(error) if self.flush_failures(nr) != flush_failures || tries == TRIES_MAX => {
                    return Err(Error::StillDirty { dirty_bytes, why: error.to_string() });
                }
                Err(_) => {
                    std::thread::sleep(RETRY_PAUSE * (1 << tries));
                    tries += 1;
                }
            }
        }
        self.commit()?;
        // Writes that passed to an origin are flushed as well: the origin is then durably complete.
        for nr in (0..crate::ORIGINS_MAX as u16).filter(|n| nr.is_none_or(|nr| nr == *n)) {
            if let Some(origin) = self.origin(nr).filter(|origin| origin.flush_needed()) {
                origin.flush(self)?;
            }
        }
        Ok(())
    }

    /// Returns the number of failed flushes of the origin, or of all attached ones.
    fn flush_failures(&self, nr: Option<u16>) -> u64 {
        let origins = self.attached_origins();
        let wanted = origins.iter().filter(|origin| nr.is_none_or(|nr| nr == origin.nr));
        wanted.map(|origin| origin.failures()).sum()
    }

    /// Writes one batch back. Returns the number of bytes that the origin has accepted, or an error
    /// if it has accepted none.
    fn write_back(&self, which: Which) -> Result<u64> {
        let _one = self.writing_back.lock();
        self.wait_for_changes(which);
        let needs_commit = {
            let mut st = self.lock();
            let (_, found) = self.collect(&mut st, which, true, &mut None);
            found.iter().any(|d| st.residency.masks(d.slot).held & d.mask != d.mask)
        };
        if needs_commit {
            self.commit()?;
        }
        let mut pinned = Pinned::new(&self.pins);
        // Blocks that a commit in progress holds are not durable yet. If the origin got them now, a
        // crash could leave them there, beside a durable record of the clean block that they
        // replaced.
        let committing = self.committing.lock();
        let mut st = self.lock();
        let (Some(origin), mut found) = self.collect(&mut st, which, false, &mut None) else {
            return Ok(0);
        };
        if found.is_empty() {
            return Ok(0);
        }
        found.sort_unstable_by_key(|d| d.key.0);
        let mut ranges = Vec::new();
        for d in &found {
            pinned.pin(d.slot);
            ranges
                .push(st.requests.cleaning.enter(d.key.origin(), d.key.block()..d.key.block() + 1));
        }
        let place = (st.log.sb.data_offset, u64::from(st.log.sb.block_bytes));
        drop(st);
        drop(committing);

        let failures = origin.failures();
        let sent = self.send(&origin, &found, place);
        let flushed = if sent.bytes == 0 { Ok(()) } else { origin.flush(self) };
        // A flush that failed in between may have lost the data, and this one does not bring it
        // back.
        let flushed = flushed.and_then(|()| origin.unless_failed_since(self, failures));

        let mut st = self.lock();
        if flushed.is_ok() {
            for (d, taken) in found.iter().zip(&sent.taken) {
                if st.residency.lookup(d.key) != Some(d.slot) {
                    continue;
                }
                // The sent data may have been replaced by zeroes.
                let subs = (0..16).filter(|bit| d.mask >> bit & 1 != 0).zip(&d.crcs);
                let same = subs.filter(|(bit, crc)| st.residency.crc(d.slot, *bit) == **crc);
                let mask = taken & same.fold(0, |m, (bit, _)| m | 1 << bit);
                if mask != 0 {
                    let masks = st.residency.masks(d.slot);
                    let verified = masks.verified | mask;
                    st.set_masks(d.slot, Masks { dirty: masks.dirty & !mask, verified, ..masks });
                    st.touch(d.slot);
                }
            }
        }
        for id in ranges {
            st.requests.cleaning.leave(id);
        }
        let now_ms = st.now_ms;
        drop(st);
        self.notify();
        // An origin that accepts some data is available: the rest is sent with a later batch.
        let result = match (flushed, sent.error) {
            (Ok(()), Some(error)) if sent.bytes == 0 => Err(error),
            (Ok(()), _) => Ok(sent.bytes),
            (Err(error), _) => Err(error),
        };
        if result.is_ok() {
            origin.pause_ms.store(0, Ordering::Relaxed);
            origin.retry_ms.store(0, Ordering::Relaxed);
        } else {
            let pause = (origin.pause_ms.load(Ordering::Relaxed) * 2)
                .clamp(100, self.options.retry_max_ms.max(100));
            origin.pause_ms.store(pause, Ordering::Relaxed);
            origin.retry_ms.store(now_ms + pause, Ordering::Relaxed);
        }
        self.commit_if_much()?;
        result
    }

    /// If all blocks to be written back are being changed, waits until the change of one of them
    /// has ended.
    fn wait_for_changes(&self, which: Which) {
        let mut st = self.lock();
        if st.requests.changing.is_empty() {
            return;
        }
        loop {
            let mut passed = None;
            let found = self.collect(&mut st, which, true, &mut passed).1;
            let Some(key) = passed.filter(|_| found.is_empty()) else { return };
            while st.requests.changing.contains(key) {
                st = self.wait(st);
            }
        }
    }

    /// Returns the next dirty blocks in the order of one origin, except those that are being
    /// changed; `passed` is set to the last of these. Without `all`, only the sub-blocks that may
    /// be written back at once: durable records mark them as dirty.
    fn collect(
        &self,
        st: &mut CacheState,
        which: Which,
        all: bool,
        passed: &mut Option<BlockKey>,
    ) -> (Option<std::sync::Arc<Origin>>, Vec<Dirty>) {
        let mut found = Vec::new();
        let mut origin: Option<std::sync::Arc<Origin>> = None;
        let mut bytes = 0;
        let mut last = st.dirty.elevator();
        for (region_key, region) in st.dirty.regions.dirty_from(st.dirty.elevator()) {
            let nr = region_key.origin();
            let wanted = match which {
                Which::All(only) => only.is_none_or(|only| only == nr),
                Which::OlderThan(ms) => region.dirty_since_ms <= ms,
            };
            if !wanted || origin.as_ref().is_some_and(|origin| origin.nr != nr) {
                continue;
            }
            if origin.is_none() {
                let Some(attached) = st.origins.attached(nr) else { continue };
                let paused = attached.retry_ms.load(Ordering::Relaxed) > st.now_ms;
                if paused && matches!(which, Which::OlderThan(_)) {
                    continue;
                }
                origin = Some(attached);
            }
            let shift = st.origins.of(nr).region_shift;
            let per_region = (1_u64 << shift) / u64::from(st.log.sb.block_bytes);
            let first = u64::from(region_key.region()) * per_region;
            let mut left = region.dirty;
            for block in first..first + per_region {
                if left == 0 {
                    break;
                }
                let key = BlockKey::new(nr, block);
                let Some(slot) = st.residency.lookup(key) else { continue };
                let masks = st.residency.masks(slot);
                left -= masks.dirty.count_ones();
                let mask = if all { masks.dirty } else { masks.dirty & masks.held };
                if mask == 0 || st.dirty.is_damaged(slot) {
                    continue;
                }
                if st.requests.changing.contains(key) {
                    *passed = Some(key);
                    continue;
                }
                let crcs = (0..16).filter(|bit| mask >> bit & 1 != 0);
                let crcs: Vec<u32> = crcs.map(|bit| st.residency.crc(slot, bit)).collect();
                bytes += crcs.len() as u64 * SUB;
                found.push(Dirty { key, slot, mask, zero: masks.zero, crcs });
            }
            last = region_key;
            if bytes >= BATCH_BYTES {
                break;
            }
        }
        if !all && !found.is_empty() {
            st.dirty.continue_behind(last);
        }
        (origin, found)
    }

    /// Does background write-back: data that is old, or over half of the dirty limit. Returns true
    /// if there may be more to do at once.
    pub(crate) fn write_back_due(&self) -> Result<bool> {
        let (which, limited) = {
            let st = self.lock();
            if st.dirty.subs() == 0 || st.health.failed.is_some() || st.health.closed {
                return Ok(false);
            }
            if st.dirty.bytes() > self.dirty_limit(&st) / 2 {
                (Which::OlderThan(u64::MAX), st.dirty.bytes() < self.dirty_limit(&st))
            } else {
                let Some(before) = st.now_ms.checked_sub(self.options.max_dirty_age_ms) else {
                    return Ok(false);
                };
                (Which::OlderThan(before), true)
            }
        };
        let now_ms = self.lock().now_ms;
        {
            let pace = self.writing_back.lock();
            if limited && pace.next_ms > now_ms {
                return Ok(false);
            }
        }
        let bytes = self.write_back(which)?;
        if let Some(rate) = self.options.writeback_bytes_per_second.filter(|rate| *rate > 0) {
            let mut pace = self.writing_back.lock();
            pace.next_ms = now_ms + bytes * 1000 / rate;
        }
        Ok(bytes > 0)
    }

    /// Returns the maximum of dirty data, in bytes.
    pub(crate) fn dirty_limit(&self, st: &CacheState) -> u64 {
        let half = u64::from(st.residency.len()) * u64::from(st.log.sb.block_bytes) / 2;
        self.options.dirty_limit_bytes.unwrap_or(half).max(SUB)
    }

    /// Makes slots available after an allocation has failed, by a commit or by write-back. Returns
    /// `Ok(false)` if it cannot.
    pub(crate) fn make_room(&self) -> Result<bool> {
        let before = self.lock().dirty.held_slots();
        if before > 0 {
            self.commit()?;
            if self.lock().dirty.held_slots() < before {
                return Ok(true);
            }
        }
        if self.load_some()? {
            return Ok(true);
        }
        if self.lock().dirty.subs() == 0 {
            return Ok(false);
        }
        let began = Instant::now();
        let mut tries = 0;
        let bytes = loop {
            match self.write_back(Which::All(None)) {
                Ok(bytes) => break bytes,
                Err(error) => {
                    // The writer waits for the origin to accept data, up to the limit. Without
                    // background threads, time does not advance, so the tries are counted.
                    let patient = if self.options.background {
                        began.elapsed().as_millis() < u128::from(self.options.full_wait_ms)
                    } else {
                        tries < TRIES_MAX
                    };
                    if !patient || self.lock().health.failed.is_some() {
                        return Err(error);
                    }
                    std::thread::sleep(RETRY_PAUSE * (1 << tries.min(8)));
                    tries += 1;
                }
            }
        };
        self.commit()?;
        Ok(bytes > 0)
    }
}

impl crate::device::CachedDevice {
    /// Writes back until there is room below the dirty limit for a write of `len_bytes`.
    pub(crate) fn throttle(&self, len_bytes: u64) -> Result<()> {
        let cache = &*self.cache;
        if !self.origin.mode().writes_back() {
            return Ok(());
        }
        let over = |st: &CacheState| st.dirty.bytes() + len_bytes > cache.dirty_limit(st);
        let mut waited = false;
        loop {
            {
                let st = cache.lock();
                if !over(&st) || st.dirty.subs() == 0 || st.health.failed.is_some() {
                    return Ok(());
                }
            }
            if !waited {
                cache.counters.throttled_writes.add(1);
                waited = true;
            }
            // A failing origin is no reason to refuse a write while there is room for it.
            match cache.write_back(Which::All(None)) {
                Ok(bytes) if bytes > 0 => {}
                _ => return Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{AttachOptions, Cache, CachedDevice, CreateOptions, Mode, OpenOptions, OriginId};
    use std::sync::{Arc, Mutex, PoisonError, mpsc};
    use std::time::Duration;
    use weft_block::{BlockDevice, Change, Filter, MemoryDevice, Result};

    const ORIGIN_BYTES: u64 = 1 << 20;

    type Hook = Mutex<Option<Box<dyn FnOnce() + Send>>>;

    fn set(hook: &Hook, what: impl FnOnce() + Send + 'static) {
        *hook.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(what));
    }

    fn run(hook: &Hook) {
        let hook = hook.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(hook) = hook {
            hook();
        }
    }

    /// A device that runs a hook during its next write or flush.
    struct Hooked {
        inner: MemoryDevice,
        write: Hook,
        flush: Hook,
    }

    impl Hooked {
        fn new(len_bytes: u64) -> Arc<Self> {
            let (write, flush) = (Hook::default(), Hook::default());
            Arc::new(Self { inner: MemoryDevice::new(len_bytes), write, flush })
        }
    }

    impl Filter for Hooked {
        type Below = MemoryDevice;

        fn below(&self) -> &Self::Below {
            &self.inner
        }

        fn filter_change(&self, change: Change<'_>) -> Result<()> {
            run(&self.write);
            change.apply(&self.inner)
        }

        fn filter_flush(&self) -> Result<()> {
            run(&self.flush);
            self.inner.flush()
        }
    }

    /// A cache in front of an origin, with all its devices.
    fn cached() -> (Arc<Hooked>, Arc<Hooked>, Arc<CachedDevice>) {
        let (disk, origin) = (Hooked::new(1 << 20), Hooked::new(ORIGIN_BYTES));
        Cache::create(&*disk, &CreateOptions::default()).unwrap();
        let options = OpenOptions { background: false, ..OpenOptions::default() };
        let cache = Cache::open(Arc::clone(&disk) as Arc<dyn BlockDevice>, options).unwrap();
        let id = OriginId { len_bytes: ORIGIN_BYTES, label: "o".to_owned(), ..OriginId::default() };
        let attach = AttachOptions { mode: Mode::WriteBack, ..AttachOptions::default() };
        let device = Arc::clone(&origin) as Arc<dyn BlockDevice>;
        let cached = cache.attach(device, &id, &attach).unwrap();
        (disk, origin, cached)
    }

    #[test]
    fn what_a_commit_in_progress_calls_dirty_is_not_written_back_before_it_is_durable() {
        let (disk, origin, cached) = cached();
        cached.write_at(&[1; 4096], 8192).unwrap();
        let (send, wrote) = mpsc::channel();
        set(&origin.write, move || {
            // The receiver may be gone.
            let _ = send.send(());
        });
        let (send, written_back) = mpsc::channel();
        let again = Arc::clone(&cached);
        set(&disk.flush, move || {
            std::thread::spawn(move || send.send(again.write_back_all()).unwrap());
            // Long enough for a write-back that does not wait.
            let early = wrote.recv_timeout(Duration::from_millis(200));
            assert!(early.is_err(), "the origin has what no durable record calls dirty");
        });
        cached.flush().unwrap();
        written_back.recv().unwrap().unwrap();
        let mut seen = [9; 4096];
        origin.inner.read_at(&mut seen, 8192).unwrap();
        assert_eq!(seen, [1; 4096]);
    }

    /// Changes a dirty block while it is being written back: the changed part must stay dirty, and
    /// reach the origin with the next write-back.
    fn changed_on_the_way(change: fn(&CachedDevice), then: u8) {
        let (_disk, origin, cached) = cached();
        cached.write_at(&[1; 4096], 8192).unwrap();
        let again = Arc::clone(&cached);
        set(&origin.write, move || change(&again));
        cached.write_back_all().unwrap();
        cached.write_back_all().unwrap();
        let mut seen = [9; 4096];
        origin.inner.read_at(&mut seen, 8192).unwrap();
        assert_eq!(seen, [then; 4096], "the origin has what was written last");
        assert_eq!(cached.cache().stats().dirty_bytes, 0);
    }

    #[test]
    fn a_block_that_is_overwritten_while_it_is_written_back_stays_dirty() {
        changed_on_the_way(|cached| cached.write_at(&[2; 4096], 8192).unwrap(), 2);
    }

    #[test]
    fn a_block_that_is_zeroed_while_it_is_written_back_stays_dirty() {
        changed_on_the_way(|cached| cached.write_zeroes(8192, 4096).unwrap(), 0);
    }

    /// A block was written back, and a passed write dropped one of its sub-blocks; no record of
    /// that is durable yet. The record that marks the sub-block as dirty is in effect until the
    /// next commit: a fill must not overwrite the data it refers to.
    #[test]
    fn a_fill_overwrites_nothing_that_a_durable_record_calls_dirty() {
        let (disk, origin) = (Hooked::new(2 << 20), Hooked::new(ORIGIN_BYTES));
        let create = CreateOptions { block_bytes: 65536, ..CreateOptions::default() };
        Cache::create(&*disk, &create).unwrap();
        let id = OriginId { len_bytes: ORIGIN_BYTES, label: "o".to_owned(), ..OriginId::default() };
        let attach = AttachOptions { mode: Mode::WriteThrough, ..AttachOptions::default() };
        let open = |disk: &Arc<Hooked>| {
            let options = OpenOptions { background: false, ..OpenOptions::default() };
            let cache = Cache::open(Arc::clone(disk) as Arc<dyn BlockDevice>, options).unwrap();
            cache.attach(Arc::clone(&origin) as Arc<dyn BlockDevice>, &id, &attach).unwrap()
        };
        let cut = |disk: &Hooked| {
            let copy = Hooked::new(2 << 20);
            let mut bytes = vec![0; 2 << 20];
            disk.inner.read_at(&mut bytes, 0).unwrap();
            copy.inner.write_at(&bytes, 0).unwrap();
            let mut seen = [9; 4096];
            open(&copy).read_at(&mut seen, 3 * 4096).map(|()| seen[0])
        };
        let cached = open(&disk);
        let (cache, mut seen) = (cached.cache(), [9; 4096]);
        // The region has an intent from here on: later writes need not be announced.
        cached.read_at(&mut seen, 8 << 16).unwrap();
        cached.write_at(&[7; 4096], 8 << 16).unwrap();
        cached.set_mode(Mode::WriteBack).unwrap();
        cached.write_at(&[1; 8192], 3 * 4096).unwrap();
        cached.flush().unwrap();
        assert!(cache.write_back(super::Which::All(None)).unwrap() > 0);
        // As by a thread that changes the mode, and has not reached the commit yet.
        cached.origin.set_mode(Mode::WriteInvalidate);
        cached.write_at(&[2; 4096], 3 * 4096).unwrap();
        cached.origin.set_mode(Mode::WriteBack);
        cached.read_at(&mut seen, 3 * 4096).unwrap();
        assert_eq!(seen, [2; 4096]);
        let left = cut(&disk).expect("what was not flushed may be old or new, but not damaged");
        assert!((1..=2).contains(&left), "{left}");
        cached.flush().unwrap();
        assert_eq!(cut(&disk).unwrap(), 2, "it was flushed");
    }
}
