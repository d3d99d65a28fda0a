//! Partition tables, MBR, GPT and Apple's, and one partition of a device as a device.
//!
//! Sources of the formats: the MBR as every BIOS since 1983 reads it (signature `55 aa`, four
//! entries at byte 446, extended partitions chained through EBRs), the UEFI specification 2.10,
//! chapter 5, for the GPT, and those named in [`apple`] for Apple's.
//!
//! A table is somebody else's data: listing it never reads outside the device, never loops, takes
//! memory bounded by constants here, and never overflows. A partition that reaches past the end of
//! the device (a truncated image) is listed, so that the others stay usable, but cannot be opened.

use crate::{BlockDevice, Change, Error, Extent, Filter, Geometry, Result, check_range};
use std::collections::BTreeSet;
use std::fmt;
use uuid::Uuid;

mod apple;

/// The most logical partitions followed in an MBR.
const LOGICAL_MAX: usize = 128;
/// The largest GPT entry array read, in bytes: 32 times what the specification asks for.
const GPT_ARRAY_MAX_BYTES: u64 = 512 << 10;

/// A GUID as GPT stores it: the first three fields little-endian.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Guid(pub [u8; 16]);

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Uuid::from_bytes_le(self.0), f)
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The type of a partition's content, from the entry of its table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartitionType {
    /// The type byte of an MBR entry; `0x83` is Linux.
    Mbr(u8),
    /// The type GUID of a GPT entry.
    Gpt(Guid),
    /// The type of an entry of Apple's map, such as `Apple_HFS`; `TFS1` in the old one.
    Apple(String),
}

/// The kind of a partition table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// Master boot record.
    Mbr,
    /// GUID partition table.
    Gpt,
    /// Apple's partition map.
    Apple,
    /// The map of the Macintosh Plus.
    AppleOld,
}

/// One partition as its table describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionInfo {
    /// Its number, as Linux counts: from 1; logical ones of an MBR from 5; in Apple's map the
    /// number of the entry, the map's own included.
    pub number: u32,
    /// The offset of its first byte on the device.
    pub start_bytes: u64,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// The type of its content.
    pub kind: PartitionType,
    /// Its own GUID (GPT only).
    pub id: Option<Guid>,
    /// Its name (GPT and Apple's map); empty if it has none.
    pub name: String,
}

/// A partition table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionTable {
    /// MBR, GPT or one of Apple's.
    pub scheme: Scheme,
    /// The unit the table counts in, in bytes.
    pub sector_bytes: u32,
    /// Whether the primary GPT was bad, and the table is the backup.
    pub from_backup: bool,
    /// The partitions, by number.
    pub partitions: Vec<PartitionInfo>,
}

/// Reads the partition table of a device. The sector size of a GPT is found out; that of an MBR is
/// the device's.
///
/// # Errors
/// [`Error::Corrupt`] if there is none or it is damaged beyond use; [`Error::Io`].
pub fn list_partitions(device: &dyn BlockDevice) -> Result<PartitionTable> {
    let geometry = device.geometry();
    if geometry.len_bytes < 512 {
        return Err(no_table("the device is shorter than a sector"));
    }
    let mut sector = [0; 512];
    device.read_at(&mut sector, 0)?;
    let signed = sector[510..] == [0x55, 0xaa];
    let protective = signed && (0..4).any(|i| sector[446 + i * 16 + 4] == 0xee);
    // A GPT without its protective MBR is believed only where no MBR contradicts it.
    if protective || !signed {
        let mut sizes = vec![u64::from(geometry.logical_block_bytes), 512, 4096];
        sizes.dedup();
        match gpt(device, &sizes) {
            Ok(Some(table)) => return Ok(table),
            Ok(None) => {}
            Err(e) => return Err(e),
        }
        if protective {
            let problem = "the MBR announces a GPT, and neither its header nor the backup is valid";
            return Err(Error::Corrupt {
                structure: "GPT header",
                offset: 512,
                problem: problem.into(),
            });
        }
        if let Some(table) = apple::table(device)? {
            return Ok(table);
        }
        return Err(no_table("no signature of an MBR, no GPT and no Apple partition map"));
    }
    mbr(device, &sector, u64::from(geometry.logical_block_bytes))
}

/// Reads Apple's partition map, old or new, also where an MBR is beside it (as on a hybrid disc).
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn list_apple_partitions(device: &dyn BlockDevice) -> Result<Option<PartitionTable>> {
    apple::table(device)
}

fn no_table(problem: &str) -> Error {
    Error::Corrupt { structure: "partition table", offset: 0, problem: problem.into() }
}

fn le<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + N).map_or(0, |b| b.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b)))
}

// ---- MBR ----

/// An entry of an MBR or EBR: type byte, first sector, number of sectors.
fn mbr_entry(sector: &[u8; 512], slot: usize) -> (u8, u64, u64) {
    let entry = &sector[446 + slot * 16..446 + slot * 16 + 16];
    (entry[4], le::<4>(entry, 8), le::<4>(entry, 12))
}

