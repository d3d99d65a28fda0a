//! A file under its lock: its attributes, its content through its network, and how it is replaced.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use weft_vfs::{
    Attr, Caller, Error as Fault, Handle, Ino, Result as FsResult, SetAttr, SetTime, Time,
    keeping_access_times,
};

use super::derived::read_only;
use super::inode::{Attached, FileState, Inode, View, again};
use super::locks::locked;
use super::mount::Mount;
use super::stored_file::{Replacement, StoredFile};
use super::version::FileVersion;
use crate::exec::{BLOCK_BYTES, Fused};
use crate::store::{Base, FreshId, Limits, Single, Store, known_len, open, seal_again};
use crate::text::Side;
use crate::{Error, Need, Result, Write};

/// A file whose lock is held while it is read or written, with the context that this needs.
pub(super) struct LockedFile<'a> {
    pub(super) mount: &'a Arc<Mount>,
    inode: &'a Inode,
    state: MutexGuard<'a, FileState>,
}

impl Deref for LockedFile<'_> {
    type Target = FileState;

    fn deref(&self) -> &FileState {
        &self.state
    }
}

impl DerefMut for LockedFile<'_> {
    fn deref_mut(&mut self) -> &mut FileState {
        &mut self.state
    }
}

impl LockedFile<'_> {
    /// The inode below.
    pub(super) fn below(&self) -> Ino {
        self.inode.below()
    }

    /// Returns the attributes of the inode below.
    fn stored_attr(&self) -> FsResult<Attr> {
        self.mount.below.getattr(self.below())
    }

    fn stored_file(&self) -> StoredFile {
        StoredFile::new(self.mount.clone(), self.inode.location.clone(), self.is_new)
    }

    fn open_view(&self, view: &View) -> Result<Box<dyn Store>> {
        let base = ContentStore { mount: self.mount.clone(), base: view.base.clone() };
        open(Box::new(Single::to_read(Box::new(base))), &view.network, &self.mount.limits)
    }

    /// Returns the attributes of the stored file (or of the base of a view), and the state by which
    /// changes are detected.
    pub(super) fn look(&self) -> Result<(Attr, FileVersion), Fault> {
        let (attr, version) = match self.view() {
            Some(view) => self.mount.base_attr(view)?,
            None => (self.stored_attr()?, 0),
        };
        Ok((attr, FileVersion::of(&attr, version)))
    }

    /// Returns true if a front end's cached content of the file, which is being opened, is still
    /// valid.
    pub(super) fn is_as_last_opened(&mut self) -> Result<bool, Fault> {
        let seen = self.look()?.1;
        Ok(self.opened.replace(seen).is_none_or(|before| before == seen))
    }

    fn store(&mut self) -> Result<&mut Box<dyn Store>, Fault> {
        if self.store.is_none() {
            // Before it is opened: the base may change at any time, and then it is opened again.
            let before = self.look()?.1;
            let (store, seen) = match self.view() {
                Some(view) => (self.open_view(view)?, before),
                None => {
                    let base = Box::new(self.stored_file());
                    let store = open(base, &self.network()?.clone(), &self.mount.limits)?;
                    // Opening may have finished a commit that a crash interrupted.
                    (store, self.look()?.1)
                }
            };
            (self.store, self.seen) = (Some(store), Some(seen));
        }
        self.store.as_mut().ok_or(Fault::Invalid("just opened"))
    }

    /// Initializes an empty stored file as an empty file of this network.
    pub(super) fn begin(&mut self) -> Result<(), Fault> {
        if !matches!(self.attached, Attached::Network(_)) {
            return Ok(());
        }
        self.store = None;
        self.inode.may_be_dirty.store(true, Ordering::Release);
        self.is_new = true;
        let begun = self.store().and_then(|store| Ok(store.begin()?));
        self.is_new = false;
        if begun.is_err() {
            self.store = None;
        }
        self.seen = Some(self.look()?.1);
        begun
    }

    /// Checks that a file whose stored file is empty can be opened: a kernel that sees a length of
    /// 0 requests no bytes, and so would never get the error.
    pub(super) fn check_empty(&mut self) -> Result<(), Fault> {
        match &self.attached {
            Attached::Network(_) if self.stored_attr()?.size_bytes == 0 => self.store().map(drop),
            Attached::View(view) => self.mount.file(&view.base).check_empty(),
            _ => Ok(()),
        }
    }

    /// Returns the attributes with the size that a reader sees, and whether it is known; for a file
    /// that cannot be opened the size is that of the stored file, so that reads are attempted, and
    /// fail.
    ///
    /// For a file derived from another that not all users may read, the content is not accessed,
    /// and the length is reported only if it follows from that of the other file
    /// ([`super::derived`]).
    pub(super) fn attr(&mut self) -> FsResult<(Attr, bool)> {
        let view = self.view().cloned();
        let (mount, inode) = (self.mount, self.inode);
        let may_look = || match &view {
            // Clients that have it open know the length, and read no further than that.
            Some(view) if inode.cached_opens.load(Ordering::Acquire) == 0 => {
                mount.all_may_read_view(view)
            }
            _ => Ok(true),
        };
        let mut size = if may_look()? { self.content_len()? } else { None };
        // Opening may have finished a commit that a crash interrupted.
        let (mut attr, seen) = self.look()?;
        self.notice(seen);
        if let Some(view) = &view {
            attr = read_only(attr);
            view.reach.restrict(&mut attr, || mount.has_list(&view.base));
            // The permissions may have changed meanwhile.
            if !may_look()? {
                size = mount.len_by_base(view)?;
                if view.is_behind_closed_directories() {
                    // stat(2) of the base is refused to users who may not search these directories,
                    // so stat(2) of the link reveals nothing of the base to them either.
                    let link = self.stored_attr()?;
                    attr.blocks_512 = link.blocks_512;
                    (attr.atime, attr.mtime) = (link.atime, link.mtime);
                    (attr.ctime, attr.btime) = (link.ctime, link.btime);
                }
            }
        }
        attr.size_bytes = size.unwrap_or(0);
        // What was written is not stored yet. Without any block `tar -S` and the like take the whole
        // file for a hole, and do not read it.
        if self.is_dirty() {
            attr.blocks_512 = attr.blocks_512.max(attr.size_bytes.div_ceil(512));
        }
        if let Some((mtime, ctime)) = self.stamp {
            (attr.mtime, attr.ctime) = (mtime, ctime);
        }
        Ok((attr, size.is_some()))
    }

    /// Returns the length that readers find; `None` if it can be determined only by reading to the
    /// end. For a file that cannot be opened it is that of the stored file, so that reads are
    /// attempted, and fail.
    pub(super) fn content_len(&mut self) -> FsResult<Option<u64>> {
        let (stored, seen) = self.look()?;
        self.notice(seen);
        if let Some((of, len)) = self.failing
            && of == seen
        {
            return Ok(Some(len));
        }
        let kept = self.output.len_bytes(seen, self.version()).filter(|_| !self.is_dirty());
        // Nobody reads the content.
        let of_store = |this: &mut Self| {
            keeping_access_times(true, || Ok::<_, Fault>(this.store()?.len_bytes()?))
        };
        match kept.map_or_else(|| of_store(self), |len| Ok(Some(len))) {
            Ok(size) => Ok(size),
            Err(Fault::Interrupted) => Err(Fault::Interrupted),
            Err(e) => {
                tracing::error!(ino = stored.ino.0, "{e}");
                Ok(Some(stored.size_bytes))
            }
        }
    }

    /// Reads a file of unknown length to its end, once, if that may be known. Programs that copy
    /// files take the length before they open them, and would copy an empty one.
    pub(super) fn measure(&mut self) -> FsResult<()> {
        if self.network().is_ok_and(|network| network.acts_outside()) {
            return Ok(());
        }
        if let Some(view) = self.view().cloned()
            && !self.mount.all_may_read_view(&view)?
        {
            return Ok(());
        }
        if self.content_len()?.is_some() {
            return Ok(());
        }
        let seen = self.look()?.1;
        let (mut block, mut at) = (vec![0; BLOCK_BYTES], 0);
        loop {
            let read = keeping_access_times(true, || {
                self.store().and_then(|store| Ok(store.read_at(at, &mut block)?))
            });
            match read {
                Ok(got) if got == block.len() => at += got as u64,
                Ok(_) => return Ok(()),
                Err(Fault::Interrupted) => return Err(Fault::Interrupted),
                Err(e) => {
                    tracing::error!(ino = self.inode.ino.0, "{e}");
                    self.failing = Some((seen, at + block.len() as u64));
                    return Ok(());
                }
            }
        }
    }

    /// Drops the opened content if another process has changed the stored file.
    fn notice(&mut self, seen: FileVersion) {
        if self.seen.is_some_and(|before| before != seen) && !self.is_dirty() {
            self.store = None;
        }
    }

    pub(super) fn read(&mut self, offset: u64, buf: &mut [u8]) -> FsResult<usize> {
        let read = self.store().and_then(|store| Ok(store.read_at(offset, buf)?));
        self.count_read(&read);
        read
    }

    /// Returns the parameters of a read through a network that works in place on a plain file. The
    /// read uses none of this file's state, and so needs no lock; it is valid if
    /// [`in_place`](Self::in_place) returns the same afterwards.
    pub(super) fn in_place(&self) -> Option<InPlaceRead> {
        let (stages, stored, base_version) = match &self.attached {
            Attached::Network(network) => (network.in_place()?, self.below(), 0),
            Attached::View(view) => {
                let base = locked(&view.base.file);
                if !base.is_plain() {
                    return None;
                }
                (view.network.in_place()?, view.base.below(), base.version())
            }
            _ => return None,
        };
        Some(InPlaceRead { stages, stored, versions: (self.version(), base_version) })
    }

    /// Checks that the file can be written; the error gives the reason.
    pub(super) fn check_writable(&self) -> FsResult<()> {
        if self.is_view() {
            return Err(Fault::ReadOnly);
        }
        let network = self.network()?;
        let need = Need { exact_size: true, random_read: true, write: Write::Rewrite };
        network.check(&need).map_err(Error::Refused)?;
        if network.can().write == Write::Rewrite && self.stored_attr()?.nlink > 1 {
            let why = "writing a file with several names that is written anew at every commit";
            return Err(Fault::Unsupported(why));
        }
        Ok(())
    }

    pub(super) fn write(&mut self, offset: Option<u64>, data: &[u8]) -> FsResult<usize> {
        self.check_writable()?;
        self.inode.may_be_dirty.store(true, Ordering::Release);
        let store = self.store()?;
        let offset = match offset {
            Some(offset) => offset,
            None => known_len(&mut **store, "network")?,
        };
        let room = FILE_MAX_BYTES.saturating_sub(offset);
        if room == 0 {
            return Err(Fault::TooLarge);
        }
        let len = usize::try_from(room).unwrap_or(usize::MAX).min(data.len());
        store.write_at(offset, &data[..len])?;
        let now = Time::now();
        self.stamp = self.is_dirty().then_some((now, now));
        self.count(|meter| {
            meter.writes.add(1);
            meter.write_bytes.add(len as u64);
        });
        Ok(len)
    }

    /// As [`weft_vfs::FileSystem::setattr`], the length included.
    pub(super) fn setattr(&mut self, set: &SetAttr) -> FsResult<(Attr, bool)> {
        // A client that changes owner or mode has finished writing, and gets the space used. (Times
        // may be set at any moment, by a kernel that caches them.)
        if set.uid.is_some() || set.gid.is_some() || set.perm.is_some() {
            self.commit()?;
        }
        let mut below = SetAttr { size_bytes: None, ..*set };
        if let Some(size) = set.size_bytes {
            self.check_writable()?;
            self.inode.may_be_dirty.store(true, Ordering::Release);
            if size > FILE_MAX_BYTES {
                return Err(Fault::TooLarge);
            }
            // Truncation to 0 discards the content, even a damaged one.
            if size == 0 && self.stored_attr()?.size_bytes == 0 && self.store().is_err() {
                self.begin()?;
            }
            self.store()?.set_len(size)?;
            below.mtime = Some(set.mtime.unwrap_or(SetTime::Now));
        }
        let attr = self.mount.below.setattr(&Caller::ROOT, self.below(), &below)?;
        if self.is_dirty() {
            let (mtime, ctime) = self.stamp.unwrap_or((attr.mtime, attr.ctime));
            self.stamp = Some((
                if below.mtime.is_some() { attr.mtime } else { mtime },
                if below == SetAttr::default() { ctime } else { attr.ctime },
            ));
        }
        self.attr()
    }

    /// Overwrites a range of the file with zeroes.
    pub(super) fn zero(&mut self, mut offset: u64, end: u64) -> FsResult<()> {
        let zeroes = vec![0; 64 << 10];
        while offset < end {
            let step = usize::try_from(end - offset).unwrap_or(usize::MAX).min(zeroes.len());
            self.write(Some(offset), &zeroes[..step])?;
            offset += step as u64;
        }
        Ok(())
    }

    /// Makes written data durable, all of it or none. A file without a name is not committed,
    /// because it does not survive a crash.
    pub(super) fn commit(&mut self) -> FsResult<()> {
        if !self.is_dirty() {
            self.inode.may_be_dirty.store(false, Ordering::Release);
            return Ok(());
        }
        if locked(&self.inode.location).unlinked {
            return Ok(());
        }
        if let Some(store) = &mut self.store {
            store.commit()?;
        }
        if let Some((mtime, ctime)) = self.stamp.take() {
            // The commit itself has set later times than those of the writes.
            let set = SetAttr {
                mtime: Some(SetTime::At(mtime)),
                ctime: Some(ctime),
                ..SetAttr::default()
            };
            self.mount.below.setattr(&Caller::ROOT, self.below(), &set)?;
        }
        self.seen = Some(self.look()?.1);
        Ok(())
    }

    /// Replaces the network by another one. The stored file is not changed: its bytes must be valid
    /// for the new network, or the file must be empty.
    pub(super) fn attach(&mut self, attached: Attached) -> FsResult<()> {
        self.commit()?;
        let next = self.next(attached);
        // A file that reads as empty must be empty through the new network too.
        let is_empty = self.stored_attr()?.size_bytes == 0;
        let is_network = matches!(next.attached, Attached::Network(_));
        let known = is_network && (self.is_plain() || self.store().is_ok());
        let before = std::mem::replace(&mut *self.state, next);
        let checked = match is_network {
            true if is_empty && known => self.begin(),
            true => self.store().map(drop),
            false => Ok(()),
        };
        if checked.is_err() {
            *self.state = before;
        }
        checked
    }

    /// Returns true if what is attached next needs a header in the stored file, which is empty: the
    /// header and the attribute must become durable together.
    pub(super) fn lacks_header(&mut self, next: &Attached) -> FsResult<bool> {
        let Attached::Network(network) = next else { return Ok(false) };
        if !network.has_header() || self.stored_attr()?.size_bytes != 0 {
            return Ok(false);
        }
        Ok(self.is_plain() || self.store().is_ok())
    }

    /// Returns true if readers would see other content with what is attached next, although both the
    /// old network and the new one store what programs write.
    pub(super) fn would_change(&self, next: &Attached) -> FsResult<bool> {
        let stores = |attached: &Attached| match attached {
            Attached::Plain => Some(String::new()),
            Attached::Network(network) if network.text().side == Side::Store => {
                Some(network.to_string())
            }
            _ => None,
        };
        let (Some(now), Some(next)) = (stores(&self.attached), stores(next)) else {
            return Ok(false);
        };
        Ok(now != next && self.stored_attr()?.size_bytes != 0)
    }

    /// Returns true if the file has several names: it cannot be replaced by another.
    pub(super) fn has_other_names(&self) -> FsResult<bool> {
        Ok(self.stored_attr()?.nlink > 1)
    }

    /// Seals the file again, with the newest key of its network, in place.
    pub(super) fn seal_again(&mut self) -> FsResult<()> {
        self.commit()?;
        let network = self.network()?.clone();
        let raw = self.stored_file().current()?;
        let attached = self.attached.clone();
        // What is open knows the old key.
        self.replace(attached);
        Ok(seal_again(raw, &network, &self.mount.limits)?)
    }

    /// Rewrites the content through another network. The stored file is replaced by another, which
    /// has the new attribute, and perhaps a new name: after a power cut each name that there is
    /// leads to a whole file with the attribute by which it is read.
    pub(super) fn convert(&mut self, attached: Attached, how: &Replacement<'_>) -> FsResult<()> {
        self.commit()?;
        if self.has_other_names()? {
            return Err(Fault::TooManyLinks);
        }
        let mut base = self.stored_file();
        let mut from: Box<dyn Store> = match &self.attached {
            Attached::Plain => base.current()?,
            _ => {
                self.store()?;
                self.store.take().ok_or(Fault::Invalid("just opened"))?
            }
        };
        let copied = copy_through(&mut base, &mut *from, &attached, &self.mount.limits);
        drop(from);
        let fresh = copied?;
        let stays = base.adopt_as(fresh, how).inspect_err(|_| base.discard(fresh))?;
        self.replace(attached);
        if let Some(to) = how.to {
            *locked(&self.inode.path) = to.parent.path_of(to.name);
        }
        stays.map_or(Ok(()), Err)
    }
}

