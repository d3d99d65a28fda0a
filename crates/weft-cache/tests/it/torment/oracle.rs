//! What a reader may see, sector by sector.
//!
//! For each 512-byte sector of each origin the oracle knows what was written to it, and from that
//!
//! - `now`: what a read may return at this moment. One content, unless the range was discarded or
//!   the power went: then the first read decides, and from then on it is that one.
//! - `durable`: what it held when a flush was last acknowledged,
//! - `since`: everything that was written to it after that, acknowledged or under way.
//!
//! After a cut a sector holds something of `durable` or `since`, whole; a second cut may bring back
//! nothing older than what was seen after the first.

use super::world::GARBAGE;
use std::sync::{Arc, OnceLock};
use weft_block::{SECTOR_BYTES, mix};

const SECTOR: usize = SECTOR_BYTES;

/// What a sector held at some time.
#[derive(Debug)]
struct Content {
    /// The operation that wrote it.
    op: Option<u32>,
    bytes: [u8; SECTOR],
}

type Value = Arc<Content>;

#[derive(Debug, Clone)]
struct Sector {
    now: Vec<Value>,
    durable: Vec<Value>,
    since: Vec<Value>,
    ever: Vec<Value>,
    /// It may read as what is lost, until the power goes.
    hidden: bool,
    /// It was written since it was lost: the next good flush makes that durable. A discard may do
    /// nothing, so it does not count.
    rewritten: bool,
    /// The origin may have lost it although the cache has it: a discard takes that from the cache, and
    /// what the origin shows then lasts until the power goes.
    lost_below: bool,
}

impl Sector {
    /// What it may read as after a discard: as before, or zeroes, or garbage. An older content must
    /// not return, even if the disk ignores discards and has not got the newest one yet; unless a
    /// flush of it has failed: then the disk may have lost anything.
    fn after_discard(&self, failed: bool) -> Vec<Value> {
        let mut may = if failed { self.ever.clone() } else { self.now.clone() };
        join(&mut may, &[Arc::clone(zeroes()), Arc::clone(garbage())]);
        may
    }
}

/// The expectations for several origins. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Oracle {
    origins: Vec<Vec<Arc<Sector>>>,
    /// A flush of an origin has failed.
    failed: bool,
}

fn zeroes() -> &'static Value {
    static ZEROES: OnceLock<Value> = OnceLock::new();
    ZEROES.get_or_init(|| Arc::new(Content { op: None, bytes: [0; SECTOR] }))
}

fn garbage() -> &'static Value {
    static FORGOTTEN: OnceLock<Value> = OnceLock::new();
    FORGOTTEN.get_or_init(|| Arc::new(Content { op: None, bytes: [GARBAGE; SECTOR] }))
}

fn join(into: &mut Vec<Value>, from: &[Value]) {
    for value in from {
        if !into.iter().any(|v| Arc::ptr_eq(v, value)) {
            into.push(Arc::clone(value));
        }
    }
}

/// What operation `op` writes to a range: every 8 bytes of every operation and place are different.
pub fn pattern(op: u32, origin: usize, offset: u64, len: usize) -> Vec<u8> {
    let first = offset / 8 * 8;
    let mut bytes = Vec::with_capacity(len + 16);
    let mut at = first;
    while at < offset + len as u64 {
        let word = mix((u64::from(op) << 40) ^ ((origin as u64) << 36) ^ (at / 8) ^ (1 << 63));
        bytes.extend_from_slice(&word.to_le_bytes());
        at += 8;
    }
    let skip = (offset - first) as usize;
    bytes.drain(..skip);
    bytes.truncate(len);
    bytes
}

/// The sectors of a byte range: number, range within the sector, range within the request.
fn sectors(
    offset: u64,
    len: usize,
) -> impl Iterator<Item = (usize, std::ops::Range<usize>, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = usize::try_from(offset).expect("small") + done;
        let within = at % SECTOR;
        let n = (SECTOR - within).min(len - done);
        done += n;
        Some((at / SECTOR, within..within + n, done - n..done))
    })
}

