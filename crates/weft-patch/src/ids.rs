//! Identifiers of blocks, patches and owners: three numbers that must not be mixed.

use std::fmt;
use weft_block::SECTOR_BYTES;

/// Index of a block on the volume, in units of the engine's block size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockNr(pub u64);

impl fmt::Display for BlockNr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identifies the file of a dirty block, so that the file can be synced by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(pub u64);

impl Owner {
    /// Shared metadata, owned by no file.
    pub const NONE: Self = Self(0);
}

/// Identifies a patch.
///
/// Ids are never reused: an id whose patch the engine no longer has identifies a *durable* patch
/// (or one that was cancelled together with everything that could have waited for it), so an id may
/// be kept for any time.
///
/// An id also contains the sector of its block that holds the change for which it was returned: a
/// change that follows it in another sector of the block waits for a write of its own, as one write
/// of both may be torn between them. So ids returned for two changes may differ though one patch
/// holds both.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PatchId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
    pub(crate) sector: Sector,
}

/// Index of a sector in its block, or [`Sector::SEVERAL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Sector(u8);

impl Sector {
    /// Several sectors, or none. The largest block has 64.
    pub const SEVERAL: Self = Self(u8::MAX);

    /// Returns the sector of a block that contains the bytes `from..to`.
    pub fn of((from, to): (usize, usize)) -> Self {
        let first = from / SECTOR_BYTES;
        if to <= from || first != (to - 1) / SECTOR_BYTES {
            return Self::SEVERAL;
        }
        u8::try_from(first).map_or(Self::SEVERAL, Self)
    }

    /// Returns true if one write of both cannot be torn between them.
    pub fn is_whole_with(self, other: Self) -> bool {
        self == other && self != Self::SEVERAL
    }
}

impl PatchId {
    /// The patch that has always been durable: it need not be waited for.
    pub const DURABLE: Self = Self { index: u32::MAX, generation: 0, sector: Sector::SEVERAL };

    /// Returns true if both ids were returned for changes that one patch holds. Of two changes of one
    /// block, a write that is not torn between their sectors has both or neither.
    #[must_use]
    pub fn is_with(self, other: Self) -> bool {
        (self.index, self.generation) == (other.index, other.generation) && self.index != u32::MAX
    }
}

impl Default for PatchId {
    /// [`PatchId::DURABLE`].
    fn default() -> Self {
        Self::DURABLE
    }
}

impl fmt::Debug for PatchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::DURABLE {
            f.write_str("PatchId(durable)")
        } else {
            write!(f, "PatchId({}.{})", self.index, self.generation)
        }
    }
}
