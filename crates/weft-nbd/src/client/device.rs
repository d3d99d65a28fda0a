//! The device: requests of any offset and length, split into requests that the server accepts.
//!
//! If the server accepts whole blocks only, a write that begins or ends within one reads it first.
//! Other writes are excluded meanwhile, as such a write would overwrite another thread's data in
//! the rest of the block.

use super::Options;
use super::handshake::Facts;
use super::link::Ask;
use super::lock::HostLock;
use super::pool::{Generation, Interrupted, Pool};
use super::unflushed::Content;
use crate::wire::{Command, CommandFlags, StateFlags, TransmissionFlags};
use crate::{Error, Result};
use std::io::IoSlice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use weft_block::{BlockDevice, Extent, ExtentKind, Geometry, check_range};

/// The operations of a device since it was opened.
#[derive(Debug, Default)]
pub struct Counters {
    /// Reads of this device.
    pub reads: AtomicU64,
    /// Writes of this device.
    pub writes: AtomicU64,
    /// Flushes of this device, including those that had nothing to do.
    pub flushes: AtomicU64,
}

/// An export of an NBD server. Any number of threads may use it at once.
///
/// # When the connection breaks
///
/// Requests wait until the server is back, for up to [`Options::reconnect_limit`], and are then
/// sent again. Writes that were acknowledged and not yet flushed are kept in memory (up to
/// [`Options::unflushed_max_bytes`]; past that the device flushes by itself) and are written again
/// first: so the guarantee of a successful flush holds even if the server crashed and lost its
/// memory between a write and that flush. A failed flush names the range in which writes may be
/// lost; these are repeated before the next flush. A server whose export has another size, name,
/// description or features than before is refused permanently, and never written to. NBD has no
/// other identifier of an export: a disk with other contents of the same size and description is
/// taken for the same one, and receives the unflushed writes.
pub struct NbdDevice {
    pool: Pool,
    read_only: bool,
    /// Held shared by writes of whole blocks, exclusively by operations that exclude other writes.
    writers: RwLock<()>,
    counters: Counters,
    _lock: Option<HostLock>,
}

impl std::fmt::Debug for NbdDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NbdDevice").field("facts", self.pool.facts()).finish_non_exhaustive()
    }
}

impl Drop for NbdDevice {
    fn drop(&mut self) {
        self.pool.disconnect();
    }
}

impl NbdDevice {
    /// Connects to the server.
    ///
    /// # Errors
    /// [`Error::Net`] if no server answers, [`Error::InUse`] if the export is locked,
    /// [`Error::Refused`] if the server has no such export, [`Error::Invalid`] if it is to be
    /// written and is read-only.
    pub fn connect(options: Options) -> Result<Self> {
        let wants = options.read_only;
        let lock = match &options.lock {
            Some(part) if !wants => Some(HostLock::take(&options.address, &options.export, part)?),
            _ => None,
        };
        let pool = Pool::connect(options)?;
        let read_only = pool.facts().flags.contains(TransmissionFlags::READ_ONLY);
        if read_only && !wants {
            return Err(Error::Invalid("the server exports it for reading only".into()));
        }
        let (writers, counters) = (RwLock::new(()), Counters::default());
        Ok(Self { pool, read_only: wants, writers, counters, _lock: lock })
    }

