//! Programs on a volume of weft: what is lost are blocks, and what is left is what weft's own recovery
//! makes of them.
//!
//! The calls of a recording have the writes and flushes of the volume among them ([`merge()`]). Under
//! [`Model::Volume`](crate::Model::Volume) these are the units; the tree of a state is read from the
//! volume, which is mounted for that as after a power cut ([`recover`]).

mod explain;
mod images;
mod merge;
mod recover;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::process::{getgid, getuid};
use serde::{Deserialize, Serialize};
use weft_block::{BlockDevice, Image, MemoryDevice};
use weft_ext2::mkfs::{MkfsOptions, mkfs};
use weft_hfs::layout::Name;
use weft_hfs::mkfs::MkfsOptions as HfsOptions;
use weft_patch::Policy;

pub(crate) use explain::Explainer;
pub use explain::{BlockText, WatchedVolume};
pub(crate) use images::{VolumeEpoch, VolumeImages};
pub(crate) use merge::merge;
pub(crate) use recover::{Built, Mounted, number, read_tree};

use crate::{Error, Result};

/// The format of a volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeFormat {
    /// ext2 or ext3.
    #[default]
    Ext,
    /// HFS.
    Hfs,
}

/// The format of a volume and the order in which weft writes to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeKind {
    /// The order of writes, as `weft mount --order` names it: soft, journal, journal=ordered,
    /// journal=full or async.
    pub order: String,
    /// The size of its blocks, in bytes.
    pub block_bytes: u32,
    /// The format.
    #[serde(default)]
    pub format: VolumeFormat,
    /// The size of a journal that is behind the volume on its device, in bytes: HFS has none of its
    /// own.
    #[serde(default)]
    pub journal_bytes: u64,
    /// Set if weft's fsck judges each state after its recovery, too.
    #[serde(default)]
    pub fsck: bool,
}

/// A volume before the program.
#[derive(Debug, Clone)]
pub struct Volume {
    /// Its kind.
    pub kind: VolumeKind,
    /// Its content.
    pub image: Image,
}

/// The volume on which a program is to be recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeOptions {
    /// The order of writes.
    pub order: String,
    /// The volume of which a copy is used; otherwise an empty one is made.
    pub image: Option<PathBuf>,
    /// The format of an empty one.
    pub format: VolumeFormat,
    /// The size of an empty one, in bytes.
    pub size_bytes: u64,
}

pub(crate) fn device_failed(what: &str) -> impl FnOnce(weft_block::Error) -> Error {
    let what = what.to_owned();
    move |e| Error::Volume(format!("{what}: {e}"))
}

impl Volume {
    /// Copies a volume, or makes an empty one.
    pub(crate) fn new(options: &VolumeOptions) -> Result<Self> {
        let image = match &options.image {
            Some(path) => copy(path)?,
            None => make(options)?,
        };
        let mut kind = VolumeKind::of(&image, &options.order)?;
        if kind.format == VolumeFormat::Hfs && matches!(kind.policy()?, Policy::Journal(_)) {
            kind.block_bytes = HFS_JOURNAL_BLOCK_BYTES;
            kind.journal_bytes = HFS_JOURNAL_BYTES;
            let image = with_journal(&image, &kind)?;
            return Ok(Self { kind, image });
        }
        Ok(Self { kind, image })
    }
}

impl VolumeKind {
    /// The kind of a volume that is written in an order.
    pub(crate) fn of(image: &Image, order: &str) -> Result<Self> {
        let format = format_of(image)?.unwrap_or_default();
        let block_bytes = match format {
            // 1 KiB, shifted.
            VolumeFormat::Ext => 1024 << read_u32(image, SUPERBLOCK + 24)?.min(6),
            VolumeFormat::Hfs => 512,
        };
        let order = order.to_owned();
        let kind = Self { order, block_bytes, format, journal_bytes: 0, fsck: false };
        kind.policy()?;
        Ok(kind)
    }
}

/// The smallest journal, with the blocks that weft gives it.
const HFS_JOURNAL_BYTES: u64 = 1 << 20;
const HFS_JOURNAL_BLOCK_BYTES: u32 = 1024;

