//! Finding, making, moving and keeping companions.

use super::draft::take_over;
use super::fork_view::{ForkView, has_more};
use super::layout::Layout;
use super::names::{Part, base_of, shortened, with_dots};
use crate::streams::ResourceReader;
use std::borrow::Cow;
use std::io::Read;
use weft_vfs::{Attr, Caller, Entry, Error, FileKind, Handle, Ino, RenameFlags, Result};

/// An AppleDouble that waits for its file is no longer than this, in bytes.
const ORPHAN_MAX_BYTES: u64 = 256 << 20;

/// The names of a move: directories and names.
pub(super) type Names<'n> = ((Ino, &'n [u8]), (Ino, &'n [u8]));

impl ForkView {
    /// Reports whether an error means that no file has the name, or that none can have it.
    pub(super) fn is_absent(e: &Error) -> bool {
        matches!(e, Error::NotFound | Error::NameTooLong | Error::Invalid(_))
    }

    /// Finds a companion by its name, and takes a reference on it.
    pub(super) fn lookup_companion(
        &self,
        parent: Ino,
        name: &[u8],
    ) -> Result<Option<(Entry, Ino, Part)>> {
        let Some((base, base_name, part)) = self.lookup_base(parent, name)? else {
            return Ok(None);
        };
        match self.companion_of(&base.attr, base_name, part) {
            Ok(Some(attr)) => {
                if part == Part::Double {
                    self.companions().hold(base.attr.ino, parent, name);
                }
                Ok(Some((Entry { attr, generation: 0 }, base.attr.ino, part)))
            }
            other => {
                self.inner.forget(base.attr.ino, 1);
                other.map(|_| None)
            }
        }
    }

    /// Finds the file that `name` would be a companion of, and takes a reference on it.
    pub(super) fn lookup_base<'n>(
        &self,
        parent: Ino,
        name: &'n [u8],
    ) -> Result<Option<(Entry, &'n [u8], Part)>> {
        let Some((base_name, part)) = base_of(self.forks, name) else { return Ok(None) };
        // A companion has none of its own.
        if let Some((_, base, part)) = self.lookup_companion(parent, base_name)? {
            self.drop_companion(base, part);
            return Ok(None);
        }
        match self.lookup_own(parent, base_name) {
            Ok(entry) => Ok(Some((entry, base_name, part))),
            Err(e) if Self::is_absent(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Gives a reference on a companion back.
    pub(super) fn drop_companion(&self, base: Ino, part: Part) {
        if part == Part::Double {
            self.unheld(base, 1);
        }
        self.inner.forget(base, 1);
    }

    /// Reports whether there is a companion of this name.
    pub(super) fn has_companion(&self, parent: Ino, name: &[u8]) -> Result<bool> {
        let found = self.lookup_companion(parent, name)?;
        Ok(found.inspect(|(_, base, part)| self.drop_companion(*base, *part)).is_some())
    }

    /// Returns the name under which a file of the volume is stored, whose name may be too long
    /// because it is that of a companion, or taken by a file that was made by its other spelling.
    pub(super) fn stored_name<'n>(&self, parent: Ino, name: &'n [u8]) -> Result<Cow<'n, [u8]>> {
        let Some((_, part)) = base_of(self.forks, name) else { return Ok(Cow::Borrowed(name)) };
        let short = shortened(name, 0);
        let may_be_long = part == Part::Double && *short != *name;
        if !may_be_long && self.own().is_empty() {
            return Ok(Cow::Borrowed(name));
        }
        match self.inner.lookup(parent, name) {
            Ok(entry) => {
                self.inner.forget(entry.attr.ino, 1);
                let is_taken = self.own().contains(&entry.attr.ino);
                Ok(if is_taken { shortened(name, 1) } else { Cow::Borrowed(name) })
            }
            Err(Error::NameTooLong) if part == Part::Double => Ok(short),
            Err(_) => Ok(Cow::Borrowed(name)),
        }
    }

    /// Finds a file of the volume, by either spelling of its name.
    pub(super) fn lookup_own(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        let stored = self.stored_name(parent, name)?;
        match (self.inner.lookup(parent, &stored), with_dots(name)) {
            // HFS Plus has both characters.
            (Err(Error::NotFound), Some(dots)) => self.inner.lookup(parent, &dots),
            (found, _) => found,
        }
    }

    /// Returns true if `name`, which leads to the file `ino` on the volume, has leaders in place of dots,
    /// and the file is not one that is shown by it: one that waits for its file as `._NAME`.
    pub(super) fn is_of_waiting(&self, parent: Ino, name: &[u8], ino: Ino) -> Result<bool> {
        let Some(dots) = with_dots(name) else { return Ok(false) };
        if base_of(self.forks, &dots).is_none() || self.own().contains(&ino) {
            return Ok(false);
        }
        self.has_companion(parent, &dots).map(|is_shown| !is_shown)
    }

    /// Gives a waiting file another name if a new one is to have the other spelling of its name, which is
    /// the same to the volume: the one under which [`stored_name`](Self::stored_name) finds it then.
    pub(super) fn make_way(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        let there = match (with_dots(name), self.inner.lookup(parent, name)) {
            (Some(dots), Ok(entry)) => (dots, entry.attr.ino),
            (None, Ok(entry)) => {
                self.inner.forget(entry.attr.ino, 1);
                return Ok(());
            }
            (_, Err(_)) => return Ok(()),
        };
        let (dots, ino) = there;
        let moved = self.is_of_waiting(parent, name, ino).and_then(|waits| {
            if !waits {
                return Ok(());
            }
            let other = shortened(&dots, 1);
            let flags = RenameFlags::NO_REPLACE;
            self.inner.rename(caller, parent, &dots, parent, &other, flags)
        });
        self.inner.forget(ino, 1);
        moved
    }

    /// Runs `f` with the file that `name` would be a companion of, if that is there.
    pub(super) fn with_base<R>(
        &self,
        parent: Ino,
        name: &[u8],
        f: impl FnOnce(Ino, &[u8], Part) -> Result<R>,
    ) -> Result<Option<R>> {
        let Some((base, base_name, part)) = self.lookup_base(parent, name)? else {
            return Ok(None);
        };
        let result = f(base.attr.ino, base_name, part);
        self.inner.forget(base.attr.ino, 1);
        result.map(Some)
    }

    /// Makes a companion that does not exist, for a file that does. Returns `None` if there is no
    /// such file, or a file of the volume has the name.
    pub(super) fn make_companion(
        &self,
        parent: Ino,
        name: &[u8],
        exclusive: bool,
    ) -> Result<Option<Entry>> {
        if let Some((entry, base, part)) = self.lookup_companion(parent, name)? {
            if exclusive {
                self.drop_companion(base, part);
                return Err(Error::Exists);
            }
            return Ok(Some(entry));
        }
        let Some((base, _, part)) = self.lookup_base(parent, name)? else { return Ok(None) };
        let ino = base.attr.ino;
        match self.lookup_own(parent, name) {
            Ok(entry) => {
                self.inner.forget(entry.attr.ino, 1);
                self.inner.forget(ino, 1);
                return Ok(None);
            }
            Err(e) if Self::is_absent(&e) => {}
            Err(e) => {
                self.inner.forget(ino, 1);
                return Err(e);
            }
        }
        if part == Part::Resource && base.attr.kind != FileKind::Regular {
            self.inner.forget(ino, 1);
            return Err(Error::NotPermitted);
        }
        if self.is_read_only {
            self.inner.forget(ino, 1);
            return Err(Error::ReadOnly);
        }
        if part == Part::Double {
            self.companions().begin(ino, parent, name);
        }
        let attr = self.attr_of(ino, part).inspect_err(|_| self.drop_companion(ino, part))?;
        Ok(Some(Entry { attr, generation: 0 }))
    }

    /// Applies companions that were made before their file, unless that has its own.
    pub(super) fn adopt(&self, caller: &Caller, parent: Ino, name: &[u8], base: Ino) -> Result<()> {
        for part in Part::shown(self.forks) {
            let waiting = part.name(name);
            let orphan = match self.lookup_own(parent, &waiting) {
                Ok(entry) => entry.attr,
                Err(e) if Self::is_absent(&e) => continue,
                Err(e) => return Err(e),
            };
            let is_own = orphan.ino == base || self.own().contains(&orphan.ino);
            let applied =
                if is_own { Ok(false) } else { self.apply_orphan(base, name, *part, &orphan) };
            self.inner.forget(orphan.ino, 1);
            if applied? {
                let stored = self.stored_name(parent, &waiting)?;
                self.inner.unlink(caller, parent, &stored)?;
            }
        }
        Ok(())
    }

    /// Applies a companion that was made before its file. Returns whether it is one, and the file
    /// had none.
    fn apply_orphan(&self, base: Ino, name: &[u8], part: Part, orphan: &Attr) -> Result<bool> {
        let meta = self.inner.meta(base)?;
        let has_own = match part {
            Part::Double => has_more(&crate::interchange::Meta { locked: false, ..meta }, name),
            Part::Resource => meta.resource_bytes > 0,
            Part::Info => has_more(
                &crate::interchange::Meta { locked: false, resource_bytes: 0, ..meta },
                name,
            ),
        };
        if has_own {
            return Ok(false);
        }
        let Some(bytes) = self.read_orphan(orphan)? else { return Ok(false) };
        self.apply_bytes(base, part, bytes)
    }

    /// Makes the content of a file that of a companion. Returns whether it is one.
    fn apply_bytes(&self, base: Ino, part: Part, bytes: Vec<u8>) -> Result<bool> {
        match part {
            Part::Double => {
                let Some(layout) = take_over(&*self.inner, base, bytes)? else { return Ok(false) };
                self.companions().drop_bytes(base);
                self.companions().remember(base, layout);
                Ok(true)
            }
            Part::Resource => self.replace_fork(base, &bytes),
            Part::Info if bytes.len() == 32 => {
                self.write_part(base, Part::Info, 0, &bytes).map(|_| true)
            }
            Part::Info => Ok(false),
        }
    }

    pub(super) fn read_orphan(&self, attr: &Attr) -> Result<Option<Vec<u8>>> {
        if attr.kind != FileKind::Regular || attr.size_bytes > ORPHAN_MAX_BYTES {
            return Ok(None);
        }
        // One with a resource fork of its own is a file of the volume: that fork would be lost.
        if self.inner.meta(attr.ino)?.resource_bytes > 0 {
            return Ok(None);
        }
        let mut bytes = vec![0; attr.size_bytes as usize];
        let mut done = 0;
        while done < bytes.len() {
            match self.inner.read(attr.ino, Handle::NONE, done as u64, &mut bytes[done..])? {
                0 => break,
                n => done += n,
            }
        }
        bytes.truncate(done);
        Ok(Some(bytes))
    }

    /// Applies the AppleDouble that waits for a file which has just been made, unless the name is
    /// spelled as that of a file which is no companion.
    pub(super) fn made(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        entry: Entry,
    ) -> Result<Entry> {
        if with_dots(name).is_some() {
            self.own().insert(entry.attr.ino);
        } else {
            self.own().remove(&entry.attr.ino);
        }
        match self.adopt(caller, parent, name, entry.attr.ino) {
            Ok(()) => Ok(Entry { attr: self.inner.getattr(entry.attr.ino)?, ..entry }),
            Err(e) => {
                self.inner.forget(entry.attr.ino, 1);
                Err(e)
            }
        }
    }

    /// Applies a file that gets the name of a companion. Returns `None` if the names are not those
    /// of such a move.
    pub(super) fn rename_companion(
        &self,
        caller: &Caller,
        (from, to): Names<'_>,
        flags: RenameFlags,
    ) -> Result<Option<()>> {
        // A companion has no name of its own: a move of it is a copy and a removal.
        let is_companion = self.has_companion(from.0, from.1)?;
        if flags.contains(RenameFlags::NO_REPLACE) && self.has_companion(to.0, to.1)? {
            return Err(Error::Exists);
        }
        if is_companion {
            return Err(Error::CrossDevice);
        }
        let real = match self.lookup_own(from.0, from.1) {
            Ok(entry) => entry.attr,
            Err(e) if Self::is_absent(&e) => return Ok(None),
            Err(e) => return Err(e),
        };
        let moved = self.with_base(to.0, to.1, |base, _, part| {
            if base == real.ino || self.own().contains(&real.ino) {
                return Ok(false);
            }
            let Some(bytes) = self.read_orphan(&real)? else { return Ok(false) };
            let applied = self.apply_bytes(base, part, bytes)?;
            if applied {
                let stored = self.stored_name(from.0, from.1)?;
                self.inner.unlink(caller, from.0, &stored)?;
            }
            Ok(applied)
        });
        self.inner.forget(real.ino, 1);
        Ok(moved?.filter(|moved| *moved).map(|_| ()))
    }

    fn replace_fork(&self, base: Ino, bytes: &[u8]) -> Result<bool> {
        if self.inner.getattr(base)?.kind != FileKind::Regular {
            return Ok(false);
        }
        self.inner.set_resource_len(base, 0)?;
        let mut done = 0;
        while done < bytes.len() {
            match self.inner.write_resource(base, done as u64, &bytes[done..])? {
                0 => return Err(Error::NoSpace),
                put => done += put,
            }
        }
        Ok(true)
    }

    /// Stores the AppleDouble of a file that is about to be removed in a plain file.
    pub(super) fn leave_double(&self, parent: Ino, name: &[u8], base: &Attr) -> Result<()> {
        let ino = base.ino;
        if !self.leaves_doubles || base.kind != FileKind::Regular {
            return Ok(());
        }
        let meta = self.inner.meta(ino)?;
        if !has_more(&crate::interchange::Meta { locked: false, ..meta.clone() }, name) {
            return Ok(());
        }
        let layout = self.companions().layout(ino, &meta)?;
        let Layout { before: mut bytes, after, .. } = layout;
        let fork = ResourceReader::new(&*self.inner, ino).take(meta.resource_bytes);
        { fork }
            .read_to_end(&mut bytes)
            .map_err(|e| Error::Io { errno: 5, message: e.to_string() })?;
        bytes.extend_from_slice(&after);
        let (plain, stored) = self.make_plain(parent, &Part::Double.name(name))?;
        let filled = self.store(plain, &bytes);
        let time = weft_vfs::SetTime::At(base.mtime);
        let set = weft_vfs::SetAttr { mtime: Some(time), ..weft_vfs::SetAttr::default() };
        let filled = filled.and_then(|()| self.inner.setattr(&Caller::ROOT, plain, &set));
        self.inner.forget(plain, 1);
        filled.map(drop).inspect_err(|_| {
            let _ = self.inner.unlink(&Caller::ROOT, parent, &stored);
        })
    }

    /// Gives a file that is about to replace another the resource fork and the Finder information
    /// of that, unless it has its own.
    pub(super) fn carry_over(
        &self,
        (from, from_name): (&Attr, &[u8]),
        (to, to_name): (&Attr, &[u8]),
    ) -> Result<()> {
        let regular = |attr: &Attr| attr.kind == FileKind::Regular;
        if !self.leaves_doubles || !regular(from) || !regular(to) || from.ino == to.ino {
            return Ok(());
        }
        let (old, mut new) = (self.inner.meta(to.ino)?, self.inner.meta(from.ino)?);
        if !has_more(&old, to_name) || has_more(&new, from_name) {
            return Ok(());
        }
        let mut bytes = Vec::new();
        ResourceReader::new(&*self.inner, to.ino)
            .take(old.resource_bytes)
            .read_to_end(&mut bytes)
            .map_err(|e| Error::Io { errno: 5, message: e.to_string() })?;
        self.replace_fork(from.ino, &bytes)?;
        let dates = self.inner.meta(from.ino)?;
        (new.modified, new.created) = (dates.modified, dates.created);
        new.finder_info = old.finder_info;
        self.inner.set_meta(from.ino, &new)
    }
}
