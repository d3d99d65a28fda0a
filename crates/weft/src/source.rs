//! The description of a source: the text that names a device wherever a volume is given.
//!
//! Its grammar, with filters and partitions, is that of [`weft_block::Source`]. Here the scheme of a
//! device may be NBD's, whose options are those of [`weft_nbd::Uri`]:
//!
//! | description | device |
//! |---|---|
//! | `nbd://host[:port]/export` | an export of an NBD server |
//! | `nbd+unix:///export?socket=/path` | the same, over a Unix socket |
//! | `nbds://`, `nbds+unix://` | the same, encrypted |

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use weft_block::container;
use weft_block::{BlockDevice, Error, OpenMode, Partition, Result, SourceDevice};
use weft_nbd::{NbdDevice, Uri};

/// A parsed description of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The description; a URI in it is that of `nbd`.
    described: weft_block::Source,
    /// The address of the export, if the device is one.
    nbd: Option<Uri>,
}

impl FromStr for Source {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let described: weft_block::Source = text.parse()?;
        let SourceDevice::Uri(uri) = &described.device else {
            return Ok(Self { described, nbd: None });
        };
        let bad = |part: &str, problem: String| Error::Description {
            text: text.to_owned(),
            part: part.to_owned(),
            problem,
        };
        if !Uri::is_one(uri) {
            let scheme = weft_block::scheme_of(uri).unwrap_or_default();
            return Err(bad(scheme, format!("no such scheme (there are {})", SCHEMES.join(", "))));
        }
        let nbd = uri.parse().map_err(|e: weft_nbd::Error| bad(uri, e.to_string()))?;
        Ok(Self { described, nbd: Some(nbd) })
    }
}

/// The prefix of a source that is a directory of the host: `hostdir:/srv/data`.
pub const HOST_DIRECTORY: &str = "hostdir:";

/// The prefix of a source that is a client of a cell of the shared file service: the path of its
/// local store follows.
pub const CELL_STORE: &str = "ringer:";

/// The schemes of the URIs that are opened here.
pub(crate) const SCHEMES: [&str; 4] = ["nbd", "nbds", "nbd+unix", "nbds+unix"];

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.described.fmt(f)
    }
}

