//! The layer through which calls go while atomic groups are open that can be aborted: it keeps what the
//! calls of such a group replace, and notes what others change that such a group has changed.

use std::sync::{MutexGuard, PoisonError, TryLockError};

use smallvec::{SmallVec, smallvec};
use weft_vfs::{
    Caller, Entry, Error, FallocateMode, FileFlags, FileKind, FileSystem, Handle, Ino, Layer,
    OpenFlags, Opened, RenameFlags, Result, SetAttr, Time, XattrSet,
};

use crate::abort::{Abortable, Sharing, Touch};
use crate::undo::{Name, Step, UndoLog};

/// The file system below, for one call.
pub(crate) struct Recording<'a> {
    pub below: &'a dyn FileSystem,
    pub sharing: &'a Sharing,
    /// The group of the caller.
    pub group: Option<&'a Abortable>,
}

/// A change in progress.
struct Change<'a> {
    below: &'a dyn FileSystem,
    sharing: &'a Sharing,
    ticket: u64,
    log: Option<MutexGuard<'a, UndoLog>>,
    steps: SmallVec<[Step; 2]>,
    /// References that the log gets if the change is made.
    kept: SmallVec<[Ino; 1]>,
    /// References until the end of the change.
    references: SmallVec<[Ino; 1]>,
    directories: SmallVec<[(Ino, Time); 2]>,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.sharing.end(self.ticket);
        for &ino in self.kept.iter().chain(&self.references) {
            self.below.forget(ino, 1);
        }
    }
}

/// Returns the error for a call of a group that has ended or can do no more.
pub(crate) fn failed(e: weft_patch::Error) -> Error {
    match e {
        weft_patch::Error::WouldWait => Error::WouldBlock,
        e => Error::Io { errno: e.errno(), message: e.to_string() },
    }
}

