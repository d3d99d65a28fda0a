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

use weft_vfs::{Attr, Handle, Ino, OpenFlags, Opened, Result};

use super::base::locked;
use super::file::Seen;
use super::nodes::Node;
use super::outputs::What;
use super::{Open, TransformFs};
use crate::outputs::Entry;

/// Length in bytes below which views are read through the kernel's cache until their output is
/// cached: that cost is negligible compared to opening them.
const UNCACHED_FROM_BYTES: u64 = 1 << 20;

/// The cached output that the kernel reads in place of a view.
pub(super) struct Snapshot {
    entry: Arc<Entry>,
    file: Arc<OwnedFd>,
    attr: Attr,
    /// The state of the view and its base at the time of the snapshot.
    of: (Seen, u64),
    /// The number of handles that the kernel reads directly.
    open: u64,
    /// The name of the view leads to another inode by now.
    replaced: bool,
}

impl TransformFs {
    fn may_be_snapshot(&self, node: &Node) -> bool {
        self.options.snapshot_views && node.view.is_some()
    }

    /// Returns the cached output that an inode shows while it is a snapshot.
    pub(super) fn snapshot_entry(&self, node: &Node) -> Option<Arc<Entry>> {
        let is_one = self.may_be_snapshot(node);
        is_one.then(|| locked(&node.snapshot).as_ref().map(|there| there.entry.clone()))?
    }

    /// Opens an inode that is already a snapshot; returns `None` if it is not.
    pub(super) fn open_snapshot(&self, node: &Node, flags: OpenFlags) -> Result<Option<Opened>> {
        if self.snapshot_entry(node).is_none() {
            return Ok(None);
        }
        if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE) {
            return Err(weft_vfs::Error::ReadOnly);
        }
        locked(&self.ground.nodes).add_use(node);
        node.cached_opens.fetch_add(1, Ordering::AcqRel);
        locked(&node.file).count(|meter| meter.opens.add(1));
        let open = Open { ino: node.ino, flags, below: None, direct_io: false, past: false };
        Ok(Some(Opened { handle: self.new_handle(open), keep_cache: true, direct_io: false }))
    }

    /// Returns the file of the cache, for the kernel to read in place of a view that was just
    /// opened.
    pub(super) fn file_of_snapshot(&self, node: &Node, handle: Handle) -> Option<Arc<OwnedFd>> {
        if !self.may_be_snapshot(node) {
            return None;
        }
        let mut snapshot = locked(&node.snapshot);
        if snapshot.is_none() {
            *snapshot = self.make_snapshot(node);
        }
        let there = snapshot.as_mut()?;
        let mut handles = locked(&self.handles);
        let open = handles.get_mut(handle).filter(|open| open.ino == node.ino)?;
        open.past = true;
        there.open += 1;
        locked(&node.file).count(|meter| meter.opens_past.add(1));
        Some(there.file.clone())
    }

    /// Makes a snapshot of a view, if its output is cached and all of it was verified.
    fn make_snapshot(&self, node: &Node) -> Option<Snapshot> {
        self.with(node, |file, around| {
            let Some((of, What::Kept(entry, _))) = file.output_and_state() else { return Ok(None) };
            let Some(whole) = entry.whole_file() else { return Ok(None) };
            let (mut attr, _) = file.attr(around)?;
            attr.ino = node.ino;
            let same = (file.look(around)?.1, file.version) == of;
            let snapshot =
                Snapshot { entry, file: Arc::new(whole), attr, of, open: 0, replaced: false };
            Ok((same && attr.size_bytes == snapshot.entry.len_bytes()).then_some(snapshot))
        })
        .unwrap_or_default()
    }

    /// Records that the kernel has closed a handle through which it read a snapshot.
    pub(super) fn snapshot_closed(&self, node: &Node) {
        let mut snapshot = locked(&node.snapshot);
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
        let Some(node) = locked(&self.ground.nodes).view_named(base, name) else { return };
        let mut snapshot = locked(&node.snapshot);
        let Some(there) = snapshot.as_mut() else { return };
        let now = self.with(&node, |file, around| Ok((file.look(around)?.1, file.version)));
        if now.is_ok_and(|now| now == there.of) && there.entry.is_whole() {
            return;
        }
        there.replaced = true;
        drop(snapshot);
        locked(&self.ground.nodes).forget_view_name(&node);
    }

    /// Returns true if a view that was just opened is being added to the output cache, and is to
    /// bypass the kernel's cache: next time it will be read from the file of the output cache.
    pub(super) fn is_read_uncached(&self, node: &Node, len_bytes: u64) -> bool {
        self.may_be_snapshot(node)
            && len_bytes >= UNCACHED_FROM_BYTES
            && locked(&node.file).is_filling()
    }
}

/// Returns the attributes of an inode while it is a snapshot.
pub(super) fn attr_of_snapshot(node: &Node) -> Option<Attr> {
    locked(&node.snapshot).as_ref().map(|there| there.attr)
}
