//! HFS, MFS and HFS Plus volumes in a stack.

use crate::image::{self, Image};
use crate::open::{Opened, Options, Volume};
use crate::source::open_source;
use crate::{Error, Order, Result};
use std::path::PathBuf;
use std::sync::Arc;
use weft_block::{BlockDevice, FileDevice, OpenMode};
use weft_hfs::streams::MacVolume;
use weft_hfs::{Hfs, OpenOptions, Permissions, hfsplus::HfsPlus, mfs::Mfs};
use weft_patch::{Engine, JournalMode, Policy};

impl Volume for Hfs {
    fn engine(&self) -> Option<&Engine> {
        Some(self.engine())
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only()
    }

    fn why_read_only(&self) -> Option<String> {
        let locked = self.volume_info().attributes;
        let locks = weft_hfs::layout::Attributes::HARDWARE_LOCK
            | weft_hfs::layout::Attributes::SOFTWARE_LOCK;
        locked.intersects(locks).then(|| "the volume is locked".into())
    }

    fn as_mac(self: Arc<Self>) -> Option<Arc<dyn MacVolume>> {
        Some(self)
    }
}

impl Volume for Mfs {
    fn engine(&self) -> Option<&Engine> {
        Some(self.engine())
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only()
    }

    fn why_read_only(&self) -> Option<String> {
        match self.damage() {
            [] => Some("the volume is locked".into()),
            [first, ..] => {
                Some(format!("the volume is damaged ({first}); weft fsck --repair mends it"))
            }
        }
    }

    fn as_mac(self: Arc<Self>) -> Option<Arc<dyn MacVolume>> {
        Some(self)
    }
}

impl Volume for HfsPlus {
    fn engine(&self) -> Option<&Engine> {
        None
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn why_read_only(&self) -> Option<String> {
        Some("weft reads HFS Plus and does not write it".into())
    }

    fn as_mac(self: Arc<Self>) -> Option<Arc<dyn MacVolume>> {
        Some(self)
    }
}

fn permissions(options: &Options) -> Permissions {
    options.permissions.unwrap_or_else(|| Permissions {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        ..Permissions::default()
    })
}

/// Converts an error of the volume's own code into one with the name of the image.
fn failed(source: &str) -> impl Fn(weft_hfs::Error) -> Error + '_ {
    move |e| Error::Volume { image: source.to_owned(), message: e.to_string() }
}

fn refused(source: &str) -> impl Fn(weft_vfs::Error) -> Error + '_ {
    move |e| Error::Volume { image: source.to_owned(), message: e.to_string() }
}

/// Opens an HFS volume.
pub(crate) fn open_hfs(source: &str, image: &Image, options: &Options) -> Result<Opened> {
    let journal = journal_of(source, image, options)?;
    let order = match options.order {
        Some(order) => order,
        None if journal.is_some() => Order(Policy::Journal(JournalMode::Ordered)),
        None => Order(Policy::Soft),
    };
    if order.0 == Policy::Journal(JournalMode::Full) {
        return Err(Error::Invalid(format!(
            "{source}: the journal of an HFS volume holds no file data: take the order journal or \
             journal=ordered"
        )));
    }
    let mut engine = options.engine.clone();
    engine.policy = order.0;
    let permissions = permissions(options);
    let volume = Hfs::open(
        Arc::clone(&image.device),
        OpenOptions {
            read_only: options.read_only,
            engine,
            journal,
            unordered_trees: false,
            utc_offset_secs: options.utc_offset_secs,
            clock: options.clock,
            permissions,
        },
    )
    .map_err(failed(source))?;
    Ok((order, volume))
}

/// The journal beside a volume: the one in the options, or the existing one. It is opened for every
/// order of writes, as it may hold changes from before a crash; for a journal order it is created.
fn journal_of(
    source: &str,
    image: &Image,
    options: &Options,
) -> Result<Option<Arc<dyn BlockDevice>>> {
    let mode = if options.read_only { OpenMode::READ_ONLY } else { OpenMode::READ_WRITE };
    if let Some(journal) = &options.journal {
        return Ok(Some(open_source(journal, mode)?));
    }
    let wanted = matches!(options.order, Some(Order(Policy::Journal(_)))) && !options.read_only;
    let Some(path) = journal_beside(source, image) else {
        if wanted {
            return Err(Error::Missing {
                message: format!(
                    "{source} is no image file that a journal could lie beside: name the file or \
                     device of its journal"
                ),
                option: "with --journal",
            });
        }
        return Ok(None);
    };
    if path.exists() {
        return Ok(Some(Arc::new(FileDevice::open(&path, mode)?)));
    }
    if !wanted {
        return Ok(None);
    }
    let len = (image.device.geometry().len_bytes / 64).clamp(JOURNAL_BYTES.0, JOURNAL_BYTES.1);
    // In blocks of the journal. Zeroes are an empty journal.
    Ok(Some(Arc::new(FileDevice::create(&path, len.next_multiple_of(4096))?)))
}

/// The smallest and the largest journal that is created by default, in bytes: room for some hundred
/// operations, and for as many as write-back leaves behind.
const JOURNAL_BYTES: (u64, u64) = (4 << 20, 32 << 20);

/// The path of the journal of a volume in an image file: `IMAGE.wjournal`, of a partition
/// `IMAGE.pN.wjournal`, however the partition was found.
pub(crate) fn journal_beside(source: &str, image: &Image) -> Option<PathBuf> {
    let path = image::file_of(source)?;
    if !std::fs::metadata(&path).ok()?.is_file() {
        return None;
    }
    let mut name = path.into_os_string();
    if let Some(number) = image::partition_of(source).or(image.partition()) {
        name.push(format!(".p{number}"));
    }
    name.push(".wjournal");
    Some(name.into())
}

/// Opens an MFS volume.
pub(crate) fn open_mfs(source: &str, image: &Image, options: &Options) -> Result<Opened> {
    if matches!(options.order, Some(Order(Policy::Journal(_)))) || options.journal.is_some() {
        return Err(Error::Invalid(format!(
            "{source}: an MFS volume needs no journal, it is set right within milliseconds; take \
             the order soft"
        )));
    }
    let order = options.order.unwrap_or(Order(Policy::Soft));
    let mut engine = options.engine.clone();
    engine.policy = order.0;
    let permissions = permissions(options);
    let volume = Mfs::open(
        Arc::clone(&image.device),
        weft_hfs::mfs::OpenOptions {
            read_only: options.read_only,
            engine,
            utc_offset_secs: options.utc_offset_secs,
            clock: options.clock,
            permissions,
        },
    )
    .map_err(refused(source))?;
    Ok((order, volume))
}

/// Opens an HFS Plus volume, read-only.
pub(crate) fn open_hfs_plus(source: &str, image: &Image, options: &Options) -> Result<Opened> {
    let permissions = permissions(options);
    let volume =
        HfsPlus::open(Arc::clone(&image.device), weft_hfs::hfsplus::OpenOptions { permissions })
            .map_err(refused(source))?;
    Ok((options.order.unwrap_or(Order(Policy::Soft)), volume))
}
