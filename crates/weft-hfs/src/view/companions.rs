//! Finding, making, moving and listing companions.

use super::draft::take_over;
use super::fork_view::ForkView;
use super::forks::Forks;
use super::names::{Part, base_of};
use weft_vfs::{
    Attr, Caller, DirCursor, DirEntry, Entry, Error, FileKind, Handle, Ino, RenameFlags, Result,
};

/// The bit of a cursor that its kind of companion starts at. Companions are listed behind all
/// files, one kind after the other; the bits below are the cursor among the files.
pub(super) const KIND_SHIFT: u32 = 60;
const WITHIN_KIND: u64 = (1 << KIND_SHIFT) - 1;
/// Files looked at for companions in one batch: slightly more than the entries that the kernel
/// takes at once. Looking at further files would be in vain.
const BATCH: usize = 32;

/// An AppleDouble that waits for its file is no longer than this, in bytes.
const ORPHAN_MAX_BYTES: u64 = 256 << 20;

impl ForkView {
    /// Finds a companion by its name, and takes a reference on it.
    pub(super) fn lookup_companion(
        &self,
        parent: Ino,
        name: &[u8],
    ) -> Result<Option<(Entry, Ino, Part)>> {
        let Some((base_name, part)) = base_of(self.forks, name) else { return Ok(None) };
        let base = match self.inner.lookup(parent, base_name) {
            Ok(entry) => entry.attr.ino,
            Err(Error::NotFound) => return Ok(None),
            Err(e) => return Err(e),
        };
        match self.companion(base, base_name, part) {
            Ok(Some(attr)) => Ok(Some((Entry { attr, generation: 0 }, base, part))),
            other => {
                self.inner.forget(base, 1);
                other.map(|_| None)
            }
        }
    }

    /// Reports whether an error means that no file has the name, or that none can have it.
    pub(super) fn is_absent(e: &Error) -> bool {
        matches!(e, Error::NotFound | Error::NameTooLong | Error::Invalid(_))
    }

    /// Runs `f` with the file that `name` would be a companion of, if that is there.
    pub(super) fn with_base<R>(
        &self,
        parent: Ino,
        name: &[u8],
        f: impl FnOnce(Ino, &[u8], Part) -> Result<R>,
    ) -> Result<Option<R>> {
        let Some((base_name, part)) = base_of(self.forks, name) else { return Ok(None) };
        let base = match self.inner.lookup(parent, base_name) {
            Ok(entry) => entry.attr.ino,
            Err(e) if Self::is_absent(&e) => return Ok(None),
            Err(e) => return Err(e),
        };
        let result = f(base, base_name, part);
        self.inner.forget(base, 1);
        result.map(Some)
    }

    /// Makes a companion that does not exist, for a file that does. Returns `None` if there is no
    /// such file.
    pub(super) fn make_companion(
        &self,
        parent: Ino,
        name: &[u8],
        exclusive: bool,
    ) -> Result<Option<Entry>> {
        match self.inner.lookup(parent, name) {
            Ok(entry) => {
                self.inner.forget(entry.attr.ino, 1);
                return Ok(None);
            }
            Err(e) if Self::is_absent(&e) => {}
            Err(e) => return Err(e),
        }
        if let Some((entry, base, _)) = self.lookup_companion(parent, name)? {
            if exclusive {
                self.inner.forget(base, 1);
                return Err(Error::Exists);
            }
            return Ok(Some(entry));
        }
        let Some((base_name, part)) = base_of(self.forks, name) else { return Ok(None) };
        let base = match self.inner.lookup(parent, base_name) {
            Ok(entry) => entry.attr,
            Err(e) if Self::is_absent(&e) => return Ok(None),
            Err(e) => return Err(e),
        };
        if part == Part::Resource && base.kind != FileKind::Regular {
            self.inner.forget(base.ino, 1);
            return Err(Error::NotPermitted);
        }
        if part == Part::Double {
            self.drafts().begin(base.ino);
        }
        Ok(Some(Entry { attr: self.attr_of(base.ino, part)?, generation: 0 }))
    }

    /// Applies an AppleDouble that was made before its file.
    pub(super) fn adopt(&self, caller: &Caller, parent: Ino, name: &[u8], base: Ino) -> Result<()> {
        if self.forks != Forks::AppleDouble {
            return Ok(());
        }
        let double = Part::Double.name(name);
        let orphan = match self.inner.lookup(parent, &double) {
            Ok(entry) => entry.attr,
            Err(e) if Self::is_absent(&e) => return Ok(()),
            Err(e) => return Err(e),
        };
        let taken = self.read_orphan(&orphan).and_then(|bytes| match bytes {
            Some(bytes) => take_over(&*self.inner, base, &bytes),
            None => Ok(false),
        });
        self.inner.forget(orphan.ino, 1);
        if taken? { self.inner.unlink(caller, parent, &double) } else { Ok(()) }
    }

