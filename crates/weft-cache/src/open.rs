//! Making a cache, and opening one: recovery.
//!
//! 1. The superblock, the newest checkpoint's header, its intents and its map of used slots.
//! 2. The log from the checkpoint's starting point to its end. If it ends before a point that was
//!    durable once, dirty data may be lost, and the cache is not opened.
//! 3. The checkpoint's dirty entries.
//! 4. A new life is begun (*the superblock's write*), and the cache serves. Its clean entries are
//!    loaded behind.

use crate::admission::Admission;
use crate::cache::Cache;
use crate::format::checkpoint::{AreaLayout, Header, PageKind, encode_page, parse_page, runs};
use crate::format::log::{BlockHeader, Item, RING_MIN_BLOCKS};
use crate::format::record::Record;
use crate::format::superblock::{STATE_CLEAN, STATE_EMPTY, STATE_UNTRUSTED, Superblock};
use crate::format::{UNIT, checkpoint};
use crate::loading::Loading;
use crate::policy::{PolicyKind, SlotNr};
use crate::state::{Pins, State};
use crate::stats::Counters;
use crate::tail;
use crate::{CreateOptions, Error, ORIGINS_MAX, OpenOptions, Result};
use std::sync::Arc;
use weft_block::BlockDevice;

const CHUNK_BYTES: usize = 1 << 20;

impl Cache {
    /// Makes an empty cache of the whole of `device`. What was there is lost.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the options make no sense or the device is too short,
    /// [`Error::CacheDevice`].
    pub fn create(device: &dyn BlockDevice, options: &CreateOptions) -> Result<()> {
        let block = options.block_bytes;
        if !block.is_power_of_two() || !(UNIT as u32..=crate::BLOCK_BYTES_MAX).contains(&block) {
            let max = crate::BLOCK_BYTES_MAX;
            return Err(Error::Invalid(format!(
                "blocks of {block} bytes: 4096 to {max}, a power of two"
            )));
        }
        if options.label.len() > 64 {
            return Err(Error::Invalid("the label has more than 64 bytes".to_owned()));
        }
        let sb = lay_out(device.geometry().len_bytes, options)?;
        let write =
            |bytes: &[u8], offset: u64| device.write_at(bytes, offset).map_err(Error::CacheDevice);
        // Without a valid superblock, nothing else counts: so that is broken first and written last.
        write(&vec![0; 2 * UNIT], 0)?;
        let area = sb.checkpoints[1];
        for (bytes, block) in empty_checkpoint(&sb, 1, 1) {
            write(&bytes, area + block * UNIT as u64)?;
        }
        device.flush().map_err(Error::CacheDevice)?;
        write(&sb.encode(), sb.copy_offset())?;
        device.flush().map_err(Error::CacheDevice)
    }

    /// Opens a cache, and recovers it if it was not closed.
    ///
    /// # Errors
    /// [`Error::NotACache`], [`Error::Incompatible`], [`Error::Damaged`],
    /// [`Error::CacheDevice`], [`Error::ReadOnly`] if `device` is and `options` are not.
    pub fn open(device: Arc<dyn BlockDevice>, options: OpenOptions) -> Result<Arc<Self>> {
        if device.geometry().read_only && !options.read_only {
            return Err(Error::ReadOnly);
        }
        let sb = Superblock::load(&*device)?;
        let kind = PolicyKind::from_code(sb.policy)
            .ok_or_else(|| Error::Incompatible(format!("replacement policy {}", sb.policy)))?;
        let policy = kind.build(sb.slots);
        let mut state =
            State::new(sb, policy, Arc::new(Pins::new()), Arc::new(Counters::default()));
        state.persistent = options.persistence;
        state.admission = Admission::new(options.admission.clone(), state.now_ms);
        let empty = !options.persistence || state.sb.state & STATE_EMPTY != 0;
        let found = Found::scan(&*device, &state.sb)?;
        if empty {
            start_empty(&mut state, &found);
        } else {
            recover(&*device, &mut state, &found)?;
        }
        let cache = Arc::new(Self::assemble(device, options, state));
        cache.begin(empty)?;
        cache.start_workers();
        Ok(cache)
    }

