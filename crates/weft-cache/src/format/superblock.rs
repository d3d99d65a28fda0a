//! The superblock: the cache's parameters, the layout of its parts, and its origins.
//!
//! ```text
//!   0  magic "weftCACH"     8  version u32      12  features u32     16  CRC32C u32
//!  24  sequence u64        32  UUID 16          48  label 64        112  block bytes u32
//! 116  slots u32          120  policy u32      124  state u32       128  life u64
//! 136  log offset u64     144  log blocks u64  152  checkpoint A    160  checkpoint B
//! 168  blocks of one checkpoint's area u64     176  data offset u64 184  length u64
//! 512  origins: 16 of 192 bytes
//!        0 flags u32   4 region shift u32   8 length u64   16 UUID 16   32 generation u64
//!       40 quota, slots u64   48 fingerprint u64   56 label length u8   57 label 96
//! ```
//!
//! and at 192 the sequence number once more, see below.
//!
//! There are two copies, at 0 and at 4096. Each version is written to both of them, to one (its
//! sequence number's lowest bit) and, when that is durable, to the other: a torn write leaves the
//! older version, and between changes either copy is enough. Earlier versions of weft wrote each
//! version to one copy, in turn; then the copy that is left when one is damaged may be out of date,
//! without a sign of it. The number at 192 says that a version was meant for both; the earlier
//! versions left it zero.

use super::{UNIT, crc_without, get_u32, get_u64, put};
use crate::{BLOCK_BYTES_MAX, Error, ORIGINS_MAX, OriginId, Result, SUB_BLOCK_BYTES};
use weft_block::BlockDevice;

const MAGIC: &[u8; 8] = b"weftCACH";
const VERSION: u32 = 1;
const CRC_AT: usize = 16;
const BOTH_AT: usize = 192;
const ORIGINS_AT: usize = 512;
const ORIGIN_BYTES: usize = 192;
const LABEL_MAX: usize = 64;
/// Maximum length of an origin's label, in bytes.
pub const ORIGIN_LABEL_MAX: usize = 96;

/// Maximum number of regions of one origin.
pub const REGIONS_MAX: u64 = 1 << 20;

/// The cache was closed: log empty, no intents.
pub const STATE_CLEAN: u32 = 1;
/// Origins were changed without intents: no clean block may be trusted.
pub const STATE_UNTRUSTED: u32 = 2;
/// The cache was last used without persistence: it is empty, whatever the other metadata says.
pub const STATE_EMPTY: u32 = 4;

const ORIGIN_USED: u32 = 1;
const ORIGIN_HAS_UUID: u32 = 2;
const ORIGIN_FORGETTING: u32 = 4;
const ORIGIN_FINGERPRINT: u32 = 8;

/// The superblock's record of an origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginEntry {
    /// The origin's identity.
    pub id: OriginId,
    /// Regions of its intents are `1 << region_shift` bytes.
    pub region_shift: u32,
    /// Maximum number of its slots; 0 means no limit.
    pub quota_slots: u64,
    /// Whether the origin was detached, and its blocks are being removed from the cache.
    pub forgetting: bool,
    /// A hash of samples of it, taken when it was last released in a consistent state.
    pub fingerprint: Option<u64>,
}

/// The superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Incremented with each write.
    pub sequence: u64,
    /// The cache's identity.
    pub uuid: [u8; 16],
    /// Its human-readable name.
    pub label: String,
    /// Size of a block and of a slot, in bytes.
    pub block_bytes: u32,
    /// The number of slots.
    pub slots: u32,
    /// The replacement policy, see [`PolicyKind::to_code`](crate::PolicyKind::to_code).
    pub policy: u32,
    /// `STATE_` bits.
    pub state: u32,
    /// Number of times that the cache was opened for writing. Blocks of the log carry it.
    pub life: u64,
    /// Start of the log, in bytes.
    pub log_offset: u64,
    /// Length of the log, in blocks of 4 KiB.
    pub log_blocks: u64,
    /// Starts of the two checkpoint areas, in bytes.
    pub checkpoints: [u64; 2],
    /// Length of each area, in blocks of 4 KiB.
    pub checkpoint_blocks: u64,
    /// Start of slot 0, in bytes.
    pub data_offset: u64,
    /// Length of the used part of the device, in bytes.
    pub len_bytes: u64,
    /// The origins, by number.
    pub origins: [Option<OriginEntry>; ORIGINS_MAX],
}

impl Superblock {
    /// Returns the number of sub-blocks of 4 KiB in a block, 1 to 16.
    #[must_use]
    pub fn subs(&self) -> usize {
        self.block_bytes as usize / SUB_BLOCK_BYTES
    }

    /// Returns the byte offset of a slot on the device.
    #[must_use]
    pub fn slot_offset(&self, slot: u32) -> u64 {
        self.data_offset + u64::from(slot) * u64::from(self.block_bytes)
    }

    /// Returns a number that log and checkpoint carry, so that the remains of an earlier cache on
    /// the device are never taken for this one's.
    #[must_use]
    pub fn tag(&self) -> u64 {
        get_u64(&self.uuid, 0) ^ get_u64(&self.uuid, 8).rotate_left(32)
    }