fn mbr(device: &dyn BlockDevice, sector: &[u8; 512], sector_bytes: u64) -> Result<PartitionTable> {
    let mut partitions = Vec::new();
    let mut extended = None;
    let info = |number, start: u64, len: u64, kind| PartitionInfo {
        number,
        // Both below 2^34 sectors of at most 64 KiB: no overflow.
        start_bytes: start * sector_bytes,
        len_bytes: len * sector_bytes,
        kind: PartitionType::Mbr(kind),
        id: None,
        name: String::new(),
    };
    for slot in 0..4 {
        let status = sector[446 + slot * 16];
        let (kind, start, len) = mbr_entry(sector, slot);
        if status & 0x7f != 0 {
            // The boot code of some file systems ends in the same signature.
            let problem = format!("entry {} has status {status:#04x}", slot + 1);
            return Err(Error::Corrupt { structure: "MBR", offset: 446, problem });
        }
        match kind {
            0 => {}
            _ if len == 0 => {}
            0x05 | 0x0f | 0x85 => extended = extended.or(Some(start)),
            _ => partitions.push(info(slot as u32 + 1, start, len, kind)),
        }
    }
    let mut at = extended;
    let mut seen = BTreeSet::new();
    while let (Some(ebr), Some(base)) = (at, extended) {
        let offset = ebr * sector_bytes;
        let bad =
            |problem: &str| Error::Corrupt { structure: "EBR", offset, problem: problem.into() };
        if !seen.insert(ebr) {
            return Err(bad("the chain of logical partitions runs in a circle"));
        }
        if seen.len() > LOGICAL_MAX {
            return Err(bad("the chain of logical partitions does not end"));
        }
        let mut sector = [0; 512];
        match device.read_at(&mut sector, offset) {
            Err(Error::OutOfRange { .. }) => return Err(bad("it lies past the end of the device")),
            other => other?,
        }
        if sector[510..] != [0x55, 0xaa] {
            return Err(bad("its signature is missing"));
        }
        let (kind, start, len) = mbr_entry(&sector, 0);
        if kind != 0 && len != 0 {
            partitions.push(info(4 + seen.len() as u32, ebr + start, len, kind));
        }
        let (kind, next, len) = mbr_entry(&sector, 1);
        at = (matches!(kind, 0x05 | 0x0f | 0x85) && len != 0).then(|| base + next);
    }
    let sector_bytes = sector_bytes as u32;
    Ok(PartitionTable { scheme: Scheme::Mbr, sector_bytes, from_backup: false, partitions })
}

// ---- GPT ----

/// Tries every sector size with the primary header, then with the backup.
fn gpt(device: &dyn BlockDevice, sizes: &[u64]) -> Result<Option<PartitionTable>> {
    let len_bytes = device.geometry().len_bytes;
    for from_backup in [false, true] {
        for &sector_bytes in sizes {
            let sectors = len_bytes / sector_bytes;
            if sectors < 3 {
                continue;
            }
            let lba = if from_backup { sectors - 1 } else { 1 };
            match gpt_at(device, lba, sector_bytes, from_backup) {
                Err(Error::Corrupt { .. } | Error::OutOfRange { .. }) => {}
                Ok(table) => return Ok(Some(table)),
                Err(e) => return Err(e),
            }
        }
    }
    Ok(None)
}

fn gpt_at(
    device: &dyn BlockDevice,
    lba: u64,
    sector_bytes: u64,
    from_backup: bool,
) -> Result<PartitionTable> {
    let offset = lba * sector_bytes;
    let bad = |problem: String| Error::Corrupt { structure: "GPT header", offset, problem };
    let mut header = vec![0; sector_bytes as usize];
    device.read_at(&mut header, offset)?;
    if header[..8] != *b"EFI PART" {
        return Err(bad("no signature".into()));
    }
    let header_bytes = le::<4>(&header, 12);
    if !(92..=sector_bytes).contains(&header_bytes) {
        return Err(bad(format!("a header of {header_bytes} bytes")));
    }
    header.truncate(header_bytes as usize);
    let sum = le::<4>(&header, 16);
    header[16..20].fill(0);
    if u64::from(crc32fast::hash(&header)) != sum {
        return Err(bad("wrong checksum".into()));
    }
    if le::<8>(&header, 24) != lba {
        return Err(bad(format!("it says it is in sector {}", le::<8>(&header, 24))));
    }
    let (array_lba, count) = (le::<8>(&header, 72), le::<4>(&header, 80));
    let (entry_bytes, array_sum) = (le::<4>(&header, 84), le::<4>(&header, 88));
    if entry_bytes < 128 || entry_bytes % 8 != 0 {
        return Err(bad(format!("entries of {entry_bytes} bytes")));
    }
    let array_bytes = entry_bytes
        .checked_mul(count)
        .filter(|n| *n <= GPT_ARRAY_MAX_BYTES)
        .ok_or_else(|| bad(format!("{count} entries of {entry_bytes} bytes")))?;
    let array_at = array_lba
        .checked_mul(sector_bytes)
        .ok_or_else(|| bad(format!("entries in sector {array_lba}")))?;
    // Checked before memory is taken for it.
    check_range("read", array_at, array_bytes, device.geometry().len_bytes)?;
    let mut array = vec![0; array_bytes as usize];
    device.read_at(&mut array, array_at)?;
    if u64::from(crc32fast::hash(&array)) != array_sum {
        return Err(bad("wrong checksum of the entries".into()));
    }
    let mut partitions = Vec::new();
    for (number, entry) in (1..).zip(array.chunks_exact(entry_bytes as usize)) {
        if entry[..16] == [0; 16] {
            continue;
        }
        let (first, last) = (le::<8>(entry, 32), le::<8>(entry, 40));
        let range = last
            .checked_sub(first)
            .and_then(|n| n.checked_add(1)?.checked_mul(sector_bytes))
            .zip(first.checked_mul(sector_bytes));
        let Some((len_bytes, start_bytes)) = range else {
            return Err(bad(format!("partition {number} goes from sector {first} to {last}")));
        };
        let name: Vec<u16> = entry[56..128].chunks_exact(2).map(|c| le::<2>(c, 0) as u16).collect();
        let end = name.iter().position(|&c| c == 0).unwrap_or(name.len());
        partitions.push(PartitionInfo {
            number,
            start_bytes,
            len_bytes,
            kind: PartitionType::Gpt(guid(entry, 0)),
            id: Some(guid(entry, 16)),
            name: String::from_utf16_lossy(&name[..end]),
        });
    }
    let sector_bytes = sector_bytes as u32;
    Ok(PartitionTable { scheme: Scheme::Gpt, sector_bytes, from_backup, partitions })
}

