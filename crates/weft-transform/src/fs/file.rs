//! A regular file: its network, and its content through that network.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weft_vfs::{Attr, Error as Fault, FileSystem, Ino, SetAttr, SetTime, Time};

use super::base::{FileBase, SharedPlace, locked};
use super::ground::View;
use super::outputs::Output;
use super::views::shown;
use crate::exec::Fused;
use crate::meter::NetworkMeter;
use crate::store::{Limits, Store, known_len, open};
use crate::{Error, Need, Network, Result, Write};

/// The network or view attached to a file.
#[derive(Debug, Clone)]
pub(super) enum Attached {
    /// None: the file is read and written unchanged.
    Plain,
    /// A network.
    Network(Arc<Network>),
    /// A view of another file.
    View(Arc<View>),
    /// An invalid network, or one that cannot be built here, with the reason. The file then cannot
    /// be read at all, rather than its stored form.
    Unusable(Arc<Fault>),
}

/// The parameters of an in-place read; see [`File::in_place`].
pub(super) struct InPlaceRead {
    pub(super) stages: Arc<Fused>,
    /// The inode below.
    pub(super) stored: Ino,
    /// The versions of the file and of its base: every change increments one of them.
    pub(super) versions: (u64, u64),
}

/// The state of one file. Its lock is held while the file is read or written.
pub(super) struct File {
    pub(super) attached: Attached,
    /// Opened when first needed.
    store: Option<Box<dyn Store>>,
    /// The state of the stored file when the content was opened.
    seen: Option<Seen>,
    /// The state of the stored file when a front end last opened it.
    opened: Option<Seen>,
    /// The front end's cached content is outdated; reset when the file is opened.
    pub(super) cached_is_old: bool,
    /// The number of changes made through this file system.
    pub(super) version: u64,
    /// The state of the file's output in the output cache.
    pub(super) output: Output,
    /// mtime and ctime of the uncommitted changes, which the file system below does not know.
    stamp: Option<(Time, Time)>,
    /// Nothing was written to the file yet: an empty stored file is not damage.
    is_new: bool,
}

/// The attributes of a stored file that change when another process writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    ino: Ino,
    size_bytes: u64,
    mtime: Time,
    /// For a view, the version of its base.
    pub(super) version: u64,
}

impl Seen {
    fn of(attr: &Attr, version: u64) -> Self {
        Self { ino: attr.ino, size_bytes: attr.size_bytes, mtime: attr.mtime, version }
    }
}

/// The context that operations on a file need.
pub(super) struct Around<'a> {
    pub(super) fs: &'a Arc<dyn FileSystem>,
    pub(super) place: &'a SharedPlace,
    pub(super) limits: &'a Limits,
    pub(super) base: &'a dyn Fn() -> FileBase,
    pub(super) cached_opens: &'a AtomicU64,
}

impl Around<'_> {
    fn attr(&self) -> weft_vfs::Result<Attr> {
        let ino = locked(self.place).ino;
        self.fs.getattr(ino)
    }
}

/// Copies an error, because the error type of the file system has no `Clone`.
pub(super) fn again(fault: &Fault) -> Fault {
    Fault::Io { errno: fault.errno(), message: fault.to_string() }
}

impl File {
    pub(super) fn new(attached: Attached) -> Self {
        Self {
            attached,
            store: None,
            seen: None,
            opened: None,
            cached_is_old: false,
            version: 0,
            output: Output::default(),
            stamp: None,
            is_new: false,
        }
    }

    /// Drops the content; uncommitted data is lost. Returns what was attached.
    pub(super) fn close(&mut self) -> Attached {
        self.replace(Attached::Plain)
    }

    /// Attaches something else, as if the file had just been found; returns what was attached.
    pub(super) fn replace(&mut self, attached: Attached) -> Attached {
        let fresh = self.next(attached);
        std::mem::replace(self, fresh).attached
    }

    /// Returns the state of the same file with something else attached. The kernel's cached content
    /// is marked as outdated, because the notice may reach the kernel after the next open.
    fn next(&self, attached: Attached) -> Self {
        Self { version: self.version + 1, cached_is_old: true, ..Self::new(attached) }
    }

    pub(super) fn is_plain(&self) -> bool {
        matches!(self.attached, Attached::Plain)
    }

    pub(super) fn view(&self) -> Option<&Arc<View>> {
        match &self.attached {
            Attached::View(view) => Some(view),
            _ => None,
        }
    }

    pub(super) fn is_view(&self) -> bool {
        self.view().is_some()
    }