    /// Returns the block as it is written.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut b = vec![0; UNIT];
        put(&mut b, 0, MAGIC);
        put(&mut b, 8, &VERSION.to_le_bytes());
        put(&mut b, 24, &self.sequence.to_le_bytes());
        put(&mut b, 32, &self.uuid);
        put(&mut b, 48, cut(&self.label, LABEL_MAX).as_bytes());
        for (at, value) in
            [(112, self.block_bytes), (116, self.slots), (120, self.policy), (124, self.state)]
        {
            put(&mut b, at, &value.to_le_bytes());
        }
        for (at, value) in [
            (128, self.life),
            (136, self.log_offset),
            (144, self.log_blocks),
            (152, self.checkpoints[0]),
            (160, self.checkpoints[1]),
            (168, self.checkpoint_blocks),
            (176, self.data_offset),
            (184, self.len_bytes),
        ] {
            put(&mut b, at, &value.to_le_bytes());
        }
        put(&mut b, BOTH_AT, &self.sequence.to_le_bytes());
        for (nr, origin) in self.origins.iter().enumerate() {
            if let Some(origin) = origin {
                let at = ORIGINS_AT + nr * ORIGIN_BYTES;
                encode_origin(&mut b[at..at + ORIGIN_BYTES], origin);
            }
        }
        let crc = crc_without(&b, CRC_AT);
        put(&mut b, CRC_AT, &crc.to_le_bytes());
        b
    }

    /// Parses a copy. `device_bytes` is the bound for the parts' offsets.
    ///
    /// # Errors
    /// [`Error::NotACache`], [`Error::Incompatible`], and [`Error::Damaged`].
    pub fn parse(b: &[u8], device_bytes: u64) -> Result<Self> {
        if b.len() < UNIT || &b[..8] != MAGIC {
            return Err(Error::NotACache("there is no superblock"));
        }
        let b = &b[..UNIT];
        let bad = |problem: &str| Error::damaged("superblock", 0, problem);
        if crc_without(b, CRC_AT) != get_u32(b, CRC_AT) {
            return Err(bad("its checksum is wrong"));
        }
        let (version, features) = (get_u32(b, 8), get_u32(b, 12));
        if version != VERSION || features != 0 {
            return Err(Error::Incompatible(format!("version {version}, features {features:#x}")));
        }
        let label = &b[48..48 + LABEL_MAX];
        let mut sb = Self {
            sequence: get_u64(b, 24),
            uuid: b[32..48].try_into().unwrap_or_default(),
            label: text(label, LABEL_MAX),
            block_bytes: get_u32(b, 112),
            slots: get_u32(b, 116),
            policy: get_u32(b, 120),
            state: get_u32(b, 124),
            life: get_u64(b, 128),
            log_offset: get_u64(b, 136),
            log_blocks: get_u64(b, 144),
            checkpoints: [get_u64(b, 152), get_u64(b, 160)],
            checkpoint_blocks: get_u64(b, 168),
            data_offset: get_u64(b, 176),
            len_bytes: get_u64(b, 184),
            origins: [const { None }; ORIGINS_MAX],
        };
        if sb.len_bytes > device_bytes {
            return Err(Error::Shortened { len_bytes: sb.len_bytes, device_bytes });
        }
        sb.check().map_err(|problem| bad(&problem))?;
        for nr in 0..ORIGINS_MAX {
            let at = ORIGINS_AT + nr * ORIGIN_BYTES;
            sb.origins[nr] = parse_origin(&b[at..at + ORIGIN_BYTES]).map_err(|p| bad(&p))?;
        }
        Ok(sb)
    }

    fn check(&self) -> Result<(), String> {
        let block = self.block_bytes;
        if !block.is_power_of_two() || !(UNIT as u32..=BLOCK_BYTES_MAX).contains(&block) {
            return Err(format!("blocks of {block} bytes"));
        }
        if self.slots == 0 || self.slots > crate::policy::SLOTS_MAX {
            return Err(format!("{} slots", self.slots));
        }
        let metadata = |blocks: u64| blocks.checked_mul(UNIT as u64);
        let data = u64::from(self.slots) * u64::from(block);
        let parts = [
            (0, Some(2 * UNIT as u64)),
            (self.log_offset, metadata(self.log_blocks)),
            (self.checkpoints[0], metadata(self.checkpoint_blocks)),
            (self.checkpoints[1], metadata(self.checkpoint_blocks)),
            (self.data_offset, Some(data)),
        ];
        let mut ranges = Vec::new();
        for (start, len) in parts {
            let end = len.and_then(|len| start.checked_add(len));
            match end {
                Some(end) if end <= self.len_bytes && start % UNIT as u64 == 0 => {
                    ranges.push((start, end));
                }
                _ => return Err(format!("a part at byte {start} does not fit")),
            }
        }
        ranges.sort_unstable();
        if ranges.windows(2).any(|w| w[0].1 > w[1].0) {
            return Err("its parts overlap".to_owned());
        }
        if self.log_blocks < super::log::RING_MIN_BLOCKS {
            return Err(format!("a log of {} blocks", self.log_blocks));
        }
        let needed = super::checkpoint::AreaLayout::new(self.slots, self.subs()).blocks();
        if self.checkpoint_blocks < needed {
            return Err(format!("{needed} blocks of checkpoint do not fit its area"));
        }
        Ok(())
    }

    /// Returns the newest valid superblock of a device. One good copy is enough, unless the other
    /// may have been newer.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), of the more informative copy; [`Error::CacheDevice`].
    pub fn load(device: &dyn BlockDevice) -> Result<Self> {
        let (newest, doubt) = Self::load_any(device)?;
        doubt.map_or(Ok(newest), Err)
    }

    /// Does as [`load`](Self::load), for a repair: if the newest good copy may be out of date, the
    /// error is returned with it.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub(crate) fn load_any(device: &dyn BlockDevice) -> Result<(Self, Option<Error>)> {
        let device_bytes = device.geometry().len_bytes;
        if device_bytes < 2 * UNIT as u64 {
            return Err(Error::NotACache("the device is too short"));
        }
        let mut copies = vec![0; 2 * UNIT];
        device.read_at(&mut copies, 0).map_err(Error::CacheDevice)?;
        let (a, b) = copies.split_at(UNIT);
        let (one, (nr, bytes)) = match (Self::parse(a, device_bytes), Self::parse(b, device_bytes))
        {
            (Ok(a), Ok(b)) => return Ok((if a.sequence > b.sequence { a } else { b }, None)),
            (Ok(one), Err(_)) => (one, (1, b)),
            (Err(_), Ok(one)) => (one, (0, a)),
            (Err(Error::NotACache(_)), Err(other)) | (Err(other), Err(_)) => return Err(other),
        };
        let good = if nr == 0 { b } else { a };
        let in_both = get_u64(good, BOTH_AT) == one.sequence;
        // A cache that was created by an earlier version and never opened has one copy only.
        let first = one.sequence == 1 && bytes.iter().all(|b| *b == 0);
        let doubt = (!in_both && !first).then(|| {
            let problem = "it is damaged, and it may have been newer than the other copy";
            Error::damaged("superblock copy", nr * UNIT as u64, problem)
        });
        Ok((one, doubt))
    }

    /// Returns the byte offsets of the two copies: the one that is written first, and the other.
    #[must_use]
    pub fn copy_offsets(&self) -> [u64; 2] {
        let first = self.sequence & 1;
        [first * UNIT as u64, (1 - first) * UNIT as u64]
    }
}