    /// Returns the server's description of the export.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        self.pool.facts()
    }

    /// Returns the counters of the device.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the bytes of memory that hold acknowledged writes that are not durable: at most
    /// [`Options::unflushed_max_bytes`], or one write that is larger than that.
    #[must_use]
    pub fn unflushed_bytes(&self) -> u64 {
        self.pool.unflushed_bytes()
    }

    /// Returns the number of reconnections to the server.
    #[must_use]
    pub fn reconnections(&self) -> u64 {
        self.pool.reconnections.load(Ordering::Relaxed)
    }

    fn can(&self, flag: TransmissionFlags) -> bool {
        self.facts().flags.contains(flag)
    }

    fn min_bytes(&self) -> u64 {
        self.facts().sizes.min.into()
    }

    fn check(&self, op: &'static str, offset: u64, len_bytes: u64) -> weft_block::Result<()> {
        check_range(op, offset, len_bytes, self.facts().len_bytes)
    }

    fn check_change(&self, op: &'static str, offset: u64, len: u64) -> weft_block::Result<()> {
        if self.read_only {
            return Err(weft_block::Error::ReadOnly);
        }
        self.check(op, offset, len)
    }

    fn is_aligned(&self, offset: u64, len_bytes: u64) -> bool {
        let min = self.min_bytes();
        offset.is_multiple_of(min) && len_bytes.is_multiple_of(min)
    }

    /// Returns the offset and the length of each request for a range of whole blocks.
    fn pieces(&self, offset: u64, len_bytes: u64, max: u64) -> impl Iterator<Item = (u64, u64)> {
        (0..len_bytes.div_ceil(max)).map(move |nr| {
            let done = nr * max;
            (offset + done, (len_bytes - done).min(max))
        })
    }

    /// Reads whole blocks.
    fn read_blocks(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let max = u64::from(self.pool.piece_bytes());
        let len_bytes = buf.len() as u64;
        self.pool.call(|generation| {
            let asks = self.pieces(offset, len_bytes, max).map(|(offset, len_bytes)| {
                let (command, flags) = (Command::READ, CommandFlags::empty());
                (Ask { command, flags, offset, len_bytes }, &[][..])
            });
            self.pool.run(&generation.links, asks, |ask, reply| {
                // The reply has as many bytes as its request, which lie within the buffer.
                let at = (ask.offset - offset) as usize;
                buf[at..at + reply.data.len()].copy_from_slice(&reply.data);
                Ok(())
            })
        })?;
        Ok(())
    }

    /// Writes whole blocks. The caller holds `writers`.
    fn write_blocks(&self, data: &Arc<[u8]>, offset: u64) -> Result<()> {
        let max = u64::from(self.pool.piece_bytes());
        loop {
            let (_, generation) = self.pool.call(|generation| {
                let asks = self.pieces(offset, data.len() as u64, max).map(|(at, len_bytes)| {
                    let from = (at - offset) as usize;
                    let payload = &data[from..from + len_bytes as usize];
                    let (command, flags) = (Command::WRITE, self.write_flags());
                    (Ask { command, flags, offset: at, len_bytes }, payload)
                });
                self.pool.run(&generation.links, asks, |_, _| Ok(()))
            })?;
            let keep = self.pool.keeps_unflushed();
            let content = Content::Data(Arc::clone(data));
            if self.pool.commit(generation, |log| {
                if keep {
                    log.add(offset, content);
                }
            }) {
                return Ok(());
            }
        }
    }

    /// Returns the flags of a write: durable at once if the server can do that and cannot flush.
    fn write_flags(&self) -> CommandFlags {
        let durable_at_once =
            !self.can(TransmissionFlags::SEND_FLUSH) && self.can(TransmissionFlags::SEND_FUA);
        if durable_at_once { CommandFlags::FUA } else { CommandFlags::empty() }
    }

    /// Writes any range. `data` covers it exactly.
    fn write(&self, data: &[u8], offset: u64) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        if self.is_aligned(offset, data.len() as u64) {
            let _room = self.pool.reserve(data.len() as u64, &self.writers)?;
            let _writing = self.writers.read().unwrap_or_else(PoisonError::into_inner);
            return self.write_blocks(&data.into(), offset);
        }
        let min = self.min_bytes();
        let start = offset - offset % min;
        let end = (offset + data.len() as u64).next_multiple_of(min);
        let _room = self.pool.reserve(end - start, &self.writers)?;
        let _alone = self.writers.write().unwrap_or_else(PoisonError::into_inner);
        let mut blocks = vec![0; (end - start) as usize];
        // Only the first and the last block keep old bytes.
        let block = min as usize;
        let last = blocks.len() - block;
        self.read_blocks(&mut blocks[..block], start)?;
        if last > 0 {
            self.read_blocks(&mut blocks[last..], start + last as u64)?;
        }
        let at = (offset - start) as usize;
        blocks[at..at + data.len()].copy_from_slice(data);
        self.write_blocks(&blocks.into(), start)
    }

    /// Changes whole blocks by requests without a payload.
    fn change_blocks(&self, command: Command, offset: u64, len_bytes: u64, max: u64) -> Result<()> {
        loop {
            let (_, generation) = self.pool.call(|generation| {
                let flags = self.write_flags();
                let asks = self.pieces(offset, len_bytes, max).map(|(offset, len_bytes)| {
                    (Ask { command, flags, offset, len_bytes }, &[][..])
                });
                self.pool.run(&generation.links, asks, |_, _| Ok(()))
            })?;
            let keep = self.pool.keeps_unflushed();
            let noted = self.pool.commit(generation, |log| match command {
                Command::WRITE_ZEROES if keep => log.add(offset, Content::Zeroes(len_bytes)),
                _ => log.touch(),
            });
            if noted {
                return Ok(());
            }
        }
    }

    /// Returns the whole blocks within a range; empty if there are none.
    fn inner_blocks(&self, offset: u64, len_bytes: u64) -> std::ops::Range<u64> {
        let min = self.min_bytes();
        let end = offset + len_bytes;
        let start = offset.next_multiple_of(min);
        start..(end - end % min).max(start)
    }

    fn zero(&self, offset: u64, len_bytes: u64) -> Result<()> {
        let inner = self.inner_blocks(offset, len_bytes);
        let end = offset + len_bytes;
        if inner.is_empty() {
            return self.write(&vec![0; len_bytes as usize], offset);
        }
        // The remainder at each side is shorter than a block.
        self.write(&vec![0; (inner.start - offset) as usize], offset)?;
        self.write(&vec![0; (end - inner.end) as usize], inner.end)?;
        let _room = self.pool.reserve(0, &self.writers)?;
        let _writing = self.writers.read().unwrap_or_else(PoisonError::into_inner);
        let (len, max) = (inner.end - inner.start, self.pool.zeroes_bytes());
        self.change_blocks(Command::WRITE_ZEROES, inner.start, len, max)
    }

    fn status(&self, offset: u64, len_bytes: u64) -> Result<Extent> {
        let min = self.min_bytes();
        let start = offset - offset % min;
        let end = (offset + len_bytes).next_multiple_of(min);
        let len_bytes_asked = (end - start).min(self.pool.effect_bytes());
        let mut extent = None;
        self.pool.call(|generation: &Generation| -> Result<(), Interrupted> {
            let (command, flags) = (Command::BLOCK_STATUS, CommandFlags::REQ_ONE);
            let ask = Ask { command, flags, offset: start, len_bytes: len_bytes_asked };
            self.pool.run(&generation.links, [(ask, &[][..])], |_, reply| {
                extent = reply.extents.first().copied();
                Ok(())
            })
        })?;
        let Some(found) = extent else {
            return Err(Error::protocol("a block status without extents"));
        };
        let flags = StateFlags::from_bits_retain(found.flags);
        let kind = match flags.contains(StateFlags::ZERO) {
            false => ExtentKind::Data,
            true if flags.contains(StateFlags::HOLE) => ExtentKind::Hole,
            true => ExtentKind::Zero,
        };
        let until = start.saturating_add(found.len_bytes).min(offset + len_bytes);
        if until <= offset {
            return Err(Error::protocol("an extent shorter than a block"));
        }
        Ok(Extent { len_bytes: until - offset, kind })
    }
}