    /// Returns the network, if the file has a usable one.
    pub(super) fn network(&self) -> Result<&Arc<Network>, Fault> {
        match &self.attached {
            Attached::Network(network) => Ok(network),
            Attached::View(view) => Ok(&view.network),
            Attached::Plain => Err(Fault::Invalid("the file carries no network")),
            Attached::Unusable(why) => Err(again(why)),
        }
    }

    /// Returns the attributes of the stored file (or of the base of a view), and the state by which
    /// changes are detected.
    pub(super) fn look(&self, around: &Around<'_>) -> Result<(Attr, Seen), Fault> {
        let (attr, version) = match self.view() {
            Some(view) => view.base_attr()?,
            None => (around.attr()?, 0),
        };
        Ok((attr, Seen::of(&attr, version)))
    }

    /// Returns true if a front end's cached content of the file, which is being opened, is still
    /// valid.
    pub(super) fn is_as_last_opened(&mut self, around: &Around<'_>) -> Result<bool, Fault> {
        let seen = self.look(around)?.1;
        Ok(self.opened.replace(seen).is_none_or(|before| before == seen))
    }

    fn store(&mut self, around: &Around<'_>) -> Result<&mut Box<dyn Store>, Fault> {
        if self.store.is_none() {
            self.store = Some(match self.view() {
                Some(view) => view.open()?,
                None => {
                    let base = FileBase { is_new: self.is_new, ..(around.base)() };
                    open(Box::new(base), &self.network()?.clone(), around.limits)?
                }
            });
            // Opening may have finished a commit that a crash interrupted.
            self.seen = Some(self.look(around)?.1);
        }
        self.store.as_mut().ok_or(Fault::Invalid("just opened"))
    }

    /// Initializes an empty stored file as an empty file of this network.
    pub(super) fn begin(&mut self, around: &Around<'_>) -> Result<(), Fault> {
        if !matches!(self.attached, Attached::Network(_)) {
            return Ok(());
        }
        self.store = None;
        self.is_new = true;
        let begun = self.store(around).and_then(|store| Ok(store.begin()?));
        self.is_new = false;
        if begun.is_err() {
            self.store = None;
        }
        self.seen = Some(self.look(around)?.1);
        begun
    }

    /// Checks that a file whose stored file is empty can be opened: a kernel that sees a length of
    /// 0 requests no bytes, and so would never get the error.
    pub(super) fn check_empty(&mut self, around: &Around<'_>) -> Result<(), Fault> {
        match &self.attached {
            Attached::Network(_) if around.attr()?.size_bytes == 0 => self.store(around).map(drop),
            Attached::View(view) => view.ground.with(&view.base, File::check_empty),
            _ => Ok(()),
        }
    }

    /// Returns the attributes with the size that a reader sees, and whether it is known; for a file
    /// that cannot be opened the size is that of the stored file, so that reads are attempted, and
    /// fail.
    ///
    /// For a file derived from another that not all users may read, the content is not accessed,
    /// and the length is reported only if it follows from that of the other file
    /// ([`super::reach`]).
    pub(super) fn attr(&mut self, around: &Around<'_>) -> weft_vfs::Result<(Attr, bool)> {
        let view = self.view().cloned();
        let may_look = || match &view {
            // Clients that have it open know the length, and read no further than that.
            Some(view) if around.cached_opens.load(Ordering::Acquire) == 0 => view.all_may_read(),
            _ => Ok(true),
        };
        let mut size = if may_look()? { self.content_len(around)? } else { None };
        // Opening may have finished a commit that a crash interrupted.
        let (mut attr, seen) = self.look(around)?;
        self.notice(seen);
        if let Some(view) = &view {
            attr = shown(attr);
            view.reach.restrict(&mut attr, || view.base_has_list());
            // The permissions may have changed meanwhile.
            if !may_look()? {
                size = view.len_by_base()?;
                if view.is_behind_closed_directories() {
                    // stat(2) of the base is refused to users who may not search these directories,
                    // so stat(2) of the link reveals nothing of the base to them either.
                    let link = around.attr()?;
                    attr.blocks_512 = link.blocks_512;
                    (attr.atime, attr.mtime) = (link.atime, link.mtime);
                    (attr.ctime, attr.btime) = (link.ctime, link.btime);
                }
            }
        }
        attr.size_bytes = size.unwrap_or(0);
        if let Some((mtime, ctime)) = self.stamp {
            (attr.mtime, attr.ctime) = (mtime, ctime);
        }
        Ok((attr, size.is_some()))
    }

