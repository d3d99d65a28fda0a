//! The buffer cache: blocks in memory, with the patches that wait on each.
//!
//! A buffer with patches is *dirty* and stays; a clean one may be evicted (second chance). The
//! content is shared (`Arc`) with a write in progress, and copied if it changes meanwhile.
//!
//! Blocks that were read ahead and not used since have at most an eighth of the clean memory: a
//! further one drops the oldest. They are evicted before all blocks that are in use.

use crate::block_map::BlockMap;
use crate::graph::{KEPT, NONE};
use crate::newest::Newest;
use crate::{BlockNr, Owner};
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::sync::Arc;

/// The part of the clean memory that blocks read ahead may take while nobody uses them.
const AHEAD_PART: usize = 8;
/// The part of it that one operation may read ahead.
const AHEAD_ONCE_PART: usize = 16;

#[derive(Debug)]
pub(crate) struct Buffer {
    pub nr: BlockNr,
    pub content: Arc<[u8]>,
    /// Oldest and newest of the patches that are not yet in flight.
    pub oldest: u32,
    pub newest: u32,
    /// The newest patch without undo data, or `NONE`: every write of the block includes it.
    pub hard: u32,
    /// Number of patches on the list.
    pub patches: u32,
    /// Number of those with external befores.
    pub waiting: u32,
    /// Number of those without undo data that have external befores.
    pub hard_waiting: u32,
    /// The index of its patches, if they are many.
    pub newest_of: Option<Box<Newest>>,
    /// Number of dependencies of patches elsewhere on patches of the list.
    pub external_afters: u32,
    /// Its run, or `NONE`; in a run it has no patches.
    pub run: u32,
    run_prev: u32,
    run_next: u32,
    pub owner: Owner,
    /// Neighbours on the list of the owner's dirty buffers.
    owner_prev: u32,
    owner_next: u32,
    /// Time at which it became dirty, in milliseconds of the engine's clock.
    pub dirty_since_ms: u64,
    /// Time of its last change.
    pub changed_ms: u64,
    /// Whether a write is in progress, or has failed and will be repeated.
    pub in_flight: bool,
    /// Whether it is on the ready list.
    pub queued: bool,
    /// Whether it was read since the eviction hand last passed.
    referenced: bool,
    /// Whether it holds file data: dropped when durable, not journaled unless the journal is full.
    pub data: bool,
    /// The journal's transaction that changed it last.
    pub transaction: u64,
    /// The journal's transaction that allocated it for file data, if it was in memory since.
    pub allocated_by: u64,
    /// The mark of the last sync that needed it.
    pub mark: u64,
    used: bool,
}

impl Buffer {
    pub fn is_dirty(&self) -> bool {
        self.patches > 0 || self.in_flight || self.run != NONE
    }

    /// Returns true if all its changes can be written now.
    pub fn is_ready(&self) -> bool {
        self.waiting == 0
    }

    /// Returns true if some of its changes can be written now.
    pub fn is_partly_ready(&self) -> bool {
        !self.in_flight
            && (self.run != NONE || (self.hard_waiting == 0 && self.waiting < self.patches))
    }
}

#[derive(Debug)]
pub(crate) struct Cache {
    buffers: Vec<Buffer>,
    free: Vec<u32>,
    by_nr: BlockMap,
    /// The blocks that are being read without the lock; true for those that were brought in by
    /// another way meanwhile, so that what is read may be old.
    fetches: HashMap<BlockNr, bool>,
    /// The blocks that were read ahead last, the oldest first; those that were used since, too.
    ahead: VecDeque<BlockNr>,
    owners: HashMap<Owner, u32>,
    block_bytes: usize,
    hand: usize,
    clean: usize,
    max_clean: usize,
    /// Memory of dropped blocks for reuse: fresh memory costs a page fault a block, which was two
    /// thirds of the time of an untar.
    pool: Vec<Arc<[u8]>>,
    max_pool: usize,
    /// The least length of the pool since spare memory was last taken from it.
    pool_unused: usize,
    /// Number of blocks with an index of their patches.
    pub indexed: usize,
}

impl std::ops::Index<u32> for Cache {
    type Output = Buffer;
    fn index(&self, index: u32) -> &Buffer {
        &self.buffers[index as usize]
    }
}

