//! A volume opened: device, engine and file system put on top of each other.

use crate::format::{Format, recognise};
use crate::source::open_source;
use crate::{Error, Order, Result, ext};
use std::sync::Arc;
use weft_block::{BlockDevice, OpenMode};
use weft_vfs::FileSystem;

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
    /// The source of the journal, for a volume made with one beside it.
    pub journal: Option<String>,
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
#[derive(Debug)]
pub struct Stack {
    source: String,
    order: Order,
    volume: Arc<dyn Volume>,
}

/// What each format's file system offers beyond the file plug.
pub(crate) trait Volume: FileSystem + std::fmt::Debug {
    fn engine(&self) -> &weft_patch::Engine;
    fn is_read_only(&self) -> bool;
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
        let (order, volume) = match recognise(&*device)? {
            Format::Ext => ext::open(source, device, options)?,
            other => return Err(other.refused(source)),
        };
        Ok(Self { source: source.to_owned(), order, volume })
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

    /// The file system.
    #[must_use]
    pub fn fs(&self) -> &dyn FileSystem {
        &*self.volume
    }

    /// The file system, to be shared with a front.
    #[must_use]
    pub fn share(&self) -> Arc<dyn FileSystem> {
        Arc::clone(&self.volume) as Arc<dyn FileSystem>
    }

    /// The engine below the file system: what waits in it, and why.
    #[must_use]
    pub fn engine(&self) -> &weft_patch::Engine {
        self.volume.engine()
    }

    /// What the engine has counted since the volume was opened.
    #[must_use]
    pub fn counters(&self) -> weft_patch::Counters {
        self.volume.engine().counters()
    }

    /// Makes everything durable and marks the volume clean.
    ///
    /// # Errors
    /// Those of [`FileSystem::unmount`].
    pub fn close(self) -> Result<()> {
        self.volume.unmount().map_err(|e| Error::file("unmount", b"/", e))
    }
}
