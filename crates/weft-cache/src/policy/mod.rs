//! Replacement policies: they decide which block is evicted when a slot is needed.
//!
//! A policy manages order and frequency, and nothing else. The content of a slot, its readers and
//! whether it is dirty are known to the cache alone, which the policy asks: a policy never returns
//! a slot that [`Policy::evict`]'s `may` refused, nor one that it was not given by
//! [`Policy::insert`] or [`Policy::restore`].
//!
//! The same code serves the cache and the simulation of hit ratios.
//!
//! | policy | bytes a slot | strong at | weak at |
//! |---|---|---|---|
//! | [`S3Fifo`], the default | 8.7 | scans, blocks used once; nearly everything | loops a little longer than the cache |
//! | [`WTinyLfu`], adaptive | 10 (16 to 24 up to 2^20 slots) | stable popularity, loops | sudden changes of it, until it has adapted |
//! | [`Lru`] | 8 | recency | scans, loops longer than the cache |
//! | [`SetAssociative`], the baseline | 4.1 | | as LRU, and 512 neighbours compete for one set |
//!
//! LRU, W-TinyLFU and the baseline need 4 bytes more when blocks are admitted by reuse.
//!
//! There are well-kept crates for two of them, quick_cache (S3-FIFO) and moka (W-TinyLFU). Both own
//! keys and values and free them at times of their own choice: neither can be told that a slot is
//! pinned or dirty, hand out slot numbers, or give its order for a checkpoint.

mod fifo;
mod ghost;
mod links;
mod lru;
mod mini_sim;
mod s3_fifo;
mod set_assoc;
mod sketch;
#[cfg(test)]
mod tests;
mod w_tiny_lfu;

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

pub use lru::Lru;
pub use s3_fifo::S3Fifo;
pub use set_assoc::SetAssociative;
pub use w_tiny_lfu::WTinyLfu;

/// The number of a slot: a place for one block on the cache device, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotNr(pub u32);

impl SlotNr {
    /// Returns the number as an array index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for SlotNr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identity of a block: the origin's number in the upper 16 bits, the number of the block in the
/// origin (in cache blocks, not bytes) in the lower 48.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockKey(pub u64);

impl BlockKey {
    /// The largest block number a key holds: 2^48 blocks of 4 KiB are an exbibyte.
    pub const BLOCK_MAX: u64 = (1 << 48) - 1;

    /// Returns the key of block `block` of origin `origin`. Blocks beyond [`BlockKey::BLOCK_MAX`]
    /// share keys with others, which costs hits but harms nothing.
    pub fn new(origin: u16, block: u64) -> BlockKey {
        BlockKey(u64::from(origin) << 48 | (block & Self::BLOCK_MAX))
    }

    /// Returns the origin's number.
    pub fn origin(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// Returns the number of the block in its origin.
    pub fn block(self) -> u64 {
        self.0 & Self::BLOCK_MAX
    }

    /// Returns a well-mixed hash, the same on every machine and in every run.
    pub fn hash(self) -> u64 {
        weft_block::mix(self.0)
    }
}

/// Maximum number of slots of a policy: 4 TiB of 4 KiB blocks.
pub const SLOTS_MAX: u32 = (1 << 30) - 1;

/// Maximum number of `may` calls in one [`Policy::evict`]. It bounds the time for which a cache
/// full of dirty blocks holds its lock.
pub const ASKS_MAX: u32 = 65_536;

/// Decides which slot is evicted next. Manages order and frequency, never mappings, pins or dirty
/// state.
///
/// Every call is O(1), amortised, except [`Policy::save_some`] and [`Policy::resize`] (and
/// [`Policy::evict`] of the set-associative policy, which looks at each way of one set). Calls
/// about slots that the policy does not hold are ignored.
pub trait Policy: Send + fmt::Debug {
    /// Notes a use of `key`, the block in the slot.
    fn hit(&mut self, slot: SlotNr, key: BlockKey);

