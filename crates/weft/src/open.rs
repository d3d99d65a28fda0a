//! Opening a volume of any format: the options, and what its file system has beside the file plug.

use crate::Order;
use std::sync::Arc;
use weft_hfs::streams::MacVolume;
use weft_hfs::view::Forks;
use weft_vfs::{FileSystem, Time};

/// The options for opening a volume.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Whether the volume is opened read-only: nothing is written, not even a mark that it is open.
    pub read_only: bool,
    /// The order of writes. `None` is the default of the volume: soft updates, or the ordered
    /// journal if it has one.
    pub order: Option<Order>,
    /// Whether reading leaves access times unchanged.
    pub no_atime: bool,
    /// The mount point to record on the volume, for information.
    pub mount_point: Option<String>,
    /// The source of the journal, for a volume with an external one. An HFS volume in an image file
    /// needs none: its journal is `IMAGE.wjournal`.
    pub journal: Option<String>,
    /// The presentation of resource forks and Finder information, on volumes that have them.
    pub forks: Forks,
    /// Whether a file that is removed or replaced leaves its AppleDouble, where these are shown: for
    /// a mount, as other programs know of two files.
    pub leaves_doubles: bool,
    /// Seconds that local time is ahead of UTC: HFS and MFS keep local time.
    pub utc_offset_secs: i32,
    /// A fixed time for HFS and MFS volumes in place of the system's clock: for reproducible
    /// volumes.
    pub clock: Option<Time>,
    /// The owner and the permissions on a volume that stores none; `None`: the user of this process
    /// owns all files, and others may read them.
    pub permissions: Option<weft_hfs::Permissions>,
    /// The meaning of fsync to all programs.
    pub fsync: weft_order::Fsync,
    /// Set if a mount of the volume is told of files being opened and closed: see
    /// [`MountOptions::open_files`](crate::mount_options::MountOptions::open_files).
    pub open_files: bool,
    /// The engine's own options; its policy is that of `order`.
    pub engine: weft_patch::Options,
}

impl Options {
    /// Options for opening read-only.
    #[must_use]
    pub fn read_only() -> Self {
        Self { read_only: true, ..Self::default() }
    }
}

/// The functions that each format's file system has beside those of [`FileSystem`].
pub(crate) trait Volume: FileSystem + std::fmt::Debug {
    /// The write engine below the file system; a format that weft only reads has none.
    fn engine(&self) -> Option<&weft_patch::Engine>;
    fn is_read_only(&self) -> bool;
    /// The reason why the volume is read-only, if it is in the volume itself.
    fn why_read_only(&self) -> Option<String> {
        None
    }
    /// Reports whether a thread looks for what a crash has left on the volume.
    fn is_being_checked(&self) -> bool {
        false
    }
    /// The volume as one whose files have two forks.
    fn as_mac(self: Arc<Self>) -> Option<Arc<dyn MacVolume>> {
        None
    }
}

/// An opened volume and the order of its writes.
pub(crate) type Opened = (Order, Arc<dyn Volume>);
