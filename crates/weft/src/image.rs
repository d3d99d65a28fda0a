//! The content of an image: removes its wrapping until a volume is found.
//!
//! Most images are a bare volume. Those of Macintosh disks come in MacBinary, in DiskCopy 4.2, NDIF
//! or UDIF, behind an Apple partition map, and in each other ([`weft_block::container`]). An NDIF
//! image has its map in its resource fork, which on Linux is beside the file (`._NAME`,
//! `.rsrc/NAME`, `NAME.rsrc`) or in an attribute.
//!
//! A device is recognised as a volume first, and only otherwise unwrapped, so that a volume is never
//! taken for a container. A container that cannot be written makes the volume read-only, with the
//! reason ([`Stack::why_read_only`](crate::Stack::why_read_only)).

use crate::format::{Format, recognise};
use crate::source::Source;
use crate::{Error, Result};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weft_block::container::{self, Layer, Opened};
use weft_block::{BlockDevice, FileDevice, MemoryDevice, OpenMode};

/// An image with its wrapping removed.
#[derive(Clone)]
pub struct Image {
    /// The device inside.
    pub device: Arc<dyn BlockDevice>,
    /// The layers that were removed, from the outside in; empty for most images.
    pub layers: Vec<Layer>,
    /// The format that was recognised inside.
    pub format: Format,
    /// The wrapping, for its checksums.
    wrapping: Option<Opened>,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image")
            .field("layers", &self.layers)
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}

impl Image {
    /// The layers in words, from the outside in.
    #[must_use]
    pub fn layer_names(&self) -> Vec<String> {
        self.layers.iter().map(|layer| in_utf8(layer).to_string()).collect()
    }

    /// Returns true if the wrapping has checksums that [`verify`](Self::verify) checks.
    #[must_use]
    pub fn has_checksums(&self) -> bool {
        self.wrapping.as_ref().is_some_and(Opened::has_checksums)
    }

    /// Checks the checksums of the wrapping that opening did not check, which reads the whole
    /// image. Returns a message for each that is wrong.
    #[must_use]
    pub fn verify(&self) -> Vec<String> {
        let wrong = self.wrapping.as_ref().map(Opened::verify).unwrap_or_default();
        wrong.iter().map(ToString::to_string).collect()
    }

    /// The number of the volume's partition, if it is in one that was found here.
    pub(crate) fn partition(&self) -> Option<u32> {
        self.layers.iter().rev().find_map(|layer| match layer {
            Layer::Partition { info, .. } => Some(info.number),
            _ => None,
        })
    }

    /// The reason why nothing can be written, if it is the wrapping.
    pub(crate) fn why_read_only(&self) -> Option<String> {
        let compressed = |layer: &&Layer| matches!(layer, Layer::Ndif { .. } | Layer::Udif { .. });
        self.layers.iter().find(compressed).map(|layer| {
            let layer = in_utf8(layer);
            format!(
                "it is a compressed image ({layer}), which is read and never written; weft hfs \
                 unwrap writes what is in it as a plain image"
            )
        })
    }
}

/// A layer with its name in UTF-8: the names in DiskCopy images are in MacRoman.
fn in_utf8(layer: &Layer) -> Layer {
    let mut layer = layer.clone();
    if let Layer::DiskCopy { name, .. } | Layer::Ndif { name, .. } = &mut layer {
        *name = weft_hfs::macroman::decode(name).into_bytes();
    }
    layer
}

/// Removes the wrapping of `device`, which is called `source` in messages, and recognises the
/// content.
///
/// # Errors
/// [`Error::Volume`] for a layer that is recognised and cannot be read; [`Error::Invalid`] if there
/// are several volumes and none is selected.
pub fn unwrap(source: &str, device: Arc<dyn BlockDevice>) -> Result<Image> {
    let format = recognise(&*device)?;
    // A UDIF image that begins with an unpacked chunk begins as the volume in it does.
    if format.is_volume() && !ends_as_udif(&*device)? {
        return Ok(Image { device, layers: Vec::new(), format, wrapping: None });
    }
    let options = container::Options { resource_fork: resource_fork_of(source), partition: None };
    let opened = container::open(Arc::clone(&device), &options).map_err(|e| match e {
        // The map itself, which is a partition, too.
        weft_block::Error::Invalid(_) if partition_of(source).is_some() => Error::Invalid(format!(
            "{source} is the partition map of the disk; name a partition with a volume"
        )),
        weft_block::Error::Invalid(message) => {
            Error::Invalid(format!("{source}: {message}; write {source}?partition=NUMBER"))
        }
        weft_block::Error::Corrupt { .. } | weft_block::Error::Unsupported { .. } => {
            Error::Volume { image: source.to_owned(), message: e.to_string() }
        }
        e => Error::Block(e),
    })?;
    let format = if opened.layers.is_empty() { format } else { recognise(&*opened.device)? };
    Ok(Image {
        device: Arc::clone(&opened.device),
        layers: opened.layers.clone(),
        format,
        wrapping: Some(opened),
    })
}

/// Returns true if the device ends with the trailer of a UDIF image.
fn ends_as_udif(device: &dyn BlockDevice) -> Result<bool> {
    let Some(at) = device.geometry().len_bytes.checked_sub(512) else { return Ok(false) };
    let mut start = [0; 8];
    device.read_at(&mut start, at)?;
    Ok(start == *b"koly\0\0\0\x04")
}

/// The resource fork of the image file `source`, if there is one: in `._NAME` beside it (also below
/// `__MACOSX`, where archives of macOS put it), in `.rsrc/NAME`, in `NAME.rsrc`, or in its
/// attribute `user.com.apple.ResourceFork`.
fn resource_fork_of(source: &str) -> Option<Arc<dyn BlockDevice>> {
    let path = file_of(source)?;
    let (dir, name) = (path.parent()?, path.file_name()?);
    let with = |prefix: &str, suffix: &str| {
        let mut whole = OsString::from(prefix);
        whole.push(name);
        whole.push(suffix);
        whole
    };
    let beside = [
        dir.join(with("._", "")),
        dir.join("__MACOSX").join(with("._", "")),
        dir.join(".rsrc").join(name),
        dir.join(with("", ".rsrc")),
    ];
    for fork in beside {
        if fork.is_file()
            && let Ok(device) = FileDevice::open(&fork, OpenMode::PEEK)
            && device.geometry().len_bytes > 0
        {
            return Some(Arc::new(device));
        }
    }
    attribute(&path, OsStr::new("user.com.apple.ResourceFork"))
}

fn attribute(path: &Path, name: &OsStr) -> Option<Arc<dyn BlockDevice>> {
    let mut value = vec![0; 64 << 10];
    let len = rustix::fs::getxattr(path, name, &mut value[..]).ok().filter(|len| *len > 0)?;
    let device = MemoryDevice::new(len as u64);
    device.write_at(value.get(..len)?, 0).ok()?;
    Some(Arc::new(device))
}

/// Returns the image file that a description names, if it names one.
pub(crate) fn file_of(source: &str) -> Option<PathBuf> {
    source.parse::<Source>().ok()?.file().map(Path::to_owned)
}

/// Returns the partition that a description names.
pub(crate) fn partition_of(source: &str) -> Option<u32> {
    source.parse::<Source>().ok()?.partition()
}
