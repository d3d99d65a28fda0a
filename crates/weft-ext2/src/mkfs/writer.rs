//! The device of a volume being made, by blocks.

use crate::Result;
use crate::layout::{Geometry, Inode, WANT_EXTRA_BYTES};
use weft_block::BlockDevice;
use weft_vfs::Time;

/// Writes blocks of a volume being made.
pub(super) struct Writer<'a> {
    device: &'a dyn BlockDevice,
    block_bytes: u64,
    time: u32,
    extra_bytes: u16,
}

impl<'a> Writer<'a> {
    pub(super) fn new(device: &'a dyn BlockDevice, geometry: &Geometry, time: u32) -> Self {
        let extra_bytes = if geometry.inode_bytes > 128 { WANT_EXTRA_BYTES } else { 0 };
        let block_bytes = u64::from(geometry.block_bytes);
        Self { device, block_bytes, time, extra_bytes }
    }

    /// Writes whole blocks from `first` on.
    pub(super) fn blocks(&self, first: u64, content: &[u8]) -> Result<()> {
        Ok(self.device.write_at(content, first * self.block_bytes)?)
    }

    /// Zeroes `blocks` blocks from `first` on.
    pub(super) fn zeroes(&self, first: u64, blocks: u64) -> Result<()> {
        if blocks == 0 {
            return Ok(());
        }
        Ok(self.device.write_zeroes(first * self.block_bytes, blocks * self.block_bytes)?)
    }

    /// An inode made now, of root's, with nothing in it.
    pub(super) fn new_inode(&self, mode: u16) -> Inode {
        let now = Time { secs: i64::from(self.time), nanos: 0 };
        Inode {
            mode,
            atime: now,
            ctime: now,
            mtime: now,
            btime: (self.extra_bytes >= 0x18).then_some(now),
            extra_bytes: self.extra_bytes,
            ..Inode::default()
        }
    }
}
