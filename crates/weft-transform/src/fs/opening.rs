//! Opening and closing of files.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use weft_vfs::{
    Caller, Entry, Error, FileKind, FileSystem, Handle, Ino, OpenFlags, Opened, Result, SetAttr,
    StaleHandle,
};

use super::inode::{Attached, Inode};
use super::inodes::is_synthetic;
use super::locks::locked;
use super::rules::is_rules_file;
use super::transform_fs::{Open, TransformFs};

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

    /// Returns a caller as the file system below knows the open file by which it calls.
    pub(super) fn caller_below(&self, caller: &Caller) -> Caller {
        caller.by(self.below_handle(caller.handle))
    }

    pub(super) fn open_file(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        if is_synthetic(ino) {
            return self.synthetic_open(ino, flags);
        }
        let inode = self.inode(ino)?;
        self.resolve_link_again(&inode)?;
        if Self::who_has_it_must_ask_again(&inode) {
            // The kernel admitted the caller by the permissions of the link's previous target. On
            // this error it repeats the lookup by name.
            return Err(Error::Stale(ino.0));
        }
        // Writes that bypass this file system are not seen until the file is closed.
        if flags.contains(OpenFlags::TRUNCATE)
            || flags.contains(OpenFlags::WRITE) && inode.is_plain()
        {
            self.touched(&inode);
        }
        if inode.is_plain() {
            let below = self.mount.below.open(caller, inode.below(), flags)?;
            self.mount.inodes().add_use(&inode);
            // A program that opens the file with this flag may push stages on it, for which the
            // kernel must request the bytes here.
            let direct_io = below.direct_io || flags.contains(OpenFlags::DIRECT);
            let below_handle = Some((inode.below(), below.handle));
            let open = Open { ino, flags, below: below_handle, direct_io, passthrough: false };
            let keep_cache = below.keep_cache && !Self::cached_is_old(&inode);
            return Ok(Opened { handle: self.new_handle(open), keep_cache, direct_io });
        }
        let damaged = self.mount.file(&inode).check_empty().err();
        // A client that opens the file for writing may be about to truncate it: the kernel passes
        // that on after opening. Until then each read bypasses the kernel's cache, and fails.
        let is_damaged = damaged.is_some();
        if let Some(e) = damaged
            && !flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE)
        {
            return Err(e);
        }
        if let Some(opened) = self.open_snapshot(&inode, flags)? {
            return Ok(opened);
        }
        // The kernel may know the name of a view a moment longer than there is its base.
        let view = inode.view();
        if let Some(view) = view
            && self.mount.base_attr(&view)?.0.nlink == 0
        {
            // On this error the kernel repeats the lookup by name, and finds the current file.
            return Err(Error::Stale(ino.0));
        }
        if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE) {
            self.mount.file(&inode).check_writable()?;
        }
        if flags.contains(OpenFlags::TRUNCATE) {
            self.setattr(caller, ino, &SetAttr { size_bytes: Some(0), ..SetAttr::default() })?;
        }
        if !is_damaged {
            self.look_for_output(&inode);
        }
        let (attr, known) = self.attr_and_size(&inode)?;
        if known && !is_damaged {
            self.output_ends_at(&inode, attr.size_bytes);
        }
        let keeps = match &locked(&inode.file).attached {
            Attached::Network(network) => network.is_deterministic(),
            Attached::View(view) => view.network.is_deterministic(),
            _ => false,
        };
        // Changes that other processes make below are not announced; and announcements arrive late.
        let keeps = keeps
            && known
            && !is_damaged
            && (!(self.options.shared || locked(&inode.file).is_view())
                || self.mount.file(&inode).is_as_last_opened()?);
        let keeps = keeps && !Self::cached_is_old(&inode);
        self.mount.inodes().add_use(&inode);
        locked(&inode.file).count(|meter| {
            meter.opens.add(1);
            meter.opens_cached.add(u64::from(keeps));
        });
        let direct_io = !known || is_damaged || self.is_read_uncached(&inode, attr.size_bytes);
        if !direct_io {
            inode.cached_opens.fetch_add(1, Ordering::AcqRel);
        }
        let handle =
            self.new_handle(Open { ino, flags, below: None, direct_io, passthrough: false });
        Ok(Opened { handle, keep_cache: keeps, direct_io })
    }

    /// Returns true, once, if the content in the kernel's cache is outdated: the kernel drops it if
    /// the file is opened without `keep_cache`.
    fn cached_is_old(inode: &Inode) -> bool {
        std::mem::take(&mut locked(&inode.file).cached_is_old)
    }

    /// Returns the file below for passthrough, if it has the content of an open file and this file
    /// system need not see the writes to it.
    pub(super) fn file_below(&self, ino: Ino, handle: Handle) -> Option<Arc<OwnedFd>> {
        let inode = self.inode(ino).ok()?;
        // This file system reads rules files itself.
        if is_rules_file(&locked(&inode.path)) {
            return None;
        }
        if inode.view_name.is_some() {
            return self.file_of_snapshot(&inode, handle);
        }
        // The lock is held until the passthrough is recorded, so that no network is attached in
        // between.
        let file = locked(&inode.file);
        if !file.is_plain() {
            return None;
        }
        let mut handles = locked(&self.handles);
        let open = handles.get_mut(handle).filter(|open| open.ino == ino)?;
        let (below, below_handle) = open.below?;
        let backing = self.mount.below.backing(below, below_handle)?;
        open.passthrough = true;
        open.direct_io = false;
        if open.flags.contains(OpenFlags::WRITE) {
            inode.passthrough_writers.fetch_add(1, Ordering::Relaxed);
        }
        Some(backing)
    }

    /// Waits up to [`RELEASED_WITHIN`] while the kernel accesses a file directly: it reports a
    /// closed descriptor only after `close(2)` has returned. Must not be called under the lock of
    /// the file.
    pub(super) fn wait_no_passthrough(&self, ino: Ino) {
        let end = Instant::now() + RELEASED_WITHIN;
        while self.check_no_passthrough(ino).is_err() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Returns true while the kernel may write a file below directly.
    pub(super) fn is_written_past(&self, ino: Ino) -> bool {
        let writes = |open: &Open| {
            open.ino == ino && open.passthrough && open.flags.contains(OpenFlags::WRITE)
        };
        locked(&self.handles).values().any(writes)
    }

    /// Refuses ([`Error::Busy`]) to attach a network to a file that the kernel accesses directly.
    pub(super) fn check_no_passthrough(&self, ino: Ino) -> Result<()> {
        let has_passthrough = |open: &Open| open.ino == ino && open.passthrough;
        if !locked(&self.handles).values().any(has_passthrough) {
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
        is_synthetic(ino) || self.inode(ino).is_ok_and(|inode| inode.view_name.is_some())
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
            let opened = self.open(caller, ino, flags).and_then(|opened| {
                let attr = self.getattr(ino)?;
                Ok((Entry { attr, ..entry }, opened))
            });
            return opened.inspect_err(|_| self.forget(ino, 1));
        }
    }

    /// Commits written data when the first descriptor is closed, not only when the last one is, so
    /// that `close(2)` can report an error.
    pub(super) fn flush_file(&self, ino: Ino, handle: Handle) -> Result<()> {
        if is_synthetic(ino) {
            return self.synthetic_attr(ino).map(drop);
        }
        let open = self.open_flags(handle).filter(|open| open.ino == ino);
        let open = open.ok_or(StaleHandle)?;
        if let Some((ino, below)) = open.below {
            self.mount.below.flush(ino, below)?;
        }
        if open.flags.contains(OpenFlags::WRITE) {
            let inode = self.inode(ino)?;
            if open.passthrough {
                self.touched(&inode);
            }
            self.mount.commit(&inode)?;
        }
        Ok(())
    }

    pub(super) fn release_file(&self, ino: Ino, handle: Handle) -> Result<()> {
        if is_synthetic(ino) {
            self.synthetic_release(handle);
            return Ok(());
        }
        let open = locked(&self.handles).close_if(handle, |open| open.ino == ino)?;
        let inode = self.inode(ino)?;
        let mut result = Ok(());
        if let Some((ino, below)) = open.below {
            // This is no longer the inode below if the file was rewritten since.
            result = self.mount.below.release(ino, below);
        }
        if open.passthrough && inode.view_name.is_some() {
            self.snapshot_closed(&inode);
        }
        if open.flags.contains(OpenFlags::WRITE) {
            if open.passthrough {
                // A mapping may have been written after the last descriptor was closed.
                self.touched(&inode);
                inode.passthrough_writers.fetch_sub(1, Ordering::Relaxed);
            }
            result = result.and(self.mount.commit(&inode));
        }
        if open.below.is_none() && !open.direct_io {
            inode.cached_opens.fetch_sub(1, Ordering::AcqRel);
        }
        result = result.and(self.pop_all(&inode, handle));
        if open.passthrough {
            self.settle_pending(&inode);
        }
        if open.below.is_none() && !locked(&self.handles).values().any(|other| other.ino == ino) {
            locked(&inode.file).stop_reading();
        }
        drop(inode);
        self.mount.release_uses(ino, 1);
        result
    }
}
