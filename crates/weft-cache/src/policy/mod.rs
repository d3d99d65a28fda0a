//! Which block is given up when a slot is needed: replacement policies.
//!
//! A policy owns order and frequency, and nothing else. What is in a slot, who is reading it and
//! whether it is dirty belongs to the cache, which is asked: a policy never returns a slot that
//! [`Policy::evict`]'s `may` refused, and it never returns a slot it was not given by
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
//! keys and values and free them when they choose: neither can be told that a slot is pinned or
//! dirty, hand out slot numbers, or give its order for a checkpoint.

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
    /// The number as an index of an array.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for SlotNr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Which block: the origin's number in the upper 16 bits, the number of the block in the origin
/// (in cache blocks, not bytes) in the lower 48.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockKey(pub u64);

impl BlockKey {
    /// The largest block number a key holds: 2^48 blocks of 4 KiB are an exbibyte.
    pub const BLOCK_MAX: u64 = (1 << 48) - 1;

    /// The key of block `block` of origin `origin`. Blocks beyond [`BlockKey::BLOCK_MAX`] share
    /// keys with others, which costs hits but harms nothing.
    pub fn new(origin: u16, block: u64) -> BlockKey {
        BlockKey(u64::from(origin) << 48 | (block & Self::BLOCK_MAX))
    }

    /// The origin's number.
    pub fn origin(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// The number of the block in its origin.
    pub fn block(self) -> u64 {
        self.0 & Self::BLOCK_MAX
    }

    /// A well-mixed hash, the same on every machine and in every run.
    pub fn hash(self) -> u64 {
        weft_block::mix(self.0)
    }
}

/// The most slots a policy can order: 4 TiB of 4 KiB blocks.
pub const SLOTS_MAX: u32 = (1 << 30) - 1;

/// How often one call of [`Policy::evict`] asks `may` at most. It bounds how long a cache full of
/// dirty blocks holds its lock.
pub const ASKS_MAX: u32 = 65_536;

/// Decides which slot is given up next. Owns order and frequency, never mappings, pins or dirty
/// state.
///
/// Every call is O(1), amortised, except [`Policy::save_some`] and [`Policy::resize`] (and
/// [`Policy::evict`] of the set-associative policy, which looks at each way of one set). Calls
/// about slots that the policy does not hold are ignored.
pub trait Policy: Send + fmt::Debug {
    /// The block in the slot, `key`, was used.
    fn hit(&mut self, slot: SlotNr, key: BlockKey);

    /// The slot, free until now, holds the block `key`. It must lie within [`Policy::place`].
    fn insert(&mut self, slot: SlotNr, key: BlockKey);

    /// The block in the slot was invalidated or trimmed: it is forgotten, and leaves no ghost.
    fn remove(&mut self, slot: SlotNr, key: BlockKey);

    /// Gives up a slot so that `new` can be inserted, and returns it: one for which `may` said
    /// yes. The policy no longer holds it; its block becomes a ghost, if the policy has ghosts.
    ///
    /// `may` says no for slots that are pinned or dirty. They stay, and count as the most recently
    /// used of their queue, as one is in use and the other was written lately; so the next call
    /// does not meet them again. `None` if there is no slot that may go, or none among the
    /// [`ASKS_MAX`] coldest: write dirty blocks back and ask again.
    ///
    /// `key_of` tells the block of a slot that the policy holds.
    fn evict(
        &mut self,
        new: BlockKey,
        may: &mut dyn FnMut(SlotNr) -> bool,
        key_of: &dyn Fn(SlotNr) -> BlockKey,
    ) -> Option<SlotNr>;

    /// A block that is not cached was used, and was not inserted either: it was bypassed. What
    /// admission by reuse asks for later with [`Policy::seen_before`].
    fn missed(&mut self, key: BlockKey);

    /// Whether a block that is not cached was used lately: evicted, or bypassed, within the
    /// memory of the policy's ghosts. Rarely (less than once in a thousand) a block is taken for
    /// another.
    fn seen_before(&self, key: BlockKey) -> bool;

