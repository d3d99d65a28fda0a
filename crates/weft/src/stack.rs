//! An opened volume: device, engine and file system on top of each other.

use crate::open::{Options, Volume};
use crate::source::open_source;
use crate::{Error, Order, Result, image, registry};
use std::sync::Arc;
use weft_block::{BlockDevice, OpenMode, OwnerProcess};
use weft_hfs::streams::MacVolume;
use weft_hfs::view::{ForkView, Forks};
use weft_order::OrderedFs;
use weft_vfs::FileSystem;

/// An opened volume.
///
/// [`close`](Self::close) reports whether everything became durable.
///
/// It belongs to the process that opened it: in a child of `fork` every call that changes or writes
/// anything fails with `EBADF`, and dropping it does nothing.
pub struct Stack {
    source: String,
    order: Order,
    volume: Arc<dyn Volume>,
    /// The volume, or a view on it.
    front: Arc<dyn FileSystem>,
    why_read_only: Option<String>,
    companions: bool,
    owner: OwnerProcess,
}

impl Drop for Stack {
    fn drop(&mut self) {
        if !self.owner.is_this() {
            // What is below has threads and connections of the other process: it is never dropped here.
            std::mem::forget((Arc::clone(&self.volume), Arc::clone(&self.front)));
        }
    }
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

/// Lets the callers of a file system put their changes into patchgroups, if an engine orders them.
fn in_groups(
    front: Arc<dyn FileSystem>,
    volume: &Arc<dyn Volume>,
    options: &Options,
) -> Arc<dyn FileSystem> {
    let Some(engine) = volume.engine() else { return front };
    let ordered = OrderedFs::with_fsync(front, engine.patchgroups(), options.fsync);
    Arc::new(if options.open_files { ordered.with_open_files() } else { ordered })
}

impl Stack {
    /// Opens the volume in `source`: an image file or block device, or a partition of one
    /// (`disk.img?partition=2`).
    ///
    /// # Errors
    /// [`Error::Unrecognised`] names the format found instead of a volume, [`Error::Volume`] a
    /// defect of the volume, [`Error::Invalid`] a missing journal for the order of writes.
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
        let (order, volume) = (registry::row_of(source, &image)?.open)(source, &image, &options)?;
        let why_read_only = image.why_read_only().or_else(|| volume.why_read_only());
        let front: Arc<dyn FileSystem> = match Arc::clone(&volume).as_mac() {
            Some(mac) if options.forks != Forks::Xattr => {
                let view = ForkView::new(mac, options.forks)
                    .leaving_doubles(options.leaves_doubles)
                    .read_only(volume.is_read_only());
                Arc::new(view)
            }
            _ => Arc::clone(&volume) as _,
        };
        let front = if volume.is_read_only() { front } else { in_groups(front, &volume, &options) };
        let companions = matches!(options.forks, Forks::AppleDouble | Forks::Suffix);
        let (source, owner) = (source.to_owned(), OwnerProcess::this());
        Ok(Self { source, order, volume, front, why_read_only, companions, owner })
    }

    /// The source that was opened.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The order of the volume's writes.
    #[must_use]
    pub fn order(&self) -> Order {
        self.order
    }

    /// Returns true if the volume refuses changes: because of the options, or because of its
    /// features.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.volume.is_read_only()
    }

    /// The reason why the volume refuses changes, if there is one beside the options.
    #[must_use]
    pub fn why_read_only(&self) -> Option<&str> {
        self.why_read_only.as_deref().filter(|_| self.is_read_only())
    }

    /// Reports whether the volume was not unmounted, and a thread looks for what that has left. Its
    /// findings go to the log.
    #[must_use]
    pub fn is_being_checked(&self) -> bool {
        self.volume.is_being_checked()
    }

    /// The volume as one whose files have two forks, if its format has them. Inode numbers are
    /// those of [`fs`](Self::fs).
    #[must_use]
    pub fn mac(&self) -> Option<Arc<dyn MacVolume>> {
        Arc::clone(&self.volume).as_mac()
    }

    /// The damaged parts that have been skipped so far.
    #[must_use]
    pub fn passed_over(&self) -> Vec<String> {
        self.mac().map(|mac| mac.passed_over()).unwrap_or_default()
    }

    /// Warnings that bear on how far the content of the volume can be trusted.
    #[must_use]
    pub fn cautions(&self) -> Vec<String> {
        self.mac().map(|mac| mac.cautions()).unwrap_or_default()
    }

    /// The file system.
    #[must_use]
    pub fn fs(&self) -> &dyn FileSystem {
        &*self.front
    }

    /// The file system, to be shared with a server.
    #[must_use]
    pub fn share(&self) -> Arc<dyn FileSystem> {
        Arc::clone(&self.front)
    }

    /// The engine below the file system, which lists the pending writes and the reason for each. A
    /// format that weft only reads has none.
    #[must_use]
    pub fn engine(&self) -> Option<&weft_patch::Engine> {
        self.volume.engine()
    }

    /// The counters of the engine since the volume was opened.
    #[must_use]
    pub fn counters(&self) -> weft_patch::Counters {
        self.volume.engine().map(weft_patch::Engine::counters).unwrap_or_default()
    }

    /// Returns true if a change of one name can change the meaning of another: where case does not
    /// count, and where a file has companions.
    pub(crate) fn names_have_aliases(&self) -> bool {
        self.mac().is_some() && !self.is_read_only()
    }

    /// Returns true if forks are shown as files.
    pub(crate) fn shows_companions(&self) -> bool {
        self.companions
    }

    /// Makes everything durable and marks the volume clean.
    ///
    /// # Errors
    /// Those of [`FileSystem::unmount`]; [`Error::OtherProcess`] in a child.
    pub fn close(self) -> Result<()> {
        if !self.owner.is_this() {
            return Err(Error::OtherProcess("the volume"));
        }
        self.front.unmount().map_err(|e| Error::file("unmount", b"/", e))
    }
}
