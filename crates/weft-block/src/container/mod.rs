//! The containers of images of Macintosh disks: recognised by content, and unwrapped layer by layer.
//!
//! | layer | written in place |
//! |---|---|
//! | MacBinary I, II, III around the data fork | yes |
//! | AppleSingle around the data fork | yes |
//! | [DiskCopy 4.2](DiskCopy): header, data, tags | yes, with its checksum |
//! | Apple's partition map, `ER`/`PM` and the old `TS`; also on a hybrid disc | yes |
//! | NDIF (DiskCopy 6): a `bcem` resource, chunks raw and in ADC | no |
//! | UDIF (`.dmg`): raw, zero, ADC, zlib, bzip2, LZFSE | no |
//!
//! Layers stack: an archive may hold MacBinary around DiskCopy 4.2 around a floppy. [`open`] goes
//! on until it knows no more. What it ends at need not be a volume: that is for the formats above.
//!
//! Everything here is somebody else's data: lengths are checked against the device before memory
//! is taken or anything is read, a compressed chunk is unpacked into a buffer of its announced and
//! bounded length, and no more than a fixed number of layers is taken off.

mod adc;
mod chunks;
mod disk_copy;
mod files;
mod ndif;
mod resource;
mod two_img;
mod udif;

pub use disk_copy::DiskCopy;

use crate::partition::list_apple_partitions;
use crate::{BlockDevice, Error, Partition, PartitionInfo, PartitionType, Result, Scheme};
use std::fmt;
use std::sync::Arc;

/// The most layers taken off.
const LAYERS_MAX: usize = 8;

/// Information about an image from outside it.
#[derive(Clone, Default)]
pub struct Options {
    /// The image's resource fork, where it is in another file. An AppleDouble (`._name`) is taken
    /// as well: its resource fork is found.
    pub resource_fork: Option<Arc<dyn BlockDevice>>,
    /// The partition wanted, if the image has a partition map.
    pub partition: Option<u32>,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("resource_fork", &self.resource_fork.is_some())
            .field("partition", &self.partition)
            .finish()
    }
}

/// A layer that was unwrapped.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layer {
    /// MacBinary of version 1, 2 or 3.
    MacBinary {
        /// The version.
        version: u8,
    },
    /// AppleSingle.
    AppleSingle,
    /// DiskCopy 4.2.
    DiskCopy {
        /// The disk's name as it stands there, in MacRoman.
        name: Vec<u8>,
        /// Whether the image has tags.
        tags: bool,
        /// Whether both checksums are right.
        intact: bool,
    },
    /// 2IMG.
    TwoImg,
    /// NDIF.
    Ndif {
        /// The disk's name as it stands there, in MacRoman.
        name: Vec<u8>,
        /// The number of chunks.
        chunks: usize,
    },
    /// UDIF.
    Udif {
        /// The number of chunks.
        chunks: usize,
        /// Whether the checksum of the image's checksums is right. ([`Opened::verify`] looks at those.)
        intact: bool,
    },
    /// A partition of Apple's map.
    Partition {
        /// The scheme of the partition map.
        scheme: Scheme,
        /// The entry of the map.
        info: PartitionInfo,
        /// Whether the image ends before the partition does.
        cut_short: bool,
    },
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MacBinary { version } => {
                write!(f, "MacBinary {}", ["I", "II", "III"][usize::from(*version).clamp(1, 3) - 1])
            }
            Self::AppleSingle => f.write_str("AppleSingle"),
            Self::DiskCopy { name, tags, intact } => {
                write!(f, "DiskCopy 4.2 {:?}", String::from_utf8_lossy(name))?;
                f.write_str(if *tags { ", with tags" } else { "" })?;
                f.write_str(if *intact { "" } else { ", checksum wrong" })
            }
            Self::TwoImg => f.write_str("2IMG"),
            Self::Ndif { name, chunks } => {
                write!(f, "NDIF {:?}, {chunks} chunks", String::from_utf8_lossy(name))
            }
            Self::Udif { chunks, intact } => {
                write!(f, "UDIF, {chunks} chunks")?;
                f.write_str(if *intact { "" } else { ", checksum wrong" })
            }
            Self::Partition { scheme, info, cut_short } => {
                let old = if *scheme == Scheme::AppleOld { "old " } else { "" };
                write!(f, "{old}Apple partition {} {:?}", info.number, info.name)?;
                if let PartitionType::Apple(kind) = &info.kind {
                    write!(f, " ({kind})")?;
                }
                f.write_str(if *cut_short { ", cut short" } else { "" })
            }
        }
    }
}