impl Mount {
    /// Locks a file.
    pub(super) fn file<'a>(self: &'a Arc<Self>, inode: &'a Inode) -> LockedFile<'a> {
        LockedFile { mount: self, inode, state: locked(&inode.file) }
    }

    pub(super) fn commit(self: &Arc<Self>, inode: &Inode) -> FsResult<()> {
        if inode.is_plain() { Ok(()) } else { self.file(inode).commit() }
    }

    /// Releases `count` uses of an inode; with the last one written data is committed, and the
    /// inode below is forgotten.
    pub(super) fn release_uses(self: &Arc<Self>, ino: Ino, count: u64) {
        let unused = self.inodes().drop_uses(ino, count);
        let Some(inode) = unused else { return };
        if let Err(e) = self.commit(&inode) {
            tracing::error!(ino = ino.0, "what was written last is lost: {e}");
        }
        if self.inodes().remove_unused(&inode) {
            // A temporary file must be removed before the inode is forgotten.
            let below = inode.below();
            let attached = locked(&inode.file).close();
            self.release_base(&attached);
            if inode.view_name.is_none() {
                self.below.forget(below, 1);
            }
        }
    }

    /// Releases one use of an inode, if it is still the inode of its inode number.
    pub(super) fn release_inode(self: &Arc<Self>, inode: &Arc<Inode>) {
        let there = self.inodes().get(inode.ino);
        if there.is_ok_and(|there| Arc::ptr_eq(&there, inode)) {
            self.release_uses(inode.ino, 1);
        }
    }