    /// Loads what must be known before the cache serves, and begins a new life.
    fn begin(&self, empty: bool) -> Result<()> {
        let dirty_pages = self.lock().loading.as_ref().map_or(0, Loading::dirty_pages);
        while self
            .lock()
            .loading
            .as_ref()
            .is_some_and(|l| l.next_page < dirty_pages || l.pages == 0)
        {
            self.load_some()?;
        }
        if !self.options.read_only {
            self.void_cut_batch()?;
            // What a process that was killed has written may be in the device's volatile cache
            // only. It was believed, so it must be durable before anything is built on it: both
            // copies of the superblock would be in flight otherwise.
            self.flush_cache()?;
        }
        if !self.options.read_only {
            let state = if self.options.persistence { 0 } else { STATE_EMPTY };
            if empty && self.options.persistence {
                // What is on the device must never be taken for this life's.
                let (bytes, area) = {
                    let mut st = self.lock();
                    st.log.checkpoint += 1;
                    let area = st.sb.checkpoints[(st.log.checkpoint & 1) as usize];
                    (empty_checkpoint(&st.sb, st.log.checkpoint, st.log.next), area)
                };
                for (bytes, block) in bytes {
                    self.write_cache(&bytes, area + block * UNIT as u64)?;
                }
                self.flush_cache()?;
            }
            self.write_superblock(|sb| {
                sb.life += 1;
                sb.state = sb.state & !(STATE_CLEAN | STATE_EMPTY) | state;
            })?;
        }
        let untrusted = self.lock().sb.state & STATE_UNTRUSTED != 0;
        if untrusted && !self.options.read_only {
            // The doubt ends with the blocks it is about.
            self.checkpoint_always()?;
            self.write_superblock(|sb| sb.state &= !STATE_UNTRUSTED)?;
        }
        if !self.options.lazy_load {
            self.load_all()?;
        }
        Ok(())
    }
}

impl Cache {
    /// A batch that does not count must never count: what is written from now on could make its
    /// data match.
    fn void_cut_batch(&self) -> Result<()> {
        let at = {
            let mut st = self.lock();
            if !std::mem::take(&mut st.log.cut_short) {
                return Ok(());
            }
            st.sb.log_offset + st.log.next % st.sb.log_blocks * UNIT as u64
        };
        self.write_cache(&[0; UNIT], at)
    }
}

/// Where everything lies on a device of this length.
fn lay_out(len_bytes: u64, options: &CreateOptions) -> Result<Superblock> {
    let unit = UNIT as u64;
    let block = u64::from(options.block_bytes);
    let subs = options.block_bytes as usize / UNIT;
    let len_bytes = len_bytes / unit * unit;
    // As if there were no metadata, and then fewer until it fits.
    let mut slots = (len_bytes / block).min(u64::from(crate::policy::SLOTS_MAX));
    loop {
        let area = AreaLayout::new(u32::try_from(slots).unwrap_or(u32::MAX), subs).blocks();
        let log_blocks = match options.log_bytes {
            Some(bytes) => (bytes / unit).max(RING_MIN_BLOCKS),
            // A quarter of a checkpoint, so that writing checkpoints costs little.
            None => (area / 4).clamp(if slots < 4096 { 16 } else { 256 }, (64 << 20) / unit),
        };
        let data = ((2 + log_blocks + 2 * area) * unit).next_multiple_of(block);
        let fits = len_bytes.checked_sub(data).map_or(0, |room| room / block);
        if slots == 0 || (fits == 0 && slots <= 1) {
            return Err(Error::Invalid(format!(
                "a device of {len_bytes} bytes is too short for a cache"
            )));
        }
        if fits >= slots {
            let log_offset = 2 * unit;
            let first = log_offset + log_blocks * unit;
            return Ok(Superblock {
                sequence: 1,
                uuid: options.uuid.unwrap_or_else(|| *uuid::Uuid::new_v4().as_bytes()),
                label: options.label.clone(),
                block_bytes: options.block_bytes,
                slots: slots as u32,
                policy: options.policy.to_code(),
                state: STATE_CLEAN,
                life: 1,
                log_offset,
                log_blocks,
                checkpoints: [first, first + area * unit],
                checkpoint_blocks: area,
                data_offset: data,
                len_bytes,
                origins: [const { None }; ORIGINS_MAX],
            });
        }
        slots = fits.max(slots.saturating_sub((slots - fits).div_ceil(2)).min(slots - 1));
    }
}

