//! Checking and repairing a cache that is not in use.
//!
//! A check reads all metadata, and on request all cached data. A repair keeps all that is provably
//! good: structures that are intact, and of the blocks recorded there those whose data matches its
//! checksum. Where a part of the log is missing, its records are unknown, so no clean block is
//! kept, as the origin has it as well; dirty blocks are kept if they match, and reported, as they
//! may have been superseded.

use crate::cache::Cache;
use crate::finding::{Finding, Severity};
use crate::format::UNIT;
use crate::format::checkpoint::{AreaLayout, PageKind, entries, parse_page, runs};
use crate::format::log::BlockHeader;
use crate::format::record::Record;
use crate::format::superblock::{STATE_EMPTY, STATE_UNTRUSTED, Superblock};
use crate::loading::Loading;
use crate::log::LogPosition;
use crate::open::{Found, superblock_copies};
use crate::pins::Pins;
use crate::policy::PolicyKind;
use crate::state::CacheState;
use crate::stats::Counters;
use crate::tail;
use crate::{Error, OpenOptions, Result, SUB_BLOCK_BYTES};
use crc32c::crc32c;
use std::sync::Arc;
use weft_block::BlockDevice;

/// The result of a check or a repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The findings, in the order of the structures; empty if there are none.
    pub findings: Vec<Finding>,
    /// Number of blocks in the cache.
    pub blocks: u64,
    /// Bytes that exist only in the cache.
    pub dirty_bytes: u64,
}

impl Report {
    /// Returns true if the cache cannot be opened before a repair.
    #[must_use]
    pub fn needs_repair(&self) -> bool {
        self.findings.iter().any(|f| f.severity() == Severity::Dirty)
    }
}

/// Checks a cache without changing anything. With `data`, all cached data is read as well.
///
/// # Errors
/// [`Error::NotACache`], [`Error::Incompatible`], [`Error::Damaged`] if no copy of the superblock
/// is good, [`Error::Shortened`], [`Error::CacheDevice`].
pub fn check(device: &dyn BlockDevice, data: bool) -> Result<Report> {
    let (mut state, mut findings) = salvage(device)?;
    if data {
        findings.extend(check_data(device, &mut state, false)?);
    }
    let (blocks, dirty_bytes) = (u64::from(state.residency.used()), state.dirty.bytes());
    Ok(Report { findings, blocks, dirty_bytes })
}

/// Repairs a cache: afterwards it can be opened, and holds what was provably good of its content.
/// Reports all findings, including lost dirty data.
///
/// # Errors
/// As [`check`]; [`Error::ReadOnly`].
pub fn repair(device: Arc<dyn BlockDevice>) -> Result<Report> {
    if device.geometry().read_only {
        return Err(Error::ReadOnly);
    }
    let (mut state, mut findings) = salvage(&*device)?;
    findings.extend(check_data(&*device, &mut state, true)?);
    let (blocks, dirty_bytes) = (u64::from(state.residency.used()), state.dirty.bytes());
    state.log.sb.state &= !(STATE_UNTRUSTED | STATE_EMPTY);
    state.log.sb.life += 1;
    let options = OpenOptions { background: false, ..OpenOptions::default() };
    let cache = Cache::assemble(device, options, state);
    // Starts a new life before the first block of the log, and writes everything to a new
    // checkpoint.
    cache.write_superblock(|_| {})?;
    cache.checkpoint_always()?;
    Ok(Report { findings, blocks, dirty_bytes })
}