    /// Releases the use that a view has of its base.
    pub(super) fn release_base(self: &Arc<Self>, attached: &Attached) {
        if let Attached::View(view) = attached {
            self.release_uses(view.base.ino, 1);
        }
    }

    /// Reads a file whose stages all work in place, in parallel with other readers; returns `None`
    /// if they do not, or if the file changed during the read.
    pub(super) fn read_in_place(
        self: &Arc<Self>,
        inode: &Inode,
        offset: u64,
        buf: &mut [u8],
    ) -> Option<FsResult<usize>> {
        let before = self.file(inode).in_place()?;
        let read = self.below.read(before.stored, Handle::NONE, offset, buf);
        let read = read.and_then(|got| {
            before.stages.apply(offset, &mut buf[..got])?;
            Ok(got)
        });
        let file = self.file(inode);
        let after = file.in_place()?;
        if (after.stored, after.versions) != (before.stored, before.versions) {
            return None;
        }
        file.count_read(&read);
        Some(read)
    }

    /// Returns the attributes that this file system reports, and whether the size is known.
    pub(super) fn attr(self: &Arc<Self>, inode: &Inode) -> FsResult<(Attr, bool)> {
        if let Some(mut attr) = inode.attr_of_snapshot() {
            // The content is that of the snapshot; the permissions are the current ones of the
            // base.
            let now = self.view_attr(&*inode.view().ok_or(Fault::Stale(inode.ino.0))?)?;
            (attr.perm, attr.uid, attr.gid) = (now.perm, now.uid, now.gid);
            return Ok((attr, true));
        }
        let (mut attr, known) = if inode.is_plain() {
            (self.below.getattr(inode.below())?, true)
        } else {
            self.file(inode).attr()?
        };
        attr.ino = inode.ino;
        Ok((attr, known))
    }
}