/// An HFS volume, with an empty journal behind it: a power cut hits both at once.
fn with_journal(volume: &Image, kind: &VolumeKind) -> Result<Image> {
    let failed = || device_failed("making a journal");
    let mut image = Image::new(volume.len_bytes() + kind.journal_bytes);
    for (nr, page) in volume.pages() {
        let at = nr * weft_block::PAGE_BYTES as u64;
        let len = (volume.len_bytes() - at).min(weft_block::PAGE_BYTES as u64) as usize;
        image.write(&page[..len], at).map_err(failed())?;
    }
    let device = Arc::new(MemoryDevice::from_image(image));
    let (volume, journal) = kind.parts(Arc::clone(&device) as Arc<dyn BlockDevice>);
    if let Some(journal) = journal {
        weft_hfs::format_journal(&*volume, &*journal)
            .map_err(|e| Error::Volume(format!("making a journal: {e}")))?;
    }
    Ok(device.snapshot())
}

/// The offset of the superblock, or of the Master Directory Block, in bytes.
const SUPERBLOCK: u64 = 1024;

fn read_u32(image: &Image, offset: u64) -> Result<u32> {
    let mut bytes = [0; 4];
    image.read(&mut bytes, offset).map_err(device_failed("reading the superblock"))?;
    Ok(u32::from_le_bytes(bytes))
}

/// The format of a volume; `None` if it is none that programs can run on.
fn format_of(image: &Image) -> Result<Option<VolumeFormat>> {
    const EXT: u32 = 0xef53;
    // "BD", in the order of a Macintosh. An HFS Plus volume in a wrapper says "H+" or "HX" further on.
    const HFS: u32 = 0x4442;
    const EMBEDDED: [u32; 2] = [0x2b48, 0x5848];
    if image.len_bytes() < 2 * SUPERBLOCK {
        return Ok(None);
    }
    let word = |at| read_u32(image, SUPERBLOCK + at).map(|word| word & 0xffff);
    Ok(match (word(56)?, word(0)?) {
        (EXT, _) => Some(VolumeFormat::Ext),
        (_, HFS) if !EMBEDDED.contains(&word(124)?) => Some(VolumeFormat::Hfs),
        _ => None,
    })
}

/// The order in which weft mounts a volume that something else has written: ext3 with its journal,
/// ext2 after a repair. HFS is recovered in any case. `None` if it is no volume that weft knows.
pub(crate) fn default_order(image: &Image) -> Result<Option<&'static str>> {
    const HAS_JOURNAL: u32 = 4;
    Ok(match format_of(image)? {
        None => None,
        Some(VolumeFormat::Hfs) => Some("soft"),
        Some(VolumeFormat::Ext) => {
            let has_journal = read_u32(image, SUPERBLOCK + 92)? & HAS_JOURNAL != 0;
            Some(if has_journal { "journal" } else { "async" })
        }
    })
}

/// Copies a volume into memory; its holes take none.
pub(crate) fn copy(path: &Path) -> Result<Image> {
    let what = format!("reading {}", path.display());
    let device = weft_block::FileDevice::open(path, weft_block::OpenMode::READ_ONLY)
        .map_err(device_failed(&what))?;
    Image::copy_of(&device).map_err(device_failed(&what))
}

fn make(options: &VolumeOptions) -> Result<Image> {
    let device = MemoryDevice::new(options.size_bytes);
    let failed = |e: &dyn std::fmt::Display| Error::Volume(format!("making a volume: {e}"));
    if options.format == VolumeFormat::Hfs {
        let name = Name::new(b"Crash proof").map_err(|e| failed(&e))?;
        // In 2024, so that the same volume is made each time.
        let made = weft_hfs::mkfs::mkfs(&device, &HfsOptions::new(name, 3_800_000_000));
        made.map_err(|e| failed(&e))?;
        return Ok(device.snapshot());
    }
    let has_journal = options.order.starts_with("journal");
    let base = if has_journal { MkfsOptions::ext3() } else { MkfsOptions::ext2() };
    let mkfs_options = MkfsOptions {
        root_uid: getuid().as_raw(),
        root_gid: getgid().as_raw(),
        uuid: Some(*b"weft crash proof"),
        ..base
    };
    mkfs(&device, &mkfs_options).map_err(|e| failed(&e))?;
    Ok(device.snapshot())
}
