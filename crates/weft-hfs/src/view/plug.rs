//! The file plug's calls.

use super::draft::take_over;
use super::names::{Part, base_of, split};
use super::{ForkView, Forks};
use std::sync::Arc;
use weft_vfs::{
    Attr, Caller, DirCursor, DirEntry, Entry, Error, FallocateMode, FileKind, FileSystem, Handle,
    Ino, Invalidate, OpenFlags, Opened, RenameFlags, Result, SeekFrom, SetAttr, StatFs, XattrSet,
};

/// Companions are listed behind all files, each kind by itself: the upper bits of a cursor say
/// which, the others where among the files.
const KIND_SHIFT: u32 = 60;
const WITHIN_KIND: u64 = (1 << KIND_SHIFT) - 1;
/// How many files are asked for their companions at a time: as many entries as the kernel takes at
/// once, and few more. The others are looked at in vain.
const BATCH: usize = 32;

/// An AppleDouble that waits for its file is no longer than this, in bytes.
const ORPHAN_MAX_BYTES: u64 = 256 << 20;

/// Attributes that say what companions say.
fn says_fork(name: &[u8]) -> bool {
    name.starts_with(b"user.com.apple.ResourceFork")
        || name.starts_with(b"user.com.apple.FinderInfo")
        || name.starts_with(b"user.hfs.")
}