/// An image with its wrapping off.
#[derive(Clone)]
pub struct Opened {
    /// The device inside all layers.
    pub device: Arc<dyn BlockDevice>,
    /// The layers that were unwrapped, from the outside in.
    pub layers: Vec<Layer>,
    /// Checksums that were not looked at yet.
    sums: Vec<Arc<udif::Sums>>,
}

impl Opened {
    /// Returns true if the image has checksums that opening did not verify.
    #[must_use]
    pub fn has_checksums(&self) -> bool {
        !self.sums.is_empty()
    }

    /// Looks at all checksums that opening did not look at: those of UDIF. The whole image is read
    /// and unpacked for it. Gives what is wrong, each with the structure and where it is.
    #[must_use]
    pub fn verify(&self) -> Vec<Error> {
        self.sums.iter().flat_map(|sums| sums.verify()).collect()
    }
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened")
            .field("geometry", &self.device.geometry())
            .field("layers", &self.layers)
            .finish()
    }
}

/// Takes off an image all that it is wrapped in. One that is wrapped in nothing is given back as
/// it is.
///
/// ```
/// use std::sync::Arc;
/// use weft_block::{BlockDevice, MemoryDevice, container};
///
/// // 400 KB of DiskCopy 4.2, empty.
/// let file = MemoryDevice::new(84 + 409_600);
/// file.write_at(&409_600_u32.to_be_bytes(), 64)?;
/// file.write_at(&[1, 0], 82)?;
/// let opened = container::open(Arc::new(file), &container::Options::default())?;
/// assert_eq!(opened.device.geometry().len_bytes, 409_600);
/// assert_eq!(opened.layers[0].to_string(), "DiskCopy 4.2 \"\"");
/// # Ok::<(), weft_block::Error>(())
/// ```
///
/// # Errors
/// [`Error::Corrupt`] and [`Error::Unsupported`] for a layer that is recognised and cannot be
/// read, [`Error::Invalid`] if a partition must be named, or the one named is not there.
pub fn open(device: Arc<dyn BlockDevice>, options: &Options) -> Result<Opened> {
    let mut opened = Opened { device, layers: Vec::new(), sums: Vec::new() };
    let mut resource = match &options.resource_fork {
        Some(file) => Some(files::resource_of(Arc::clone(file))?),
        None => None,
    };
    let mut partition = options.partition;
    while opened.layers.len() < LAYERS_MAX {
        let Some(peeled) = peel(&opened.device, resource.take(), &mut partition)? else { break };
        opened.layers.push(peeled.layer);
        opened.sums.extend(peeled.sums.map(Arc::new));
        opened.device = peeled.device;
        resource = peeled.resource;
    }
    if let Some(number) = partition {
        return Err(Error::Invalid(format!(
            "partition {number} is wanted, and there is no Apple partition map"
        )));
    }
    Ok(opened)
}

/// One layer, and what is under it: its data fork or content, and perhaps a resource fork.
struct Peeled {
    layer: Layer,
    device: Arc<dyn BlockDevice>,
    resource: Option<Arc<dyn BlockDevice>>,
    sums: Option<udif::Sums>,
}

impl Peeled {
    fn new(layer: Layer, device: impl BlockDevice + 'static) -> Self {
        Self { layer, device: Arc::new(device), resource: None, sums: None }
    }
}

/// Recognises the outermost layer. What has a signature or a checksum comes first; then, as chance
/// could make a volume look like the rest, volumes.
fn peel(
    device: &Arc<dyn BlockDevice>,
    resource: Option<Arc<dyn BlockDevice>>,
    partition: &mut Option<u32>,
) -> Result<Option<Peeled>> {
    if let Some((image, name)) = ndif::open(device, resource)? {
        let layer = Layer::Ndif { name, chunks: image.chunks() };
        return Ok(Some(Peeled::new(layer, image)));
    }
    if let Some((image, sums)) = udif::open(device)? {
        let layer = Layer::Udif { chunks: image.chunks(), intact: sums.tables_intact() };
        return Ok(Some(Peeled { layer, device: image, resource: None, sums: Some(sums) }));
    }
    let file = match files::macbinary(device)? {
        Some(file) => Some(file),
        None => files::apple_single(device)?,
    };
    if let Some(file) = file
        && (file.certain || !looks_like_volume(device)?)
    {
        let window = |(at, len)| Arc::new(Partition::window(Arc::clone(device), at, len));
        let resource = (file.resource.1 > 0).then(|| window(file.resource) as _);
        let device = window(file.data);
        return Ok(Some(Peeled { layer: file.layer, device, resource, sums: None }));
    }
    if let Some(image) = DiskCopy::recognise(device)? {
        let layer = Layer::DiskCopy {
            name: image.name().to_vec(),
            tags: image.has_tags(),
            intact: image.verify()?,
        };
        return Ok(Some(Peeled::new(layer, image)));
    }
    if let Some((at, len)) = two_img::recognise(device)? {
        let blocks = Partition::window(Arc::clone(device), at, len);
        return Ok(Some(Peeled::new(Layer::TwoImg, blocks)));
    }
    if looks_like_volume(device)? {
        return Ok(None);
    }
    pick_partition(device, partition)
}