impl Oracle {
    /// Origins of zeroes, all of it durable.
    pub fn new(lens_bytes: &[u64]) -> Self {
        let zero = vec![Arc::clone(zeroes())];
        let sector = Arc::new(Sector {
            now: zero.clone(),
            durable: zero.clone(),
            since: Vec::new(),
            ever: zero,
            hidden: false,
            rewritten: false,
            lost_below: false,
        });
        let origin = |len: &u64| vec![Arc::clone(&sector); (*len as usize).div_ceil(SECTOR)];
        Self { origins: lens_bytes.iter().map(origin).collect(), failed: false }
    }

    fn sector(&mut self, origin: usize, number: usize) -> &mut Sector {
        Arc::make_mut(&mut self.origins[origin][number])
    }

    /// Whether one content alone may be read in the first and the last sector of a range.
    pub fn edges_known(&self, origin: usize, offset: u64, len: usize) -> bool {
        let known = |n: usize| self.origins[origin][n].now.len() == 1;
        len == 0 || known(offset as usize / SECTOR) && known((offset as usize + len - 1) / SECTOR)
    }

    /// A write of `data` starts: a cut from now on may leave it.
    pub fn begin_write(&mut self, op: u32, origin: usize, offset: u64, data: &[u8]) {
        for (number, within, part) in sectors(offset, data.len()) {
            let sector = self.sector(origin, number);
            let mut bytes = if within.len() == SECTOR {
                [0; SECTOR]
            } else {
                assert_eq!(
                    sector.now.len(),
                    1,
                    "the test reads before it changes part of a sector"
                );
                sector.now[0].bytes
            };
            bytes[within].copy_from_slice(&data[part]);
            let value = if bytes == [0; SECTOR] {
                Arc::clone(zeroes())
            } else {
                Arc::new(Content { op: Some(op), bytes })
            };
            sector.rewritten = true;
            sector.since.push(Arc::clone(&value));
            sector.ever.push(value);
        }
    }

    /// The write of this range that began last was acknowledged.
    pub fn end_write(&mut self, origin: usize, offset: u64, len: usize) {
        for (number, ..) in sectors(offset, len) {
            let sector = self.sector(origin, number);
            sector.now = sector.ever.last().cloned().into_iter().collect();
        }
    }

    /// The write of this range that began last failed: nobody knows how much of it is there.
    pub fn fail_write(&mut self, origin: usize, offset: u64, len: usize) {
        for (number, ..) in sectors(offset, len) {
            let sector = self.sector(origin, number);
            let last: Vec<Value> = sector.ever.last().cloned().into_iter().collect();
            join(&mut sector.now, &last);
        }
    }

    /// A discard of whole sectors starts.
    pub fn begin_discard(&mut self, origin: usize, offset: u64, len: usize) {
        let failed = self.failed;
        for (number, within, _) in sectors(offset, len) {
            assert_eq!(within.len(), SECTOR, "the test discards whole sectors");
            let sector = self.sector(origin, number);
            join(&mut sector.ever, &[Arc::clone(zeroes()), Arc::clone(garbage())]);
            let may = sector.after_discard(failed);
            join(&mut sector.since, &may);
        }
    }

    /// The discard was acknowledged: the range may read as before or as nothing.
    pub fn end_discard(&mut self, origin: usize, offset: u64, len: usize) {
        let failed = self.failed;
        for (number, ..) in sectors(offset, len) {
            let sector = self.sector(origin, number);
            sector.now = sector.after_discard(failed);
            if sector.lost_below {
                sector.hidden = true;
                sector.rewritten = false;
            }
        }
    }

    /// A flush of an origin was acknowledged.
    pub fn flushed(&mut self, origin: usize) {
        for sector in &mut self.origins[origin] {
            if !sector.since.is_empty() {
                let sector = Arc::make_mut(sector);
                sector.since.clear();
                if sector.hidden && !sector.rewritten {
                    join(&mut sector.durable, &sector.now);
                    continue;
                }
                sector.durable = sector.now.clone();
                sector.hidden = false;
            }
        }
    }

    /// Whether anything was changed since the last good flush.
    pub fn has_unflushed(&self, origin: usize) -> bool {
        self.origins[origin].iter().any(|s| !s.since.is_empty())
    }