/// Recovers as much of a cache's state as possible, with the findings.
fn salvage(device: &dyn BlockDevice) -> Result<(CacheState, Vec<Finding>)> {
    let (mut sb, doubt) = Superblock::load_any(device)?;
    let mut findings = superblock_copies(device, &sb)?;
    let kind = PolicyKind::from_code(sb.policy)
        .ok_or_else(|| Error::Incompatible(format!("replacement policy {}", sb.policy)))?;
    let found = Found::scan(device, &sb)?;
    let old = found.life() > sb.life;
    if let Some(problem) = doubt {
        findings.push(Finding::SuperblockOld { problem: problem.to_string() });
    } else if old && sb.state & STATE_EMPTY == 0 {
        let problem = "it is older than the log: a newer version of it is lost".to_owned();
        findings.push(Finding::SuperblockOld { problem });
    }
    sb.life = sb.life.max(found.life());
    let layout = AreaLayout::new(sb.slots, sb.subs());
    let mut st = CacheState::new(
        sb.clone(),
        kind.build(sb.slots),
        Arc::new(Pins::new()),
        Arc::new(Counters::default()),
    );
    let newest = found.newest().map_or(1, |header| header.sequence);
    st.log.at = LogPosition::empty(found.unused_number(), newest);
    if sb.state & STATE_EMPTY != 0 {
        free_the_rest(&mut st);
        return Ok((st, findings));
    }
    let mut untrusted = sb.state & STATE_UNTRUSTED != 0;
    let header = found.newest();
    let start = header.map_or_else(|| found.oldest_of_newest_run(), |header| header.log_start);
    let end = found.log_end(start, header.map_or(0, |header| header.life));
    let durable = found.durable();
    let gap = durable > end;
    if gap {
        findings.push(Finding::LogDamaged { end, durable });
    }
    let empty = crate::format::checkpoint::Header {
        sequence: 0,
        life: 0,
        log_start: start,
        slots: sb.slots,
        intent_pages: 0,
        entries: 0,
        dirty: 0,
        log_durable: 0,
    };
    let area = header.map_or(0, |header| sb.checkpoints[(header.sequence & 1) as usize]);
    if header.is_none() {
        findings.push(Finding::NoCheckpoint);
        untrusted = true;
    }
    untrusted |= gap || old;
    let header = header.unwrap_or(empty);
    let mut page = vec![0; UNIT];
    for index in 0..header.intent_pages {
        let at = area + u64::from(1 + index) * UNIT as u64;
        let whole = device.read_at(&mut page, at).is_ok();
        match parse_page(&page, PageKind::Intents, header.sequence, index).filter(|_| whole) {
            Some((count, payload)) => {
                runs(payload, count).flatten().for_each(|run| st.recover_intent(&run, true));
            }
            None => {
                findings.push(Finding::CheckpointPage { what: "intents", index: u64::from(index) });
                untrusted = true;
            }
        }
    }
    st.residency.loading = Some(Loading::new(area, layout, header, sb.slots, untrusted));
    let mut behind =
        found.ring.iter().flatten().map(|h| h.number).filter(|n| *n >= end).collect::<Vec<_>>();
    behind.sort_unstable();
    let last = if gap { end } else { found.last_batch(start, end) };
    for number in (start..last).chain(behind.into_iter().filter(|_| gap)) {
        let at = sb.log_offset + number % sb.log_blocks * UNIT as u64;
        if device.read_at(&mut page, at).is_err() {
            continue;
        }
        let Some(block) = BlockHeader::parse(&page, sb.tag()).filter(|h| h.number == number) else {
            continue;
        };
        for item in block.items(&page, sb.subs()) {
            item.iter().for_each(|item| st.apply(item));
        }
    }
    let last = tail::take(device, &mut st, last..end)?;
    let mut slot = 0;
    while let Some(known) = st.residency.next_known(slot) {
        st.drop_unbelieved(known, untrusted);
        slot = known + 1;
    }
    load_entries(device, &mut st, &mut findings, area)?;
    if let Some(last) = last {
        let cut = last.take(device, &mut st);
        findings.extend(cut.findings(&st));
    }
    st.residency.loading = None;
    free_the_rest(&mut st);
    if st.dirty.orphans() > 0 {
        let bytes = st.dirty.orphans() * SUB_BLOCK_BYTES as u64;
        let problem = format!("it does not know an origin of which {bytes} bytes are dirty");
        findings.push(Finding::SuperblockOld { problem });
    }
    if gap {
        for slot in 0..st.residency.len() {
            if let Some(key) =
                st.residency.key(slot).filter(|_| st.residency.masks(slot).dirty != 0)
            {
                let (origin, offset) = st.place_of(key, 0);
                let len_bytes = u64::from(sb.block_bytes);
                findings.push(Finding::MaybeOutOfDate { origin, offset, len_bytes });
            }
        }
    }
    Ok((st, findings))
}

fn load_entries(
    device: &dyn BlockDevice,
    st: &mut CacheState,
    findings: &mut Vec<Finding>,
    area: u64,
) -> Result<()> {
    let Some((pages, dirty_pages, header, layout)) =
        st.residency.loading.as_ref().map(|l| (l.pages, l.dirty_pages(), l.header, l.layout))
    else {
        return Ok(());
    };
    let mut page = vec![0; UNIT];
    for index in 0..pages {
        let whole =
            device.read_at(&mut page, area + (layout.entries_at() + index) * UNIT as u64).is_ok();
        let parsed = parse_page(&page, PageKind::Entries, header.sequence, index as u32);
        match parsed.filter(|_| whole) {
            Some((count, payload)) => {
                let records: Vec<Option<Record>> =
                    entries(payload, count, st.log.sb.subs()).collect();
                st.take_entries(records.into_iter());
            }
            None => {
                let what = if index < dirty_pages { "dirty entries" } else { "clean entries" };
                findings.push(Finding::CheckpointPage { what, index });
            }
        }
    }
    Ok(())
}