impl std::ops::IndexMut<u32> for Cache {
    fn index_mut(&mut self, index: u32) -> &mut Buffer {
        &mut self.buffers[index as usize]
    }
}

impl Cache {
    pub fn new(block_bytes: usize, clean_bytes: usize, pool_bytes: usize) -> Self {
        Self {
            buffers: Vec::new(),
            free: Vec::new(),
            by_nr: BlockMap::default(),
            fetches: HashMap::new(),
            ahead: VecDeque::new(),
            owners: HashMap::new(),
            block_bytes,
            hand: 0,
            clean: 0,
            max_clean: (clean_bytes / block_bytes).max(16),
            pool: Vec::new(),
            max_pool: pool_bytes / block_bytes,
            pool_unused: 0,
            indexed: 0,
        }
    }

    fn pooled(&mut self) -> Option<Arc<[u8]>> {
        let content = self.pool.pop()?;
        self.pool_unused = self.pool_unused.min(self.pool.len());
        Some(content)
    }

    /// Takes from the pool what it can spare: all of it when nothing waits to be written, else a half
    /// of what was not used since this was called last.
    pub fn take_spare(&mut self) -> Vec<Arc<[u8]>> {
        let idle = self.dirty_blocks() == 0;
        let spare = if idle { self.pool.len() } else { self.pool_unused / 2 };
        let taken = self.pool.split_off(self.pool.len() - spare);
        self.pool_unused = self.pool.len();
        self.pool.shrink_to(2 * self.pool.len());
        taken
    }

    /// Drops the clean blocks that are too many, which a write-back of many blocks leaves, and moves
    /// the buffers together that are in use, if they are few. Returns the size in bytes of the memory
    /// of buffers that is given back; that of blocks goes to the pool.
    pub fn shrink(&mut self) -> usize {
        let before = self.buffers.capacity();
        for _ in self.max_clean..self.clean {
            self.evict();
        }
        self.by_nr.shrink();
        if self.buffers.len() > KEPT && self.by_nr.len() < self.buffers.len() / 2 {
            // The first ones are taken first.
            self.free.sort_unstable_by(|a, b| b.cmp(a));
            while let Some(last) = self.buffers.last()
                && !last.queued
                && !last.is_dirty()
            {
                if last.used {
                    let at = self.buffers.len() - 1;
                    let Some(free) = self.free.pop_if(|free| (*free as usize) < at) else { break };
                    let mut moved = self.buffers.swap_remove(at);
                    let to = &mut self.buffers[free as usize];
                    // It may still be on a list of the planner.
                    moved.queued = to.queued;
                    self.by_nr.replace(moved.nr, free);
                    *to = moved;
                } else {
                    self.buffers.pop();
                }
            }
            let len = self.buffers.len();
            self.free.retain(|&index| (index as usize) < len);
            self.buffers.shrink_to(len + len / 8);
            self.free.shrink_to(KEPT);
        }
        (before - self.buffers.capacity()) * size_of::<Buffer>()
    }

    /// Returns memory for one block, with any content.
    pub fn memory(&mut self) -> Arc<[u8]> {
        self.pooled().unwrap_or_else(|| std::iter::repeat_n(0, self.block_bytes).collect())
    }

    /// Returns a block with these bytes.
    pub fn filled(&mut self, bytes: &[u8]) -> Arc<[u8]> {
        let Some(mut content) = self.pooled() else { return Arc::from(bytes) };
        Arc::get_mut(&mut content).expect("pooled memory is not shared").copy_from_slice(bytes);
        content
    }

    /// Returns a block of zeroes.
    pub fn zeroed(&mut self) -> Arc<[u8]> {
        let mut content = self.memory();
        Arc::get_mut(&mut content).expect("pooled memory is not shared").fill(0);
        content
    }

    pub fn find(&self, nr: BlockNr) -> Option<u32> {
        self.by_nr.get(nr)
    }

    /// Finds a block for use, and protects it from being evicted soon.
    pub fn touch(&mut self, nr: BlockNr) -> Option<u32> {
        let index = self.find(nr)?;
        self[index].referenced = true;
        Some(index)
    }

