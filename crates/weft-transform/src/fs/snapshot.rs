//! Views whose output is kept, read by the kernel past this file system: it reads the file of the
//! cache itself, and so as fast as any file there.
//!
//! The kernel wants one file for all who have an inode open so. Such an inode shows what it showed
//! when it was opened first, until nobody has it open: it is a *snapshot*. Names of views are looked
//! up each time that they are used; where the base has changed since, the name leads to another inode
//! from then on. So who opens a view sees what there is then, and goes on seeing it.

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

/// Views shorter than this are read through the kernel's cache until their output is kept: what that
/// costs is nothing beside opening them.
const UNCACHED_FROM_BYTES: u64 = 1 << 20;

/// What the kernel reads in place of a view.
pub(super) struct Snapshot {
    entry: Arc<Entry>,
    file: Arc<OwnedFd>,
    attr: Attr,
    /// What the view and its base were.
    of: (Seen, u64),
    /// Handles that the kernel reads past this file system.
    open: u64,
    /// The name of the view leads elsewhere by now.
    replaced: bool,
}

impl TransformFs {
    fn may_be_snapshot(&self, node: &Node) -> bool {
        self.options.snapshot_views && node.view.is_some()
    }

    /// What an inode shows as long as it is a snapshot.
    pub(super) fn snapshot_entry(&self, node: &Node) -> Option<Arc<Entry>> {
        let is_one = self.may_be_snapshot(node);
        is_one.then(|| locked(&node.snapshot).as_ref().map(|there| there.entry.clone()))?
    }

    /// Opens an inode that is a snapshot already.
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

    /// The file of the cache, for the kernel to read in place of a view that was just opened.
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
        let open = handles.get_mut(&handle).filter(|open| open.ino == node.ino)?;
        open.past = true;
        there.open += 1;
        locked(&node.file).count(|meter| meter.opens_past.add(1));
        Some(there.file.clone())
    }

    /// The output of a view, if it is kept, and all of it was checked.
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

    /// The kernel has closed a handle by which it read a snapshot.
    pub(super) fn snapshot_closed(&self, node: &Node) {
        let mut snapshot = locked(&node.snapshot);
        let Some(there) = snapshot.as_mut() else { return };
        there.open = there.open.saturating_sub(1);
        if there.open == 0 && !there.replaced {
            *snapshot = None;
        }
    }

    /// Lets the name of a view go if what it leads to is a snapshot of something else than is there
    /// now, or if its file in the cache was damaged since: its readers keep both, no other reader
    /// gets them.
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

    /// Whether a view that was just opened is on its way into the cache, and is not to take room in
    /// the kernel's cache too: it will be read from the file of the cache next time.
    pub(super) fn is_read_uncached(&self, node: &Node, len_bytes: u64) -> bool {
        self.may_be_snapshot(node)
            && len_bytes >= UNCACHED_FROM_BYTES
            && locked(&node.file).is_filling()
    }
}

/// The attributes of an inode, while it is a snapshot.
pub(super) fn attr_of_snapshot(node: &Node) -> Option<Attr> {
    locked(&node.snapshot).as_ref().map(|there| there.attr)
}