/// Frees all slots that are not used, and clears what is pending or held.
fn free_the_rest(st: &mut CacheState) {
    st.log.take_pending();
    st.residency.clear_limbo();
    for slot in 0..st.residency.len() {
        st.residency.set_touched(slot, false);
        if st.residency.key(slot).is_none() {
            st.set_masks(slot, crate::slots::Masks::default());
            st.residency.set_free(slot);
        }
    }
}

/// Compares all data with its checksums; with `drop`, damaged sub-blocks are dropped from the
/// cache.
fn check_data(device: &dyn BlockDevice, st: &mut CacheState, drop: bool) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let subs = st.log.sb.subs();
    let mut data = vec![0; SUB_BLOCK_BYTES];
    for slot in 0..st.residency.len() {
        let Some(key) = st.residency.key(slot) else { continue };
        let masks = st.residency.masks(slot);
        let mut bad = 0_u16;
        for sub in (0..subs).filter(|sub| masks.valid & !masks.zero & 1 << sub != 0) {
            let at = st.log.sb.slot_offset(slot) + (sub * SUB_BLOCK_BYTES) as u64;
            let read = device.read_at(&mut data, at);
            if read.is_err() || crc32c(&data) != st.residency.crc(slot, sub) {
                bad |= 1 << sub;
                let (origin, offset) = st.place_of(key, sub as u64);
                let (len_bytes, dirty) = (SUB_BLOCK_BYTES as u64, masks.dirty >> sub & 1 != 0);
                findings.push(Finding::Data { slot, origin, offset, len_bytes, dirty });
            }
        }
        if drop && bad != 0 {
            st.invalidate(slot, bad);
        }
    }
    if drop {
        free_the_rest(st);
    }
    Ok(findings)
}

/// A slot of a cache, for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotInfo {
    /// The slot.
    pub slot: u32,
    /// The origin's label.
    pub origin: String,
    /// Byte offset of the block in the origin.
    pub offset: u64,
    /// The sub-blocks that are in the cache, a bit each.
    pub valid: u16,
    /// The sub-blocks that the origin does not have.
    pub dirty: u16,
    /// The sub-blocks that are zeroes without being stored.
    pub zero: u16,
    /// The checksums of the valid sub-blocks, in order.
    pub crcs: Vec<u32>,
}

/// All metadata of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dump {
    /// The superblock in effect.
    pub superblock: Superblock,
    /// The headers of the two checkpoints, where they are valid.
    pub checkpoints: [Option<crate::format::checkpoint::Header>; 2],
    /// The part of the log in effect: the numbers of its first block and of the one after its last.
    pub log: std::ops::Range<u64>,
    /// Number up to which the log was durable.
    pub log_durable: u64,
    /// The damage that was found.
    pub findings: Vec<Finding>,
}

/// Reads all metadata of a cache that is not in use, and passes each used slot to `slot`.
///
/// # Errors
/// As [`check`].
pub fn dump(device: &dyn BlockDevice, mut slot: impl FnMut(SlotInfo)) -> Result<Dump> {
    let (sb, _) = Superblock::load_any(device)?;
    let found = Found::scan(device, &sb)?;
    let (start, life) = found.newest().map_or((0, 0), |header| (header.log_start, header.life));
    let (st, findings) = salvage(device)?;
    for nr in 0..st.residency.len() {
        let record = st.residency.slots().record(nr);
        let Some(key) = record.key else { continue };
        let (origin, offset) = st.place_of(key, 0);
        let crcs = (0..16).filter(|sub| record.valid >> sub & 1 != 0).map(|sub| record.crcs[sub]);
        slot(SlotInfo {
            slot: nr,
            origin,
            offset,
            valid: record.valid,
            dirty: record.dirty,
            zero: record.zero,
            crcs: crcs.collect(),
        });
    }
    Ok(Dump {
        log: start..found.log_end(start, life),
        log_durable: found.durable(),
        checkpoints: found.headers,
        superblock: sb,
        findings,
    })
}