/// The parameters of an in-place read; see [`LockedFile::in_place`].
pub(super) struct InPlaceRead {
    stages: Arc<Fused>,
    /// The inode below.
    stored: Ino,
    /// The versions of the file and of its base: every change increments one of them.
    versions: (u64, u64),
}

/// A store of the content of a file as its readers see it.
pub(super) struct ContentStore {
    pub(super) mount: Arc<Mount>,
    pub(super) base: Arc<Inode>,
}

impl Store for ContentStore {
    fn len_bytes(&mut self) -> Result<Option<u64>> {
        if let Some(attr) = self.base.attr_of_snapshot() {
            return Ok(Some(attr.size_bytes));
        }
        if self.base.is_plain() {
            return Ok(Some(self.mount.below.getattr(self.base.below())?.size_bytes));
        }
        Ok(self.mount.file(&self.base).content_len()?)
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if self.base.is_plain() {
            return Ok(self.mount.below.read(self.base.below(), Handle::NONE, offset, buf)?);
        }
        Ok(self.mount.file(&self.base).read(offset, buf)?)
    }
}

/// Maximum length of a file, in bytes: the range of offsets of all system calls.
const FILE_MAX_BYTES: u64 = i64::MAX.cast_unsigned();

/// Writes the content of `from` through a network to a temporary file beside `base`, durably.
fn copy_through(
    base: &mut StoredFile,
    from: &mut dyn Store,
    attached: &Attached,
    limits: &Limits,
) -> FsResult<FreshId> {
    let (id, raw) = base.fresh()?;
    let write = || -> Result<()> {
        let mut to: Box<dyn Store> = match attached {
            Attached::Plain => raw,
            Attached::Network(network) => {
                // An empty file is initialized in place.
                let is_empty = from.read_at(0, &mut [0])? == 0;
                let rewrites = network.can().write == Write::Rewrite && !is_empty;
                let sink = Single::new(raw, rewrites);
                open(Box::new(sink), network, limits)?
            }
            Attached::Unusable(why) => return Err(again(why).into()),
            Attached::View(_) => return Err(Fault::ReadOnly.into()),
        };
        to.begin()?;
        let mut buf = vec![0; 256 << 10];
        let mut at = 0;
        loop {
            let got = from.read_at(at, &mut buf)?;
            if got == 0 {
                break;
            }
            to.write_at(at, &buf[..got])?;
            at += got as u64;
        }
        to.commit()
    };
    match write() {
        Ok(()) => Ok(id),
        Err(e) => {
            base.discard(id);
            Err(e.into())
        }
    }
}
