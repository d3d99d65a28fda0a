//! The transactions of a journal: running, being written, and in the log.

use crate::atomic::Hold;
use crate::jbd2::{self, Format, Log, LogMap, log_blocks_needed};
use crate::{BlockNr, Error, JournalMode, PatchId, Result};
use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use weft_block::BlockDevice;

/// Work that is needed before an operation may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogWork {
    /// The running transaction must be committed.
    Commit,
    /// Blocks of the log must be written in place.
    Checkpoint,
}

/// A transaction that is being filled, or written.
#[derive(Debug)]
pub(crate) struct Transaction {
    /// Number of the transaction since the engine was opened, from 1.
    pub number: u64,
    pub commit: u32,
    pub blocks: Vec<BlockNr>,
    /// File data that must be durable before the commit record.
    pub data: Vec<PatchId>,
    pub revokes: HashSet<BlockNr>,
    /// Blocks that are not needed once this is committed.
    pub freed: HashSet<BlockNr>,
    pub started_ms: u64,
}

impl Transaction {
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.revokes.is_empty()
    }
}

/// A transaction whose copies were taken, until its commit record is durable.
#[derive(Debug)]
pub(crate) struct Committing {
    pub transaction: Transaction,
    pub copies: Vec<(u64, Arc<[u8]>)>,
    /// Number of log blocks that it takes, its commit block included.
    pub len_blocks: u32,
}

/// A transaction in the log.
#[derive(Debug)]
pub(crate) struct Logged {
    pub sequence: u32,
    pub start: u32,
    pub len_blocks: u32,
    /// Number of blocks not yet durable in place.
    pub outstanding: usize,
}

/// The part of the journal's state under the engine's lock.
#[derive(Debug)]
pub(crate) struct Journal {
    pub mode: JournalMode,
    pub format: Format,
    pub ring_blocks: u32,
    /// Number of log blocks taken neither by a logged transaction nor by the one being written. The
    /// running transaction always fits, as far as its operations declared their size.
    pub free_blocks: u32,
    pub head: u32,
    pub next_sequence: u32,
    pub next_number: u64,
    pub running: Option<Transaction>,
    pub committing: Option<Committing>,
    pub logged: VecDeque<Logged>,
    /// For each block not yet durable in place, the transactions of the log that contain it.
    pub owed: HashMap<BlockNr, SmallVec<[u32; 2]>>,
    /// Blocks of which the log may contain a copy.
    pub in_log: HashSet<BlockNr>,
    /// Blocks of file data that were journaled although the mode does not journal data, each with its
    /// last transaction. As long as the log may contain a copy, a recovery would write that over a
    /// change in place; so all changes of such a block are journaled.
    pub data_blocks: HashMap<BlockNr, u64>,
    /// The atomic groups with changes in the running transaction, which is not committed without all of
    /// theirs.
    pub holds: Vec<Hold>,
    pub holds_made: u64,
    /// Set while somebody waits for the commit of a transaction that is held: no more holds begin.
    pub closing: bool,
}

impl Journal {
    pub fn new(log: &Log, mode: JournalMode) -> Self {
        let sb = log.superblock();
        Self {
            mode,
            format: log.format(),
            ring_blocks: sb.ring_blocks(),
            free_blocks: sb.ring_blocks(),
            head: sb.first,
            next_sequence: sb.sequence,
            next_number: 1,
            running: None,
            committing: None,
            logged: VecDeque::new(),
            owed: HashMap::new(),
            in_log: HashSet::new(),
            data_blocks: HashMap::new(),
            holds: Vec::new(),
            holds_made: 0,
            closing: false,
        }
    }

    /// Returns true if changes of a block go through the journal.
    pub fn journals(&self, nr: BlockNr, data: bool) -> bool {
        !data || self.mode == JournalMode::Full || self.data_blocks.contains_key(&nr)
    }

    pub fn blocks_needed(&self, blocks: usize, revokes: usize) -> u32 {
        u32::try_from(log_blocks_needed(&self.format, blocks, revokes)).unwrap_or(u32::MAX)
    }
}

/// Replays the transactions that a crash left in a journal, and empties it. Does nothing to a clean
/// one.
///
/// # Errors
/// [`Error::Journal`]: the journal is damaged (nothing was written then), or a device failed.
pub fn recover(device: &dyn BlockDevice, block_bytes: u32, map: LogMap) -> Result<jbd2::Recovery> {
    let fail = |e: jbd2::Error| Error::Journal(e.to_string());
    let mut log = Log::open(map).map_err(fail)?;
    if !log.needs_recovery() {
        return Ok(jbd2::Recovery::default());
    }
    let len_blocks = device.geometry().len_bytes / u64::from(block_bytes);
    let recovery = log
        .recover(len_blocks, |nr, content| device.write_at(content, nr * u64::from(block_bytes)))
        .map_err(fail)?;
    device.flush().map_err(|e| Error::flush(&e))?;
    log.reset(recovery.next_sequence).map_err(fail)?;
    Ok(recovery)
}

pub(crate) fn open_log(map: LogMap, block_bytes: u32) -> Result<Log> {
    let log = Log::open(map).map_err(|e| Error::Journal(e.to_string()))?;
    if log.needs_recovery() {
        return Err(Error::Journal("must be recovered before it is used".into()));
    }
    if log.superblock().block_bytes != block_bytes {
        return Err(Error::Journal(format!(
            "has blocks of {} bytes, the volume of {block_bytes}",
            log.superblock().block_bytes
        )));
    }
    Ok(log)
}