    pub(super) fn read_orphan(&self, attr: &Attr) -> Result<Option<Vec<u8>>> {
        if attr.kind != FileKind::Regular || attr.size_bytes > ORPHAN_MAX_BYTES {
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

    /// Applies the AppleDouble that waits for a file which has just been made.
    pub(super) fn made(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        entry: Entry,
    ) -> Result<Entry> {
        match self.adopt(caller, parent, name, entry.attr.ino) {
            Ok(()) => Ok(Entry { attr: self.inner.getattr(entry.attr.ino)?, ..entry }),
            Err(e) => {
                self.inner.forget(entry.attr.ino, 1);
                Err(e)
            }
        }
    }

    /// Applies a companion, or a waiting AppleDouble, to the file that its new name belongs to.
    /// Returns `None` if the names are not those of such a move.
    pub(super) fn rename_companion(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<Option<()>> {
        let real = match self.inner.lookup(from.0, from.1) {
            Ok(entry) => Some(entry.attr),
            Err(e) if Self::is_absent(&e) => None,
            Err(e) => return Err(e),
        };
        let moved = self.with_base(to.0, to.1, |base, base_name, part| {
            if flags.contains(RenameFlags::NO_REPLACE)
                && self.companion(base, base_name, part)?.is_some()
            {
                return Err(Error::Exists);
            }
            match (real, part) {
                (Some(attr), Part::Double) => {
                    let bytes = self.read_orphan(&attr)?.unwrap_or_default();
                    if !take_over(&*self.inner, base, &bytes)? {
                        return Ok(false);
                    }
                    self.drafts().forget(base);
                    self.inner.unlink(caller, from.0, from.1)?;
                    Ok(true)
                }
                _ => Ok(false),
            }
        });
        if let Some(attr) = real {
            self.inner.forget(attr.ino, 1);
            return Ok(moved?.filter(|moved| *moved).map(|_| ()));
        }
        moved?;
        // A companion has no name of its own: a move of it is a copy and a removal.
        match self.lookup_companion(from.0, from.1)? {
            Some((_, base, _)) => {
                self.inner.forget(base, 1);
                Err(Error::CrossDevice)
            }
            None => Ok(None),
        }
    }

    /// Lists the companions in a directory from a cursor on; with `keep`, takes a reference on each
    /// that the caller takes.
    pub(super) fn list_companions(
        &self,
        dir: Ino,
        cursor: DirCursor,
        keep: bool,
        each: &mut dyn FnMut(DirEntry<'_>, Entry) -> bool,
    ) -> Result<()> {
        let (first, mut from) = match cursor.0 >> KIND_SHIFT {
            0 => (1, 0),
            kind => (kind, cursor.0 & WITHIN_KIND),
        };
        for (kind, part) in (1..).zip(Part::shown(self.forks)).skip_while(|(k, _)| *k < first) {
            if !self.list_kind(dir, (kind << KIND_SHIFT, *part), from, keep, each)? {
                break;
            }
            from = 0;
        }
        Ok(())
    }

    /// Lists the companions of one kind. Returns whether to continue with other kinds.
    pub(super) fn list_kind(
        &self,
        dir: Ino,
        (kind, part): (u64, Part),
        from: u64,
        keep: bool,
        each: &mut dyn FnMut(DirEntry<'_>, Entry) -> bool,
    ) -> Result<bool> {
        let mut at = DirCursor(from);
        loop {
            // Files are collected first: the volume may not be asked from within its listing.
            let mut batch: Vec<(Vec<u8>, Attr, DirCursor)> = Vec::new();
            let mut seen = 0;
            self.inner.readdir_plus(dir, at, &mut |found, entry| {
                if seen == BATCH {
                    return false;
                }
                seen += 1;
                at = found.next;
                // The references on `.` and `..` are not given.
                if found.name != b"." && found.name != b".." {
                    batch.push((found.name.to_vec(), entry.attr, found.next));
                }
                true
            })?;
            let mut on = true;
            for (name, base, next) in batch {
                let mut taken = None;
                if on {
                    let next = DirCursor(next.0 | kind);
                    taken = self.show_companion(dir, (&name, &base, part), next, each)?;
                    on = taken != Some(false);
                }
                // A companion that is listed with a reference has that of its file.
                if !(keep && taken == Some(true)) {
                    self.inner.forget(base.ino, 1);
                }
            }
            if !on || seen == 0 {
                return Ok(on);
            }
        }
    }

    /// Lists the companion of one file, if it has one. Returns whether the caller took it.
    pub(super) fn show_companion(
        &self,
        dir: Ino,
        (name, base, part): (&[u8], &Attr, Part),
        next: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>, Entry) -> bool,
    ) -> Result<Option<bool>> {
        let Some(attr) = self.companion_of(base, name, part)? else { return Ok(None) };
        let shown = part.name(name);
        if let Ok(real) = self.inner.lookup(dir, &shown) {
            self.inner.forget(real.attr.ino, 1);
            return Ok(None);
        }
        let entry = DirEntry { ino: attr.ino, kind: attr.kind, name: &shown, next };
        Ok(Some(each(entry, Entry { attr, generation: 0 })))
    }
}
