//! Creating a cache, and opening one: recovery.
//!
//! 1. Reads the superblock, the newest checkpoint's header, its intents and its map of used slots.
//! 2. Reads the log from the checkpoint's starting point to its end. If it ends before a point that
//!    was durable once, dirty data may be lost, and the cache is not opened.
//! 3. Loads the checkpoint's dirty entries.
//! 4. Begins a new life (*the superblock's write*), and serves requests. The clean entries are
//!    loaded in the background.

use crate::admission::Admission;
use crate::cache::Cache;
use crate::finding::Finding;
use crate::format::checkpoint::{AreaLayout, Header, PageKind, encode_page, parse_page, runs};
use crate::format::log::{BlockHeader, Item, RING_MIN_BLOCKS};
use crate::format::record::Record;
use crate::format::superblock::{STATE_CLEAN, STATE_EMPTY, STATE_UNTRUSTED, Superblock};
use crate::format::{UNIT, checkpoint};
use crate::loading::Loading;
use crate::log::LogPosition;
use crate::pins::Pins;
use crate::policy::{PolicyKind, SlotNr};
use crate::readahead::ReadAhead;
use crate::state::CacheState;
use crate::stats::Counters;
use crate::tail;
use crate::{CreateOptions, Error, ORIGINS_MAX, OpenOptions, Result};
use std::sync::Arc;
use weft_block::BlockDevice;

const CHUNK_BYTES: usize = 1 << 20;

