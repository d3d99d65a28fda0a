//! What a volume says of itself, read from its superblock without opening the file system: also
//! while it is mounted elsewhere.

use crate::format::demand_ext;
use crate::source::open_source;
use crate::{Error, Result};
use weft_block::{BlockDevice, OpenMode};
use weft_ext2::layout::{Compat, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, State, Superblock};

/// A volume in figures. Counts are those of the superblock, which an ordered volume in use keeps
/// exact only at sync and unmount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeInfo {
    /// `"ext2"` or `"ext3"` (an ext2 with a journal).
    pub format: &'static str,
    /// The name given at mkfs; bytes that are not UTF-8 are replaced.
    pub label: String,
    /// The volume's UUID in its usual spelling.
    pub uuid: String,
    /// On-disk revision.
    pub revision: u32,
    /// Names of all features, as mke2fs spells them.
    pub features: Vec<String>,
    /// Those that keep weft from opening it at all.
    pub unknown_incompatible: Vec<String>,
    /// Those that let weft open it for reading only.
    pub unknown_read_only: Vec<String>,
    /// Length of the volume in bytes.
    pub len_bytes: u64,
    /// Block size in bytes.
    pub block_bytes: u32,
    /// All blocks.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Blocks kept for the superuser.
    pub blocks_reserved: u64,
    /// Inode size in bytes.
    pub inode_bytes: u32,
    /// All inodes.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
    /// Block groups.
    pub groups: u32,
    /// Whether it was unmounted cleanly.
    pub clean: bool,
    /// Whether errors were noted on it.
    pub has_errors: bool,
    /// Whether it has a journal.
    pub has_journal: bool,
    /// Whether the journal holds changes that are not in place yet.
    pub needs_recovery: bool,
    /// Seconds since 1970 of its making, last mount, last write and last check; 0 for never.
    pub made: u32,
    /// Last mount.
    pub mounted: u32,
    /// Last write.
    pub written: u32,
    /// Last check.
    pub checked: u32,
}

/// Reads the figures of the volume in `source`. Looks without a lock, so that a mounted one can be
/// asked too.
///
/// # Errors
/// [`Error::Unrecognised`], [`Error::Volume`] for a damaged superblock, [`Error::Block`].
pub fn info(source: &str) -> Result<VolumeInfo> {
    let device = open_source(source, OpenMode::PEEK)?;
    let sb = superblock(source, &*device)?;
    let geometry = sb.geometry();
    let text = |bytes: &[u8]| {
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    };
    let has_journal = sb.features.compat.contains(Compat::HAS_JOURNAL);
    Ok(VolumeInfo {
        format: if has_journal { "ext3" } else { "ext2" },
        label: text(&sb.volume_name),
        uuid: uuid(sb.uuid),
        revision: sb.revision,
        features: sb.features.names(),
        unknown_incompatible: sb.features.unknown_incompat(),
        unknown_read_only: sb.features.unknown_ro_compat(),
        len_bytes: u64::from(sb.blocks) * u64::from(geometry.block_bytes),
        block_bytes: geometry.block_bytes,
        blocks: sb.blocks.into(),
        blocks_free: sb.free_blocks.into(),
        blocks_reserved: sb.reserved_blocks.into(),
        inode_bytes: geometry.inode_bytes,
        inodes: sb.inodes.into(),
        inodes_free: sb.free_inodes.into(),
        groups: geometry.groups,
        clean: sb.state.contains(State::VALID),
        has_errors: sb.state.contains(State::ERROR),
        has_journal,
        needs_recovery: sb.features.incompat.contains(weft_ext2::layout::Incompat::RECOVER),
        made: sb.made_time,
        mounted: sb.mount_time,
        written: sb.write_time,
        checked: sb.last_check,
    })
}

/// Reads and checks the superblock on `device`, which is named `source` in errors.
pub(crate) fn superblock(source: &str, device: &dyn BlockDevice) -> Result<Superblock> {
    demand_ext(source, device)?;
    let mut raw = [0; SUPERBLOCK_BYTES];
    device.read_at(&mut raw, SUPERBLOCK_OFFSET)?;
    Superblock::parse(&raw)
        .map_err(|e| Error::Volume { image: source.to_owned(), message: e.to_string() })
}

fn uuid(bytes: [u8; 16]) -> String {
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}