    /// Adds a clean block that is not in the cache yet.
    pub fn insert(&mut self, nr: BlockNr, content: Arc<[u8]>, data: bool) -> u32 {
        debug_assert_eq!(content.len(), self.block_bytes);
        if !self.fetches.is_empty()
            && let Some(overtaken) = self.fetches.get_mut(&nr)
        {
            *overtaken = true;
        }
        // One more than it takes, where many dirty blocks have become clean at once.
        for _ in 0..2 {
            if self.clean >= self.max_clean {
                self.evict();
            }
        }
        self.clean += 1;
        let buffer = Buffer {
            nr,
            content,
            oldest: NONE,
            newest: NONE,
            hard: NONE,
            patches: 0,
            newest_of: None,
            waiting: 0,
            hard_waiting: 0,
            external_afters: 0,
            run: NONE,
            run_prev: NONE,
            run_next: NONE,
            owner: Owner::NONE,
            owner_prev: NONE,
            owner_next: NONE,
            dirty_since_ms: 0,
            changed_ms: 0,
            in_flight: false,
            queued: false,
            referenced: true,
            data,
            transaction: 0,
            allocated_by: 0,
            mark: 0,
            used: true,
        };
        let index = if let Some(index) = self.free.pop() {
            // A buffer that was released while it was on a list of the planner is still on it.
            let queued = self[index].queued;
            self[index] = buffer;
            self[index].queued = queued;
            index
        } else {
            self.buffers.push(buffer);
            u32::try_from(self.buffers.len() - 1).expect("fewer than 2^32 blocks in memory")
        };
        self.by_nr.insert(nr, index);
        index
    }

    /// Returns true if a block is neither in memory nor being read without the lock.
    pub fn may_fetch(&self, nr: BlockNr) -> bool {
        self.find(nr).is_none() && !self.fetches.contains_key(&nr)
    }

    /// Notes that a block will be read without the lock. It [may be](Self::may_fetch).
    pub fn begin_fetch(&mut self, nr: BlockNr) {
        self.fetches.insert(nr, false);
    }

    /// Returns true if a block is being read without the lock.
    pub fn is_fetched(&self, nr: BlockNr) -> bool {
        self.fetches.contains_key(&nr)
    }

    /// Adds a block that was read without the lock, unless it may be old. One that was read `ahead`
    /// is the first to go until it is used.
    pub fn keep_fetched(&mut self, nr: BlockNr, bytes: &[u8], ahead: bool) {
        if self.fetches.get(&nr) != Some(&false) {
            return;
        }
        if ahead && self.ahead.len() >= self.max_clean / AHEAD_PART {
            self.drop_oldest_ahead();
        }
        let content = self.filled(bytes);
        let index = self.insert(nr, content, false);
        if ahead {
            self[index].referenced = false;
            self.ahead.push_back(nr);
        }
    }

    /// Returns the number of blocks that one operation may read ahead.
    pub fn max_read_ahead(&self) -> usize {
        self.max_clean / AHEAD_ONCE_PART
    }

    fn drop_oldest_ahead(&mut self) {
        let oldest = self.ahead.pop_front().and_then(|nr| self.find(nr));
        if let Some(index) = oldest
            && !self[index].referenced
            && !self[index].is_dirty()
        {
            self.drop_clean(index);
        }
    }

    /// Forgets that a block is being read.
    pub fn end_fetch(&mut self, nr: BlockNr) {
        self.fetches.remove(&nr);
    }

    /// Counts a buffer as dirty, and adds it to its owner's list.
    pub fn became_dirty(&mut self, index: u32, now_ms: u64) {
        self.clean -= 1;
        self[index].dirty_since_ms = now_ms;
        self.link_owner(index);
    }

    pub fn became_clean(&mut self, index: u32) {
        self.clean += 1;
        self.drop_index(index);
        self.unlink_owner(index);
        if self[index].data {
            self.drop_clean(index);
        }
    }

    pub fn add_index(&mut self, index: u32, newest_of: Newest) {
        self.indexed += 1;
        self[index].newest_of = Some(Box::new(newest_of));
    }

    /// Drops the index of a block's patches, if there is one.
    pub fn drop_index(&mut self, index: u32) {
        self.indexed -= usize::from(self[index].newest_of.take().is_some());
    }

