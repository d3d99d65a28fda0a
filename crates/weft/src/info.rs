//! The figures of a volume, read from its superblock without opening the file system: also while it
//! is mounted elsewhere.

use crate::format::{Format, recognise};
use crate::image::Image;
use crate::{Error, Result, mac};
use std::sync::Arc;
use uuid::Uuid;
use weft_block::BlockDevice;
use weft_ext2::layout::{Compat, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, State, Superblock};
use weft_hfs::streams::MacVolume;
use weft_vfs::FileSystem;

/// The figures of a volume, by its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeInfo {
    /// ext2 and its descendants.
    Ext(Box<ExtInfo>),
    /// HFS, MFS and HFS Plus.
    Mac(Box<MacInfo>),
}

/// An HFS, MFS or HFS Plus volume in figures. Dates are seconds since 1904 as the volume keeps
/// them, in local time (HFS Plus: UTC); 0 for never.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MacInfo {
    /// `"hfs"`, `"mfs"` or `"hfs+"`.
    pub format: &'static str,
    /// The volume's wrapping, from the outside in.
    pub layers: Vec<String>,
    /// The volume's name.
    pub label: String,
    /// Length of the volume in bytes.
    pub len_bytes: u64,
    /// Bytes of an allocation block.
    pub block_bytes: u32,
    /// Allocation blocks.
    pub blocks: u64,
    /// Free allocation blocks.
    pub blocks_free: u64,
    /// Files, if the volume counts them.
    pub files: Option<u32>,
    /// Folders without the root, if the volume counts them.
    pub folders: Option<u32>,
    /// Whether it was unmounted cleanly (MFS: whether it is consistent).
    pub clean: bool,
    /// Whether it is locked.
    pub locked: bool,
    /// Whether it has boot blocks.
    pub bootable: bool,
    /// Time of creation.
    pub created: u32,
    /// Time of the last change.
    pub modified: u32,
    /// Time of the last backup.
    pub backed_up: u32,
    /// Number of writes to the volume, as it counts them.
    pub write_count: u32,
    /// The id of the blessed folder, if there is one.
    pub blessed: Option<u32>,
    /// Sizes of the volume's own structures: name and bytes.
    pub parts: Vec<(&'static str, u64)>,
    /// The journal beside it, if there is one.
    pub journal: Option<String>,
    /// The reason why nothing can be written, if it is known.
    pub why_read_only: Option<String>,
}

/// An ext volume in figures. Counts are those of the superblock, which an ordered volume in use
/// keeps exact only at sync and unmount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtInfo {
    /// `"ext2"` or `"ext3"` (an ext2 with a journal).
    pub format: &'static str,
    /// The label given at mkfs; bytes that are not UTF-8 are replaced.
    pub label: String,
    /// The volume's UUID in its usual spelling.
    pub uuid: String,
    /// On-disk revision.
    pub revision: u32,
    /// Names of all features, as mke2fs spells them.
    pub features: Vec<String>,
    /// Features for which weft does not open the volume at all.
    pub unknown_incompatible: Vec<String>,
    /// Features for which weft opens the volume only for reading.
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
    /// Whether errors were recorded on it.
    pub has_errors: bool,
    /// Whether it has a journal.
    pub has_journal: bool,
    /// Whether the journal holds changes that are not in place yet.
    pub needs_recovery: bool,
    /// Creation, in seconds since 1970 as the three below; 0 for never.
    pub made: u32,
    /// Last mount.
    pub mounted: u32,
    /// Last write.
    pub written: u32,
    /// Last check.
    pub checked: u32,
}

fn refused(source: &str) -> impl Fn(weft_vfs::Error) -> Error + '_ {
    move |e| Error::Volume { image: source.to_owned(), message: e.to_string() }
}

fn boots(device: &dyn BlockDevice) -> Result<bool> {
    let mut signature = [0; 2];
    device.read_at(&mut signature, 0)?;
    Ok(signature == *b"LK")
}

