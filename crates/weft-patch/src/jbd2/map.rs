//! The location of the log: translates log block numbers to byte offsets on a device.

use super::{Error, Result, Superblock, superblock};
use std::fmt;
use std::io::IoSlice;
use std::sync::Arc;
use weft_block::BlockDevice;

/// Maximum number of blocks in one request to the device.
const REQUEST_BLOCKS: usize = 256;

/// A run of log blocks that are adjacent on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    log_block: u32,
    len_blocks: u32,
    device_block: u64,
}

/// A log's location on a device. It is fixed: a log never moves or grows.
#[derive(Clone)]
pub struct LogMap<D = Arc<dyn BlockDevice>> {
    device: D,
    block_bytes: u32,
    len_blocks: u32,
    superblock_at: u32,
    runs: Vec<Run>,
}

impl<D> fmt::Debug for LogMap<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogMap")
            .field("block_bytes", &self.block_bytes)
            .field("len_blocks", &self.len_blocks)
            .field("superblock_at", &self.superblock_at)
            .field("runs", &self.runs.len())
            .finish_non_exhaustive()
    }
}

impl LogMap {
    /// As [`from_blocks_on`](Self::from_blocks_on), on a shared device.
    ///
    /// # Errors
    /// The same.
    pub fn from_blocks(
        device: Arc<dyn BlockDevice>,
        block_bytes: u32,
        blocks: &[u64],
    ) -> Result<Self> {
        Self::from_blocks_on(device, block_bytes, blocks)
    }

    /// As [`external_on`](Self::external_on), on a shared device.
    ///
    /// # Errors
    /// The same.
    pub fn external(device: Arc<dyn BlockDevice>) -> Result<(Self, [u8; 16])> {
        Self::external_on(device)
    }

    /// As [`sidecar_on`](Self::sidecar_on), on a shared device.
    ///
    /// # Errors
    /// The same.
    pub fn sidecar(device: Arc<dyn BlockDevice>) -> Result<Self> {
        Self::sidecar_on(device)
    }
}

impl<D: BlockDevice> LogMap<D> {
    /// Creates the map of a log inside a volume: log block `i` is the volume's block `blocks[i]`,
    /// of `block_bytes`.
    ///
    /// # Errors
    /// [`Error::BadSuperblock`] if a block is outside the device or the list is too short or too
    /// long.
    pub fn from_blocks_on(device: D, block_bytes: u32, blocks: &[u64]) -> Result<Self> {
        check_block_bytes(block_bytes)?;
        let device_blocks = device.geometry().len_bytes / u64::from(block_bytes);
        let mut runs: Vec<Run> = Vec::new();
        let Ok(len_blocks) = u32::try_from(blocks.len()) else {
            return Err(Error::BadSuperblock(format!("log of {} blocks", blocks.len())));
        };
        for (log_block, &device_block) in (0_u32..).zip(blocks) {
            if device_block == 0 || device_block >= device_blocks {
                return Err(Error::BadSuperblock(format!(
                    "log block {log_block} lies at block {device_block}, outside the volume of \
                     {device_blocks} blocks"
                )));
            }
            match runs.last_mut() {
                Some(run) if run.device_block + u64::from(run.len_blocks) == device_block => {
                    run.len_blocks += 1;
                }
                _ => runs.push(Run { log_block, len_blocks: 1, device_block }),
            }
        }
        Self::new(device, block_bytes, len_blocks, 0, runs)
    }

