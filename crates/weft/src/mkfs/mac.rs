//! HFS and MFS volumes: bare, behind an Apple partition map, or in a DiskCopy 4.2 image.

use super::apple::{self, Drivers};
use super::target::{Access, in_source};
use crate::{Error, Result};
use std::sync::Arc;
use weft_block::container::DiskCopy;
use weft_block::{BlockDevice, OpenMode, Partition, PartitionInfo, PartitionType};
use weft_hfs::layout::Name;

/// HFS or MFS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MacFormat {
    /// HFS.
    #[default]
    Hfs,
    /// MFS.
    Mfs,
}

/// The wrapping of a new volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wrapping {
    /// None: a floppy's image, a partition, or a disk of an emulator.
    #[default]
    None,
    /// A disk with an Apple partition map, as SCSI disks have.
    PartitionMap,
    /// A DiskCopy 4.2 image: floppies only.
    DiskCopy,
}

/// The options of a new HFS or MFS volume.
#[derive(Debug, Clone, Default)]
pub struct MacOptions {
    /// HFS or MFS.
    pub format: MacFormat,
    /// Its name: 1 to 27 bytes of MacRoman.
    pub name: Vec<u8>,
    /// Bytes of an allocation block (HFS): a multiple of 512; `None`: as few as the size allows.
    pub alloc_block_bytes: Option<u32>,
    /// Initial size of the catalog in bytes (HFS).
    pub catalog_bytes: Option<u32>,
    /// Initial size of the extents file in bytes (HFS).
    pub extents_bytes: Option<u32>,
    /// Bytes by which a growing file is extended (HFS): a multiple of an allocation block.
    pub clump_bytes: Option<u32>,
    /// Blocks of the directory (MFS).
    pub directory_blocks: Option<u16>,
    /// The time of creation: seconds since 1904, in local time.
    pub created: u32,
    /// The wrapping.
    pub wrapping: Wrapping,
    /// Drivers for the partition map, without which a Macintosh does not mount a SCSI disk.
    pub drivers: Option<Drivers>,
}

/// The figures of a volume that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MacMade {
    /// The source that opens the volume: the image, or its partition.
    pub source: String,
    /// Bytes of an allocation block.
    pub alloc_block_bytes: u32,
    /// Allocation blocks.
    pub alloc_blocks: u64,
    /// Free allocation blocks.
    pub free_blocks: u64,
    /// The start of the volume on the device, in bytes.
    pub start_bytes: u64,
}

/// Makes a volume in `image`, of `len_bytes` (of all: map or header, and volume) or of the whole
/// device. Recognised content is overwritten only with `force`.
///
/// # Errors
/// [`Error::Invalid`] for a missing size or existing content; [`Error::Volume`] for a size or
/// options that make no volume; those of the device.
pub fn make_mac(
    image: &str,
    len_bytes: Option<u64>,
    force: bool,
    options: &MacOptions,
) -> Result<MacMade> {
    let file_bytes = match (options.wrapping, len_bytes) {
        // The size given for a floppy is that of its blocks.
        (Wrapping::DiskCopy, Some(len)) => Some(floppy(image, len)? + DiskCopy::HEADER_BYTES),
        (_, len) => len,
    };
    let mut made =
        in_source(image, file_bytes, force, Access::Umask, &|device| match options.wrapping {
            Wrapping::None => {
                let len = file_bytes.unwrap_or(device.geometry().len_bytes);
                in_window(image, device, 0, len, options)
            }
            Wrapping::PartitionMap => {
                let len = file_bytes.unwrap_or(device.geometry().len_bytes);
                let map = apple::write(image, device, len, options.drivers.as_ref())?;
                in_window(image, device, map.start_bytes, map.len_bytes, options)
            }
            Wrapping::DiskCopy => {
                let len = device.geometry().len_bytes.saturating_sub(DiskCopy::HEADER_BYTES);
                floppy(image, len)?;
                DiskCopy::write_header(device, &options.name, len)?;
                in_window(image, device, DiskCopy::HEADER_BYTES, len, options)
            }
        })?;
    if options.wrapping == Wrapping::DiskCopy {
        // The checksum is computed anew after writes through the image.
        let file: Arc<dyn BlockDevice> = crate::source::open_source(image, OpenMode::READ_WRITE)?;
        if let Some(floppy) = DiskCopy::recognise(&file)? {
            floppy.write_at(&[0; 0], 0)?;
            floppy.flush()?;
        }
    }
    if options.wrapping == Wrapping::PartitionMap {
        made.source = image.to_owned();
    }
    Ok(made)
}

/// Returns the length in bytes, if it is that of a floppy.
fn floppy(image: &str, len: u64) -> Result<u64> {
    if DiskCopy::is_floppy(len) {
        return Ok(len);
    }
    Err(Error::Invalid(format!(
        "{image}: DiskCopy 4.2 holds floppies, of 400K, 720K, 800K or 1440K; not {len} bytes"
    )))
}

fn in_window(
    image: &str,
    device: &dyn BlockDevice,
    start_bytes: u64,
    len_bytes: u64,
    options: &MacOptions,
) -> Result<MacMade> {
    let info = PartitionInfo {
        number: 1,
        start_bytes,
        len_bytes: len_bytes / 512 * 512,
        kind: PartitionType::Apple("Apple_HFS".into()),
        id: None,
        name: String::new(),
    };
    // The copy of the volume information is at the end, which is located by the length of the
    // device.
    if options.wrapping == Wrapping::None && device.geometry().len_bytes - len_bytes >= 512 {
        return Err(Error::Invalid(format!(
            "{image} has {} bytes already: leave the size out, or remove it first",
            device.geometry().len_bytes
        )));
    }
    let window = Partition::new(device, &info)?;
    let failed = |message: String| Error::Volume { image: image.to_owned(), message };
    match options.format {
        MacFormat::Hfs => {
            let name = Name::new(&options.name).map_err(|e| failed(e.to_string()))?;
            let mkfs = weft_hfs::mkfs::MkfsOptions {
                alloc_block_bytes: options.alloc_block_bytes,
                catalog_bytes: options.catalog_bytes,
                extents_bytes: options.extents_bytes,
                clump_bytes: options.clump_bytes,
                ..weft_hfs::mkfs::MkfsOptions::new(name, options.created)
            };
            let plan = weft_hfs::mkfs::mkfs(&window, &mkfs).map_err(|e| failed(e.to_string()))?;
            let trees = u64::from(plan.extents_blocks) + u64::from(plan.catalog_blocks);
            Ok(MacMade {
                source: image.to_owned(),
                alloc_block_bytes: plan.alloc_block_bytes,
                alloc_blocks: plan.alloc_blocks.into(),
                free_blocks: u64::from(plan.alloc_blocks) - trees,
                start_bytes,
            })
        }
        MacFormat::Mfs => {
            let mkfs = weft_hfs::mfs::MkfsOptions {
                name: options.name.clone(),
                created: options.created,
                directory_blocks: options.directory_blocks,
            };
            weft_hfs::mfs::mkfs(&window, &mkfs).map_err(|e| failed(e.to_string()))?;
            let mut raw = [0; 512];
            window.read_at(&mut raw, 1024)?;
            let mdb = weft_hfs::mfs::layout::Mdb::parse(&raw, len_bytes / 512).map_err(failed)?;
            Ok(MacMade {
                source: image.to_owned(),
                alloc_block_bytes: mdb.alloc_block_bytes,
                alloc_blocks: mdb.alloc_blocks.into(),
                free_blocks: mdb.free_blocks.into(),
                start_bytes,
            })
        }
    }
}