pub(crate) fn hfs(source: &str, image: &Image) -> Result<VolumeInfo> {
    use weft_hfs::layout::{Attributes, Mdb};
    let mut raw = [0; 512];
    image.device.read_at(&mut raw, 1024)?;
    let mdb = Mdb::parse(&raw)
        .map_err(|e| Error::Volume { image: source.to_owned(), message: e.to_string() })?;
    let locked = mdb.attributes.intersects(Attributes::HARDWARE_LOCK | Attributes::SOFTWARE_LOCK);
    let journal = mac::journal_beside(source, image).filter(|path| path.exists());
    Ok(VolumeInfo::Mac(Box::new(MacInfo {
        format: "hfs",
        layers: image.layer_names(),
        label: weft_hfs::macroman::name_to_unix(mdb.name.as_bytes()),
        len_bytes: image.device.geometry().len_bytes,
        block_bytes: mdb.alloc_block_bytes,
        blocks: mdb.alloc_blocks.into(),
        blocks_free: mdb.free_blocks.into(),
        files: Some(mdb.files),
        folders: Some(mdb.dirs),
        clean: mdb.attributes.contains(Attributes::UNMOUNTED),
        locked,
        bootable: boots(&*image.device)?,
        created: mdb.created,
        modified: mdb.modified,
        backed_up: mdb.backed_up,
        write_count: mdb.write_count,
        blessed: Some(mdb.finder_info[0]).filter(|id| *id != 0),
        parts: vec![
            ("catalog", mdb.catalog_file_bytes.into()),
            ("extents", mdb.extents_file_bytes.into()),
            ("clump", mdb.clump_bytes.into()),
        ],
        journal: journal.map(|path| path.display().to_string()),
        why_read_only: image
            .why_read_only()
            .or_else(|| locked.then(|| "the volume is locked".to_owned())),
    })))
}

pub(crate) fn mfs(source: &str, image: &Image) -> Result<VolumeInfo> {
    let options = weft_hfs::mfs::OpenOptions { read_only: true, ..Default::default() };
    let volume =
        weft_hfs::mfs::Mfs::open(Arc::clone(&image.device), options).map_err(refused(source))?;
    let space = volume.statfs().map_err(refused(source))?;
    let meta = volume.volume_meta();
    let mut files = 0;
    volume
        .readdir(volume.root(), weft_vfs::DirCursor(2), &mut |_| {
            files += 1;
            true
        })
        .map_err(refused(source))?;
    Ok(VolumeInfo::Mac(Box::new(MacInfo {
        format: "mfs",
        layers: image.layer_names(),
        label: weft_hfs::macroman::name_to_unix(&meta.name),
        len_bytes: image.device.geometry().len_bytes,
        block_bytes: space.block_bytes,
        blocks: space.blocks,
        blocks_free: space.blocks_free,
        files: Some(files),
        folders: None,
        clean: volume.damage().is_empty(),
        bootable: boots(&*image.device)?,
        created: meta.created,
        backed_up: meta.backed_up,
        why_read_only: image
            .why_read_only()
            .or_else(|| volume.damage().first().map(|what| format!("it is damaged: {what}"))),
        ..MacInfo::default()
    })))
}

pub(crate) fn hfs_plus(source: &str, image: &Image) -> Result<VolumeInfo> {
    let options = weft_hfs::hfsplus::OpenOptions::default();
    let volume = weft_hfs::hfsplus::HfsPlus::open(Arc::clone(&image.device), options)
        .map_err(refused(source))?;
    let space = volume.statfs().map_err(refused(source))?;
    let meta = volume.volume_meta();
    let mut layers = image.layer_names();
    if volume.place().wrapped {
        layers.push("HFS wrapper".into());
    }
    Ok(VolumeInfo::Mac(Box::new(MacInfo {
        format: "hfs+",
        layers,
        label: volume.name(),
        len_bytes: volume.place().len_bytes,
        block_bytes: space.block_bytes,
        blocks: space.blocks,
        blocks_free: space.blocks_free,
        clean: volume.cautions().is_empty(),
        created: meta.created,
        modified: meta.modified,
        backed_up: meta.backed_up,
        blessed: meta.finder_info.map(|words| words[0]).filter(|id| *id != 0),
        why_read_only: Some(
            std::iter::once("weft reads HFS Plus and does not write it".to_owned())
                .chain(volume.cautions())
                .collect::<Vec<_>>()
                .join("; "),
        ),
        ..MacInfo::default()
    })))
}

pub(crate) fn ext(source: &str, image: &Image) -> Result<VolumeInfo> {
    let sb = superblock(source, &*image.device)?;
    let geometry = sb.geometry();
    let text = |bytes: &[u8]| {
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    };
    let has_journal = sb.features.compat.contains(Compat::HAS_JOURNAL);
    Ok(VolumeInfo::Ext(Box::new(ExtInfo {
        format: if has_journal { "ext3" } else { "ext2" },
        label: text(&sb.volume_name),
        uuid: Uuid::from_bytes(sb.uuid).to_string(),
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
    })))
}

/// Reads and checks the superblock on `device`, which is named `source` in errors.
pub(crate) fn superblock(source: &str, device: &dyn BlockDevice) -> Result<Superblock> {
    match recognise(device)? {
        Format::Ext => {}
        other => return Err(other.refused(source)),
    }
    let mut raw = [0; SUPERBLOCK_BYTES];
    device.read_at(&mut raw, SUPERBLOCK_OFFSET)?;
    Superblock::parse(&raw)
        .map_err(|e| Error::Volume { image: source.to_owned(), message: e.to_string() })
}