    /// Creates the map of an external journal: a device of its own that starts like an ext2 volume,
    /// with the feature `journal_dev`, and has the journal's superblock in the block after that.
    /// Also returns the device's uuid, by which volumes refer to it.
    ///
    /// # Errors
    /// [`Error::BadSuperblock`] if the device is no external journal; device errors.
    pub fn external_on(device: D) -> Result<(Self, [u8; 16])> {
        const JOURNAL_DEV: u32 = 8;
        let bad = |text: &str| Err(Error::BadSuperblock(text.into()));
        if device.geometry().len_bytes < 4096 {
            return bad("the external journal device is too small");
        }
        let mut raw = [0_u8; 1024];
        device.read_at(&mut raw, 1024)?;
        let le32 = |at: usize| {
            raw.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
        };
        if raw[0x38..0x3a] != [0x53, 0xef] || le32(0x60) & JOURNAL_DEV == 0 {
            return bad("the device is not an external journal");
        }
        let log_block_bytes = le32(0x18);
        if log_block_bytes > 6 {
            return bad("the external journal's block size is absurd");
        }
        let block_bytes = 1024_u32 << log_block_bytes;
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&raw[0x68..0x78]);
        let device_blocks = device.geometry().len_bytes / u64::from(block_bytes);
        let len_blocks = u32::try_from(device_blocks).unwrap_or(u32::MAX).min(le32(0x04));
        let superblock_at = if block_bytes == 1024 { 2 } else { 1 };
        let run = Run { log_block: 0, len_blocks, device_block: 0 };
        Ok((Self::new(device, block_bytes, len_blocks, superblock_at, vec![run])?, uuid))
    }

    /// Creates the map of a plain file or device that contains only a log, its superblock first.
    ///
    /// # Errors
    /// As [`Superblock::parse`]; device errors.
    pub fn sidecar_on(device: D) -> Result<Self> {
        let len_bytes = device.geometry().len_bytes;
        let mut raw = [0_u8; superblock::SUPERBLOCK_BYTES];
        if len_bytes < raw.len() as u64 {
            return Err(Error::BadSuperblock("the file is too short for a journal".into()));
        }
        device.read_at(&mut raw, 0)?;
        let superblock = Superblock::parse(&raw)?;
        let blocks = len_bytes / u64::from(superblock.block_bytes);
        let len_blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        let run = Run { log_block: 0, len_blocks, device_block: 0 };
        Self::new(device, superblock.block_bytes, len_blocks, 0, vec![run])
    }

    fn new(
        device: D,
        block_bytes: u32,
        len_blocks: u32,
        superblock_at: u32,
        runs: Vec<Run>,
    ) -> Result<Self> {
        check_block_bytes(block_bytes)?;
        if len_blocks <= superblock_at + 1 {
            return Err(Error::BadSuperblock(format!("a log of {len_blocks} blocks")));
        }
        Ok(Self { device, block_bytes, len_blocks, superblock_at, runs })
    }

    /// Returns the device of the log.
    #[must_use]
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Returns the size of a log block, in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Returns the length of the log in blocks.
    #[must_use]
    pub fn len_blocks(&self) -> u32 {
        self.len_blocks
    }

    /// Returns the log block that holds the superblock.
    #[must_use]
    pub fn superblock_at(&self) -> u32 {
        self.superblock_at
    }

    /// Returns the byte offset of a log block on the device, and the number of adjacent blocks from
    /// it on.
    ///
    /// # Errors
    /// [`Error::OutsideLog`].
    pub fn locate(&self, log_block: u32) -> Result<(u64, u32)> {
        let outside = Error::OutsideLog { block: log_block, len_blocks: self.len_blocks };
        if log_block >= self.len_blocks {
            return Err(outside);
        }
        let after = self.runs.partition_point(|run| run.log_block <= log_block);
        let Some(run) = after.checked_sub(1).and_then(|i| self.runs.get(i)) else {
            return Err(outside);
        };
        let into = log_block - run.log_block;
        let left = run.len_blocks.saturating_sub(into);
        if left == 0 {
            return Err(outside);
        }
        Ok(((run.device_block + u64::from(into)) * u64::from(self.block_bytes), left))
    }

    /// Reads the log block into `buf`, one block long or shorter.
    ///
    /// # Errors
    /// [`Error::OutsideLog`] and device errors.
    pub fn read(&self, log_block: u32, buf: &mut [u8]) -> Result<()> {
        debug_assert!(buf.len() <= self.block_bytes as usize);
        let (offset, _) = self.locate(log_block)?;
        Ok(self.device.read_at(buf, offset)?)
    }

    /// Writes whole blocks to consecutive log blocks from `log_block` on (without wrapping), in as
    /// few requests as the log's location allows.
    ///
    /// # Errors
    /// [`Error::OutsideLog`] and device errors; some of the blocks may have been written.
    pub fn write(&self, log_block: u32, blocks: &[impl AsRef<[u8]>]) -> Result<()> {
        let mut at = log_block;
        let mut rest = blocks;
        while !rest.is_empty() {
            let (offset, run) = self.locate(at)?;
            let count = rest.len().min(run as usize).min(REQUEST_BLOCKS);
            let (now, later) = rest.split_at(count);
            match now {
                [one] => self.device.write_at(one.as_ref(), offset)?,
                many => {
                    let parts: Vec<IoSlice<'_>> =
                        many.iter().map(|block| IoSlice::new(block.as_ref())).collect();
                    self.device.write_vectored_at(&parts, offset)?;
                }
            }
            at += u32::try_from(count).unwrap_or(u32::MAX);
            rest = later;
        }
        Ok(())
    }
}

fn check_block_bytes(block_bytes: u32) -> Result<()> {
    if (1024..=65536).contains(&block_bytes) && block_bytes.is_power_of_two() {
        return Ok(());
    }
    Err(Error::BadSuperblock(format!("block size {block_bytes} bytes")))
}