impl Source {
    /// Returns the path of the image file or block special file that holds the source, if there is
    /// one.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match &self.described.device {
            SourceDevice::File(path) => Some(path),
            _ => None,
        }
    }

    /// Returns the path of the image file or block special file that is the source, all of it.
    #[must_use]
    pub fn whole_file(&self) -> Option<&Path> {
        let part = self.described.partition.is_some() || self.described.window.is_some();
        self.file().filter(|_| !part)
    }

    /// Returns the number of the partition, if the source is one.
    #[must_use]
    pub fn partition(&self) -> Option<u32> {
        self.described.partition
    }

    /// Returns the source without its filters.
    #[must_use]
    pub fn unfiltered(mut self) -> Self {
        self.described.filters.clear();
        self
    }

    /// Returns the source without what only says how it is reached: the encryption, patience and
    /// number of connections of an NBD URI.
    #[must_use]
    pub(crate) fn export_only(mut self) -> Self {
        if let Some(uri) = &mut self.nbd {
            *uri = uri.export_only();
            self.described.device = SourceDevice::Uri(uri.to_string());
        }
        self
    }

    /// Returns the source with the paths of its file or socket as they are without symbolic links. A
    /// path that leads nowhere stays.
    #[must_use]
    pub(crate) fn resolved(mut self) -> Self {
        if let SourceDevice::File(path) = &mut self.described.device
            && let Ok(real) = path.canonicalize()
        {
            *path = real;
        }
        if let Some(uri) = &mut self.nbd
            && let weft_net::Address::Unix(path) = &mut uri.address
            && let Ok(real) = path.canonicalize()
        {
            *path = real;
            self.described.device = SourceDevice::Uri(uri.to_string());
        }
        self
    }

    /// Makes every path in the description absolute, so that it means the same in every working
    /// directory.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no working directory, or it is not UTF-8.
    pub fn make_absolute(&mut self) -> Result<()> {
        if let Some(uri) = &mut self.nbd {
            uri.make_absolute().map_err(|e| Error::Invalid(e.to_string()))?;
            self.described.device = SourceDevice::Uri(uri.to_string());
        }
        self.described.make_absolute()
    }

    /// Puts the filters of the description on top of a device that was opened in `mode`.
    ///
    /// # Errors
    /// Those of [`weft_block::Source::add_filters`].
    pub(crate) fn add_filters(
        &self,
        device: Arc<dyn BlockDevice>,
        mode: OpenMode,
    ) -> Result<Arc<dyn BlockDevice>> {
        self.described.add_filters(device, mode)
    }

    /// Opens the device. An export that is opened for writing with a lock is locked against other
    /// processes of this host; NBD has no other locks.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::Locked`], and those of [`Partition::open`].
    pub fn open(&self, mode: OpenMode) -> Result<Arc<dyn BlockDevice>> {
        let device = match &self.nbd {
            Some(uri) => self.connect(uri.clone(), mode)?,
            None => self.described.open_device(mode)?,
        };
        let device = match self.described.window {
            Some(window) => window.of(device)?,
            None => device,
        };
        let device = match self.described.partition {
            Some(number) => partition_on(&device, number)?,
            None => device,
        };
        self.add_filters(device, mode)
    }

    fn connect(&self, mut uri: Uri, mode: OpenMode) -> Result<Arc<dyn BlockDevice>> {
        let path = || PathBuf::from(self.clone().unfiltered().to_string());
        let failed = |e: weft_nbd::Error| match e {
            weft_nbd::Error::InUse => Error::Locked { path: path() },
            e => Error::Open { path: path(), source: e.into_io() },
        };
        // The lock is named after the absolute path of the socket.
        uri.make_absolute().map_err(failed)?;
        let mut options = uri.options().map_err(failed)?;
        options.read_only = mode.read_only;
        let part = self.described.partition;
        options.lock = mode.lock.then(|| part.map_or(String::new(), |n| n.to_string()));
        Ok(Arc::new(NbdDevice::connect(options).map_err(failed)?))
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
/// [`Error::Description`] if the description cannot be parsed, and those of opening the device.
pub fn open_source(description: &str, mode: OpenMode) -> Result<Arc<dyn BlockDevice>> {
    description.parse::<Source>()?.open(mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_keeps_its_options_and_loses_its_partition() {
        let text = "nbd://host/export?connections=2&partition=3";
        let source: Source = text.parse().unwrap();
        let uri = source.nbd.clone().expect("a URI");
        assert_eq!((uri.connections, source.partition()), (Some(2), Some(3)));
        assert_eq!(uri.to_string(), "nbd://host/export?connections=2");
        assert_eq!(source.to_string(), text);
        let local: Source = "disk.img?partition=2".parse().unwrap();
        assert_eq!((local.file(), local.whole_file()), (Some(Path::new("disk.img")), None));
        let bad = ["nbd://host/x?partition=0", "nbd://host/x?partition=a", "nbd+unix:///x"];
        for bad in bad.into_iter().chain(["http://host/x", "delay=1ms:ftp://host/x"]) {
            assert!(matches!(bad.parse::<Source>(), Err(Error::Description { .. })), "{bad}");
        }
    }

    #[test]
    fn a_description_is_made_absolute() {
        let mut source: Source = "delay=1ms:record=a.log:b.img?partition=2".parse().unwrap();
        source.make_absolute().unwrap();
        let here = std::env::current_dir().unwrap();
        let here = here.display();
        let absolute = format!("delay=1ms:record={here}/a.log:{here}/b.img?partition=2");
        assert_eq!(source.to_string(), absolute);
        let mut source: Source = "delay=1ms:nbd+unix:///e?socket=s".parse().unwrap();
        source.make_absolute().unwrap();
        assert_eq!(source.to_string(), format!("delay=1ms:nbd+unix:///e?socket={here}/s"));
    }

    #[test]
    fn a_server_that_is_not_there_is_named() {
        let uri = "nbd+unix:///x?socket=/nonexistent/socket&timeout=1";
        let error = open_source(uri, OpenMode::READ_ONLY).err().expect("no server");
        let text = error.to_string();
        assert!(text.contains("/nonexistent/socket") && text.contains("connect"), "{text}");
    }
}