fn encode_origin(b: &mut [u8], origin: &OriginEntry) {
    let mut flags = ORIGIN_USED;
    flags |= if origin.id.uuid.is_some() { ORIGIN_HAS_UUID } else { 0 };
    flags |= if origin.forgetting { ORIGIN_FORGETTING } else { 0 };
    flags |= if origin.fingerprint.is_some() { ORIGIN_FINGERPRINT } else { 0 };
    put(b, 0, &flags.to_le_bytes());
    put(b, 4, &origin.region_shift.to_le_bytes());
    put(b, 8, &origin.id.len_bytes.to_le_bytes());
    put(b, 16, &origin.id.uuid.unwrap_or_default());
    put(b, 32, &origin.id.generation.to_le_bytes());
    put(b, 40, &origin.quota_slots.to_le_bytes());
    put(b, 48, &origin.fingerprint.unwrap_or_default().to_le_bytes());
    let label = cut(&origin.id.label, ORIGIN_LABEL_MAX);
    b[56] = label.len() as u8;
    put(b, 57, label.as_bytes());
}

fn parse_origin(b: &[u8]) -> Result<Option<OriginEntry>, String> {
    let flags = get_u32(b, 0);
    if flags & ORIGIN_USED == 0 {
        return Ok(None);
    }
    let region_shift = get_u32(b, 4);
    if !(16..=48).contains(&region_shift) || get_u64(b, 8) >> region_shift > REGIONS_MAX {
        return Err(format!("regions of 2^{region_shift} bytes"));
    }
    let id = OriginId {
        len_bytes: get_u64(b, 8),
        uuid: (flags & ORIGIN_HAS_UUID != 0).then(|| b[16..32].try_into().unwrap_or_default()),
        generation: get_u64(b, 32),
        label: text(&b[57..57 + ORIGIN_LABEL_MAX], usize::from(b[56])),
    };
    Ok(Some(OriginEntry {
        id,
        region_shift,
        quota_slots: get_u64(b, 40),
        forgetting: flags & ORIGIN_FORGETTING != 0,
        fingerprint: (flags & ORIGIN_FINGERPRINT != 0).then(|| get_u64(b, 48)),
    }))
}

/// Returns the longest prefix of `s` that is no longer than `max` bytes.
fn cut(s: &str, max: usize) -> &str {
    let end = (0..=max.min(s.len())).rev().find(|&end| s.is_char_boundary(end));
    &s[..end.unwrap_or(0)]
}

fn text(bytes: &[u8], len: usize) -> String {
    let bytes = &bytes[..len.min(bytes.len())];
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