    /// Returns the length that readers find; `None` if it can be determined only by reading to the
    /// end. For a file that cannot be opened it is that of the stored file, so that reads are
    /// attempted, and fail.
    pub(super) fn content_len(&mut self, around: &Around<'_>) -> weft_vfs::Result<Option<u64>> {
        let (stored, seen) = self.look(around)?;
        self.notice(seen);
        let kept = self.output.len_bytes(seen, self.version).filter(|_| !self.is_dirty());
        let of_store = |this: &mut Self| Ok::<_, Fault>(this.store(around)?.len_bytes()?);
        match kept.map_or_else(|| of_store(self), |len| Ok(Some(len))) {
            Ok(size) => Ok(size),
            Err(e) => {
                tracing::error!(ino = stored.ino.0, "{e}");
                Ok(Some(stored.size_bytes))
            }
        }
    }

    /// Drops the opened content if another process has changed the stored file.
    fn notice(&mut self, seen: Seen) {
        if self.seen.is_some_and(|before| before != seen) && !self.is_dirty() {
            self.store = None;
        }
    }

    pub(super) fn read(
        &mut self,
        around: &Around<'_>,
        offset: u64,
        buf: &mut [u8],
    ) -> weft_vfs::Result<usize> {
        let read = self.store(around).and_then(|store| Ok(store.read_at(offset, buf)?));
        self.count_read(&read);
        read
    }

    /// Counts a read.
    pub(super) fn count_read(&self, read: &weft_vfs::Result<usize>) {
        self.count(|meter| match read {
            Ok(len) => {
                meter.reads.add(1);
                meter.read_bytes.add(*len as u64);
            }
            Err(_) => meter.errors.add(1),
        });
    }

    /// Returns the parameters of a read through a network that works in place on a plain file. The
    /// read uses none of this file's state, and so needs no lock; it is valid if
    /// [`in_place`](Self::in_place) returns the same afterwards.
    pub(super) fn in_place(&self, place: &SharedPlace) -> Option<InPlaceRead> {
        let (stages, stored, base_version) = match &self.attached {
            Attached::Network(network) => (network.in_place()?, locked(place).ino, 0),
            Attached::View(view) => {
                let base = locked(&view.base.file);
                if !base.is_plain() {
                    return None;
                }
                (view.network.in_place()?, view.base.below(), base.version)
            }
            _ => return None,
        };
        Some(InPlaceRead { stages, stored, versions: (self.version, base_version) })
    }

    /// Updates the counters of the file's network.
    pub(super) fn count(&self, what: impl FnOnce(&NetworkMeter)) {
        if let Ok(network) = self.network() {
            network.count(what);
        }
    }

    /// Checks that the file can be written; the error gives the reason.
    pub(super) fn check_writable(&self, around: &Around<'_>) -> weft_vfs::Result<()> {
        if self.is_view() {
            return Err(Fault::ReadOnly);
        }
        let network = self.network()?;
        let need = Need { exact_size: true, random_read: true, write: Write::Rewrite };
        network.check(&need).map_err(Error::Refused)?;
        if network.can().write == Write::Rewrite && around.attr()?.nlink > 1 {
            let why = "writing a file with several names that is written anew at every commit";
            return Err(Fault::Unsupported(why));
        }
        Ok(())
    }