impl Cache {
    /// Creates an empty cache on the whole of `device`. The device's content is lost.
    ///
    /// # Errors
    /// [`Error::Invalid`] if an option is invalid or the device is too short,
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
        // Nothing is valid without a superblock, so that is destroyed first and written last.
        write(&vec![0; 2 * UNIT], 0)?;
        let area = sb.checkpoints[1];
        for (bytes, block) in empty_checkpoint(&sb, 1, 1) {
            write(&bytes, area + block * UNIT as u64)?;
        }
        device.flush().map_err(Error::CacheDevice)?;
        for offset in sb.copy_offsets() {
            write(&sb.encode(), offset)?;
            device.flush().map_err(Error::CacheDevice)?;
        }
        Ok(())
    }

    /// Opens a cache, and recovers it if it was not closed.
    ///
    /// # Errors
    /// [`Error::NotACache`], [`Error::Incompatible`], [`Error::Damaged`],
    /// [`Error::CacheDevice`], [`Error::ReadOnly`] if `device` is read-only and `options` are not.
    pub fn open(device: Arc<dyn BlockDevice>, options: OpenOptions) -> Result<Arc<Self>> {
        if device.geometry().read_only && !options.read_only {
            return Err(Error::ReadOnly);
        }
        let sb = Superblock::load(&*device)?;
        let mut findings = superblock_copies(&*device, &sb)?;
        let kind = PolicyKind::from_code(sb.policy)
            .ok_or_else(|| Error::Incompatible(format!("replacement policy {}", sb.policy)))?;
        let policy = kind.build(sb.slots);
        let mut state =
            CacheState::new(sb, policy, Arc::new(Pins::new()), Arc::new(Counters::default()));
        state.log.set_persistent(options.persistence);
        state.admission = Admission::new(options.admission.clone(), state.now_ms);
        state.readahead = ReadAhead::new(options.readahead_bytes, &options.admission);
        state.requests.fills.staging.set_limit(state.readahead.staged_bytes_max());
        let empty = !options.persistence || state.log.sb.state & STATE_EMPTY != 0;
        let found = Found::scan(&*device, &state.log.sb)?;
        if empty {
            start_empty(&mut state, &found);
        } else {
            recover(&*device, &mut state, &found)?;
        }
        let mut cache = Self::assemble(device, options, state);
        findings.extend(cache.begin(empty)?);
        for finding in &findings {
            tracing::warn!(%finding, "when the cache was opened");
        }
        cache.findings = findings;
        let cache = Arc::new(cache);
        cache.start_workers();
        Ok(cache)
    }

    /// Loads the metadata that is needed before the cache serves requests, and begins a new life.
    /// Returns the damage that was found.
    fn begin(&self, empty: bool) -> Result<Vec<Finding>> {
        let dirty_pages = self.lock().residency.loading.as_ref().map_or(0, Loading::dirty_pages);
        while self
            .lock()
            .residency
            .loading
            .as_ref()
            .is_some_and(|l| l.next_page < dirty_pages || l.pages == 0)
        {
            self.load_some()?;
        }
        if self.lock().dirty.orphans() > 0 {
            let problem = "it does not know an origin of which there are dirty blocks";
            return Err(Error::damaged("superblock", 0, problem));
        }
        let findings = self.end_last_batch()?;
        if !self.options.read_only {
            // Writes of a process that was killed may be in the device's volatile cache only. They
            // were trusted, so they must be durable before anything depends on them: both copies of
            // the superblock would be in flight otherwise.
            self.flush_cache()?;
        }
        if !self.options.read_only {
            let state = if self.options.persistence { 0 } else { STATE_EMPTY };
            if empty && self.options.persistence {
                // The device's old content must never be taken for content of this life.
                let (bytes, area) = {
                    let mut st = self.lock();
                    st.log.at.checkpoint += 1;
                    let area = st.log.sb.checkpoints[(st.log.at.checkpoint & 1) as usize];
                    (empty_checkpoint(&st.log.sb, st.log.at.checkpoint, st.log.at.next), area)
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
        let untrusted = self.lock().log.sb.state & STATE_UNTRUSTED != 0;
        if untrusted && !self.options.read_only {
            // The doubt is over once the doubtful blocks are dropped.
            self.checkpoint_always()?;
            self.write_superblock(|sb| sb.state &= !STATE_UNTRUSTED)?;
        }
        if !self.options.lazy_load {
            self.load_all()?;
        }
        Ok(findings)
    }
}

impl Cache {
    /// Applies the part of an incomplete last batch that is kept, and rewrites the batch: later
    /// writes could make its data match.
    fn end_last_batch(&self) -> Result<Vec<Finding>> {
        let (mut batch, findings, log, life, tag) = {
            let mut st = self.lock();
            let Some(last) = st.log.last_batch.take() else { return Ok(Vec::new()) };
            // No other thread has a reference to this cache yet.
            let cut = last.take(&*self.device, &mut st);
            let findings = cut.findings(&st);
            (cut.kept, findings, st.log.at, st.log.sb.life, st.log.sb.tag())
        };
        if self.options.read_only {
            return Ok(findings);
        }
        if batch.is_empty() {
            self.write_log(log.next, &[0; UNIT])?;
            return Ok(findings);
        }
        let bytes = batch.seal(log.next, log.durable, life, tag);
        self.write_log(log.next, bytes)?;
        let mut st = self.lock();
        // `begin` flushes before anything depends on it.
        st.log.at.advance(batch.len_blocks());
        Ok(findings)
    }
}

/// Returns a superblock with the layout for a device of this length.
fn lay_out(len_bytes: u64, options: &CreateOptions) -> Result<Superblock> {
    let unit = UNIT as u64;
    let block = u64::from(options.block_bytes);
    let subs = options.block_bytes as usize / UNIT;
    let len_bytes = len_bytes / unit * unit;
    // Starts from the number of slots without metadata, and reduces it until all fits.
    let mut slots = (len_bytes / block).min(u64::from(crate::policy::SLOTS_MAX));
    loop {
        let area = AreaLayout::new(u32::try_from(slots).unwrap_or(u32::MAX), subs).blocks();
        let log_blocks = match options.log_bytes {
            Some(bytes) => (bytes / unit).max(RING_MIN_BLOCKS),
            // A quarter of a checkpoint, so that writing checkpoints costs little; of a small cache
            // a sixty-fourth, for as many flushes between two of them.
            None => {
                let least = (len_bytes / unit / 64).clamp(RING_MIN_BLOCKS, 256);
                (area / 4).clamp(least, (64 << 20) / unit)
            }
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

/// Returns the blocks of a checkpoint of an empty cache, each with its position in the area. The
/// header is the last one.
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

/// The metadata headers found on the device.
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

    /// Returns the newest checkpoint's header.
    pub(crate) fn newest(&self) -> Option<Header> {
        self.headers.iter().flatten().max_by_key(|header| header.sequence).copied()
    }

    /// Returns the newest life that has written a block.
    pub(crate) fn life(&self) -> u64 {
        let headers = self.headers.iter().flatten().map(|header| header.life);
        self.ring.iter().flatten().map(|header| header.life).chain(headers).max().unwrap_or(0)
    }

    /// Returns a number of a log block that was never used.
    pub(crate) fn unused_number(&self) -> u64 {
        let ring = self.ring.iter().flatten().map(|header| header.number + 1);
        ring.chain(self.headers.iter().flatten().map(|h| h.log_start)).max().unwrap_or(0)
    }

    /// Returns the end of the log that begins at `start` in the life `life`: after its last
    /// complete batch.
    ///
    /// A marker is not flushed: a power cut may lose it and keep the batch after it, which is then
    /// not part of the log, and is of an earlier life than all later valid blocks.
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

    /// Returns the first of the consecutive blocks that end with the newest.
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
        // A batch is valid only as a whole.
        while first < newest && !self.ring[(first % blocks) as usize].is_some_and(|h| h.first) {
            first += 1;
        }
        first
    }

    /// Returns the number up to which the log was durable.
    pub(crate) fn durable(&self) -> u64 {
        let headers = self.headers.iter().flatten().map(|header| header.log_durable);
        self.ring.iter().flatten().map(|header| header.durable).chain(headers).max().unwrap_or(0)
    }

    /// Returns the start of the last batch of a log from `start` to `end`, if nothing shows that it
    /// was complete; otherwise `end`.
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

/// Returns a finding for each invalid copy of the superblock, beside the one that is good.
pub(crate) fn superblock_copies(
    device: &dyn BlockDevice,
    good: &Superblock,
) -> Result<Vec<Finding>> {
    let mut copies = vec![0; 2 * UNIT];
    device.read_at(&mut copies, 0).map_err(Error::CacheDevice)?;
    let mut findings = Vec::new();
    for (copy, bytes) in (0..).zip(copies.chunks_exact(UNIT)) {
        // A new cache has written one copy only.
        let unwritten = good.sequence == 1 && bytes.iter().all(|b| *b == 0);
        if let Err(error) = Superblock::parse(bytes, device.geometry().len_bytes)
            && !unwritten
        {
            findings.push(Finding::SuperblockCopy { copy, problem: error.to_string() });
        }
    }
    Ok(findings)
}

fn start_empty(state: &mut CacheState, found: &Found) {
    let none = crate::bitmap::Bitmap::new(state.residency.len());
    state.residency.free_all_except(&none);
    let newest = found.newest().map_or(1, |header| header.sequence);
    state.log.at = LogPosition::empty(found.unused_number(), newest);
}

fn recover(device: &dyn BlockDevice, state: &mut CacheState, found: &Found) -> Result<()> {
    let sb = state.log.sb.clone();
    let header = found.newest().ok_or_else(|| {
        Error::damaged("checkpoint", sb.checkpoints[0], "neither of the two has a valid header")
    })?;
    if found.life() > sb.life {
        let problem = "it is older than the log: a newer version of it is lost";
        return Err(Error::damaged("superblock", 0, problem));
    }
    let end = found.log_end(header.log_start, header.life);
    let durable = found.durable();
    if durable > end {
        let at = sb.log_offset + end % sb.log_blocks * UNIT as u64;
        let problem = format!("it ends at block {end}, but was durable up to {durable}");
        return Err(Error::damaged("log", at, problem));
    }
    state.log.at.tail = header.log_start;
    state.log.at.checkpoint = header.sequence;

    let layout = AreaLayout::new(sb.slots, sb.subs());
    let area = sb.checkpoints[(header.sequence & 1) as usize];
    load_intents(device, state, &header, area)?;
    let map = load_map(device, state, &header, area, &layout)?;
    // This bit is also set if the intents could not be read.
    let untrusted = state.log.sb.state & STATE_UNTRUSTED != 0;
    state.residency.loading = Some(Loading::new(area, layout, header, sb.slots, untrusted));
    state.residency.free_all_except(&map);
    let last = found.last_batch(header.log_start, end);
    replay(device, state, header.log_start, last)?;
    state.log.last_batch = tail::take(device, state, last..end)?;
    state.log.at.next = if state.log.last_batch.is_some() { last } else { end };
    // `begin` flushes before anything depends on it.
    state.log.at.durable = state.log.at.next;
    // Only now are the remaining intents known.
    let mut slot = 0;
    while let Some(known) = state.residency.next_known(slot) {
        state.drop_unbelieved(known, untrusted);
        slot = known + 1;
    }
    Ok(())
}

fn load_intents(
    device: &dyn BlockDevice,
    state: &mut CacheState,
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
            None => state.log.sb.state |= STATE_UNTRUSTED,
        }
    }
    Ok(())
}

/// Returns the slots that are used according to the checkpoint; all of a damaged page.
fn load_map(
    device: &dyn BlockDevice,
    state: &CacheState,
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
    let mut map = crate::bitmap::Bitmap::new(state.log.sb.slots);
    map.set_bytes(0, &bytes);
    Ok(map)
}

/// Applies the batches of the log from `start` to `end`.
fn replay(device: &dyn BlockDevice, state: &mut CacheState, start: u64, end: u64) -> Result<()> {
    let (subs, tag) = (state.log.sb.subs(), state.log.sb.tag());
    let (offset, blocks) = (state.log.sb.log_offset, state.log.sb.log_blocks);
    let mut block = vec![0; UNIT];
    for number in start..end {
        let at = offset + number % blocks * UNIT as u64;
        device.read_at(&mut block, at).map_err(Error::CacheDevice)?;
        let header = BlockHeader::parse(&block, tag).filter(|header| header.number == number);
        let header = header.ok_or_else(|| Error::damaged("log", at, "it reads differently now"))?;
        for item in header.items(&block, subs) {
            let item = item.ok_or_else(|| Error::damaged("log", at, "an item makes no sense"))?;
            state.apply(&item);
        }
    }
    Ok(())
}

impl CacheState {
    /// Applies an item of the log.
    pub(crate) fn apply(&mut self, item: &Item) {
        match item {
            Item::Record(record) => self.replay(record),
            Item::IntentSet(run) => self.recover_intent(run, true),
            Item::IntentClear(run) => self.recover_intent(run, false),
        }
    }

    /// Applies intents, limited to the regions that the origin has.
    pub(crate) fn recover_intent(&mut self, run: &crate::format::log::RegionRun, set: bool) {
        let Some(entry) = self.log.sb.origins.get(usize::from(run.origin)).and_then(Option::as_ref)
        else {
            return;
        };
        let regions = entry.id.len_bytes.div_ceil(1 << entry.region_shift) as u32;
        let first = run.first.min(regions);
        let count = run.count.min(regions - first);
        self.dirty.regions.recover(&crate::format::log::RegionRun { first, count, ..*run }, set);
    }

    /// Applies a slot's record of the log.
    pub(crate) fn replay(&mut self, record: &Record) {
        if record.slot >= self.residency.len() {
            return;
        }
        let slot = record.slot;
        if let Some(loading) = &mut self.residency.loading {
            loading.known.set(slot);
        }
        self.unmap_replayed(slot);
        self.residency.reserve(slot);
        match record.key {
            Some(key) => {
                if let Some(other) = self.residency.lookup(key) {
                    self.unmap_replayed(other);
                    self.residency.set_free(other);
                }
                self.recover(record, key);
                self.residency.policy.insert(SlotNr(slot), key);
            }
            None => {
                self.residency.set_free(slot);
            }
        }
    }
}

#[cfg(test)]
mod tests;
