//! Creation, removal and renaming of names.

use std::sync::Arc;

use weft_vfs::{Caller, Entry, Error, FileKind, FileSystem, Ino, RenameFlags, Result};

use super::inode::{Attached, Inode};
use super::locks::locked;
use super::mount::Mount;
use super::moves::Move;
use super::path::{check_visible, join};
use super::rules::RULES_NAME;
use super::transform_fs::TransformFs;
use crate::Write;

impl Mount {
    /// Returns the inode of a name that is about to be moved or removed, with one more use; `None`
    /// if it is not referenced.
    pub(super) fn known(&self, parent: Ino, name: &[u8]) -> Option<Arc<Inode>> {
        let entry = self.below.lookup(parent, name).ok()?;
        let inode = self.inodes().acquire(entry.attr.ino);
        self.below.forget(entry.attr.ino, 1);
        inode
    }

    /// Releases the uses of [`known`](Self::known): not under the lock of names, because a commit
    /// may follow.
    pub(super) fn done_with(
        self: &Arc<Self>,
        inodes: impl IntoIterator<Item = Option<Arc<Inode>>>,
    ) {
        for inode in inodes.into_iter().flatten() {
            let ino = inode.ino;
            drop(inode);
            self.release_uses(ino, 1);
        }
    }

    /// Marks an inode as unlinked if it has lost its last name.
    pub(super) fn lost_name(&self, inode: Option<&Arc<Inode>>) {
        if let Some(inode) = inode
            && self.below.getattr(inode.below()).is_ok_and(|attr| attr.nlink == 0)
        {
            locked(&inode.location).unlinked = true;
        }
    }
}

impl TransformFs {
    /// Updates the location and path of an inode that was moved.
    fn moved(&self, inode: Option<&Arc<Inode>>, parent: &Inode, name: &[u8]) {
        let Some(inode) = inode else { return };
        let old = inode.moved_to(parent, name);
        if inode.kind == FileKind::Directory {
            let (inside, path) = ([&old[..], b"/"].concat(), inode.path());
            for other in self.mount.inodes().all() {
                let mut at = locked(&other.path);
                if let Some(rest) = at.strip_prefix(&inside[..]) {
                    *at = join(&path, rest);
                }
            }
            self.forget_rules();
        }
    }

    /// Drops the cached rules if the changed name is that of a rules file.
    pub(super) fn named(&self, name: &[u8]) {
        if name == RULES_NAME {
            self.forget_rules();
        }
    }

    pub(super) fn add_name(
        &self,
        caller: &Caller,
        ino: Ino,
        new_parent: Ino,
        new_name: &[u8],
    ) -> Result<Entry> {
        let (inode, parent) = (self.inode(ino)?, self.inode(new_parent)?);
        check_visible(new_name)?;
        if inode.view_name.is_some() {
            return Err(Error::ReadOnly);
        }
        let new_path = parent.path_of(new_name);
        if !self.ruled_alike(&inode.path(), &new_path) {
            return Err(Error::CrossDevice);
        }
        if !inode.is_plain() {
            let rewrites = match &locked(&inode.file).attached {
                Attached::Network(network) => network.can().write == Write::Rewrite,
                _ => false,
            };
            // The file changes its inode at every commit; other names would keep the old one.
            if rewrites {
                return Err(Error::TooManyLinks);
            }
        }
        let entry = {
            let _names = locked(&self.mount.names);
            self.mount.below.link(caller, inode.below(), parent.below(), new_name)?
        };
        self.named(new_name);
        self.mount.below.forget(entry.attr.ino, 1);
        self.mount.inodes().add_use(&inode);
        Ok(Entry { attr: self.attr(&inode)?, ..entry })
    }

    pub(super) fn remove_name(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        let parent = self.inode(parent)?;
        check_visible(name).map_err(|_| Error::NotFound)?;
        let names = locked(&self.mount.names);
        let inode = self.mount.known(parent.below(), name);
        let result = self.mount.below.unlink(caller, parent.below(), name);
        self.mount.lost_name(inode.as_ref());
        drop(names);
        self.views_lose_names(inode.as_ref(), &parent);
        self.named(name);
        self.mount.done_with([inode]);
        result
    }