/// The blocks of a checkpoint of an empty cache, each with its place in the area. The header comes
/// last.
pub(crate) fn empty_checkpoint(
    sb: &Superblock,
    sequence: u64,
    log_start: u64,
) -> Vec<(Vec<u8>, u64)> {
    let layout = AreaLayout::new(sb.slots, sb.subs());
    let mut map = Vec::new();
    for index in 0..layout.map_pages {
        encode_page(PageKind::Map, sequence, index as u32, 0, &[], &mut map);
    }
    let (life, slots) = (sb.life, sb.slots);
    let header = Header {
        sequence,
        life,
        log_start,
        slots,
        intent_pages: 0,
        entries: 0,
        dirty: 0,
        log_durable: 0,
    };
    vec![(map, layout.map_at()), (header.encode(sb.tag()), 0)]
}

/// What is found before anything is believed.
pub(crate) struct Found {
    /// The valid headers of the two areas.
    pub(crate) headers: [Option<Header>; 2],
    /// The valid header of each block of the ring.
    pub(crate) ring: Vec<Option<BlockHeader>>,
}

impl Found {
    pub(crate) fn scan(device: &dyn BlockDevice, sb: &Superblock) -> Result<Self> {
        let layout = AreaLayout::new(sb.slots, sb.subs());
        let mut block = vec![0; UNIT];
        let mut headers = [None; 2];
        for (area, header) in sb.checkpoints.iter().zip(&mut headers) {
            device.read_at(&mut block, *area).map_err(Error::CacheDevice)?;
            *header = Header::parse(&block, sb.tag(), sb.slots, &layout);
        }
        let mut ring = Vec::with_capacity(sb.log_blocks as usize);
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut done = 0;
        while done < sb.log_blocks {
            let count = (sb.log_blocks - done).min((CHUNK_BYTES / UNIT) as u64);
            let bytes = &mut chunk[..count as usize * UNIT];
            device
                .read_at(bytes, sb.log_offset + done * UNIT as u64)
                .map_err(Error::CacheDevice)?;
            for (index, block) in (done..).zip(bytes.chunks_exact(UNIT)) {
                let header = BlockHeader::parse(block, sb.tag());
                ring.push(header.filter(|header| header.number % sb.log_blocks == index));
            }
            done += count;
        }
        Ok(Self { headers, ring })
    }

    /// The newest checkpoint.
    pub(crate) fn newest(&self) -> Option<Header> {
        self.headers.iter().flatten().max_by_key(|header| header.sequence).copied()
    }

    /// A number of a log's block that was never used.
    pub(crate) fn unused_number(&self) -> u64 {
        let ring = self.ring.iter().flatten().map(|header| header.number + 1);
        ring.chain(self.headers.iter().flatten().map(|h| h.log_start)).max().unwrap_or(0)
    }

    /// Where the log that begins at `start`, in the life `life`, ends: behind its last whole batch.
    ///
    /// A marker is not flushed: a cut may take it and leave the batch behind it, which does not
    /// count then, and is of an earlier life than all that counts later.
    pub(crate) fn log_end(&self, start: u64, mut life: u64) -> u64 {
        let blocks = self.ring.len() as u64;
        let (mut end, mut at, mut inside) = (start, start, false);
        while at < start + blocks {
            let Some(header) = self.ring[(at % blocks) as usize] else { break };
            if header.number != at || header.life < life || header.first == inside {
                break;
            }
            life = header.life;
            inside = !header.last;
            at += 1;
            if header.last {
                end = at;
            }
        }
        end
    }