    /// A flush of an origin failed: of what was written since the last good one, each sector is
    /// there or not. Returns whether there was any. `hidden`: which it is shows only when the
    /// power goes, and no good flush changes it.
    pub fn flush_failed(&mut self, origin: usize, hidden: bool) -> bool {
        let mut any = false;
        self.failed = true;
        if hidden {
            for sector in self.origins[origin].iter_mut().filter(|s| !s.lost_below) {
                Arc::make_mut(sector).lost_below = true;
            }
        }
        for sector in self.origins[origin].iter_mut().filter(|s| !s.since.is_empty()) {
            any = true;
            let sector = Arc::make_mut(sector);
            let mut union = sector.durable.clone();
            join(&mut union, &sector.since);
            if hidden {
                sector.hidden = true;
                sector.rewritten = false;
                sector.durable = union;
                sector.since.clear();
            } else {
                join(&mut sector.now, &union);
            }
        }
        any
    }

    /// An origin was opened anew: what it has lost shows.
    pub fn reopened(&mut self, origin: usize) {
        for sector in self.origins[origin].iter_mut().filter(|s| s.hidden || s.lost_below) {
            let sector = Arc::make_mut(sector);
            sector.lost_below = false;
            if !std::mem::take(&mut sector.hidden) {
                continue;
            }
            sector.now = sector.durable.clone();
            let since = std::mem::take(&mut sector.since);
            join(&mut sector.now, &since);
            sector.since = since;
        }
    }

    /// The power went, or the process died. `settled`: no disk holds anything volatile any more.
    pub fn after_cut(&mut self, settled: bool) {
        for sector in self.origins.iter_mut().flatten() {
            if sector.lost_below {
                Arc::make_mut(sector).lost_below = false;
            }
            if !sector.hidden && sector.since.is_empty() && sector.now.len() == sector.durable.len()
            {
                continue;
            }
            let sector = Arc::make_mut(sector);
            let mut union = sector.durable.clone();
            join(&mut union, &sector.since);
            sector.now = union.clone();
            sector.hidden = false;
            if settled {
                sector.durable = union;
                sector.since.clear();
            }
        }
    }

    /// Holds what was read against what may be.
    pub fn observe(&mut self, origin: usize, offset: u64, got: &[u8]) -> Result<(), String> {
        for (number, within, part) in sectors(offset, got.len()) {
            let got = &got[part];
            let sector = &mut self.origins[origin][number];
            let fits = |v: &Value| v.bytes[within.clone()] == *got;
            if !sector.now.iter().any(fits) {
                let allowed: Vec<String> = sector.now.iter().map(name).collect();
                return Err(format!(
                    "origin {origin} sector {number} (bytes {}..{} of it) reads as {}; allowed: {}",
                    within.start,
                    within.end,
                    self.identify(&within, got),
                    allowed.join(", ")
                ));
            }
            if sector.now.len() > 1 {
                let sector = Arc::make_mut(sector);
                sector.now.retain(fits);
                // The same content may have been written twice.
                sector.now.dedup_by(|a, b| a.bytes == b.bytes);
                if sector.since.is_empty() && !sector.hidden {
                    sector.durable = sector.now.clone();
                }
            }
        }
        Ok(())
    }

    /// Says what bytes are that were not expected.
    fn identify(&self, within: &std::ops::Range<usize>, got: &[u8]) -> String {
        for (o, origin) in self.origins.iter().enumerate() {
            for (s, sector) in origin.iter().enumerate() {
                for value in &sector.ever {
                    if value.op.is_some() && value.bytes[within.clone()] == *got {
                        return format!("{} to origin {o} sector {s}", name(value));
                    }
                }
            }
        }
        if got.iter().all(|b| *b == got[0]) {
            return format!("{} bytes of {:#04x}", got.len(), got[0]);
        }
        format!("nothing that was ever written: {:02x?}...", &got[..got.len().min(16)])
    }
}

fn name(value: &Value) -> String {
    match value.op {
        Some(op) => format!("what #{op} wrote"),
        None if value.bytes[0] == 0 => "zeroes".into(),
        None => "discarded".into(),
    }
}
