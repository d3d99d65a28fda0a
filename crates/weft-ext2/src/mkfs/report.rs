//! The description of a volume that was made.

/// The volume that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Block size in bytes.
    pub block_bytes: u32,
    /// Blocks of the volume.
    pub blocks: u32,
    /// Blocks free for files.
    pub free_blocks: u32,
    /// Blocks only root may take.
    pub reserved_blocks: u32,
    /// Inodes of the volume.
    pub inodes: u32,
    /// Inodes free for files.
    pub free_inodes: u32,
    /// Size of an inode in bytes.
    pub inode_bytes: u32,
    /// Block groups.
    pub groups: u32,
    /// Length of the journal inside the volume, in blocks; 0 if there is none.
    pub journal_blocks: u32,
    /// The volume's uuid.
    pub uuid: [u8; 16],
    /// Names of the features.
    pub features: Vec<String>,
}
