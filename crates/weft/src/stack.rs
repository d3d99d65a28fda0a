//! A volume opened: device, engine and file system put on top of each other.

use crate::source::open_source;
use crate::{Error, Order, Result, image};
use std::sync::Arc;
use weft_block::{BlockDevice, OpenMode};
use weft_hfs::streams::MacVolume;
use weft_hfs::view::{ForkView, Forks};
use weft_vfs::{FileSystem, Time};

/// How a volume is opened.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Nothing is written, not even the note that it was opened.
    pub read_only: bool,
    /// How writes are ordered. `None` is what the volume was made for: soft updates, or the
    /// ordered journal if it has one.
    pub order: Option<Order>,
    /// Reading leaves access times alone.
    pub no_atime: bool,
    /// Where it is going to be mounted: noted on the volume for people to read.
    pub mount_point: Option<String>,
    /// The source of the journal, for a volume that has one beside it. An HFS volume in an image
    /// file needs no word: its journal is `IMAGE.wjournal`.
    pub journal: Option<String>,
    /// How resource forks and Finder information are shown, on volumes that have them.
    pub forks: Forks,
    /// Seconds that local time is ahead of UTC: HFS and MFS keep local time.
    pub utc_offset_secs: i32,
    /// What the time is on HFS and MFS volumes, if not what the system's clock says: for volumes
    /// that shall come out the same.
    pub clock: Option<Time>,
    /// The owner and the permissions on a volume that stores none; `None`: the user who runs this
    /// process owns all files, and others may read them.
    pub permissions: Option<weft_hfs::Permissions>,
    /// The engine's own options; its policy is that of `order`.
    pub engine: weft_patch::Options,
}

impl Options {
    /// Opens for reading only.
    #[must_use]
    pub fn read_only() -> Self {
        Self { read_only: true, ..Self::default() }
    }
}

/// An opened volume.
///
/// [`close`](Self::close) it to learn whether everything became durable.
pub struct Stack {
    source: String,
    order: Order,
    volume: Arc<dyn Volume>,
    /// The volume, or a view on it.
    front: Arc<dyn FileSystem>,
    why_read_only: Option<String>,
    companions: bool,
}

impl std::fmt::Debug for Stack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stack")
            .field("source", &self.source)
            .field("order", &self.order)
            .field("volume", &self.volume)
            .finish_non_exhaustive()
    }
}

/// What each format's file system offers beyond the file plug.
pub(crate) trait Volume: FileSystem + std::fmt::Debug {
    /// The write engine below it; a format that is only read has none.
    fn engine(&self) -> Option<&weft_patch::Engine>;
    fn is_read_only(&self) -> bool;
    /// Why it is, if the volume itself is the reason.
    fn why_read_only(&self) -> Option<String> {
        None
    }
    /// The volume as one whose files have two forks.
    fn as_mac(self: Arc<Self>) -> Option<Arc<dyn MacVolume>> {
        None
    }
}

impl Stack {
    /// Opens the volume in `source`: an image file or block device, or a partition of one
    /// (`disk.img?partition=2`).
    ///
    /// # Errors
    /// [`Error::Unrecognised`] says what is there instead of a volume, [`Error::Volume`] what is
    /// wrong with it, [`Error::Invalid`] that it has no journal to order writes with.
    pub fn open(source: &str, options: &Options) -> Result<Self> {
        let mode = if options.read_only { OpenMode::READ_ONLY } else { OpenMode::READ_WRITE };
        let device = open_source(source, mode)?;
        Self::open_device(source, device, options)
    }

    /// Opens the volume on `device`, which is called `source` in messages.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_device(
        source: &str,
        device: Arc<dyn BlockDevice>,
        options: &Options,
    ) -> Result<Self> {
        let image = image::unwrap(source, device)?;
        let mut options = options.clone();
        options.read_only |= image.device.geometry().read_only;
        let row = image.format.row().ok_or_else(|| image.format.clone().refused(source))?;
        let (order, volume) = (row.open)(source, &image, &options)?;
        let why_read_only = image.why_read_only().or_else(|| volume.why_read_only());
        let front: Arc<dyn FileSystem> = match Arc::clone(&volume).as_mac() {
            Some(mac) if options.forks != Forks::Xattr => {
                Arc::new(ForkView::new(mac, options.forks))
            }
            _ => Arc::clone(&volume) as _,
        };
        let companions = matches!(options.forks, Forks::AppleDouble | Forks::Suffix);
        Ok(Self { source: source.to_owned(), order, volume, front, why_read_only, companions })
    }

    /// What was opened.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// How its writes are ordered.
    #[must_use]
    pub fn order(&self) -> Order {
        self.order
    }

    /// Whether it refuses changes: because that was asked for, or because of its features.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.volume.is_read_only()
    }

    /// Why it refuses changes, if there is a reason beside that it was asked for.
    #[must_use]
    pub fn why_read_only(&self) -> Option<&str> {
        self.why_read_only.as_deref().filter(|_| self.is_read_only())
    }

    /// The volume as one whose files have two forks, if they have. Inode numbers are those of
    /// [`fs`](Self::fs).
    #[must_use]
    pub fn mac(&self) -> Option<Arc<dyn MacVolume>> {
        Arc::clone(&self.volume).as_mac()
    }

    /// What could not be read so far, as it is damaged, and was passed over.
    #[must_use]
    pub fn passed_over(&self) -> Vec<String> {
        self.mac().map(|mac| mac.passed_over()).unwrap_or_default()
    }

    /// What must be known of the volume to trust what is read.
    #[must_use]
    pub fn cautions(&self) -> Vec<String> {
        self.mac().map(|mac| mac.cautions()).unwrap_or_default()
    }

    /// The file system.
    #[must_use]
    pub fn fs(&self) -> &dyn FileSystem {
        &*self.front
    }

    /// The file system, to be shared with a front.
    #[must_use]
    pub fn share(&self) -> Arc<dyn FileSystem> {
        Arc::clone(&self.front)
    }

    /// The engine below the file system: what waits in it, and why. A format that is only read
    /// has none.
    #[must_use]
    pub fn engine(&self) -> Option<&weft_patch::Engine> {
        self.volume.engine()
    }

    /// What the engine has counted since the volume was opened.
    #[must_use]
    pub fn counters(&self) -> weft_patch::Counters {
        self.volume.engine().map(weft_patch::Engine::counters).unwrap_or_default()
    }

    /// Whether a name can change what another one means: where case does not count, and where a
    /// file has companions.
    pub(crate) fn names_have_aliases(&self) -> bool {
        self.mac().is_some() && !self.is_read_only()
    }

    /// Whether forks are shown as files.
    pub(crate) fn shows_companions(&self) -> bool {
        self.companions
    }

    /// Makes everything durable and marks the volume clean.
    ///
    /// # Errors
    /// Those of [`FileSystem::unmount`].
    pub fn close(self) -> Result<()> {
        self.front.unmount().map_err(|e| Error::file("unmount", b"/", e))
    }
}