    /// Notes that the slot, free until now, holds the block `key`. It must lie within
    /// [`Policy::place`].
    fn insert(&mut self, slot: SlotNr, key: BlockKey);

    /// Forgets the block in the slot, which was invalidated or trimmed; it leaves no ghost.
    fn remove(&mut self, slot: SlotNr, key: BlockKey);

    /// Evicts the block of a slot for which `may` returns true, so that `new` can be inserted, and
    /// returns the slot. The policy no longer holds it; its block becomes a ghost, if the policy
    /// has ghosts.
    ///
    /// `may` returns false for slots that are pinned or dirty. They stay, and count as the most
    /// recently used of their queue, as the former are in use and the latter were written lately;
    /// so the next call does not meet them again. `None` if no slot may be evicted, or none among
    /// the [`ASKS_MAX`] coldest: write dirty blocks back and call again.
    ///
    /// `key_of` returns the block of a slot that the policy holds.
    fn evict(
        &mut self,
        new: BlockKey,
        may: &mut dyn FnMut(SlotNr) -> bool,
        key_of: &dyn Fn(SlotNr) -> BlockKey,
    ) -> Option<SlotNr>;

    /// Notes a use of a block that is neither cached nor inserted: it was bypassed. Admission by
    /// reuse looks it up later with [`Policy::seen_before`].
    fn missed(&mut self, key: BlockKey);

    /// Returns true if a block that is not cached was used lately: evicted, or bypassed, within the
    /// memory of the policy's ghosts. Rarely (less than once in a thousand) a block is taken for
    /// another.
    fn seen_before(&self, key: BlockKey) -> bool;

    /// Returns the slots in which the block may be put. All of them, except under the
    /// set-associative policy.
    fn place(&self, key: BlockKey) -> Range<u32> {
        let _ = key;
        0..self.slots()
    }

    /// Passes some more of the held slots to `out`, each with a byte of state, within each queue
    /// from the hottest to the coldest, for [`Policy::restore`] in the same order. Visits `most`
    /// slots, and returns true if there are more. The policy may be used between two calls: a slot
    /// that is moved meanwhile is passed once or not at all. One save is in progress at a time.
    fn save_some(
        &mut self,
        saving: &mut Saving,
        most: usize,
        key_of: &dyn Fn(SlotNr) -> BlockKey,
        out: &mut dyn FnMut(SlotNr, u8),
    ) -> bool;

    /// Passes all held slots to `out`, as [`Policy::save_some`] does.
    fn save(&mut self, key_of: &dyn Fn(SlotNr) -> BlockKey, out: &mut dyn FnMut(SlotNr, u8)) {
        self.save_some(&mut Saving::new(self.slots()), usize::MAX, key_of, out);
    }

    /// Restores a slot that [`Policy::save`] passed out: it becomes the coldest of its queue, so
    /// that blocks inserted while the cache is still being loaded stay hotter than all that is
    /// loaded. A state that this policy did not produce (another policy's, or damage) is taken as
    /// that of a new block. A slot that is held already is left as it is.
    fn restore(&mut self, slot: SlotNr, state: u8, key: BlockKey);

    /// Changes the number of slots. Before a shrink, the cache removes the slots beyond the new
    /// end; any that remain are forgotten.
    fn resize(&mut self, slots: u32);

    /// Returns the number of slots, held and free.
    fn slots(&self) -> u32;

    /// Returns the number of held slots.
    fn held(&self) -> u32;

    /// Returns the total memory in use, in bytes.
    fn memory_bytes(&self) -> usize;
}

/// Progress of saving a policy.
#[derive(Debug)]
pub struct Saving {
    /// The queue (or the set), counted in the policy's own order.
    queue: u32,
    /// Position in the queue; `None` at its beginning.
    at: Option<u64>,
    /// A bit for each slot that was passed out.
    given: Vec<u64>,
}

impl Saving {
    /// Returns the progress at the start of a save of a policy for `slots` slots.
    pub fn new(slots: u32) -> Saving {
        Saving { queue: 0, at: None, given: vec![0; (slots as usize).div_ceil(64)] }
    }

