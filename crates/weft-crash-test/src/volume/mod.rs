//! Programs on a volume of weft: what is lost are blocks, and what is left is what weft's own recovery
//! makes of them.
//!
//! The calls of a recording have the writes and flushes of the volume among them ([`merge()`]). Under
//! [`Model::Volume`](crate::Model::Volume) these are the units; the tree of a state is read from the
//! volume, which is mounted for that as after a power cut ([`recover`]).

mod images;
mod merge;
mod recover;

use std::path::{Path, PathBuf};

use rustix::process::{getgid, getuid};
use serde::{Deserialize, Serialize};
use weft_block::{Image, MemoryDevice};
use weft_ext2::mkfs::{MkfsOptions, mkfs};

pub(crate) use images::{VolumeEpoch, VolumeImages};
pub(crate) use merge::merge;
pub(crate) use recover::{Built, number, read_tree};

use crate::{Error, Result};

/// The format of a volume and the order in which weft writes to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeKind {
    /// The order of writes, as `weft mount --order` names it: soft, journal, journal=ordered,
    /// journal=full or async.
    pub order: String,
    /// The size of its blocks, in bytes.
    pub block_bytes: u32,
    /// Whether weft's fsck judges each state after its recovery, too.
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
        let kind = VolumeKind::of(&image, &options.order)?;
        Ok(Self { kind, image })
    }
}

impl VolumeKind {
    /// The kind of a volume that is written in an order.
    pub(crate) fn of(image: &Image, order: &str) -> Result<Self> {
        // The size of a block is 1 KiB, shifted.
        let shift = read_u32(image, SUPERBLOCK + 24)?.min(6);
        let kind = Self { order: order.to_owned(), block_bytes: 1024 << shift, fsck: false };
        kind.policy()?;
        Ok(kind)
    }
}

/// The offset of the superblock, in bytes.
const SUPERBLOCK: u64 = 1024;

fn read_u32(image: &Image, offset: u64) -> Result<u32> {
    let mut bytes = [0; 4];
    image.read(&mut bytes, offset).map_err(device_failed("reading the superblock"))?;
    Ok(u32::from_le_bytes(bytes))
}

/// The order in which weft mounts a volume that something else has written: with its journal, or, if
/// it has none, after a repair. `None` if it is no volume that weft knows.
pub(crate) fn default_order(image: &Image) -> Result<Option<&'static str>> {
    const MAGIC: u32 = 0xef53;
    const HAS_JOURNAL: u32 = 4;
    if image.len_bytes() < 2 * SUPERBLOCK || read_u32(image, SUPERBLOCK + 56)? & 0xffff != MAGIC {
        return Ok(None);
    }
    let has_journal = read_u32(image, SUPERBLOCK + 92)? & HAS_JOURNAL != 0;
    Ok(Some(if has_journal { "journal" } else { "async" }))
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
    let has_journal = options.order.starts_with("journal");
    let base = if has_journal { MkfsOptions::ext3() } else { MkfsOptions::ext2() };
    let mkfs_options = MkfsOptions {
        root_uid: getuid().as_raw(),
        root_gid: getgid().as_raw(),
        uuid: Some(*b"weft crash proof"),
        ..base
    };
    mkfs(&device, &mkfs_options).map_err(|e| Error::Volume(format!("making a volume: {e}")))?;
    Ok(device.snapshot())
}