fn guid(entry: &[u8], at: usize) -> Guid {
    let mut guid = [0; 16];
    guid.copy_from_slice(&entry[at..at + 16]);
    Guid(guid)
}

// ---- the window ----

/// One partition of a device as a device of its own.
#[derive(Debug)]
pub struct Partition<D> {
    inner: D,
    start_bytes: u64,
    len_bytes: u64,
}

impl<D: BlockDevice> Partition<D> {
    /// The part of `inner` that `info` describes.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it reaches past the end of the device.
    pub fn new(inner: D, info: &PartitionInfo) -> Result<Self> {
        let (start_bytes, len_bytes) = (info.start_bytes, info.len_bytes);
        let device_bytes = inner.geometry().len_bytes;
        check_range("open", start_bytes, len_bytes, device_bytes).map_err(|_| Error::Corrupt {
            structure: "partition table",
            offset: 0,
            problem: format!(
                "partition {} of {len_bytes} bytes at {start_bytes} reaches past the end of the \
                 device at {device_bytes}; is the image cut short?",
                info.number
            ),
        })?;
        Ok(Self { inner, start_bytes, len_bytes })
    }

    /// The partition with this number in the device's partition table.
    ///
    /// # Errors
    /// Those of [`list_partitions`]; [`Error::Invalid`] if there is no such partition.
    pub fn open(inner: D, number: u32) -> Result<Self> {
        let table = list_partitions(&inner)?;
        let Some(info) = table.partitions.iter().find(|p| p.number == number) else {
            let all: Vec<String> = table.partitions.iter().map(|p| p.number.to_string()).collect();
            let all = if all.is_empty() { "none".to_owned() } else { all.join(", ") };
            return Err(Error::Invalid(format!(
                "there is no partition {number} (there is: {all})"
            )));
        };
        Self::new(inner, info)
    }

    /// The `len_bytes` of `inner` from `start_bytes` on, whether there are so many or not: what is
    /// past the end of `inner` is its error.
    #[must_use]
    pub fn window(inner: D, start_bytes: u64, len_bytes: u64) -> Self {
        Self { inner, start_bytes, len_bytes }
    }

    /// Returns the offset on the device below of byte `offset` of the partition.
    fn shift(&self, op: &'static str, offset: u64, len_bytes: u64) -> Result<u64> {
        check_range(op, offset, len_bytes, self.len_bytes)?;
        Ok(self.start_bytes + offset)
    }
}

impl<D: BlockDevice> Filter for Partition<D> {
    type Below = D;

    fn below(&self) -> &D {
        &self.inner
    }

    fn filter_geometry(&self) -> Geometry {
        Geometry { len_bytes: self.len_bytes, ..self.inner.geometry() }
    }

    fn filter_read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.inner.read_at(buf, self.shift("read", offset, buf.len() as u64)?)
    }

    fn filter_read_nowait(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        self.inner.read_at_nowait(buf, self.shift("read", offset, buf.len() as u64)?)
    }

    fn filter_change(&self, change: Change<'_>) -> Result<()> {
        let offset = self.shift(change.op(), change.offset, change.len_bytes)?;
        Change { offset, ..change }.apply(&self.inner)
    }

    fn filter_extent(&self, offset: u64, len_bytes: u64) -> Result<Extent> {
        self.inner.extent_at(self.shift("look", offset, len_bytes)?, len_bytes)
    }
}

#[cfg(test)]
mod tests;
