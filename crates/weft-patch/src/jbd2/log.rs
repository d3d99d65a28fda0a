//! An opened log: its superblock, and reads and writes around the ring.

use super::{Error, Format, LogMap, Result, Superblock, superblock};
use std::sync::Arc;
use weft_block::{BlockDevice, SECTOR_BYTES};

/// An opened log.
#[derive(Debug, Clone)]
pub struct Log<D = Arc<dyn BlockDevice>> {
    map: LogMap<D>,
    superblock: Superblock,
}

impl<D: BlockDevice> Log<D> {
    /// Reads and checks the superblock.
    ///
    /// # Errors
    /// [`Error::BadSuperblock`], [`Error::UnknownFeatures`], device errors.
    pub fn open(map: LogMap<D>) -> Result<Self> {
        let mut raw = [0_u8; superblock::SUPERBLOCK_BYTES];
        map.read(map.superblock_at(), &mut raw)?;
        let superblock = Superblock::parse(&raw)?;
        if superblock.block_bytes != map.block_bytes() {
            return Err(Error::BadSuperblock(format!(
                "block size {} bytes in a log of {}-byte blocks",
                superblock.block_bytes,
                map.block_bytes()
            )));
        }
        if superblock.len_blocks > map.len_blocks() {
            return Err(Error::BadSuperblock(format!(
                "length {} blocks, but there is room for {}",
                superblock.len_blocks,
                map.len_blocks()
            )));
        }
        if superblock.first <= map.superblock_at() {
            return Err(Error::BadSuperblock(format!(
                "first block {} before the end of the superblock",
                superblock.first
            )));
        }
        Ok(Self { map, superblock })
    }

    /// Returns the superblock as last read or written.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Returns the log's location.
    #[must_use]
    pub fn map(&self) -> &LogMap<D> {
        &self.map
    }

    /// Returns the format of its blocks.
    #[must_use]
    pub fn format(&self) -> Format {
        Format::from(&self.superblock)
    }

    /// Returns true if there may be transactions to replay.
    #[must_use]
    pub fn needs_recovery(&self) -> bool {
        self.superblock.start != 0
    }

    /// Writes whole blocks round the ring from `start` on; returns the log block after the last.
    ///
    /// # Errors
    /// [`Error::BadTransaction`] if they do not fit into the ring; device errors.
    pub fn write_ring(&self, start: u32, blocks: &[impl AsRef<[u8]>]) -> Result<u32> {
        let ring = self.superblock.ring_blocks();
        let count = u32::try_from(blocks.len()).unwrap_or(u32::MAX);
        if count > ring || !(self.superblock.first..self.superblock.len_blocks).contains(&start) {
            return Err(Error::BadTransaction(format!(
                "{count} blocks at log block {start} do not fit into a ring of {ring}"
            )));
        }
        let until_end = (self.superblock.len_blocks - start) as usize;
        let (before, after) = blocks.split_at(until_end.min(blocks.len()));
        self.map.write(start, before)?;
        self.map.write(self.superblock.first, after)?;
        Ok(self.superblock.advance(start, count))
    }

    /// Records that the live log starts at log block `start` with transaction `sequence`. One
    /// atomic sector write; durable after the next flush.
    ///
    /// # Errors
    /// [`Error::BadSuperblock`] for a start outside the ring; device errors.
    pub fn set_tail(&mut self, sequence: u32, start: u32) -> Result<()> {
        self.update(|superblock| {
            superblock.sequence = sequence;
            superblock.start = start;
        })
    }

    /// Empties the log: no transaction before `next_sequence` will be replayed. Call it only after
    /// all replayed or checkpointed blocks have been flushed; flushes the log's own device.
    ///
    /// # Errors
    /// Device errors.
    pub fn reset(&mut self, next_sequence: u32) -> Result<()> {
        self.set_tail(next_sequence, 0)?;
        Ok(self.map.device().flush()?)
    }

    /// Changes the superblock's fields and writes it. Only its first sector is written, so that it
    /// is never torn; it contains all fields but the users, which are not changed.
    ///
    /// # Errors
    /// [`Error::BadSuperblock`] for invalid fields; device errors.
    pub fn update(&mut self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        let mut raw = [0_u8; superblock::SUPERBLOCK_BYTES];
        self.map.read(self.map.superblock_at(), &mut raw)?;
        let mut next = self.superblock.clone();
        change(&mut next);
        next.users.clone_from(&self.superblock.users);
        next.encode(&mut raw)?;
        self.map.write(self.map.superblock_at(), &[&raw[..SECTOR_BYTES]])?;
        self.superblock = next;
        Ok(())
    }
}
