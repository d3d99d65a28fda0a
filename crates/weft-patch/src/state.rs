//! The part of the engine that its one lock protects.

use crate::batch::Write;
use crate::buffer::Cache;
use crate::graph::{Edge, Graph, NONE, Patch};
use crate::group::Group;
use crate::newest::Newest;
use crate::nowait;
use crate::patchgroup::Grouped;
use crate::transactions::Journal;
use crate::undo::Change;
use crate::watch::Watcher;
use crate::{BlockNr, Counters, Error, Options, Owner, PatchId, Policy, Result};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use weft_block::BlockDevice;

/// Memory of one patch and of one dependency, for the budget.
const PATCH_BYTES: usize = size_of::<Patch>();
const DEPENDENCY_BYTES: usize = size_of::<Edge>();

/// Signals to the write-back thread, besides the state.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Signals {
    pub stop: bool,
    /// Set if an operation waits for memory.
    pub pressed: bool,
    /// Set if the thread was woken for the present dirty memory.
    pub woken: bool,
    /// The earliest time at which overdue blocks are searched for again.
    pub overdue_from_ms: u64,
}

/// The blocks that an operation needs and did not find in memory.
#[derive(Debug, Default)]
pub(crate) struct Missing {
    /// Set if the operation in progress may use blocks in memory only, and will be tried again.
    pub noted: bool,
    pub blocks: Vec<BlockNr>,
    /// Ranges that are read ahead with them.
    pub ahead: Vec<Range<BlockNr>>,
}

pub(crate) struct State {
    pub options: Options,
    pub device: Arc<dyn BlockDevice>,
    pub read_only: bool,
    pub block_bytes: usize,
    pub len_blocks: u64,
    pub graph: Graph,
    pub cache: Cache,
    pub counters: Counters,
    /// Buffers that may be writable; checked again when they are taken.
    pub ready: Vec<u32>,
    /// The run of the operation in progress, or `NONE`, and its owner.
    pub run: u32,
    pub run_owner: Owner,
    /// The patchgroups of the operation in progress.
    pub grouped: Grouped,
    /// The number of patchgroups that exist.
    pub groups: Arc<AtomicUsize>,
    /// Empty patches whose befores are all durable.
    pub done_empties: Vec<u32>,
    /// Writes that failed, to be repeated from their copies before anything else is written.
    pub failed: Vec<Write>,
    /// The last mark of buffers that a sync needs.
    pub needed_mark: u64,
    /// The callers that sync.
    pub group: Group,
    /// Those that are to be told what is durable.
    pub watchers: Vec<Watcher>,
    pub missing: Missing,
    pub journal: Option<Journal>,
    pub signals: Signals,
    /// Number of blocks with at least half of `block_patches_max` patches, and with at least all.
    pub half_full_blocks: usize,
    pub full_blocks: usize,
    /// Start of the operation in progress, on the engine's clock: reading the time with each block
    /// was a tenth of the time of writing a file.
    pub changed_ms: u64,
    /// Time at which the last round was planned.
    pub planned_ms: u64,
}

impl State {
    pub fn new(device: Arc<dyn BlockDevice>, block_bytes: usize, options: Options) -> Self {
        let geometry = device.geometry();
        Self {
            cache: Cache::new(block_bytes, options.clean_cache_bytes, options.memory_budget_bytes),
            options,
            device,
            read_only: geometry.read_only,
            block_bytes,
            len_blocks: geometry.len_bytes / block_bytes as u64,
            graph: Graph::default(),
            counters: Counters::default(),
            ready: Vec::new(),
            groups: Arc::default(),
            run: NONE,
            run_owner: Owner::NONE,
            grouped: Grouped::default(),
            done_empties: Vec::new(),
            failed: Vec::new(),
            needed_mark: 0,
            group: Group::default(),
            watchers: Vec::new(),
            missing: Missing::default(),
            journal: None,
            signals: Signals::default(),
            half_full_blocks: 0,
            full_blocks: 0,
            changed_ms: 0,
            planned_ms: 0,
        }
    }

    pub fn now_ms(&self) -> u64 {
        self.options.clock.now_ms()
    }

    /// Returns the memory of all changes that are not durable yet, in bytes.
    pub fn dirty_bytes(&self) -> usize {
        self.cache.dirty_blocks() * self.block_bytes
            + self.graph.undo_bytes()
            + self.graph.live * PATCH_BYTES
            + self.graph.dependencies() * DEPENDENCY_BYTES
            + self.cache.indexed * Newest::len_bytes(self.block_bytes)
    }

