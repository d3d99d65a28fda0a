//! The names of blocks, patches and owners: three numbers that must not be mixed.

use std::fmt;

/// Index of a block on the volume, in units of the engine's block size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockNr(pub u64);

impl fmt::Display for BlockNr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Tags the dirty blocks that belong to one file, so that the file can be synced by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(pub u64);

impl Owner {
    /// Shared metadata, owned by no file.
    pub const NONE: Self = Self(0);
}

/// Names a patch.
///
/// Ids are never reused: an id whose patch the engine no longer knows names a *durable* patch
/// (or one that was cancelled together with everything that could have waited for it), so an id
/// may be kept for as long as one likes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PatchId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl PatchId {
    /// The patch that has always been durable: nothing to wait for.
    pub const DURABLE: Self = Self { index: u32::MAX, generation: 0 };
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