/// Reports whether an HFS, MFS or HFS+ volume begins at the device's start.
fn looks_like_volume(device: &dyn BlockDevice) -> Result<bool> {
    let mut signature = [0; 2];
    if device.geometry().len_bytes < 1536 {
        return Ok(false);
    }
    device.read_at(&mut signature, 1024)?;
    Ok(matches!(&signature, b"BD" | b"\xd2\xd7" | b"H+" | b"HX"))
}

fn pick_partition(
    device: &Arc<dyn BlockDevice>,
    partition: &mut Option<u32>,
) -> Result<Option<Peeled>> {
    let Some(table) = list_apple_partitions(device)? else { return Ok(None) };
    let has_volume = |p: &&PartitionInfo| match &p.kind {
        PartitionType::Apple(kind) => ["Apple_HFS", "Apple_HFSX", "Apple_MFS", "TFS1"]
            .iter()
            .any(|k| kind.eq_ignore_ascii_case(k)),
        _ => false,
    };
    let list = |partitions: &mut dyn Iterator<Item = &PartitionInfo>| {
        let each: Vec<String> = partitions.map(|p| format!("{} {:?}", p.number, p.name)).collect();
        if each.is_empty() { "none".to_owned() } else { each.join(", ") }
    };
    let mut volumes = table.partitions.iter().filter(has_volume);
    let info = match (partition.take(), volumes.next(), volumes.next()) {
        (Some(number), ..) => {
            table.partitions.iter().find(|p| p.number == number).ok_or_else(|| {
                let all = list(&mut table.partitions.iter());
                Error::Invalid(format!("there is no partition {number} (there is: {all})"))
            })?
        }
        (None, None, _) => return Ok(None),
        (None, Some(only), None) => only,
        (None, Some(_), Some(_)) => {
            let all = list(&mut table.partitions.iter().filter(has_volume));
            return Err(Error::Invalid(format!(
                "there are several volumes, and one must be named: partitions {all}"
            )));
        }
    };
    let device_bytes = device.geometry().len_bytes;
    let start = info.start_bytes;
    if start >= device_bytes {
        return Err(Error::Corrupt {
            structure: "Apple partition map",
            offset: 512,
            problem: format!(
                "partition {} begins at {start}, and the image ends at {device_bytes}",
                info.number
            ),
        });
    }
    let len = info.len_bytes.min(device_bytes - start);
    let layer = Layer::Partition {
        scheme: table.scheme,
        cut_short: len < info.len_bytes,
        info: info.clone(),
    };
    Ok(Some(Peeled::new(layer, Partition::window(Arc::clone(device), start, len))))
}

// ---- fields ----

fn be16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]))
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from(be16(bytes, at)) << 16 | u32::from(be16(bytes, at + 2))
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from(be32(bytes, at)) << 32 | u64::from(be32(bytes, at + 4))
}

/// Reads a range of up to `most` bytes into memory, after a look whether it is there.
fn read_range(
    device: &dyn BlockDevice,
    structure: &'static str,
    range: (u64, u64),
    most: u64,
) -> Result<Vec<u8>> {
    let (offset, len) = range;
    let corrupt = |problem| Error::Corrupt { structure, offset, problem };
    let end = device.geometry().len_bytes;
    if offset.checked_add(len).is_none_or(|e| e > end) {
        return Err(corrupt(format!("its {len} bytes reach past the end at {end}")));
    }
    let fits = usize::try_from(len).ok().filter(|_| len <= most);
    let Some(len) = fits else {
        return Err(corrupt(format!("{len} bytes, and up to {most} are read")));
    };
    let mut bytes = vec![0; len];
    device.read_at(&mut bytes, offset)?;
    Ok(bytes)
}
