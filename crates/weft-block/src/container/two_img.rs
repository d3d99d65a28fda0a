//! 2IMG, of emulators of the Apple II: a header, then the blocks of the disk in the order of ProDOS,
//! which is that of the Macintosh too.
//!
//! Source: "The Universal Format for Disk Images", Apple II File Type Note $E0/0130. All numbers are
//! little-endian. Images in the order of DOS 3.3, or of nibbles, are of floppies that hold no
//! Macintosh volume.

use crate::{BlockDevice, Result};
use std::sync::Arc;

const HEADER_BYTES: u64 = 64;
/// The format of images in the order of ProDOS.
const PRODOS_ORDER: u32 = 1;

/// Returns the place and the length of the blocks, if a device is such an image.
pub(super) fn recognise(device: &Arc<dyn BlockDevice>) -> Result<Option<(u64, u64)>> {
    let len_bytes = device.geometry().len_bytes;
    let mut head = [0; HEADER_BYTES as usize];
    if len_bytes < HEADER_BYTES {
        return Ok(None);
    }
    device.read_at(&mut head, 0)?;
    let number = |at: usize| {
        head[at..at + 4].iter().rev().fold(0_u32, |number, byte| number << 8 | u32::from(*byte))
    };
    if !head.starts_with(b"2IMG") || number(12) != PRODOS_ORDER {
        return Ok(None);
    }
    let at = u64::from(number(24));
    // Some writers leave the length out, and state the blocks.
    let len = match u64::from(number(28)) {
        0 => u64::from(number(20)) * 512,
        len => len,
    };
    let fits = at >= HEADER_BYTES && len > 0 && len.is_multiple_of(512) && at + len <= len_bytes;
    Ok(fits.then_some((at, len)))
}