    /// The first of the blocks that follow one another up to the newest.
    pub(crate) fn oldest_of_newest_run(&self) -> u64 {
        let blocks = self.ring.len() as u64;
        let Some(newest) = self.ring.iter().flatten().map(|header| header.number).max() else {
            return 0;
        };
        let mut first = newest;
        let there = |number: u64| {
            self.ring[(number % blocks) as usize].is_some_and(|header| header.number == number)
        };
        while first > 0 && newest - first + 1 < blocks && there(first - 1) {
            first -= 1;
        }
        // A batch counts as a whole.
        while first < newest && !self.ring[(first % blocks) as usize].is_some_and(|h| h.first) {
            first += 1;
        }
        first
    }

    /// Up to which number the log was durable once.
    pub(crate) fn durable(&self) -> u64 {
        let headers = self.headers.iter().flatten().map(|header| header.log_durable);
        self.ring.iter().flatten().map(|header| header.durable).chain(headers).max().unwrap_or(0)
    }

    /// Where the last batch begins of a log from `start` to `end`, if nothing says that it was
    /// complete; else `end`.
    pub(crate) fn last_batch(&self, start: u64, end: u64) -> u64 {
        if self.durable() >= end {
            return end;
        }
        let is_first = |number: &u64| {
            self.ring[(number % self.ring.len() as u64) as usize].is_some_and(|block| block.first)
        };
        (start..end).rev().find(is_first).unwrap_or(end)
    }
}

fn start_empty(state: &mut State, found: &Found) {
    state.slots.free = crate::bitmap::Bitmap::new(state.slots.len()).complement();
    let number = found.unused_number();
    state.log.tail = number;
    state.log.next = number;
    state.log.durable = number;
    state.log.checkpoint = found.newest().map_or(1, |header| header.sequence);
}

fn recover(device: &dyn BlockDevice, state: &mut State, found: &Found) -> Result<()> {
    let sb = state.sb.clone();
    let header = found.newest().ok_or_else(|| {
        Error::damaged("checkpoint", sb.checkpoints[0], "neither of the two has a valid header")
    })?;
    let end = found.log_end(header.log_start, header.life);
    let durable = found.durable();
    if durable > end {
        let at = sb.log_offset + end % sb.log_blocks * UNIT as u64;
        let problem = format!("it ends at block {end}, but was durable up to {durable}");
        return Err(Error::damaged("log", at, problem));
    }
    state.log.tail = header.log_start;
    state.log.checkpoint = header.sequence;

    let layout = AreaLayout::new(sb.slots, sb.subs());
    let area = sb.checkpoints[(header.sequence & 1) as usize];
    load_intents(device, state, &header, area)?;
    let map = load_map(device, state, &header, area, &layout)?;
    let untrusted = sb.state & STATE_UNTRUSTED != 0;
    state.loading = Some(Loading::new(area, layout, header, sb.slots, untrusted));
    state.slots.free = map.complement();
    let last = found.last_batch(header.log_start, end);
    replay(device, state, header.log_start, last)?;
    let whole = tail::is_whole(device, state, last..end)?;
    if whole {
        replay(device, state, last, end)?;
    } else {
        tracing::info!(block = last, "the last commit was cut short, and does not count");
        state.log.cut_short = true;
    }
    state.log.next = if whole { end } else { last };
    // `begin` flushes before anything is built on it.
    state.log.durable = state.log.next;
    // Only now it is known which intents are left.
    let mut slot = 0;
    while let Some(known) = state.loading.as_ref().and_then(|l| l.known.next_set(slot..sb.slots)) {
        state.drop_unbelieved(known, untrusted);
        slot = known + 1;
    }
    Ok(())
}