    /// Marks the slot as passed out, and returns true if it was not before.
    fn first(&mut self, slot: SlotNr) -> bool {
        let Some(word) = self.given.get_mut(slot.index() / 64) else { return false };
        let bit = 1 << (slot.0 % 64);
        let first = *word & bit == 0;
        *word |= bit;
        first
    }
}

/// The kind of a policy, as a user names it and as the superblock records it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    /// S3-FIFO: `s3fifo`.
    #[default]
    S3Fifo,
    /// Adaptive W-TinyLFU: `wtinylfu`.
    WTinyLfu,
    /// Least recently used: `lru`.
    Lru,
    /// The seed's set-associative LRU: `set-lru` (1024 ways), `set-lru:WAYS`.
    SetAssociative {
        /// Slots in a set; the seed uses 1024 in its code and 16 in its setup script.
        ways: u16,
    },
}

impl PolicyKind {
    /// The seed's policy as its code sets it.
    pub const SEED: PolicyKind = PolicyKind::SetAssociative { ways: 1024 };

    /// Returns a new policy of this kind for `slots` slots (at most [`SLOTS_MAX`]).
    pub fn build(self, slots: u32) -> Box<dyn Policy> {
        match self {
            PolicyKind::S3Fifo => Box::new(S3Fifo::new(slots)),
            PolicyKind::WTinyLfu => Box::new(WTinyLfu::new(slots)),
            PolicyKind::Lru => Box::new(Lru::new(slots)),
            PolicyKind::SetAssociative { ways } => Box::new(SetAssociative::new(slots, ways)),
        }
    }

    /// Returns its number on disk: the kind in the lower 16 bits, its parameter above.
    pub fn to_code(self) -> u32 {
        match self {
            PolicyKind::S3Fifo => 1,
            PolicyKind::WTinyLfu => 2,
            PolicyKind::Lru => 3,
            PolicyKind::SetAssociative { ways } => 4 | u32::from(ways) << 16,
        }
    }

    /// Returns the policy for a number on disk.
    pub fn from_code(code: u32) -> Option<PolicyKind> {
        match (code & 0xffff, (code >> 16) as u16) {
            (1, 0) => Some(PolicyKind::S3Fifo),
            (2, 0) => Some(PolicyKind::WTinyLfu),
            (3, 0) => Some(PolicyKind::Lru),
            (4, ways) if ways > 0 => Some(PolicyKind::SetAssociative { ways }),
            _ => None,
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PolicyKind::S3Fifo => f.pad("s3fifo"),
            PolicyKind::WTinyLfu => f.pad("wtinylfu"),
            PolicyKind::Lru => f.pad("lru"),
            PolicyKind::SetAssociative { ways } => f.pad(&format!("set-lru:{ways}")),
        }
    }
}

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(s: &str) -> Result<PolicyKind, UnknownPolicy> {
        let unknown = || UnknownPolicy(s.to_owned());
        match s {
            "s3fifo" => Ok(PolicyKind::S3Fifo),
            "wtinylfu" => Ok(PolicyKind::WTinyLfu),
            "lru" => Ok(PolicyKind::Lru),
            "set-lru" => Ok(PolicyKind::SEED),
            _ => {
                let ways = s.strip_prefix("set-lru:").and_then(|ways| ways.parse().ok());
                match ways.ok_or_else(unknown)? {
                    0 => Err(unknown()),
                    ways => Ok(PolicyKind::SetAssociative { ways }),
                }
            }
        }
    }
}

/// An unknown policy name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no policy is called {0:?}; there are s3fifo, wtinylfu, lru and set-lru:WAYS")]
pub struct UnknownPolicy(pub String);
