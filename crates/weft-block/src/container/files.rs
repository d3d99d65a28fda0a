//! Files around an image that keep its two forks together: MacBinary, AppleSingle; and AppleDouble,
//! which keeps the resource fork beside it. Only where the forks lie is of interest here.
//!
//! Sources: the MacBinary standards of 1985, 1987 and 1996; "AppleSingle/AppleDouble Formats",
//! Apple 1990.

use super::{Layer, be16, be32, read_range};
use crate::{BlockDevice, Error, Partition, Result};
use std::sync::Arc;

/// The forks in a file, each as offset and length in bytes.
pub(super) struct File {
    pub layer: Layer,
    pub data: (u64, u64),
    pub resource: (u64, u64),
    /// Whether the format was recognised by a signature or a checksum, not by likelihood.
    pub certain: bool,
}

/// The file that a device is, if it is a MacBinary.
pub(super) fn macbinary(device: &dyn BlockDevice) -> Result<Option<File>> {
    let file_bytes = device.geometry().len_bytes;
    let mut head = [0; 128];
    if file_bytes < 128 {
        return Ok(None);
    }
    device.read_at(&mut head, 0)?;
    if head[0] != 0 || head[74] != 0 || !(1..=63).contains(&head[1]) {
        return Ok(None);
    }
    let certain = crc(&head[..124]) == be16(&head, 124);
    let version = match certain {
        true if head[102..106] == *b"mBIN" => 3,
        true => 2,
        false if head[82] == 0 && head[99..126].iter().all(|&b| b == 0) => 1,
        false => return Ok(None),
    };
    let secondary = if certain { be16(&head, 120) } else { 0 };
    let (data, resource) = (u64::from(be32(&head, 83)), u64::from(be32(&head, 87)));
    let data_at = 128 + u64::from(secondary).next_multiple_of(128);
    let resource_at = data_at + data.next_multiple_of(128);
    let end = if resource > 0 { resource_at + resource } else { data_at + data };
    // What is no image, or not a whole one, is left alone.
    if data < 512 || end > file_bytes {
        return Ok(None);
    }
    Ok(Some(File {
        layer: Layer::MacBinary { version },
        data: (data_at, data),
        resource: (resource_at, resource),
        certain,
    }))
}

/// The file that a device is, if it is an AppleSingle.
pub(super) fn apple_single(device: &dyn BlockDevice) -> Result<Option<File>> {
    match entries(device, 0x0005_1600)? {
        Some((Some(data), resource)) => Ok(Some(File {
            layer: Layer::AppleSingle,
            data,
            resource: resource.unwrap_or_default(),
            certain: true,
        })),
        _ => Ok(None),
    }
}

/// The resource fork in a file of its own: an AppleDouble's, or all of it.
pub(super) fn resource_of(file: Arc<dyn BlockDevice>) -> Result<Arc<dyn BlockDevice>> {
    Ok(match entries(&file, 0x0005_1607)? {
        Some((_, resource)) => {
            let (at, len) = resource.unwrap_or_default();
            Arc::new(Partition::window(file, at, len))
        }
        None => file,
    })
}

type Range = Option<(u64, u64)>;

/// The ranges of the data and the resource fork, if the signature is there.
fn entries(device: &dyn BlockDevice, magic: u32) -> Result<Option<(Range, Range)>> {
    let file_bytes = device.geometry().len_bytes;
    let mut head = [0; 26];
    if file_bytes < 26 {
        return Ok(None);
    }
    device.read_at(&mut head, 0)?;
    if be32(&head, 0) != magic {
        return Ok(None);
    }
    let count = u64::from(be16(&head, 24));
    let table = read_range(device, "AppleSingle entries", (26, count * 12), 256 * 12)?;
    let mut forks = [None, None];
    for entry in table.chunks_exact(12) {
        let (id, at, len) = (be32(entry, 0), u64::from(be32(entry, 4)), u64::from(be32(entry, 8)));
        if at + len > file_bytes {
            return Err(Error::Corrupt {
                structure: "AppleSingle entry",
                offset: at,
                problem: format!("entry {id} of {len} bytes reaches past the end of the file"),
            });
        }
        if matches!(id, 1 | 2) && len > 0 {
            forks[id as usize - 1] = Some((at, len));
        }
    }
    Ok(Some((forks[0], forks[1])))
}

/// MacBinary's CRC: of the CCITT polynomial, most significant bit first, from 0.
fn crc(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| {
            if crc & 0x8000 != 0 { (crc << 1) ^ 0x1021 } else { crc << 1 }
        })
    })
}