    pub(super) fn write(
        &mut self,
        around: &Around<'_>,
        offset: Option<u64>,
        data: &[u8],
    ) -> weft_vfs::Result<usize> {
        self.check_writable(around)?;
        let store = self.store(around)?;
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

    /// As [`FileSystem::setattr`], the length included.
    pub(super) fn setattr(
        &mut self,
        around: &Around<'_>,
        set: &SetAttr,
    ) -> weft_vfs::Result<(Attr, bool)> {
        // A client that changes owner or mode has finished writing, and gets the space used. (Times
        // may be set at any moment, by a kernel that caches them.)
        if set.uid.is_some() || set.gid.is_some() || set.perm.is_some() {
            self.commit(around)?;
        }
        let mut below = SetAttr { size_bytes: None, ..*set };
        if let Some(size) = set.size_bytes {
            self.check_writable(around)?;
            if size > FILE_MAX_BYTES {
                return Err(Fault::TooLarge);
            }
            // Truncation to 0 discards the content, even a damaged one.
            if size == 0 && around.attr()?.size_bytes == 0 && self.store(around).is_err() {
                self.begin(around)?;
            }
            self.store(around)?.set_len(size)?;
            below.mtime = Some(set.mtime.unwrap_or(SetTime::Now));
        }
        let ino = locked(around.place).ino;
        let attr = around.fs.setattr(ino, &below)?;
        if self.is_dirty() {
            let (mtime, ctime) = self.stamp.unwrap_or((attr.mtime, attr.ctime));
            self.stamp = Some((
                if below.mtime.is_some() { attr.mtime } else { mtime },
                if below == SetAttr::default() { ctime } else { attr.ctime },
            ));
        }
        self.attr(around)
    }

    /// Overwrites a range of the file with zeroes.
    pub(super) fn zero(
        &mut self,
        around: &Around<'_>,
        mut offset: u64,
        end: u64,
    ) -> weft_vfs::Result<()> {
        let zeroes = vec![0; 64 << 10];
        while offset < end {
            let step = usize::try_from(end - offset).unwrap_or(usize::MAX).min(zeroes.len());
            self.write(around, Some(offset), &zeroes[..step])?;
            offset += step as u64;
        }
        Ok(())
    }

    /// Returns true if the length is known, from the opened content or else from the output cache.
    pub(super) fn is_settled(&mut self) -> bool {
        match &mut self.store {
            Some(store) => matches!(store.len_bytes(), Ok(Some(_))),
            None => self.output.is_kept(),
        }
    }

    /// Drops the opened content of a file that is no longer open, if its length is not known yet:
    /// this ends a program that produces it.
    pub(super) fn stop_reading(&mut self) {
        if !self.is_dirty() && !self.is_settled() {
            self.store = None;
        }
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.store.as_ref().is_some_and(|store| store.is_dirty())
    }

    /// Makes written data durable, all of it or none. A file without a name is not committed,
    /// because it does not survive a crash.
    pub(super) fn commit(&mut self, around: &Around<'_>) -> weft_vfs::Result<()> {
        if !self.is_dirty() || locked(around.place).unlinked {
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
            let ino = locked(around.place).ino;
            around.fs.setattr(ino, &set)?;
        }
        self.seen = Some(self.look(around)?.1);
        Ok(())
    }

    /// Replaces the network by another one. The stored file is not changed: its bytes must be valid
    /// for the new network, or the file must be empty.
    pub(super) fn attach(
        &mut self,
        around: &Around<'_>,
        attached: Attached,
    ) -> weft_vfs::Result<()> {
        self.commit(around)?;
        let mut next = self.next(attached);
        // A file that reads as empty must be empty through the new network too.
        let is_empty = around.attr()?.size_bytes == 0;
        if let Attached::Network(_) = &next.attached {
            let known = matches!(self.attached, Attached::Plain) || self.store(around).is_ok();
            if is_empty && known { next.begin(around) } else { next.store(around).map(|_| ()) }?;
        }
        *self = next;
        Ok(())
    }

    /// Rewrites the content through another network.
    pub(super) fn convert(
        &mut self,
        around: &Around<'_>,
        attached: Attached,
    ) -> weft_vfs::Result<()> {
        self.commit(around)?;
        if around.attr()?.nlink > 1 {
            return Err(Fault::Unsupported("writing a file with several names anew"));
        }
        let mut base = (around.base)();
        let mut from: Box<dyn Store> = match &self.attached {
            Attached::Plain => crate::store::Base::current(&mut base)?,
            _ => {
                self.store(around)?;
                self.store.take().ok_or(Fault::Invalid("just opened"))?
            }
        };
        let copied = copy_through(&mut base, &mut *from, &attached, around.limits);
        drop(from);
        let fresh = copied?;
        crate::store::Base::adopt(&mut base, fresh)?;
        self.replace(attached);
        Ok(())
    }
}

/// Maximum length of a file, in bytes: the range of offsets of all system calls.
const FILE_MAX_BYTES: u64 = i64::MAX.cast_unsigned();

/// Writes the content of `from` through a network to a temporary file beside `base`, durably.
fn copy_through(
    base: &mut FileBase,
    from: &mut dyn Store,
    attached: &Attached,
    limits: &Limits,
) -> weft_vfs::Result<crate::store::FreshId> {
    use crate::store::Base;
    let (id, raw) = base.fresh()?;
    let write = || -> Result<()> {
        let mut to: Box<dyn Store> = match attached {
            Attached::Plain => raw,
            Attached::Network(network) => {
                // An empty file is initialized in place.
                let is_empty = from.read_at(0, &mut [0])? == 0;
                let rewrites = network.can().write == Write::Rewrite && !is_empty;
                let sink = crate::store::Single::new(raw, rewrites);
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