    /// Drops a block that has no patches.
    pub fn drop_clean(&mut self, index: u32) {
        debug_assert!(!self[index].is_dirty(), "only a clean block is dropped");
        self.clean -= 1;
        let buffer = &mut self[index];
        buffer.used = false;
        let mut content = std::mem::take(&mut buffer.content);
        let nr = buffer.nr;
        if self.pool.len() < self.max_pool && Arc::get_mut(&mut content).is_some() {
            self.pool.push(content);
        }
        self.by_nr.remove(nr);
        self.free.push(index);
    }

    /// Evicts a block by second chance: the next one that is clean and was not read since the last
    /// pass.
    fn evict(&mut self) {
        for _ in 0..2 * self.buffers.len() {
            self.hand = (self.hand + 1) % self.buffers.len();
            let buffer = &mut self.buffers[self.hand];
            if !buffer.used || buffer.is_dirty() {
                continue;
            }
            if buffer.referenced {
                buffer.referenced = false;
                continue;
            }
            let index = u32::try_from(self.hand).expect("buffer indices are 32 bits");
            self.drop_clean(index);
            return;
        }
    }

    /// Changes the owner of a block.
    pub fn set_owner(&mut self, index: u32, owner: Owner) {
        if self[index].owner == owner {
            return;
        }
        let dirty = self[index].is_dirty();
        if dirty {
            self.unlink_owner(index);
        }
        self[index].owner = owner;
        if dirty {
            self.link_owner(index);
        }
    }

    fn link_owner(&mut self, index: u32) {
        let owner = self[index].owner;
        if owner == Owner::NONE {
            return;
        }
        let next = self.owners.insert(owner, index).unwrap_or(NONE);
        if next != NONE {
            self[next].owner_prev = index;
        }
        let buffer = &mut self[index];
        buffer.owner_prev = NONE;
        buffer.owner_next = next;
    }

    fn unlink_owner(&mut self, index: u32) {
        let Buffer { owner, owner_prev, owner_next, .. } = self[index];
        if owner == Owner::NONE {
            return;
        }
        if owner_next != NONE {
            self[owner_next].owner_prev = owner_prev;
        }
        if owner_prev != NONE {
            self[owner_prev].owner_next = owner_next;
        } else if owner_next != NONE {
            self.owners.insert(owner, owner_next);
        } else {
            self.owners.remove(&owner);
        }
    }

    /// Adds a buffer at the front of a run's list, whose first buffer is `head`.
    pub fn link_run(&mut self, index: u32, run: u32, head: u32) {
        if head != NONE {
            self[head].run_prev = index;
        }
        let buffer = &mut self[index];
        buffer.run = run;
        buffer.run_prev = NONE;
        buffer.run_next = head;
    }

    /// Removes a buffer from its run's list, whose first buffer is `head`; returns the new first
    /// buffer.
    pub fn unlink_run(&mut self, index: u32, head: u32) -> u32 {
        let Buffer { run_prev, run_next, .. } = self[index];
        self[index].run = NONE;
        if run_next != NONE {
            self[run_next].run_prev = run_prev;
        }
        if run_prev == NONE {
            return run_next;
        }
        self[run_prev].run_next = run_next;
        head
    }

    /// Returns the buffers of a run.
    pub fn run_from(&self, head: u32) -> impl Iterator<Item = u32> + '_ {
        let mut at = head;
        std::iter::from_fn(move || {
            (at != NONE).then(|| {
                let index = at;
                at = self[index].run_next;
                index
            })
        })
    }

    /// Returns the dirty buffers of a file.
    pub fn dirty_of(&self, owner: Owner) -> impl Iterator<Item = u32> + '_ {
        let mut at = self.owners.get(&owner).copied().unwrap_or(NONE);
        std::iter::from_fn(move || {
            (at != NONE).then(|| {
                let index = at;
                at = self[index].owner_next;
                index
            })
        })
    }

    pub fn dirty_blocks(&self) -> usize {
        self.by_nr.len() - self.clean
    }

    /// Returns every buffer in use.
    pub fn all(&self) -> impl Iterator<Item = u32> + '_ {
        self.by_nr.values()
    }
}