/// Converts to an error of the block plug.
fn failed(
    op: &'static str,
    offset: u64,
    len_bytes: u64,
) -> impl FnOnce(Error) -> weft_block::Error {
    move |e| weft_block::Error::io(op, offset, len_bytes, e.into_io())
}

impl BlockDevice for NbdDevice {
    fn geometry(&self) -> Geometry {
        let facts = self.facts();
        let logical_block_bytes = facts.sizes.min.max(512);
        Geometry {
            len_bytes: facts.len_bytes,
            logical_block_bytes,
            physical_block_bytes: facts.sizes.preferred.max(logical_block_bytes),
            read_only: self.read_only,
        }
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> weft_block::Result<()> {
        let len_bytes = buf.len() as u64;
        self.check("read", offset, len_bytes)?;
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        if buf.is_empty() {
            return Ok(());
        }
        if self.is_aligned(offset, len_bytes) {
            return self.read_blocks(buf, offset).map_err(failed("read", offset, len_bytes));
        }
        let min = self.min_bytes();
        let start = offset - offset % min;
        let end = (offset + len_bytes).next_multiple_of(min);
        let mut blocks = vec![0; (end - start) as usize];
        self.read_blocks(&mut blocks, start).map_err(failed("read", offset, len_bytes))?;
        let at = (offset - start) as usize;
        buf.copy_from_slice(&blocks[at..at + buf.len()]);
        Ok(())
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> weft_block::Result<()> {
        let len_bytes = buf.len() as u64;
        self.check_change("write", offset, len_bytes)?;
        self.counters.writes.fetch_add(1, Ordering::Relaxed);
        self.write(buf, offset).map_err(failed("write", offset, len_bytes))
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> weft_block::Result<()> {
        let whole: Vec<u8> = bufs.iter().flat_map(|b| b.iter().copied()).collect();
        self.write_at(&whole, offset)
    }

    fn flush(&self) -> weft_block::Result<()> {
        self.counters.flushes.fetch_add(1, Ordering::Relaxed);
        if self.read_only {
            return Ok(());
        }
        self.pool.flush(&self.writers).map_err(|e| {
            // Names the range that may be lost, for the caller that wrote to it.
            let range = self.pool.unflushed_range().unwrap_or(0..self.facts().len_bytes);
            failed("flush", range.start, range.end - range.start)(e)
        })
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> weft_block::Result<()> {
        self.check_change("discard", offset, len_bytes)?;
        let inner = self.inner_blocks(offset, len_bytes);
        if inner.is_empty() || !self.can(TransmissionFlags::SEND_TRIM) {
            return Ok(());
        }
        let _writing = self.writers.read().unwrap_or_else(PoisonError::into_inner);
        let len = inner.end - inner.start;
        self.change_blocks(Command::TRIM, inner.start, len, self.pool.effect_bytes())
            .map_err(failed("discard", offset, len_bytes))
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> weft_block::Result<()> {
        self.check_change("write zeroes", offset, len_bytes)?;
        if len_bytes == 0 {
            return Ok(());
        }
        if self.can(TransmissionFlags::SEND_WRITE_ZEROES) {
            return self.zero(offset, len_bytes).map_err(failed("write zeroes", offset, len_bytes));
        }
        let zeroes = vec![0; len_bytes.min(1 << 20) as usize];
        for (at, len) in self.pieces(offset, len_bytes, 1 << 20) {
            self.write_at(&zeroes[..len as usize], at)?;
        }
        Ok(())
    }

    fn extent_at(&self, offset: u64, len_bytes: u64) -> weft_block::Result<Extent> {
        self.check("look", offset, len_bytes)?;
        if self.facts().base_allocation.is_none() || len_bytes == 0 {
            return Ok(Extent { len_bytes, kind: ExtentKind::Data });
        }
        self.status(offset, len_bytes).map_err(failed("look", offset, len_bytes))
    }

    fn zeroes_are_fast(&self) -> bool {
        self.can(TransmissionFlags::SEND_WRITE_ZEROES)
    }
}