impl ForkView {
    /// A companion by its name, with a reference.
    fn lookup_companion(&self, parent: Ino, name: &[u8]) -> Result<Option<(Entry, Ino, Part)>> {
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

    /// Whether an error says that there is no such file, also where there could be none.
    fn is_absent(e: &Error) -> bool {
        matches!(e, Error::NotFound | Error::NameTooLong | Error::Invalid(_))
    }

    /// Runs `f` with the file that `name` would be a companion of, if that is there.
    fn with_base<R>(
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

    /// Makes a companion that is not there, for a file that is. `None`: there is no such file.
    fn make_companion(&self, parent: Ino, name: &[u8], exclusive: bool) -> Result<Option<Entry>> {
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

    /// Takes over an AppleDouble that came before its file.
    fn adopt(&self, parent: Ino, name: &[u8], base: Ino) -> Result<()> {
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
        if taken? { self.inner.unlink(parent, &double) } else { Ok(()) }
    }

    fn read_orphan(&self, attr: &Attr) -> Result<Option<Vec<u8>>> {
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

    /// A file has been made: what waited for it is given to it.
    fn made(&self, parent: Ino, name: &[u8], entry: Entry) -> Result<Entry> {
        match self.adopt(parent, name, entry.attr.ino) {
            Ok(()) => Ok(Entry { attr: self.inner.getattr(entry.attr.ino)?, ..entry }),
            Err(e) => {
                self.inner.forget(entry.attr.ino, 1);
                Err(e)
            }
        }
    }

    /// Gives what a companion or a waiting AppleDouble says to the file that its new name belongs
    /// to. `None` if the names do not call for that.
    fn rename_companion(
        &self,
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
                    self.inner.unlink(from.0, from.1)?;
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
        // A companion has no name of its own: who moves it copies it and removes it.
        match self.lookup_companion(from.0, from.1)? {
            Some((_, base, _)) => {
                self.inner.forget(base, 1);
                Err(Error::CrossDevice)
            }
            None => Ok(None),
        }
    }

    /// The companions in a directory, from a cursor on; with `keep` each that is taken comes with a
    /// reference.
    fn list_companions(
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

    /// The companions of one kind; whether to go on with others.
    fn list_kind(
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
                // What is shown with a reference has that of its file.
                if !(keep && taken == Some(true)) {
                    self.inner.forget(base.ino, 1);
                }
            }
            if !on || seen == 0 {
                return Ok(on);
            }
        }
    }

    /// Shows the companion of one file, if it has one; whether it was taken.
    fn show_companion(
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

impl FileSystem for ForkView {
    fn root(&self) -> Ino {
        self.inner.root()
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        match self.inner.lookup(parent, name) {
            Err(e) if Self::is_absent(&e) => {
                self.lookup_companion(parent, name)?.map(|(entry, ..)| entry).ok_or(e)
            }
            other => other,
        }
    }

    fn forget(&self, ino: Ino, count: u64) {
        let (base, part) = split(ino);
        if part == Some(Part::Double) {
            self.drafts().forget(base);
        }
        self.inner.forget(base, count);
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        match split(ino) {
            (base, Some(part)) => self.attr_of(base, part),
            (ino, None) => self.inner.getattr(ino),
        }
    }

    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        match split(ino) {
            (base, Some(part)) => {
                if let Some(len_bytes) = set.size_bytes {
                    self.cut_part(base, part, len_bytes)?;
                }
                // Its times and permissions are the file's.
                self.attr_of(base, part)
            }
            (ino, None) => self.inner.setattr(ino, set),
        }
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        match split(ino) {
            (_, Some(_)) => Err(Error::Invalid("no symbolic link")),
            (ino, None) => self.inner.readlink(ino),
        }
    }

    fn mknod(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        perm: u16,
        rdev: u32,
    ) -> Result<Entry> {
        if kind == FileKind::Regular
            && let Some(entry) = self.make_companion(parent, name, true)?
        {
            return Ok(entry);
        }
        let entry = self.inner.mknod(caller, parent, name, kind, perm, rdev)?;
        self.made(parent, name, entry)
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16) -> Result<Entry> {
        let entry = self.inner.mkdir(caller, parent, name, perm)?;
        self.made(parent, name, entry)
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.inner.symlink(caller, parent, name, target)
    }

    fn link(&self, ino: Ino, new_parent: Ino, new_name: &[u8]) -> Result<Entry> {
        match split(ino) {
            (_, Some(_)) => Err(Error::NotPermitted),
            (ino, None) => self.inner.link(ino, new_parent, new_name),
        }
    }

    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        match self.inner.unlink(parent, name) {
            Err(e) if Self::is_absent(&e) => {
                let removed = self.with_base(parent, name, |base, base_name, part| {
                    if self.companion(base, base_name, part)?.is_none() {
                        return Err(Error::NotFound);
                    }
                    self.clear_part(base, base_name, part)
                })?;
                removed.ok_or(e)
            }
            other => other,
        }
    }

    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.inner.rmdir(parent, name)
    }

    fn rename(
        &self,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        if self.rename_companion((parent, name), (new_parent, new_name), flags)?.is_some() {
            return Ok(());
        }
        self.inner.rename(parent, name, new_parent, new_name, flags)?;
        let entry = self.inner.lookup(new_parent, new_name)?;
        let adopted = self.adopt(new_parent, new_name, entry.attr.ino);
        self.inner.forget(entry.attr.ino, 1);
        adopted
    }

    fn open(&self, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        let (base, Some(part)) = split(ino) else { return self.inner.open(ino, flags) };
        let opened = self.inner.open(base, flags - OpenFlags::TRUNCATE - OpenFlags::APPEND);
        // A folder has a companion too, and cannot be opened as a file.
        let opened = match opened {
            Err(Error::IsADirectory) => {
                Opened { handle: Handle::NONE, keep_cache: false, direct_io: false }
            }
            other => other?,
        };
        if flags.contains(OpenFlags::TRUNCATE) {
            self.cut_part(base, part, 0)?;
        }
        Ok(opened)
    }

    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        let exclusive = flags.contains(OpenFlags::EXCLUSIVE);
        if let Some(entry) = self.make_companion(parent, name, exclusive)? {
            let opened = self.open(entry.attr.ino, flags)?;
            return Ok((Entry { attr: self.getattr(entry.attr.ino)?, ..entry }, opened));
        }
        let (entry, opened) = self.inner.create(caller, parent, name, perm, flags)?;
        Ok((self.made(parent, name, entry)?, opened))
    }

    fn release(&self, ino: Ino, handle: Handle) -> Result<()> {
        if handle == Handle::NONE {
            return Ok(());
        }
        self.inner.release(split(ino).0, handle)
    }

    fn read(&self, ino: Ino, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        match split(ino) {
            (base, Some(part)) => self.read_part(base, part, offset, buf),
            (ino, None) => self.inner.read(ino, handle, offset, buf),
        }
    }

    fn write(&self, ino: Ino, handle: Handle, offset: u64, data: &[u8]) -> Result<usize> {
        match split(ino) {
            (base, Some(part)) => self.write_part(base, part, offset, data),
            (ino, None) => self.inner.write(ino, handle, offset, data),
        }
    }

    fn fsync(&self, ino: Ino, data_only: bool) -> Result<()> {
        self.inner.fsync(split(ino).0, data_only)
    }

    fn fsync_dir(&self, ino: Ino) -> Result<()> {
        self.inner.fsync_dir(ino)
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn readdir(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let mut on = true;
        if cursor.0 >> KIND_SHIFT == 0 {
            self.inner.readdir(ino, cursor, &mut |entry| {
                on = each(entry);
                on
            })?;
        }
        if !on {
            return Ok(());
        }
        self.list_companions(ino, cursor, false, &mut |entry, _| each(entry))
    }

    fn readdir_plus(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>, Entry) -> bool,
    ) -> Result<()> {
        let mut on = true;
        if cursor.0 >> KIND_SHIFT == 0 {
            self.inner.readdir_plus(ino, cursor, &mut |found, entry| {
                on = each(found, entry);
                on
            })?;
        }
        if !on {
            return Ok(());
        }
        self.list_companions(ino, cursor, true, each)
    }

    fn statfs(&self) -> Result<StatFs> {
        self.inner.statfs()
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        match split(ino) {
            (ino, None) if !says_fork(name) => self.inner.getxattr(ino, name),
            _ => Err(Error::NoAttribute),
        }
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let (ino, None) = split(ino) else { return Ok(Vec::new()) };
        let all = self.inner.listxattr(ino)?;
        Ok(all.into_iter().filter(|name| !says_fork(name)).collect())
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], how: XattrSet) -> Result<()> {
        match split(ino) {
            // Not shown as attributes, but taken: they come with files from elsewhere.
            (ino, None) => self.inner.setxattr(ino, name, value, how),
            (_, Some(_)) => Err(Error::Unsupported("it has no attributes of its own")),
        }
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        match split(ino) {
            (ino, None) if !says_fork(name) => self.inner.removexattr(ino, name),
            _ => Err(Error::NoAttribute),
        }
    }

    fn fallocate(&self, ino: Ino, mode: FallocateMode, offset: u64, len_bytes: u64) -> Result<()> {
        match split(ino) {
            (_, Some(_)) => Err(Error::Unsupported("fallocate")),
            (ino, None) => self.inner.fallocate(ino, mode, offset, len_bytes),
        }
    }

    fn set_invalidate(&self, sink: Arc<dyn Invalidate>) {
        self.inner.set_invalidate(sink);
    }

    fn time_unit_nanos(&self) -> u32 {
        self.inner.time_unit_nanos()
    }

    fn seek(&self, ino: Ino, from: SeekFrom) -> Result<u64> {
        let size = match split(ino) {
            (ino, None) => return self.inner.seek(ino, from),
            (base, Some(part)) => self.attr_of(base, part)?.size_bytes,
        };
        match from {
            SeekFrom::Data(at) | SeekFrom::Hole(at) if at >= size => Err(Error::NoAddress),
            SeekFrom::Data(at) => Ok(at),
            SeekFrom::Hole(_) => Ok(size),
        }
    }

    fn unmount(&self) -> Result<()> {
        self.inner.unmount()
    }
}
