//! The description of a source: the text that names a device wherever a volume is given.
//!
//! | description | device |
//! |---|---|
//! | `disk.img`, `/dev/sdb1` | an image file or a block special file |
//! | `mem:64M` | a fresh device in memory |
//! | `nbd://host[:port]/export` | an export of an NBD server |
//! | `nbd+unix:///export?socket=/path` | the same, over a Unix socket |
//! | `nbds://`, `nbds+unix://` | the same, encrypted |
//!
//! Each takes `?partition=N` for one of its partitions. For the other parts of an NBD URI see
//! [`weft_nbd::Uri`].

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use weft_block::container;
use weft_block::{BlockDevice, Error, OpenMode, Partition, Result, SourceDevice};
use weft_nbd::{NbdDevice, Uri};

/// A parsed description of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A device of this host.
    Local(weft_block::Source),
    /// An export of an NBD server.
    Nbd {
        /// The address of the export.
        uri: Uri,
        /// The number of the partition on it; `None`: the whole export.
        partition: Option<u32>,
    },
}

impl FromStr for Source {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if !Uri::is_one(text) {
            return text.parse().map(Self::Local);
        }
        let (place, query) = text.split_once('?').unwrap_or((text, ""));
        let mut partition = None;
        let mut rest = Vec::new();
        for option in query.split('&').filter(|o| !o.is_empty()) {
            match option.strip_prefix("partition=").map(str::parse::<u32>) {
                Some(Ok(number)) if number > 0 => partition = Some(number),
                Some(_) => {
                    return Err(Error::Description(format!(
                        "{option:?} in {text:?} names no partition"
                    )));
                }
                None => rest.push(option),
            }
        }
        let uri = format!("{place}?{}", rest.join("&"));
        let uri = uri.parse().map_err(|e: weft_nbd::Error| Error::Description(e.to_string()))?;
        Ok(Self::Nbd { uri, partition })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(source) => source.fmt(f),
            Self::Nbd { uri, partition: None } => uri.fmt(f),
            Self::Nbd { uri, partition: Some(number) } => {
                let text = uri.to_string();
                let joint = if text.contains('?') { '&' } else { '?' };
                write!(f, "{text}{joint}partition={number}")
            }
        }
    }
}

impl Source {
    /// The path of the image file or block special file that holds the source, if there is one.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::Local(weft_block::Source { device: SourceDevice::File(path), .. }) => Some(path),
            _ => None,
        }
    }

    /// Opens the device. An export that is opened for writing with a lock is locked against other
    /// processes of this host; NBD has no other locks.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::Locked`], and those of [`Partition::open`].
    pub fn open(&self, mode: OpenMode) -> Result<Arc<dyn BlockDevice>> {
        let (mut uri, partition) = match self {
            Self::Local(source) => {
                let whole = weft_block::Source { partition: None, ..source.clone() };
                let device = whole.open(mode)?;
                return match source.partition {
                    Some(number) => partition_on(&device, number),
                    None => Ok(device),
                };
            }
            Self::Nbd { uri, partition } => (uri.clone(), *partition),
        };
        let path = || PathBuf::from(self.to_string());
        let failed = |e: weft_nbd::Error| match e {
            weft_nbd::Error::InUse => Error::Locked { path: path() },
            e => Error::Open { path: path(), source: e.into_io() },
        };
        // The lock is named after the absolute path of the socket.
        uri.make_absolute().map_err(failed)?;
        let mut options = uri.options().map_err(failed)?;
        options.read_only = mode.read_only;
        options.lock = mode.lock.then(|| partition.map_or(String::new(), |n| n.to_string()));
        let device: Arc<dyn BlockDevice> = Arc::new(NbdDevice::connect(options).map_err(failed)?);
        Ok(match partition {
            Some(number) => partition_on(&device, number)?,
            None => device,
        })
    }
}

/// Opens a partition of a device by its number: from the map on the device, or the map of the disk
/// that is wrapped in it. A hybrid disc has two maps; a number that the first does not have is
/// looked up in Apple's.
fn partition_on(device: &Arc<dyn BlockDevice>, number: u32) -> Result<Arc<dyn BlockDevice>> {
    let first = match Partition::open(Arc::clone(device), number) {
        Ok(found) => return Ok(Arc::new(found)),
        Err(e) => e,
    };
    let named = container::Options { partition: Some(number), ..container::Options::default() };
    let second = match container::open(Arc::clone(device), &named) {
        Ok(opened) => return Ok(opened.device),
        Err(e) => e,
    };
    if let Ok(opened) = container::open(Arc::clone(device), &container::Options::default())
        && !opened.layers.is_empty()
        && let Ok(found) = Partition::open(opened.device, number)
    {
        return Ok(Arc::new(found));
    }
    let is_apple = |t: weft_block::PartitionTable| {
        matches!(t.scheme, weft_block::Scheme::Apple | weft_block::Scheme::AppleOld)
    };
    // Apple's partitions have names, which the second error lists.
    match weft_block::list_partitions(device) {
        Ok(table) if !is_apple(table.clone()) => Err(first),
        Ok(_) => Err(second),
        Err(_) => Err(first),
    }
}

/// Opens the device that a description names.
///
/// # Errors
/// [`Error::Invalid`] if the description cannot be parsed, and those of opening the device.
pub fn open_source(description: &str, mode: OpenMode) -> Result<Arc<dyn BlockDevice>> {
    description.parse::<Source>()?.open(mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_keeps_its_options_and_loses_its_partition() {
        let text = "nbd://host/export?connections=2&partition=3";
        let Source::Nbd { uri, partition } = text.parse().unwrap() else { panic!("{text}") };
        assert_eq!((uri.connections, partition), (Some(2), Some(3)));
        assert_eq!(Source::Nbd { uri, partition }.to_string(), text);
        assert!(matches!("disk.img?partition=2".parse(), Ok(Source::Local(_))));
        for bad in ["nbd://host/x?partition=0", "nbd://host/x?partition=a", "nbd+unix:///x"] {
            assert!(matches!(bad.parse::<Source>(), Err(Error::Description(_))), "{bad}");
        }
    }

    #[test]
    fn a_server_that_is_not_there_is_named() {
        let uri = "nbd+unix:///x?socket=/nonexistent/socket&timeout=1";
        let error = open_source(uri, OpenMode::READ_ONLY).err().expect("no server");
        let text = error.to_string();
        assert!(text.contains("/nonexistent/socket") && text.contains("connect"), "{text}");
    }
}