    /// Returns true if the write-back thread is to write at once, without waiting for the age of
    /// blocks.
    pub fn is_crowded(&self, background_bytes: usize) -> bool {
        self.dirty_bytes() > background_bytes || self.half_full_blocks > 0
    }

    pub fn counters_now(&self) -> Counters {
        Counters {
            patches_now: self.graph.live as u64,
            dependencies_now: self.graph.dependencies() as u64,
            undo_bytes_now: self.graph.undo_bytes() as u64,
            dirty_blocks_now: self.cache.dirty_blocks() as u64,
            syncs: self.group.tickets(),
            ..self.counters
        }
    }

    /// Finds a block in the cache or reads it.
    pub fn load(&mut self, nr: BlockNr, data: bool) -> Result<u32> {
        if let Some(buffer) = self.cache.touch(nr) {
            return Ok(buffer);
        }
        self.check_nr(nr)?;
        if self.missing.noted {
            self.missing.blocks.push(nr);
            return Err(Error::NotInMemory { nr });
        }
        let mut content = self.cache.memory();
        let bytes = Arc::get_mut(&mut content).expect("pooled memory is not shared");
        self.device
            .read_at(bytes, nr.0 * self.block_bytes as u64)
            .map_err(|e| Error::device(nr, &e))?;
        self.counters.blocks_read += 1;
        self.counters.reads_under_lock += 1;
        Ok(self.cache.insert(nr, content, data))
    }

    fn check_nr(&self, nr: BlockNr) -> Result<()> {
        if nr.0 < self.len_blocks {
            Ok(())
        } else {
            Err(Error::OutOfRange { nr, len_blocks: self.len_blocks })
        }
    }

    pub fn check_change(&self, nr: BlockNr, offset: usize, len_bytes: usize) -> Result<()> {
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        debug_assert!(!self.missing.noted, "block {nr} is changed where it may only be read");
        nowait::has_changed();
        if len_bytes == 0 || offset.checked_add(len_bytes).is_none_or(|end| end > self.block_bytes)
        {
            return Err(Error::BadRange { nr, offset, len_bytes });
        }
        Ok(())
    }