impl<'a> Recording<'a> {
    fn begin(&self, touch: Touch) -> Result<Change<'a>> {
        let log = self.group.map(|group| self.log_of(group)).transpose()?;
        let ticket = self.sharing.begin(self.group.map(|group| group.number), touch)?;
        let (below, sharing) = (self.below, self.sharing);
        let (steps, kept, references, directories) = Default::default();
        Ok(Change { below, sharing, ticket, log, steps, kept, references, directories })
    }

    /// Makes a change: `keep` keeps what `call` replaces.
    fn change<R>(
        &self,
        touch: Touch,
        keep: impl FnOnce(&mut Change<'_>) -> Result<()>,
        call: impl FnOnce(&dyn FileSystem) -> Result<R>,
    ) -> Result<R> {
        let mut change = self.begin(touch)?;
        keep(&mut change)?;
        let result = call(self.below)?;
        change.done();
        Ok(result)
    }

    /// Makes an inode with a name in a directory.
    fn make(
        &self,
        parent: Ino,
        name: &[u8],
        is_dir: bool,
        call: impl FnOnce(&dyn FileSystem) -> Result<Entry>,
    ) -> Result<Entry> {
        let mut change = self.begin(Touch::name(parent, name))?;
        change.gives(parent, name, is_dir)?;
        let entry = call(self.below)?;
        change.made(entry.attr.ino);
        Ok(entry)
    }

    /// Returns the log of a group that is open and can take a change that it can also undo.
    fn log_of(&self, group: &'a Abortable) -> Result<MutexGuard<'a, UndoLog>> {
        let log = match group.log.try_lock() {
            Ok(log) => log,
            Err(TryLockError::Poisoned(log)) => log.into_inner(),
            Err(TryLockError::WouldBlock) => {
                weft_patch::about_to_wait().map_err(failed)?;
                group.log.lock().unwrap_or_else(PoisonError::into_inner)
            }
        };
        if !group.is_open() {
            return Err(failed(weft_patch::PatchGroupError::Followed.into()));
        }
        log.check_room()?;
        // A group that was cut has none left, and fails with the error that says so.
        if let Some(left) = group.patchgroup.atomic_blocks_left()
            && u64::from(left) < log.reserve_blocks(group.block_bytes)
        {
            return Err(Error::TooLarge);
        }
        Ok(log)
    }
}

impl Change<'_> {
    /// A name is about to be given to what is made.
    fn gives(&mut self, parent: Ino, name: &[u8], is_dir: bool) -> Result<()> {
        self.changes_names_of(parent)?;
        if self.log.is_some() {
            self.steps.push(Step::Remove { name: (parent, name.to_vec()), is_dir });
        }
        Ok(())
    }

    fn changes_names_of(&mut self, dir: Ino) -> Result<()> {
        if self.log.is_some() {
            self.directories.push((dir, self.below.getattr(dir)?.mtime));
        }
        Ok(())
    }

    /// Returns the inode that a name has, and keeps a reference on it.
    fn find(&mut self, parent: Ino, name: &[u8]) -> Result<Option<Ino>> {
        match self.below.lookup(parent, name) {
            Ok(found) => {
                self.kept.push(found.attr.ino);
                Ok(Some(found.attr.ino))
            }
            Err(Error::NotFound) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// A name is about to be removed. One that cannot be is left to the removal.
    fn removes(&mut self, parent: Ino, name: &[u8]) -> Result<()> {
        if self.log.is_none() || matches!(name, b"." | b"..") {
            return Ok(());
        }
        self.changes_names_of(parent)?;
        if let Some(ino) = self.find(parent, name)? {
            self.steps.push(Step::Restore { name: (parent, name.to_vec()), ino });
        }
        Ok(())
    }

    /// A name is about to be changed.
    fn renames(&mut self, from: &Name, to: &Name, flags: RenameFlags) -> Result<()> {
        if self.log.is_none() {
            return Ok(());
        }
        if flags.contains(RenameFlags::WHITEOUT) {
            return Err(Error::Invalid("a whiteout in a group that can be undone"));
        }
        self.changes_names_of(from.0)?;
        self.changes_names_of(to.0)?;
        if flags.contains(RenameFlags::EXCHANGE) {
            self.steps.push(Step::Exchange { one: from.clone(), other: to.clone() });
            return Ok(());
        }
        let Some(moved) = self.find(from.0, &from.1)? else { return Ok(()) };
        let replaced = self.find(to.0, &to.1)?;
        if replaced == Some(moved) {
            // Two names of one inode stay as they are.
            return Ok(());
        }
        // Undone in the reverse of this order.
        if let Some(ino) = replaced {
            self.steps.push(Step::Restore { name: to.clone(), ino });
        }
        self.steps.push(Step::Rename { from: to.clone(), to: from.clone() });
        Ok(())
    }

    fn keeps(
        &mut self,
        keep: impl FnOnce(&mut UndoLog, &dyn FileSystem) -> Result<()>,
    ) -> Result<()> {
        match &mut self.log {
            Some(log) => keep(log, self.below),
            None => Ok(()),
        }
    }

    /// A range is about to be overwritten.
    fn writes(&mut self, ino: Ino, offset: u64, len_bytes: u64) -> Result<()> {
        self.keeps(|log, fs| log.keep_content(fs, ino, offset, len_bytes, false))
    }

    /// The content from `offset` on is about to be cut off.
    fn cuts(&mut self, ino: Ino, offset: u64) -> Result<()> {
        self.keeps(|log, fs| log.keep_content(fs, ino, offset, u64::MAX, true))
    }

    /// The change is also one of an inode.
    fn touches(&self, ino: Ino) {
        self.sharing.touch(self.ticket, &Touch::inode(ino));
    }

    /// The change was made.
    fn done(mut self) {
        let directories = std::mem::take(&mut self.directories);
        let (steps, kept) = (std::mem::take(&mut self.steps), std::mem::take(&mut self.kept));
        let Some(log) = &mut self.log else { return };
        steps.into_iter().for_each(|step| log.push(step));
        kept.into_iter().for_each(|ino| log.keep(ino));
        for (dir, before) in directories {
            log.keep_time(self.below, dir, before);
        }
    }

    /// The change was made, and has made an inode.
    fn made(mut self, ino: Ino) {
        self.sharing.made(self.ticket, ino);
        if let Some(log) = &mut self.log {
            log.note_made(ino);
        }
        self.done();
    }
}

impl Layer for Recording<'_> {
    fn below(&self) -> &dyn FileSystem {
        self.below
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<weft_vfs::Attr> {
        let keep = |change: &mut Change<'_>| match set.size_bytes {
            Some(size_bytes) => change.cuts(ino, size_bytes),
            None => change.keeps(|log, fs| log.keep_attributes(fs, ino)),
        };
        self.change(Touch::inode(ino), keep, |fs| fs.setattr(caller, ino, set))
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
        self.make(parent, name, false, |fs| fs.mknod(caller, parent, name, kind, perm, rdev))
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16) -> Result<Entry> {
        self.make(parent, name, true, |fs| fs.mkdir(caller, parent, name, perm))
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.make(parent, name, false, |fs| fs.symlink(caller, parent, name, target))
    }

    fn link(&self, caller: &Caller, ino: Ino, new_parent: Ino, new_name: &[u8]) -> Result<Entry> {
        self.change(
            Touch::name(new_parent, new_name),
            |change| change.gives(new_parent, new_name, false),
            |fs| fs.link(caller, ino, new_parent, new_name),
        )
    }

    fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.change(
            Touch::name(parent, name),
            |change| change.removes(parent, name),
            |fs| fs.unlink(caller, parent, name),
        )
    }

    fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.change(
            Touch::name(parent, name),
            |change| change.removes(parent, name),
            |fs| fs.rmdir(caller, parent, name),
        )
    }

    fn rename(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        let (from, to) = ((parent, name.to_vec()), (new_parent, new_name.to_vec()));
        self.change(
            Touch::names(smallvec![from.clone(), to.clone()]),
            |change| change.renames(&from, &to, flags),
            |fs| fs.rename(caller, parent, name, new_parent, new_name, flags),
        )
    }

    fn create_unnamed(&self, caller: &Caller, parent: Ino, perm: u16) -> Result<Entry> {
        let change = self.begin(Touch::names(SmallVec::new()))?;
        let entry = self.below.create_unnamed(caller, parent, perm)?;
        change.made(entry.attr.ino);
        Ok(entry)
    }

    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        if !flags.contains(OpenFlags::TRUNCATE) {
            return self.below.open(caller, ino, flags);
        }
        self.change(
            Touch::inode(ino),
            |change| change.cuts(ino, 0),
            |fs| fs.open(caller, ino, flags),
        )
    }

    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        let mut change = self.begin(Touch::name(parent, name))?;
        let existing = match self.below.lookup(parent, name) {
            Ok(found) => Some(found.attr.ino),
            Err(Error::NotFound) => None,
            Err(e) => return Err(e),
        };
        if let Some(ino) = existing {
            change.references.push(ino);
        }
        match existing {
            Some(ino) if flags.contains(OpenFlags::TRUNCATE) => {
                change.touches(ino);
                change.cuts(ino, 0)?;
            }
            Some(_) => {}
            None => change.gives(parent, name, false)?,
        }
        let (entry, opened) = self.below.create(caller, parent, name, perm, flags)?;
        match existing {
            None => change.made(entry.attr.ino),
            Some(_) => change.done(),
        }
        Ok((entry, opened))
    }

    fn write(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        self.change(
            Touch::inode(ino),
            |change| change.writes(ino, offset, data.len() as u64),
            |fs| fs.write(caller, ino, handle, offset, data),
        )
    }

    fn write_cached(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        self.change(
            Touch::inode(ino),
            |change| change.writes(ino, offset, data.len() as u64),
            |fs| fs.write_cached(caller, ino, handle, offset, data),
        )
    }

    fn fallocate(
        &self,
        caller: &Caller,
        ino: Ino,
        mode: FallocateMode,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        let keep = |change: &mut Change<'_>| match mode {
            FallocateMode::Allocate { .. } => change.keeps(|log, fs| log.keep_attributes(fs, ino)),
            FallocateMode::PunchHole | FallocateMode::ZeroRange { .. } => {
                change.keeps(|log, fs| log.keep_content(fs, ino, offset, len_bytes, true))
            }
        };
        let call = |fs: &dyn FileSystem| fs.fallocate(caller, ino, mode, offset, len_bytes);
        self.change(Touch::inode(ino), keep, call)
    }

    fn copy_range(
        &self,
        caller: &Caller,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len_bytes: u64,
    ) -> Result<u64> {
        self.change(
            Touch::inode(to),
            |change| change.writes(to, to_offset, len_bytes),
            |fs| fs.copy_range(caller, from, from_offset, to, to_offset, len_bytes),
        )
    }

    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
    ) -> Result<()> {
        self.change(
            Touch::inode(ino),
            |change| change.keeps(|log, fs| log.keep_xattr(fs, ino, name)),
            |fs| fs.setxattr(caller, ino, name, value, how),
        )
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.change(
            Touch::inode(ino),
            |change| change.keeps(|log, fs| log.keep_xattr(fs, ino, name)),
            |fs| fs.removexattr(caller, ino, name),
        )
    }

    fn set_file_flags(&self, caller: &Caller, ino: Ino, flags: FileFlags) -> Result<()> {
        self.change(
            Touch::inode(ino),
            |change| change.keeps(|log, fs| log.keep_flags(fs, ino)),
            |fs| fs.set_file_flags(caller, ino, flags),
        )
    }
}
