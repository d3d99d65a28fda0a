//! Finding a volume on a device.

use super::layout;
use weft_block::BlockDevice;

/// The location of an HFS Plus volume on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The offset of its first byte.
    pub start_bytes: u64,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// The volume is embedded in an HFS volume.
    pub wrapped: bool,
}

/// Finds an HFS Plus volume: on its own, or embedded in an HFS volume (`drEmbedSigWord`).
///
/// # Errors
/// Those of reading the device.
pub fn find(device: &dyn BlockDevice) -> Result<Option<Place>, weft_block::Error> {
    let device_bytes = device.geometry().len_bytes;
    let mut header = [0; 512];
    if device_bytes < 1536 {
        return Ok(None);
    }
    device.read_at(&mut header, 1024)?;
    if matches!(&header[..2], b"H+" | b"HX") {
        return Ok(Some(Place { start_bytes: 0, len_bytes: device_bytes, wrapped: false }));
    }
    if header[..2] != *b"BD" || !matches!(&header[0x7c..0x7e], b"H+" | b"HX") {
        return Ok(None);
    }
    let unit = u64::from(layout::be32(&header, 0x14));
    let first = u64::from(layout::be16(&header, 0x1c)) * 512;
    let [start, count] = [0x7e, 0x80].map(|at| u64::from(layout::be16(&header, at)));
    let place = Place { start_bytes: first + start * unit, len_bytes: count * unit, wrapped: true };
    let inside = place.start_bytes + place.len_bytes <= device_bytes && place.len_bytes >= 1536;
    Ok(inside.then_some(place))
}