    /// The slots where the block may be put. All of them, except under the set-associative
    /// policy.
    fn place(&self, key: BlockKey) -> Range<u32> {
        let _ = key;
        0..self.slots()
    }

    /// Some more of the held slots, each with a byte of state, within each queue from the hottest to
    /// the coldest, for [`Policy::restore`] in the same order. Looks at `most` slots, and says
    /// whether there are more to look at. The policy may be used between two calls: a slot that is
    /// moved meanwhile is given once or not at all. One save goes on at a time.
    fn save_some(
        &mut self,
        saving: &mut Saving,
        most: usize,
        key_of: &dyn Fn(SlotNr) -> BlockKey,
        out: &mut dyn FnMut(SlotNr, u8),
    ) -> bool;

    /// All held slots, as [`Policy::save_some`] gives them.
    fn save(&mut self, key_of: &dyn Fn(SlotNr) -> BlockKey, out: &mut dyn FnMut(SlotNr, u8)) {
        self.save_some(&mut Saving::new(self.slots()), usize::MAX, key_of, out);
    }

    /// Takes back what [`Policy::save`] gave: the slot becomes the coldest of its queue, so that
    /// blocks inserted while the cache is still being loaded stay hotter than all that is loaded.
    /// A state that this policy did not give (another policy's, or damage) is taken as that of a
    /// new block. A slot that is held already is left as it is.
    fn restore(&mut self, slot: SlotNr, state: u8, key: BlockKey);

    /// Changes the number of slots. When it shrinks, the cache has removed the slots beyond the
    /// new end before; those that it has not are forgotten.
    fn resize(&mut self, slots: u32);

    /// The number of slots, held and free.
    fn slots(&self) -> u32;

    /// How many slots are held.
    fn held(&self) -> u32;

    /// Memory in use, in bytes, all in all.
    fn memory_bytes(&self) -> usize;
}

/// How far a policy has been saved.
#[derive(Debug)]
pub struct Saving {
    /// The queue (or the set), counted in the policy's own order.
    queue: u32,
    /// Where in it; `None` at its beginning.
    at: Option<u64>,
    /// A bit for each slot that was given.
    given: Vec<u64>,
}

impl Saving {
    /// Nothing of a policy for `slots` slots has been saved.
    pub fn new(slots: u32) -> Saving {
        Saving { queue: 0, at: None, given: vec![0; (slots as usize).div_ceil(64)] }
    }

    /// Whether the slot has not been given yet; from now on it has.
    fn first(&mut self, slot: SlotNr) -> bool {
        let Some(word) = self.given.get_mut(slot.index() / 64) else { return false };
        let bit = 1 << (slot.0 % 64);
        let first = *word & bit == 0;
        *word |= bit;
        first
    }
}

/// Which policy, as a user names it and as the superblock records it.
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

    /// A new policy of this kind for `slots` slots (at most [`SLOTS_MAX`]).
    pub fn build(self, slots: u32) -> Box<dyn Policy> {
        match self {
            PolicyKind::S3Fifo => Box::new(S3Fifo::new(slots)),
            PolicyKind::WTinyLfu => Box::new(WTinyLfu::new(slots)),
            PolicyKind::Lru => Box::new(Lru::new(slots)),
            PolicyKind::SetAssociative { ways } => Box::new(SetAssociative::new(slots, ways)),
        }
    }

    /// The number that stands for it on disk: the kind in the lower 16 bits, its parameter above.
    pub fn to_code(self) -> u32 {
        match self {
            PolicyKind::S3Fifo => 1,
            PolicyKind::WTinyLfu => 2,
            PolicyKind::Lru => 3,
            PolicyKind::SetAssociative { ways } => 4 | u32::from(ways) << 16,
        }
    }

    /// The policy that a number on disk stands for.
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

/// The name of no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no policy is called {0:?}; there are s3fifo, wtinylfu, lru and set-lru:WAYS")]
pub struct UnknownPolicy(pub String);