    pub(super) fn remove_directory(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        let parent = self.inode(parent)?;
        let inode = self.mount.known(parent.below(), name);
        let (below, directory) = (&self.mount.below, parent.below());
        let mut remove = || below.rmdir(caller, directory, name);
        let result = match below.lookup(directory, name) {
            Ok(entry) if name != b".." && name != b"." => {
                let ino = entry.attr.ino;
                let result = self.mount.without_temporaries(ino, directory, &mut remove);
                below.forget(ino, 1);
                result
            }
            found => {
                if let Ok(entry) = found {
                    below.forget(entry.attr.ino, 1);
                }
                remove()
            }
        };
        self.forget_rules();
        self.mount.lost_name(inode.as_ref());
        self.mount.done_with([inode]);
        result
    }

    pub(super) fn change_name(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        let (parent, new_parent) = (self.inode(parent)?, self.inode(new_parent)?);
        check_visible(name).map_err(|_| Error::NotFound)?;
        check_visible(new_name)?;
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let (from, to) = ((&*parent, name), (&*new_parent, new_name));
        // Errors of the lookups are reported by the rename itself.
        let moving = self.lookup(parent.ino, name).ok();
        let there = exchange.then(|| self.lookup(new_parent.ino, new_name).ok()).flatten();
        let result = self.rename_found(caller, (moving, from), (there, to), flags);
        for entry in [moving, there].into_iter().flatten() {
            self.forget(entry.attr.ino, 1);
        }
        for name in [name, new_name] {
            self.named(name);
        }
        result
    }

    /// Renames what was found under a name, to another name; `there` is what the other name leads to,
    /// if both are exchanged.
    fn rename_found(
        &self,
        caller: &Caller,
        (moving, from): (Option<Entry>, (&Inode, &[u8])),
        (there, to): (Option<Entry>, (&Inode, &[u8])),
        flags: RenameFlags,
    ) -> Result<()> {
        let plan = |entry: Option<Entry>, from, to| match entry {
            Some(entry) => self.plan_move(&entry, from, to),
            None => Ok(Move::Name),
        };
        let (planned, back) = (plan(moving, from, to)?, plan(there, to, from)?);
        // Of two files that take the names of each other neither can be the first.
        let is_written_anew = |plan: &Move| matches!(plan, Move::Convert(_));
        if is_written_anew(&back)
            || flags.contains(RenameFlags::EXCHANGE) && is_written_anew(&planned)
        {
            return Err(Error::CrossDevice);
        }
        match planned {
            Move::Convert(to_be) => self.move_converted(caller, to_be, from, to, flags),
            planned => {
                self.move_over(caller, from, to, flags)?;
                planned.finish(&*self.mount.below)?;
                back.finish(&*self.mount.below)
            }
        }
    }

    /// Renames below; a directory that is replaced may have temporary files in it.
    fn move_over(
        &self,
        caller: &Caller,
        from: (&Inode, &[u8]),
        to: (&Inode, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        let result = self.move_name(caller, from, to, flags);
        let Err(Error::NotEmpty) = result else { return result };
        let below = &self.mount.below;
        let there = below.lookup(to.0.below(), to.1)?.attr.ino;
        let mut again = || self.move_name(caller, from, to, flags);
        let result = self.mount.without_temporaries(there, to.0.below(), &mut again);
        below.forget(there, 1);
        result
    }

    /// Renames below, and updates the inodes.
    fn move_name(
        &self,
        caller: &Caller,
        (parent, name): (&Inode, &[u8]),
        (new_parent, new_name): (&Inode, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        let names = locked(&self.mount.names);
        let moving = self.mount.known(parent.below(), name);
        let there = self.mount.known(new_parent.below(), new_name);
        let result = self.mount.below.rename(
            caller,
            parent.below(),
            name,
            new_parent.below(),
            new_name,
            flags,
        );
        let same = moving.as_ref().zip(there.as_ref()).is_some_and(|(a, b)| Arc::ptr_eq(a, b));
        if result.is_ok() && !same {
            self.moved(moving.as_ref(), new_parent, new_name);
            if flags.contains(RenameFlags::EXCHANGE) {
                self.moved(there.as_ref(), parent, name);
            } else {
                self.mount.lost_name(there.as_ref());
            }
        }
        drop(names);
        self.views_lose_names(moving.as_ref(), parent);
        self.views_lose_names(there.as_ref(), new_parent);
        self.mount.done_with([moving, there]);
        result
    }
}