fn load_intents(
    device: &dyn BlockDevice,
    state: &mut State,
    header: &Header,
    area: u64,
) -> Result<()> {
    let mut page = vec![0; UNIT];
    for index in 0..header.intent_pages {
        device
            .read_at(&mut page, area + u64::from(1 + index) * UNIT as u64)
            .map_err(Error::CacheDevice)?;
        match parse_page(&page, PageKind::Intents, header.sequence, index) {
            Some((count, payload)) => {
                for run in runs(payload, count).flatten() {
                    state.recover_intent(&run, true);
                }
            }
            // Unknown intents: any clean block may be stale.
            None => state.sb.state |= STATE_UNTRUSTED,
        }
    }
    Ok(())
}

/// The slots that the checkpoint calls used; all of them, if that cannot be told.
fn load_map(
    device: &dyn BlockDevice,
    state: &State,
    header: &Header,
    area: u64,
    layout: &AreaLayout,
) -> Result<crate::bitmap::Bitmap> {
    let mut pages = vec![0; layout.map_pages as usize * UNIT];
    device.read_at(&mut pages, area + layout.map_at() * UNIT as u64).map_err(Error::CacheDevice)?;
    let mut bytes = Vec::with_capacity(pages.len());
    for (index, page) in (0..).zip(pages.chunks_exact(UNIT)) {
        match parse_page(page, PageKind::Map, header.sequence, index) {
            Some((_, payload)) => bytes.extend_from_slice(payload),
            None => bytes.resize(bytes.len() + checkpoint::BITS_PER_PAGE / 8, 0xff),
        }
    }
    let mut map = crate::bitmap::Bitmap::new(state.sb.slots);
    map.set_bytes(0, &bytes);
    Ok(map)
}

/// Applies the batches of the log from `start` to `end`.
fn replay(device: &dyn BlockDevice, state: &mut State, start: u64, end: u64) -> Result<()> {
    let (subs, tag) = (state.sb.subs(), state.sb.tag());
    let (offset, blocks) = (state.sb.log_offset, state.sb.log_blocks);
    let mut block = vec![0; UNIT];
    for number in start..end {
        let at = offset + number % blocks * UNIT as u64;
        device.read_at(&mut block, at).map_err(Error::CacheDevice)?;
        let header = BlockHeader::parse(&block, tag).filter(|header| header.number == number);
        let header = header.ok_or_else(|| Error::damaged("log", at, "it reads differently now"))?;
        for item in header.items(&block, subs) {
            match item {
                Some(Item::Record(record)) => state.replay(&record),
                Some(Item::IntentSet(run)) => state.recover_intent(&run, true),
                Some(Item::IntentClear(run)) => state.recover_intent(&run, false),
                None => return Err(Error::damaged("log", at, "an item makes no sense")),
            }
        }
    }
    Ok(())
}

impl State {
    /// Takes an intent of a region that exists.
    pub(crate) fn recover_intent(&mut self, run: &crate::format::log::RegionRun, set: bool) {
        let Some(entry) = self.sb.origins.get(usize::from(run.origin)).and_then(Option::as_ref)
        else {
            return;
        };
        let regions = entry.id.len_bytes.div_ceil(1 << entry.region_shift) as u32;
        let first = run.first.min(regions);
        let count = run.count.min(regions - first);
        self.regions.recover(&crate::format::log::RegionRun { first, count, ..*run }, set);
    }

