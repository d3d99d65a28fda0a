//! Writing an Apple partition map.
//!
//! Source: *Inside Macintosh: Devices*, chapter 3, "SCSI Manager": the driver descriptor record
//! (`ER`) in block 0, entries (`PM`) from block 1 on, each naming how many there are. Blocks have
//! 512 bytes. 63 blocks are given to the map, as Apple's own formatters do; behind it drivers, then
//! one `Apple_HFS` partition to the end.
//!
//! A Macintosh mounts a SCSI disk only with a driver on it. Apple's drivers may not be
//! redistributed; they can be copied from a disk that has them ([`Drivers::of`]).

use crate::{Error, Result};
use std::sync::Arc;
use weft_block::{BlockDevice, FileDevice, OpenMode, PartitionType, Scheme, list_partitions};

const BLOCK_BYTES: u64 = 512;
/// Blocks of the map with its own entry first, after which the first partition begins.
const MAP_BLOCKS: u32 = 63;
/// The longest driver that is copied, in bytes.
const DRIVER_MAX_BYTES: u64 = 4 << 20;
/// The most drivers a descriptor record has room for.
const DRIVERS_MAX: usize = 61;

/// `pmPartStatus`: valid, allocated, in use, readable, writable.
const STATUS: u32 = 0x37;
/// The same, mounted at startup.
const STATUS_VOLUME: u32 = 0x4000_0033;

/// Drivers of a disk, to be put on another.
#[derive(Debug, Clone, Default)]
pub struct Drivers {
    /// The driver descriptor record they were found with.
    record: Vec<u8>,
    /// Their entries in the map, and their bytes.
    parts: Vec<([u8; 512], Vec<u8>)>,
}

impl Drivers {
    /// Reads the drivers of the disk in `source`: partitions of the types `Apple_Driver...`,
    /// `Apple_FWDriver` and `Apple_Patches`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there are none; those of opening the disk.
    pub fn of(source: &str) -> Result<Self> {
        let device: Arc<dyn BlockDevice> = open_disk(source)?;
        let table = list_partitions(&device)?;
        let mut drivers = Self { record: vec![0; 512], parts: Vec::new() };
        device.read_at(&mut drivers.record, 0)?;
        for info in &table.partitions {
            let PartitionType::Apple(kind) = &info.kind else { continue };
            let wanted = kind.starts_with("Apple_Driver")
                || kind == "Apple_FWDriver"
                || kind == "Apple_Patches";
            let fits = info.len_bytes <= DRIVER_MAX_BYTES && drivers.parts.len() < DRIVERS_MAX;
            if table.scheme != Scheme::Apple || !wanted || !fits {
                continue;
            }
            let mut entry = [0; 512];
            device.read_at(&mut entry, u64::from(info.number) * u64::from(table.sector_bytes))?;
            let mut bytes = vec![0; info.len_bytes as usize];
            device.read_at(&mut bytes, info.start_bytes)?;
            drivers.parts.push((entry, bytes));
        }
        if drivers.parts.is_empty() {
            return Err(Error::Invalid(format!(
                "{source} has no driver in an Apple partition map"
            )));
        }
        Ok(drivers)
    }
}

/// Opens the disk that drivers are copied from.
///
/// # Errors
/// Those of opening the disk; [`Error::Invalid`] if there are none on it.
fn open_disk(source: &str) -> Result<Arc<dyn BlockDevice>> {
    match crate::image::file_of(source) {
        Some(path) => Ok(Arc::new(FileDevice::open(&path, OpenMode::PEEK)?)),
        None => Ok(crate::source::open_source(source, OpenMode::READ_ONLY)?),
    }
}

/// The range of the device that the volume takes.
pub(super) struct Map {
    pub start_bytes: u64,
    pub len_bytes: u64,
}

fn put16(raw: &mut [u8], at: usize, value: u16) {
    raw[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn put32(raw: &mut [u8], at: usize, value: u32) {
    raw[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

fn get32(raw: &[u8], at: usize) -> u32 {
    raw.get(at..at + 4).map_or(0, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]))
}

fn get16(raw: &[u8], at: usize) -> u16 {
    raw.get(at..at + 2).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]))
}