    pub fn write(
        &mut self,
        nr: BlockNr,
        offset: usize,
        bytes: &[u8],
        relied: &[Range<usize>],
        befores: &[PatchId],
    ) -> Result<PatchId> {
        self.check_change(nr, offset, bytes.len())?;
        let buffer = self.load(nr, false)?;
        self.cache[buffer].data = false;
        let change = Change::Bytes { offset, len: bytes.len() };
        let id = self.change_relying(buffer, change, relied, befores);
        self.content_mut(buffer)[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(id)
    }

    pub fn write_alone(
        &mut self,
        nr: BlockNr,
        offset: usize,
        bytes: &[u8],
        befores: &[PatchId],
    ) -> Result<PatchId> {
        self.check_change(nr, offset, bytes.len())?;
        let buffer = self.load(nr, false)?;
        if self.options.policy == Policy::Soft
            && let Some(with) = self.taken_back_with(buffer, offset, bytes, befores)
        {
            self.counters.taken_back += 1;
            self.note_grouped(with);
            self.content_mut(buffer)[offset..offset + bytes.len()].copy_from_slice(bytes);
            return Ok(with);
        }
        self.write(nr, offset, bytes, &[], befores)
    }

    pub fn flip(
        &mut self,
        nr: BlockNr,
        offset: usize,
        mask: u32,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        self.check_change(nr, offset, 4)?;
        let buffer = self.load(nr, false)?;
        self.cache[buffer].data = false;
        let id = self.change(buffer, Change::Bits { offset, mask }, befores);
        let word = &mut self.content_mut(buffer)[offset..offset + 4];
        let value = u32::from_le_bytes([word[0], word[1], word[2], word[3]]) ^ mask;
        word.copy_from_slice(&value.to_le_bytes());
        Ok(id)
    }

    pub fn init(&mut self, nr: BlockNr, content: &[u8], befores: &[PatchId]) -> Result<PatchId> {
        self.check_change(nr, 0, content.len())?;
        if content.len() != self.block_bytes {
            return Err(Error::BadRange { nr, offset: 0, len_bytes: content.len() });
        }
        let buffer = self.fresh(nr, false)?;
        self.cache[buffer].data = false;
        let id = self.change(buffer, Change::Bytes { offset: 0, len: content.len() }, befores);
        self.content_mut(buffer).copy_from_slice(content);
        Ok(id)
    }

    pub fn write_data(
        &mut self,
        nr: BlockNr,
        owner: Owner,
        offset: usize,
        bytes: &[u8],
        fresh: bool,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        self.check_change(nr, offset, bytes.len())?;
        let whole = bytes.len() == self.block_bytes;
        // No undo data will be needed, so the old content is not needed.
        let grouped = !self.grouped.befores.is_empty() || !self.grouped.holds.is_empty();
        let waits = !befores.is_empty() || grouped;
        let blind = whole && !waits && self.options.hard_patches;
        let change = Change::Bytes { offset, len: bytes.len() };
        if blind && self.cache.find(nr).is_none() {
            self.check_nr(nr)?;
            let content = self.cache.filled(bytes);
            let buffer = self.cache.insert(nr, content, true);
            self.set_owner(buffer, owner);
            self.note_allocated(buffer, fresh);
            return Ok(if self.options.merge && self.data_in_runs(nr) {
                self.data_run(buffer)
            } else {
                self.change(buffer, change, befores)
            });
        }
        let buffer = if fresh { self.fresh(nr, true)? } else { self.load(nr, true)? };
        self.cache[buffer].data = true;
        self.set_owner(buffer, owner);
        self.note_allocated(buffer, fresh);
        if fresh && !whole {
            // The rest of the block reads as zeroes: the change is the whole block.
            let id =
                self.change(buffer, Change::Bytes { offset: 0, len: self.block_bytes }, befores);
            let content = self.content_mut(buffer);
            content[..offset].fill(0);
            content[offset..offset + bytes.len()].copy_from_slice(bytes);
            content[offset + bytes.len()..].fill(0);
            return Ok(id);
        }
        let id = self.change(buffer, change, befores);
        self.content_mut(buffer)[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(id)
    }

    /// Returns a buffer for a block whose content will be replaced: it is not read from the device.
    fn fresh(&mut self, nr: BlockNr, data: bool) -> Result<u32> {
        if let Some(buffer) = self.cache.touch(nr) {
            return Ok(buffer);
        }
        self.check_nr(nr)?;
        let zeroes = self.cache.zeroed();
        Ok(self.cache.insert(nr, zeroes, data))
    }

    /// Returns true if file data of this block is written outside the journal.
    fn data_in_runs(&self, nr: BlockNr) -> bool {
        self.journal.as_ref().is_none_or(|journal| !journal.journals(nr, true))
    }

    fn data_run(&mut self, buffer: u32) -> PatchId {
        let run = self.note_data(buffer);
        let id = self.graph.id(run);
        if self.orders_data() {
            self.order_data(id);
        }
        self.note_grouped(id);
        id
    }

    /// Notes a change under the commit policy.
    fn change(&mut self, buffer: u32, change: Change, befores: &[PatchId]) -> PatchId {
        self.change_relying(buffer, change, &[], befores)
    }

    fn change_relying(
        &mut self,
        buffer: u32,
        change: Change,
        relied: &[Range<usize>],
        befores: &[PatchId],
    ) -> PatchId {
        let mut room = SmallVec::new();
        let id = match self.options.policy {
            Policy::Soft => {
                let befores = self.with_groups(befores, &mut room);
                let patch = self.note_change(buffer, change, relied, befores);
                self.graph.id_of(patch, change)
            }
            Policy::Async => {
                // Without groups every patch is hard, and nothing in the block is followed.
                let befores = self.with_groups(&[], &mut room);
                let patch = self.note_change(buffer, change, relied, befores);
                self.graph.id(patch)
            }
            Policy::Journal(_) => self.journal_change(buffer, change),
        };
        self.note_grouped(id);
        id
    }

    pub fn free(&mut self, nr: BlockNr, cleared: PatchId) {
        nowait::has_changed();
        if self.journal.is_some() {
            self.journal_free(nr);
        } else if let Some(buffer) = self.cache.find(nr) {
            self.cancel_freed(buffer, cleared);
        }
    }

    pub fn is_durable(&self, patch: PatchId) -> bool {
        self.graph.find(patch).is_none()
    }

    pub fn buffer_of(&self, patch: u32) -> Option<u32> {
        let buffer = self.graph[patch].buffer;
        (buffer != NONE).then_some(buffer)
    }
}
