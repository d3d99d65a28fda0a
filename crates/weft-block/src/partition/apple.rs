//! Apple's partition map (`ER` and `PM`), and the one of the Macintosh Plus (`TS`).
//!
//! Sources: Inside Macintosh: Devices, chapter 3, and Inside Macintosh IV, page 292. Maps in the
//! wild are worse: the descriptor in block 0 is missing or says 0, entries are in any order, have
//! no length, or reach past the end of a disc image that was cut short. All of that is read.

use super::{PartitionInfo, PartitionTable, PartitionType, Scheme};
use crate::{BlockDevice, Error, Result};

/// The most entries read; maps have a few dozen.
const ENTRIES_MAX: u32 = 1024;
/// Triples that fit in the one block of the old map.
const OLD_ENTRIES: usize = (512 - 2) / 12;

/// The table of a device that has one of the two maps.
///
/// # Errors
/// [`Error::Io`].
pub(super) fn table(device: &dyn BlockDevice) -> Result<Option<PartitionTable>> {
    let device_bytes = device.geometry().len_bytes;
    let mut head = [0; 1024];
    if device_bytes < head.len() as u64 {
        return Ok(None);
    }
    device.read_at(&mut head, 0)?;
    if head[512..514] == *b"TS" {
        return Ok(old(&head[512..], device_bytes));
    }
    // Discs have maps in blocks of 512 bytes whatever the descriptor says; only where there is
    // none is the descriptor believed.
    let announced = u64::from(be16(&head, 2));
    let usual = head[512..514] == *b"PM";
    let sector_bytes = match (usual, &head[..2]) {
        (true, _) => 512,
        (false, b"ER") if matches!(announced, 1024 | 2048 | 4096) => announced,
        _ => return Ok(None),
    };
    let mut partitions = Vec::new();
    let mut count = 1;
    let mut number = 0;
    while number < count {
        number += 1;
        let at = u64::from(number) * sector_bytes;
        let mut entry = [0; 512];
        match device.read_at(&mut entry, at) {
            Err(Error::OutOfRange { .. }) => break,
            other => other?,
        }
        if entry[..2] != *b"PM" {
            break;
        }
        if number == 1 {
            count = be32(&entry, 4).min(ENTRIES_MAX);
        }
        partitions.push(PartitionInfo {
            number,
            // Both are products of 32 and 13 bits.
            start_bytes: u64::from(be32(&entry, 8)) * sector_bytes,
            len_bytes: u64::from(be32(&entry, 12)) * sector_bytes,
            kind: PartitionType::Apple(text(&entry[48..80])),
            id: None,
            name: text(&entry[16..48]),
        });
    }
    if partitions.is_empty() {
        return Ok(None);
    }
    give_lengths(&mut partitions, device_bytes);
    Ok(Some(PartitionTable {
        scheme: Scheme::Apple,
        sector_bytes: sector_bytes as u32,
        from_backup: false,
        partitions,
    }))
}

fn old(block: &[u8], device_bytes: u64) -> Option<PartitionTable> {
    let mut partitions = Vec::new();
    for (number, entry) in (1..).zip(block[2..].chunks_exact(12).take(OLD_ENTRIES)) {
        // Behind a zero there may be anything.
        if be32(entry, 0) == 0 {
            break;
        }
        partitions.push(PartitionInfo {
            number,
            start_bytes: u64::from(be32(entry, 0)) * 512,
            len_bytes: u64::from(be32(entry, 4)) * 512,
            kind: PartitionType::Apple(text(&entry[8..12])),
            id: None,
            name: String::new(),
        });
    }
    if partitions.is_empty() {
        return None;
    }
    give_lengths(&mut partitions, device_bytes);
    let scheme = Scheme::AppleOld;
    Some(PartitionTable { scheme, sector_bytes: 512, from_backup: false, partitions })
}

/// A partition without a length goes on to the next one, or to the end of the device.
fn give_lengths(partitions: &mut [PartitionInfo], device_bytes: u64) {
    let mut starts: Vec<u64> = partitions.iter().map(|p| p.start_bytes).collect();
    starts.sort_unstable();
    for partition in partitions.iter_mut().filter(|p| p.len_bytes == 0) {
        let next = starts.iter().find(|&&s| s > partition.start_bytes).copied();
        let end = next.unwrap_or(device_bytes).min(device_bytes);
        partition.len_bytes = end.saturating_sub(partition.start_bytes);
    }
}

/// A field of characters that ends at its end or at a zero.
fn text(field: &[u8]) -> String {
    let end = field.iter().position(|&b| b == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]))
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from(be16(bytes, at)) << 16 | u32::from(be16(bytes, at + 2))
}
