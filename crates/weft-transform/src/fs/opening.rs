//! Opening and closing of files.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use weft_vfs::{
    Caller, Entry, Error, FileKind, FileSystem, Handle, Ino, OpenFlags, Opened, Result, SetAttr,
    StaleHandle,
};

use super::base::locked;
use super::decide::is_rules_file;
use super::file::{Attached, File};
use super::nodes::Node;
use super::shown::is_shown;
use super::{Open, TransformFs};

/// Maximum delay with which the kernel reports a closed descriptor.
const RELEASED_WITHIN: Duration = Duration::from_millis(250);

impl TransformFs {
    pub(super) fn open_flags(&self, handle: Handle) -> Option<Open> {
        locked(&self.handles).get(handle).copied()
    }

    pub(super) fn below_handle(&self, handle: Handle) -> Handle {
        let below = self.open_flags(handle).and_then(|open| open.below);
        below.map_or(Handle::NONE, |(_, handle)| handle)
    }

    pub(super) fn open_file(&self, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        if is_shown(ino) {
            return self.shown_open(ino, flags);
        }
        let node = self.node(ino)?;
        self.look_again(&node)?;
        if Self::who_has_it_must_ask_again(&node) {
            // The kernel admitted the caller by the permissions of the link's previous target. On
            // this error it repeats the lookup by name.
            return Err(Error::Stale(ino.0));
        }
        // Writes that bypass this file system are not seen until the file is closed.
        if flags.contains(OpenFlags::TRUNCATE)
            || flags.contains(OpenFlags::WRITE) && Self::is_plain(&node)
        {
            self.touched(&node);
        }
        if Self::is_plain(&node) {
            let below = self.ground.below.open(node.below(), flags)?;
            locked(&self.ground.nodes).add_use(&node);
            // A program that opens the file with this flag may push stages on it, for which the
            // kernel must request the bytes here.
            let direct_io = below.direct_io || flags.contains(OpenFlags::DIRECT);
            let below_handle = Some((node.below(), below.handle));
            let open = Open { ino, flags, below: below_handle, direct_io, past: false };
            let keep_cache = below.keep_cache && !Self::cached_is_old(&node);
            return Ok(Opened { handle: self.new_handle(open), keep_cache, direct_io });
        }
        let damaged = self.with(&node, File::check_empty).err();
        // A client that opens the file for writing may be about to truncate it: the kernel passes
        // that on after opening. Until then each read bypasses the kernel's cache, and fails.
        let is_damaged = damaged.is_some();
        if let Some(e) = damaged
            && !flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE)
        {
            return Err(e);
        }
        if let Some(opened) = self.open_snapshot(&node, flags)? {
            return Ok(opened);
        }
        // The kernel may know the name of a view a moment longer than there is its base.
        let view = locked(&node.file).view().cloned();
        if let Some(view) = view
            && view.base_attr()?.0.nlink == 0
        {
            // On this error the kernel repeats the lookup by name, and finds the current file.
            return Err(Error::Stale(ino.0));
        }
        if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE) {
            self.with(&node, |file, around| file.check_writable(around))?;
        }
        if flags.contains(OpenFlags::TRUNCATE) {
            self.setattr(ino, &SetAttr { size_bytes: Some(0), ..SetAttr::default() })?;
        }
        if !is_damaged {
            self.look_for_output(&node);
        }
        let (attr, known) = self.attr_and_size(&node)?;
        if known && !is_damaged {
            self.output_ends_at(&node, attr.size_bytes);
        }
        let keeps = match &locked(&node.file).attached {
            Attached::Network(network) => network.is_deterministic(),
            Attached::View(view) => view.network.is_deterministic(),
            _ => false,
        };
        // Changes that other processes make below are not announced; and announcements arrive late.
        let keeps = keeps
            && known
            && !is_damaged
            && (!(self.options.shared || locked(&node.file).is_view())
                || self.with(&node, File::is_as_last_opened)?);
        let keeps = keeps && !Self::cached_is_old(&node);
        locked(&self.ground.nodes).add_use(&node);
        locked(&node.file).count(|meter| {
            meter.opens.add(1);
            meter.opens_cached.add(u64::from(keeps));
        });
        let direct_io = !known || is_damaged || self.is_read_uncached(&node, attr.size_bytes);
        if !direct_io {
            node.cached_opens.fetch_add(1, Ordering::AcqRel);
        }
        let handle = self.new_handle(Open { ino, flags, below: None, direct_io, past: false });
        Ok(Opened { handle, keep_cache: keeps, direct_io })
    }

    /// Returns true, once, if the content in the kernel's cache is outdated: the kernel drops it if
    /// the file is opened without `keep_cache`.
    fn cached_is_old(node: &Node) -> bool {
        std::mem::take(&mut locked(&node.file).cached_is_old)
    }

    /// Returns the file below for passthrough, if it has the content of an open file and this file
    /// system need not see the writes to it.
    pub(super) fn file_below(&self, ino: Ino, handle: Handle) -> Option<Arc<OwnedFd>> {
        let node = self.node(ino).ok()?;
        // This file system reads rules files itself.
        if is_rules_file(&locked(&node.path)) {
            return None;
        }
        if node.view.is_some() {
            return self.file_of_snapshot(&node, handle);
        }
        // The lock is held until the passthrough is recorded, so that no network is attached in
        // between.
        let file = locked(&node.file);
        if !file.is_plain() {
            return None;
        }
        let mut handles = locked(&self.handles);
        let open = handles.get_mut(handle).filter(|open| open.ino == ino)?;
        let (below, below_handle) = open.below?;
        let backing = self.ground.below.backing(below, below_handle)?;
        open.past = true;
        if open.flags.contains(OpenFlags::WRITE) {
            node.written_past.fetch_add(1, Ordering::Relaxed);
        }
        Some(backing)
    }

    /// Waits up to [`RELEASED_WITHIN`] while the kernel accesses a file directly: it reports a
    /// closed descriptor only after `close(2)` has returned. Must not be called under the lock of
    /// the file.
    pub(super) fn wait_not_past(&self, ino: Ino) {
        let end = Instant::now() + RELEASED_WITHIN;
        while self.check_not_past(ino).is_err() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Refuses ([`Error::Busy`]) to attach a network to a file that the kernel accesses directly.
    pub(super) fn check_not_past(&self, ino: Ino) -> Result<()> {
        let is_past = |open: &Open| open.ino == ino && open.past;
        if !locked(&self.handles).values().any(is_past) {
            return Ok(());
        }
        let message =
            "the file is open with passthrough, without its network: close it there, or mount \
            with -o nopassthrough"
                .to_owned();
        Err(Error::Io { errno: Error::Busy.errno(), message })
    }

    /// Returns true if an inode is derived from another file.
    fn is_derived(&self, ino: Ino) -> bool {
        is_shown(ino) || self.node(ino).is_ok_and(|node| node.view.is_some())
    }

    pub(super) fn create_file(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        loop {
            let entry = match self.lookup(parent, name) {
                Ok(entry) if flags.contains(OpenFlags::EXCLUSIVE) => {
                    self.forget(entry.attr.ino, 1);
                    return Err(Error::Exists);
                }
                // The kernel's lookup did not find this name, so it has not checked whether the
                // caller may read the file. On this error it repeats the lookup.
                Ok(entry) if self.is_derived(entry.attr.ino) => {
                    self.forget(entry.attr.ino, 1);
                    return Err(Error::Stale(entry.attr.ino.0));
                }
                Ok(entry) => entry,
                Err(Error::NotFound) => {
                    match self.mknod(caller, parent, name, FileKind::Regular, perm, 0) {
                        Ok(entry) => entry,
                        // Another caller created the file first.
                        Err(Error::Exists) if !flags.contains(OpenFlags::EXCLUSIVE) => continue,
                        Err(e) => return Err(e),
                    }
                }
                Err(e) => return Err(e),
            };
            let ino = entry.attr.ino;
            let opened = self.open(ino, flags).and_then(|opened| Ok((self.getattr(ino)?, opened)));
            return match opened {
                Ok((attr, opened)) => Ok((Entry { attr, ..entry }, opened)),
                Err(e) => {
                    self.forget(ino, 1);
                    Err(e)
                }
            };
        }
    }

    /// Commits written data when the first descriptor is closed, not only when the last one is, so
    /// that `close(2)` can report an error.
    pub(super) fn flush_file(&self, ino: Ino, handle: Handle) -> Result<()> {
        if is_shown(ino) {
            return self.shown_attr(ino).map(drop);
        }
        let open = self.open_flags(handle).filter(|open| open.ino == ino);
        let open = open.ok_or(StaleHandle)?;
        if let Some((ino, below)) = open.below {
            self.ground.below.flush(ino, below)?;
        }
        if open.flags.contains(OpenFlags::WRITE) {
            let node = self.node(ino)?;
            if open.past {
                self.touched(&node);
            }
            self.commit(&node)?;
        }
        Ok(())
    }

    pub(super) fn release_file(&self, ino: Ino, handle: Handle) -> Result<()> {
        if is_shown(ino) {
            return self.shown_release(ino, handle);
        }
        let open = locked(&self.handles).close_if(handle, |open| open.ino == ino)?;
        let node = self.node(ino)?;
        let mut result = Ok(());
        if let Some((ino, below)) = open.below {
            // This is not the node's inode any more if the file was rewritten since.
            result = self.ground.below.release(ino, below);
        }
        if open.past && node.view.is_some() {
            self.snapshot_closed(&node);
        }
        if open.flags.contains(OpenFlags::WRITE) {
            if open.past {
                // A mapping may have been written after the last descriptor was closed.
                self.touched(&node);
                node.written_past.fetch_sub(1, Ordering::Relaxed);
            }
            result = result.and(self.commit(&node));
        }
        if open.below.is_none() && !open.direct_io {
            node.cached_opens.fetch_sub(1, Ordering::AcqRel);
        }
        result = result.and(self.pop_all(&node, handle));
        if open.direct_io && !locked(&self.handles).values().any(|other| other.ino == ino) {
            locked(&node.file).stop_reading();
        }
        drop(node);
        self.give_back(ino, 1);
        result
    }
}