/// Returns the superblock of a cache: its parameters and its origins.
///
/// # Errors
/// [`Error::NotACache`], [`Error::Incompatible`], [`Error::Damaged`], [`Error::CacheDevice`].
pub fn info(device: &dyn BlockDevice) -> Result<Superblock> {
    Superblock::load(device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AttachOptions, CreateOptions, Mode, OriginId};
    use weft_block::MemoryDevice;

    const ORIGIN_BYTES: u64 = 1 << 20;

    /// Returns disk and origin after a power cut: sixteen dirty blocks of ones over sixteen clean
    /// ones of zeroes, flushed.
    fn crashed() -> (Arc<dyn BlockDevice>, Arc<dyn BlockDevice>) {
        let disk: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(2 << 20));
        let origin: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(ORIGIN_BYTES));
        Cache::create(&*disk, &CreateOptions::default()).unwrap();
        let cached = attach(&disk, &origin).unwrap();
        let mut block = vec![0; 32 * 4096];
        cached.read_at(&mut block, 0).unwrap();
        for at in 0..16 {
            cached.write_at(&[1; 4096], at * 4096).unwrap();
            cached.flush().unwrap();
        }
        (disk, origin)
    }

    fn attach(
        disk: &Arc<dyn BlockDevice>,
        origin: &Arc<dyn BlockDevice>,
    ) -> Result<Arc<crate::CachedDevice>> {
        let options = OpenOptions { background: false, ..OpenOptions::default() };
        let cache = Cache::open(Arc::clone(disk), options)?;
        let id = OriginId { len_bytes: ORIGIN_BYTES, label: "o".to_owned(), ..OriginId::default() };
        let attach = AttachOptions { mode: Mode::WriteBack, ..AttachOptions::default() };
        cache.attach(Arc::clone(origin), &id, &attach)
    }

    fn flip(disk: &Arc<dyn BlockDevice>, at: u64) {
        let mut byte = [0];
        disk.read_at(&mut byte, at).unwrap();
        disk.write_at(&[byte[0] ^ 0x20], at).unwrap();
    }

    fn ones(cached: &crate::CachedDevice) -> usize {
        let mut seen = vec![0; 16 * 4096];
        cached.read_at(&mut seen, 0).unwrap();
        seen.chunks(4096).filter(|block| block.iter().all(|b| *b == 1)).count()
    }

    #[test]
    fn a_sound_cache_has_no_findings_and_a_repair_changes_nothing_of_it() {
        let (disk, origin) = crashed();
        let report = check(&*disk, true).unwrap();
        assert_eq!((&report.findings[..], report.dirty_bytes), (&[][..], 16 * 4096));
        let repaired = repair(Arc::clone(&disk)).unwrap();
        assert_eq!(repaired, report);
        assert_eq!(check(&*disk, true).unwrap(), report);
        assert_eq!(ones(&attach(&disk, &origin).unwrap()), 16);
    }

    #[test]
    fn a_hole_in_the_log_is_not_guessed_over_and_a_repair_keeps_what_matches() {
        let (disk, origin) = crashed();
        let sb = info(&*disk).unwrap();
        let mut log = 0..0;
        dump(&*disk, |_| {}).map(|d| log = d.log).unwrap();
        // A block in the middle: later ones say that it was durable.
        let number = log.start + (log.end - log.start) / 2;
        flip(&disk, sb.log_offset + number % sb.log_blocks * UNIT as u64 + 100);
        let report = check(&*disk, true).unwrap();
        assert!(report.needs_repair());
        assert!(
            matches!(report.findings[0], Finding::LogDamaged { end, .. } if end == number),
            "{report:?}"
        );
        assert!(matches!(attach(&disk, &origin), Err(Error::Damaged { structure: "log", .. })));

        let repaired = repair(Arc::clone(&disk)).unwrap();
        // One record is gone with the block; the others match.
        assert_eq!(repaired.dirty_bytes, 15 * 4096, "{repaired:?}");
        assert_eq!(repaired.blocks, 15, "nothing clean is kept");
        assert_eq!(ones(&attach(&disk, &origin).unwrap()), 15);
    }

    #[test]
    fn damaged_data_is_found_by_slot_and_place() {
        let (disk, origin) = crashed();
        let sb = info(&*disk).unwrap();
        let mut slots = Vec::new();
        dump(&*disk, |slot| slots.push(slot)).unwrap();
        let dirty = slots.iter().find(|s| s.offset == 5 * 4096).unwrap();
        let clean = slots.iter().find(|s| s.offset == 20 * 4096).unwrap();
        assert_eq!((dirty.dirty, clean.dirty, slots.len()), (1, 0, 32));
        flip(&disk, sb.slot_offset(dirty.slot) + 77);
        flip(&disk, sb.slot_offset(clean.slot) + 77);
        let report = check(&*disk, true).unwrap();
        let data = |slot: &SlotInfo, dirty| Finding::Data {
            slot: slot.slot,
            origin: "o".to_owned(),
            offset: slot.offset,
            len_bytes: 4096,
            dirty,
        };
        let (a, b) = (data(dirty, true), data(clean, false));
        assert!(
            report.findings.len() == 2
                && report.findings.contains(&a)
                && report.findings.contains(&b),
            "{report:?}"
        );
        assert!(check(&*disk, false).unwrap().findings.is_empty(), "without data, it is not read");
        assert_eq!(repair(Arc::clone(&disk)).unwrap().dirty_bytes, 15 * 4096);
        assert!(check(&*disk, true).unwrap().findings.is_empty());
        assert_eq!(ones(&attach(&disk, &origin).unwrap()), 15);
    }
}