fn entry(name: &str, kind: &str, start: u32, count: u32, status: u32) -> [u8; 512] {
    let mut raw = [0; 512];
    raw[..2].copy_from_slice(b"PM");
    put32(&mut raw, 8, start);
    put32(&mut raw, 12, count);
    raw[16..16 + name.len()].copy_from_slice(name.as_bytes());
    raw[48..48 + kind.len()].copy_from_slice(kind.as_bytes());
    // The data area is the whole partition.
    put32(&mut raw, 84, count);
    put32(&mut raw, 88, status);
    raw
}

/// Writes the map of a disk of `len_bytes` with drivers, if there are any, and one HFS partition.
pub(super) fn write(
    image: &str,
    device: &dyn BlockDevice,
    len_bytes: u64,
    drivers: Option<&Drivers>,
) -> Result<Map> {
    let too = |what: &str| {
        Error::Invalid(format!("{image}: {len_bytes} bytes are too {what} for a partition map"))
    };
    let blocks = u32::try_from(len_bytes / BLOCK_BYTES).map_err(|_| too("many"))?;
    let mut entries = vec![entry("Apple", "Apple_partition_map", 1, MAP_BLOCKS, STATUS)];
    let mut record = [0; 512];
    let mut at = 1 + MAP_BLOCKS;
    // The old and the new start of each driver, in blocks.
    let mut moved = Vec::new();
    for (old, bytes) in drivers.map_or(&[][..], |d| &d.parts) {
        let count = (bytes.len() as u64 / BLOCK_BYTES) as u32;
        let mut new = *old;
        moved.push((get32(old, 8), at));
        put32(&mut new, 8, at);
        put32(&mut new, 12, count);
        entries.push(new);
        if u64::from(at) * BLOCK_BYTES + bytes.len() as u64 > len_bytes {
            return Err(too("few"));
        }
        device.write_at(bytes, u64::from(at) * BLOCK_BYTES)?;
        at = at.checked_add(count).ok_or_else(|| too("few"))?;
    }
    let count = blocks.checked_sub(at).filter(|&n| n > 0).ok_or_else(|| too("few"))?;
    entries.push(entry("MacOS", "Apple_HFS", at, count, STATUS_VOLUME));

    record[..2].copy_from_slice(b"ER");
    put16(&mut record, 2, BLOCK_BYTES as u16);
    put32(&mut record, 4, blocks);
    if let Some(drivers) = drivers {
        descriptors(&mut record, &drivers.record, &moved);
    }
    // Marks of another format here would be recognised.
    let zeroed = (u64::from(1 + MAP_BLOCKS) * BLOCK_BYTES).min(len_bytes);
    device.write_zeroes(0, zeroed)?;
    let total = entries.len() as u32;
    for (number, raw) in (1_u64..).zip(&mut entries) {
        put32(raw, 4, total);
        device.write_at(raw, number * BLOCK_BYTES)?;
    }
    device.write_at(&record, 0)?;
    Ok(Map { start_bytes: u64::from(at) * BLOCK_BYTES, len_bytes: u64::from(count) * BLOCK_BYTES })
}

/// Copies the descriptors of drivers that have moved: `ddBlock`, `ddSize`, `ddType`, 8 bytes each
/// from 18 on, `sbDrvrCount` at 16; and the record's description of the device at 8.
fn descriptors(record: &mut [u8; 512], old: &[u8], moved: &[(u32, u32)]) {
    record[8..16].copy_from_slice(old.get(8..16).unwrap_or(&[0; 8]));
    let mut count = 0;
    for n in 0..usize::from(get16(old, 16)).min(DRIVERS_MAX) {
        let (block, at) = (get32(old, 18 + 8 * n), 18 + 8 * usize::from(count));
        if let Some((_, new)) = moved.iter().find(|(before, _)| *before == block) {
            put32(record, at, *new);
            put16(record, at + 4, get16(old, 18 + 8 * n + 4));
            put16(record, at + 6, get16(old, 18 + 8 * n + 6));
            count += 1;
        }
    }
    put16(record, 16, count);
}
