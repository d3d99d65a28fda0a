//! Passthrough reads of views whose output is cached: the kernel reads the file of the cache
//! directly, as fast as any file there.
//!
//! The kernel requires one file for all descriptors that have an inode open in passthrough. Such an
//! inode keeps the content of its first open until it is closed by all: it is a *snapshot*. Names
//! of views are looked up on each use; if the base has changed since, the name leads to another
//! inode from then on. So a client that opens a view sees the content of that time, and keeps
//! seeing it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use weft_vfs::{Handle, Ino, OpenFlags, Opened, Result};

use super::inode::{Inode, Snapshot};
use super::locks::locked;
use super::output::OutputState;
use super::transform_fs::{Open, TransformFs};
use crate::outputs::Entry;

/// Length in bytes below which views are read through the kernel's cache until their output is
/// cached: that cost is negligible compared to opening them.
const UNCACHED_FROM_BYTES: u64 = 1 << 20;

impl TransformFs {
    fn may_be_snapshot(&self, inode: &Inode) -> bool {
        self.options.snapshot_views && inode.view_name.is_some()
    }

    /// Returns the cached output that an inode shows while it is a snapshot.
    pub(super) fn snapshot_entry(&self, inode: &Inode) -> Option<Arc<Entry>> {
        let is_one = self.may_be_snapshot(inode);
        is_one.then(|| locked(&inode.snapshot).as_ref().map(|there| there.entry.clone()))?
    }

    /// Opens an inode that is already a snapshot; returns `None` if it is not.
    pub(super) fn open_snapshot(&self, inode: &Inode, flags: OpenFlags) -> Result<Option<Opened>> {
        if self.snapshot_entry(inode).is_none() {
            return Ok(None);
        }
        if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE) {
            return Err(weft_vfs::Error::ReadOnly);
        }
        self.mount.inodes().add_use(inode);
        inode.cached_opens.fetch_add(1, Ordering::AcqRel);
        locked(&inode.file).count(|meter| meter.opens.add(1));
        let open =
            Open { ino: inode.ino, flags, below: None, direct_io: false, passthrough: false };
        Ok(Some(Opened { handle: self.new_handle(open), keep_cache: true, direct_io: false }))
    }

    /// Returns the file of the cache, for the kernel to read in place of a view that was just
    /// opened.
    pub(super) fn file_of_snapshot(&self, inode: &Inode, handle: Handle) -> Option<Arc<OwnedFd>> {
        if !self.may_be_snapshot(inode) {
            return None;
        }
        let mut snapshot = locked(&inode.snapshot);
        if snapshot.is_none() {
            *snapshot = self.make_snapshot(inode);
        }
        let there = snapshot.as_mut()?;
        let mut handles = locked(&self.handles);
        let open = handles.get_mut(handle).filter(|open| open.ino == inode.ino)?;
        open.passthrough = true;
        there.open += 1;
        drop(handles);
        locked(&inode.file).count(|meter| meter.opens_past.add(1));
        Some(there.file.clone())
    }

    /// Makes a snapshot of a view, if its output is cached and all of it was verified.
    fn make_snapshot(&self, inode: &Inode) -> Option<Snapshot> {
        let mut file = self.mount.file(inode);
        let (of, OutputState::Kept(entry, _)) = file.output_and_state()? else { return None };
        let whole = entry.whole_file()?;
        let (mut attr, _) = file.attr().ok()?;
        attr.ino = inode.ino;
        let same = (file.look().ok()?.1, file.version()) == of;
        (same && attr.size_bytes == entry.len_bytes()).then(|| {
            let file = Arc::new(whole);
            Snapshot { entry, file, attr, of, open: 0, replaced: false }
        })
    }

    /// Records that the kernel has closed a handle through which it read a snapshot.
    pub(super) fn snapshot_closed(&self, inode: &Inode) {
        let mut snapshot = locked(&inode.snapshot);
        let Some(there) = snapshot.as_mut() else { return };
        there.open = there.open.saturating_sub(1);
        if there.open == 0 && !there.replaced {
            *snapshot = None;
        }
    }

    /// Detaches the name of a view whose snapshot is outdated, or whose file in the cache was
    /// damaged since: its current readers keep the snapshot, new readers get another inode.
    pub(super) fn leave_old_snapshot(&self, base: Ino, name: &[u8]) {
        if !self.options.snapshot_views {
            return;
        }
        let Some(inode) = self.mount.inodes().view_named(base, name) else { return };
        let mut snapshot = locked(&inode.snapshot);
        let Some(there) = snapshot.as_mut() else { return };
        let file = self.mount.file(&inode);
        let is_current = file.look().is_ok_and(|(_, seen)| (seen, file.version()) == there.of);
        drop(file);
        if is_current && there.entry.is_whole() {
            return;
        }
        there.replaced = true;
        drop(snapshot);
        self.mount.inodes().forget_view_name(&inode);
    }

    /// Returns true if a view that was just opened is being added to the output cache, and is to
    /// bypass the kernel's cache: next time it will be read from the file of the output cache.
    pub(super) fn is_read_uncached(&self, inode: &Inode, len_bytes: u64) -> bool {
        self.may_be_snapshot(inode)
            && len_bytes >= UNCACHED_FROM_BYTES
            && locked(&inode.file).is_filling()
    }
}
