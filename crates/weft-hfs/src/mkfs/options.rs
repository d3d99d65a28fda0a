//! Options for making a volume.

use crate::layout::Name;

/// The parameters of a new volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MkfsOptions {
    /// The volume's name: 1 to 27 bytes of MacRoman.
    pub name: Name,
    /// Bytes of an allocation block, a multiple of 512; `None`: the least that the size of the
    /// volume allows.
    pub alloc_block_bytes: Option<u32>,
    /// Initial bytes of the catalog; `None`: by the size of the volume.
    pub catalog_bytes: Option<u32>,
    /// Initial bytes of the extents file; `None`: by the size of the volume.
    pub extents_bytes: Option<u32>,
    /// Bytes by which a growing file is extended at a time, a multiple of an allocation block, at
    /// most 1 MiB unless that is one allocation block, and at most a quarter of the volume; `None`:
    /// four allocation blocks, or one if four are more than 1 MiB.
    pub clump_bytes: Option<u32>,
    /// The date of creation: seconds since 1904, in local time.
    pub now: u32,
}

impl MkfsOptions {
    /// Returns the parameters for a volume with a name and a date of creation, and defaults.
    #[must_use]
    pub fn new(name: Name, now: u32) -> Self {
        Self {
            name,
            alloc_block_bytes: None,
            catalog_bytes: None,
            extents_bytes: None,
            clump_bytes: None,
            now,
        }
    }
}
