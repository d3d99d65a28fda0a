//! The primary superblock, read and changed in place on the device, where no volume is mounted on
//! it.

use crate::layout::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use crate::{Error, Result};
use weft_block::BlockDevice;

/// Reads and checks a device's superblock.
///
/// # Errors
/// [`Error::NotExt2`], [`Error::Corrupt`], [`Error::Incompatible`], [`Error::Device`].
pub(crate) fn read(device: &dyn BlockDevice) -> Result<Superblock> {
    let mut raw = [0; SUPERBLOCK_BYTES];
    if device.geometry().len_bytes < SUPERBLOCK_OFFSET + SUPERBLOCK_BYTES as u64 {
        return Err(Error::NotExt2 { found: 0 });
    }
    device.read_at(&mut raw, SUPERBLOCK_OFFSET)?;
    let sb = Superblock::parse(&raw)?;
    sb.check_features()?;
    Ok(sb)
}

/// Reads the superblock, changes its fields or its bytes, and writes it.
///
/// # Errors
/// [`Error::NotExt2`], [`Error::Corrupt`], [`Error::Device`].
pub(crate) fn update(
    device: &dyn BlockDevice,
    change: impl FnOnce(&mut Superblock, &mut [u8]),
) -> Result<()> {
    let mut raw = [0; SUPERBLOCK_BYTES];
    device.read_at(&mut raw, SUPERBLOCK_OFFSET)?;
    let mut sb = Superblock::parse(&raw)?;
    change(&mut sb, &mut raw);
    sb.encode_into(&mut raw);
    Ok(device.write_at(&raw, SUPERBLOCK_OFFSET)?)
}
