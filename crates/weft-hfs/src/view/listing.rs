//! Listing files and companions.

use super::fork_view::ForkView;
use super::names::{Part, base_of, other_spelling};
use std::borrow::Cow;
use weft_vfs::{Attr, DirCursor, DirEntry, Entry, FileKind, Ino, Result};

/// The bit of a cursor that its kind of companion starts at. Companions are listed behind all
/// files, one kind after the other; the bits below are the cursor among the files.
pub(super) const KIND_SHIFT: u32 = 60;
const WITHIN_KIND: u64 = (1 << KIND_SHIFT) - 1;
/// Files looked at for companions in one batch: slightly more than the entries that the kernel
/// takes at once. Looking at further files would be in vain.
const BATCH: usize = 32;

/// Receives the entries of a listing; with `Some`, the caller gets a reference on the entry.
pub(super) type Each<'e> = &'e mut dyn FnMut(DirEntry<'_>, Option<Entry>) -> bool;

impl ForkView {
    /// Returns the name by which a file of the volume is shown.
    fn shown_name<'n>(&self, dir: Ino, name: &'n [u8], ino: Ino) -> Result<Cow<'n, [u8]>> {
        let Some((_, part)) = base_of(self.forks, name) else { return Ok(Cow::Borrowed(name)) };
        let is_own = self.own().contains(&ino);
        if is_own || self.has_companion(dir, name)? {
            return Ok(Cow::Owned(other_spelling(part, name)));
        }
        Ok(Cow::Borrowed(name))
    }

    /// Lists files and companions from a cursor on; with `plus`, with references.
    pub(super) fn list(
        &self,
        dir: Ino,
        cursor: DirCursor,
        plus: bool,
        each: Each<'_>,
    ) -> Result<()> {
        if cursor.0 >> KIND_SHIFT == 0 && !self.list_files(dir, cursor, plus, each)? {
            return Ok(());
        }
        self.list_companions(dir, cursor, plus, each)
    }

    /// Lists the files of the volume. Returns whether to continue.
    fn list_files(&self, dir: Ino, cursor: DirCursor, plus: bool, each: Each<'_>) -> Result<bool> {
        let mut at = cursor;
        loop {
            // A file with the name of a companion. The volume may not be asked about that from
            // within its listing.
            let mut odd: Option<(Vec<u8>, FileKind, Ino, DirCursor)> = None;
            let mut on = true;
            let mut one = |found: DirEntry<'_>, entry: Option<Entry>| {
                if base_of(self.forks, found.name).is_some() {
                    odd = Some((found.name.to_vec(), found.kind, found.ino, found.next));
                    return false;
                }
                on = each(found, entry);
                on
            };
            if plus {
                self.inner.readdir_plus(dir, at, &mut |found, entry| one(found, Some(entry)))?;
            } else {
                self.inner.readdir(dir, at, &mut |found| one(found, None))?;
            }
            let Some((name, kind, ino, next)) = odd else { return Ok(on) };
            let shown = self.shown_name(dir, &name, ino)?;
            let entry = match plus {
                // Removed meanwhile.
                true => match self.inner.lookup(dir, &name) {
                    Ok(entry) => Some(entry),
                    Err(e) if Self::is_absent(&e) => {
                        at = next;
                        continue;
                    }
                    Err(e) => return Err(e),
                },
                false => None,
            };
            let ino = entry.map_or(ino, |entry| entry.attr.ino);
            if !each(DirEntry { ino, kind, name: &shown, next }, entry) {
                if entry.is_some() {
                    self.inner.forget(ino, 1);
                }
                return Ok(false);
            }
            at = next;
        }
    }

    /// Lists the companions in a directory from a cursor on.
    fn list_companions(
        &self,
        dir: Ino,
        cursor: DirCursor,
        plus: bool,
        each: Each<'_>,
    ) -> Result<()> {
        let (first, mut from) = match cursor.0 >> KIND_SHIFT {
            0 => (1, 0),
            kind => (kind, cursor.0 & WITHIN_KIND),
        };
        for (kind, part) in (1..).zip(Part::shown(self.forks)).skip_while(|(k, _)| *k < first) {
            if !self.list_kind(dir, (kind << KIND_SHIFT, *part), from, plus, each)? {
                break;
            }
            from = 0;
        }
        Ok(())
    }

    /// Lists the companions of one kind. Returns whether to continue with other kinds.
    fn list_kind(
        &self,
        dir: Ino,
        (kind, part): (u64, Part),
        from: u64,
        plus: bool,
        each: Each<'_>,
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
            let mut failed = Ok(());
            for (name, base, next) in batch {
                let mut taken = None;
                if on && failed.is_ok() {
                    let next = DirCursor(next.0 | kind);
                    match self.show_companion(dir, (&name, &base, part), (next, plus), each) {
                        Ok(shown) => taken = shown,
                        Err(e) => failed = Err(e),
                    }
                    on = taken != Some(false);
                }
                // A companion that is listed with a reference has that of its file.
                if !(plus && taken == Some(true)) {
                    self.inner.forget(base.ino, 1);
                }
            }
            failed?;
            if !on || seen == 0 {
                return Ok(on);
            }
        }
    }

    /// Lists the companion of one file, if it has one. Returns whether the caller took it.
    fn show_companion(
        &self,
        dir: Ino,
        (name, base, part): (&[u8], &Attr, Part),
        (next, plus): (DirCursor, bool),
        each: Each<'_>,
    ) -> Result<Option<bool>> {
        let name = self.shown_name(dir, name, base.ino)?;
        let Some(attr) = self.companion_of(base, &name, part)? else { return Ok(None) };
        let shown = part.name(&name);
        let entry = DirEntry { ino: attr.ino, kind: attr.kind, name: &shown, next };
        let taken = each(entry, plus.then_some(Entry { attr, generation: 0 }));
        if taken && plus && part == Part::Double {
            self.companions().hold(base.ino, dir, &shown);
        }
        Ok(Some(taken))
    }
}