    /// Makes a slot what its record in the log says.
    pub(crate) fn replay(&mut self, record: &Record) {
        if record.slot >= self.slots.len() {
            return;
        }
        let slot = record.slot;
        if let Some(loading) = &mut self.loading {
            loading.known.set(slot);
        }
        self.unmap_replayed(slot);
        self.slots.free.clear(slot);
        match record.key {
            Some(key) => {
                if let Some(other) = self.lookup(key) {
                    self.unmap_replayed(other);
                    self.slots.free.set(other);
                }
                self.recover(record, key);
                self.policy.insert(SlotNr(slot), key);
            }
            None => {
                self.slots.free.set(slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::checkpoint::push_entry;
    use crate::format::superblock::OriginEntry;
    use crate::policy::BlockKey;
    use crate::store::zero_crc;
    use crate::{AttachOptions, Mode, OriginId};
    use std::time::{Duration, Instant};
    use weft_block::{FileDevice, MemoryDevice};

    const DIRTY: u64 = 1000;

    /// Makes a sparse cache whose every slot holds a block of zeroes, the first of them dirty.
    fn full_cache(path: &std::path::Path, len_bytes: u64, id: &OriginId) -> Arc<dyn BlockDevice> {
        let disk = FileDevice::create(path, len_bytes).unwrap();
        Cache::create(&disk, &CreateOptions::default()).unwrap();
        let mut sb = Superblock::load(&disk).unwrap();
        let entry = OriginEntry {
            id: id.clone(),
            region_shift: 20,
            quota_slots: 0,
            forgetting: false,
            fingerprint: None,
        };
        sb.origins[0] = Some(entry);
        sb.sequence += 1;
        let layout = AreaLayout::new(sb.slots, 1);
        let (sequence, area) = (2, sb.checkpoints[0]);
        let at = |block: u64| area + block * UNIT as u64;
        let mut out = Vec::new();
        for index in 0..layout.map_pages {
            let ones = [0xff; checkpoint::BITS_PER_PAGE / 8];
            encode_page(PageKind::Map, sequence, index as u32, 0, &ones, &mut out);
        }
        disk.write_at(&out, at(layout.map_at())).unwrap();
        let mut slot = 0;
        for first in (0..layout.entry_pages).step_by(256) {
            out.clear();
            for index in first..(first + 256).min(layout.entry_pages) {
                let mut payload = Vec::new();
                let mut count = 0;
                while slot < sb.slots && count < layout.entries_per_page {
                    let mut record = Record::free(slot);
                    // Neighbours in the cache are far from each other in the origin.
                    let block = u64::from(slot) * 7919 % (1 << 28);
                    record.key = Some(BlockKey::new(0, block));
                    record.valid = 1;
                    record.dirty = u16::from(u64::from(slot) < DIRTY);
                    record.crcs[0] = zero_crc();
                    push_entry(&record, 1, &mut payload);
                    slot += 1;
                    count += 1;
                }
                encode_page(
                    PageKind::Entries,
                    sequence,
                    index as u32,
                    count as u32,
                    &payload,
                    &mut out,
                );
            }
            disk.write_at(&out, at(layout.entries_at() + first)).unwrap();
        }
        let entries = u64::from(sb.slots);
        let header = Header {
            sequence,
            life: 1,
            log_start: 1,
            slots: sb.slots,
            intent_pages: 0,
            entries,
            dirty: DIRTY,
            log_durable: 1,
        };
        disk.write_at(&header.encode(sb.tag()), area).unwrap();
        disk.write_at(&sb.encode(), sb.copy_offset()).unwrap();
        disk.flush().unwrap();
        Arc::new(disk)
    }

    /// The longest that a read of a cached block has to wait while something else goes on.
    fn longest_read(cached: &crate::CachedDevice, offset: u64, work: impl FnOnce()) -> Duration {
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let (mut longest, mut reads) = (Duration::ZERO, 0_u64);
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    let began = Instant::now();
                    cached.read_at(&mut [0; 4096], offset).unwrap();
                    longest = longest.max(began.elapsed());
                    reads += 1;
                }
                println!("  {reads} reads, the longest took {longest:?}");
                longest
            });
            let began = Instant::now();
            work();
            println!("  it took {:?}", began.elapsed());
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            reader.join().unwrap()
        })
    }

    /// Prints how long requests wait for a checkpoint and for resizes. That is measured, and not
    /// asserted, as machines differ; what is, is that nothing is lost.
    fn works_while_it_is_rewritten(len_bytes: u64) {
        let dir = tempfile::tempdir().unwrap();
        let id = OriginId { len_bytes: 1 << 40, label: "o".to_owned(), ..OriginId::default() };
        let disk = full_cache(&dir.path().join("cache"), len_bytes, &id);
        let options = OpenOptions { background: false, ..OpenOptions::default() };
        let cache = Cache::open(disk, options).unwrap();
        let attach =
            AttachOptions { mode: Mode::WriteBack, samples: 0, ..AttachOptions::default() };
        let cached = cache.attach(Arc::new(MemoryDevice::new(id.len_bytes)), &id, &attach).unwrap();
        cache.load_all().unwrap();
        let before = cache.stats();
        let offset = 7919 * 3000 * 4096;
        println!("a checkpoint of {} slots:", before.slots);
        longest_read(&cached, offset, || cache.checkpoint_always().unwrap());
        let stats = cache.stats();
        assert_eq!((stats.used_slots, stats.dirty_bytes), (before.used_slots, before.dirty_bytes));
        println!("to half its size:");
        longest_read(&cached, offset, || cache.resize(len_bytes / 2).unwrap());
        println!("and back:");
        longest_read(&cached, offset, || cache.resize(len_bytes).unwrap());
        let stats = cache.stats();
        assert!(stats.used_slots >= before.slots / 2 - before.slots / 64, "{stats:?}");
        assert_eq!(stats.dirty_bytes, before.dirty_bytes);
        cache.check_invariants();
    }

    #[test]
    fn a_full_cache_of_1_gib_works_while_it_is_rewritten() {
        works_while_it_is_rewritten(1 << 30);
    }

    #[test]
    #[ignore = "takes 600 MB of disk and a GB of memory; scripts/test-long.sh runs it"]
    fn a_full_cache_of_64_gib_works_while_it_is_rewritten() {
        works_while_it_is_rewritten(64 << 30);
    }

    fn serves_while_it_loads(len_bytes: u64) -> (Duration, Duration) {
        let dir = tempfile::tempdir().unwrap();
        let id = OriginId { len_bytes: 1 << 40, label: "o".to_owned(), ..OriginId::default() };
        let disk = full_cache(&dir.path().join("cache"), len_bytes, &id);
        let options = OpenOptions { background: false, ..OpenOptions::default() };
        let began = Instant::now();
        let cache = Cache::open(disk, options).unwrap();
        let attach =
            AttachOptions { mode: Mode::WriteBack, samples: 0, ..AttachOptions::default() };
        let origin = Arc::new(MemoryDevice::new(id.len_bytes));
        let cached = cache.attach(origin, &id, &attach).unwrap();
        let mut block = [1; 4096];
        // A dirty block, and one that is not loaded yet.
        for slot in [5, cache.stats().slots - 5] {
            cached.read_at(&mut block, slot * 7919 % (1 << 28) * 4096).unwrap();
            assert_eq!(block, [0; 4096]);
        }
        let opened = began.elapsed();
        let stats = cache.stats();
        assert_eq!((stats.hits, stats.misses, stats.dirty_bytes), (1, 1, DIRTY * 4096));
        assert!(stats.loading_pages > 0, "it serves before all is loaded");
        let began = Instant::now();
        cache.load_all().unwrap();
        let loaded = began.elapsed();
        let stats = cache.stats();
        assert!(stats.used_slots >= stats.slots - 1, "{stats:?}");
        let per_slot = stats.memory_bytes as f64 / stats.slots as f64;
        println!(
            "{} slots: open {opened:?}, loaded {loaded:?}, {per_slot:.2} bytes a slot",
            stats.slots
        );
        assert!(per_slot <= 24.0, "{per_slot} bytes a slot");
        (opened, loaded)
    }

    #[test]
    fn a_full_cache_of_2_gib_serves_while_it_loads() {
        serves_while_it_loads(2 << 30);
    }

    #[test]
    #[ignore = "takes 300 MB of disk and 400 MB of memory; scripts/test-long.sh runs it"]
    fn a_full_cache_of_64_gib_opens_in_less_than_a_second() {
        let (opened, _) = serves_while_it_loads(64 << 30);
        assert!(opened < Duration::from_secs(1), "{opened:?}");
    }
}
