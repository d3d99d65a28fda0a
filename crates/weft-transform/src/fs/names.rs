//! Creation, removal and renaming of names.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use weft_vfs::{Caller, DirCursor, Entry, Error, FileKind, FileSystem, Ino, RenameFlags, Result};

use super::inode::{Attached, Inode, again};
use super::locks::locked;
use super::options::NETWORK_ATTRIBUTE;
use super::path::{check_visible, join};
use super::rules::{RULES_NAME, Trust, is_rules_file};
use super::transform_fs::TransformFs;
use crate::Write;
use crate::text::Text;

/// Maximum number of names that are checked before a directory moves; a directory with more is
/// copied by the client.
const LOOKED_AT_MAX: usize = 100_000;

impl TransformFs {
    /// Returns the inode of a name that is about to be moved or removed, with one more use; `None`
    /// if it is not referenced.
    fn known(&self, parent: &Inode, name: &[u8]) -> Option<Arc<Inode>> {
        let entry = self.mount.below.lookup(parent.below(), name).ok()?;
        let inode = self.mount.inodes().acquire(entry.attr.ino);
        self.mount.below.forget(entry.attr.ino, 1);
        inode
    }

    /// Releases the uses of [`known`](Self::known): not under the lock of names, because a commit
    /// may follow.
    fn done_with(&self, inodes: impl IntoIterator<Item = Option<Arc<Inode>>>) {
        for inode in inodes.into_iter().flatten() {
            let ino = inode.ino;
            drop(inode);
            self.mount.release_uses(ino, 1);
        }
    }

    /// Marks an inode as unlinked if it has lost its last name.
    fn lost_name(&self, inode: Option<&Arc<Inode>>) {
        if let Some(inode) = inode
            && self.mount.below.getattr(inode.below()).is_ok_and(|attr| attr.nlink == 0)
        {
            locked(&inode.location).unlinked = true;
        }
    }

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

    /// Rewrites a file that its new name brings under a rule through the network of that rule,
    /// before it moves: a file without network under any rule, and any file under a rule of the
    /// mount that names another network than the file's. A directory moves if the rules of the
    /// mount give all files in it the same networks as before; otherwise the client gets
    /// [`Error::CrossDevice`], and copies.
    fn convert_for(
        &self,
        caller: &Caller,
        parent: &Inode,
        name: &[u8],
        to: &Inode,
        new_name: &[u8],
    ) -> Result<()> {
        if name == new_name && parent.ino == to.ino {
            return Ok(());
        }
        let path = to.path_of(new_name);
        let ruled = self.of_mount(&path).is_some();
        let entry = match self.lookup(parent.ino, name) {
            Ok(entry) => entry,
            // The rename itself reports the error.
            Err(_) => return Ok(()),
        };
        let result = self.inode(entry.attr.ino).and_then(|inode| match inode.kind {
            FileKind::Directory => {
                let old = parent.path_of(name);
                self.check_same_below(&inode, &old, &path)
            }
            FileKind::Regular if ruled => {
                let (attached, text) = self.of_rules(&path, Some(inode.below()));
                self.convert_as_ruled(caller, &inode, attached, text.as_ref())
            }
            FileKind::Regular if !is_rules_file(&path) => {
                let (attached, text) = self.of_rules(&path, Some(inode.below()));
                self.keep_network(&inode)?;
                self.convert_plain(&inode, attached, text.as_ref())
            }
            _ => Ok(()),
        });
        self.forget(entry.attr.ino, 1);
        result
    }

    /// Records the network that the rules of the mount give a file, so that it keeps the network
    /// where they do not match.
    fn keep_network(&self, inode: &Inode) -> Result<()> {
        let network = match &locked(&inode.file).attached {
            Attached::Network(network) => network.clone(),
            _ => return Ok(()),
        };
        let ruled = self.of_mount(&inode.path()).is_some();
        if ruled && self.options.pin && locked(&inode.runtime_stages).stack.is_empty() {
            self.pin(inode.below(), network.text());
        }
        Ok(())
    }

    fn convert_plain(&self, inode: &Inode, attached: Attached, text: Option<&Text>) -> Result<()> {
        let has_attribute = self.mount.below.getxattr(inode.below(), NETWORK_ATTRIBUTE).is_ok();
        if matches!(attached, Attached::Plain) || has_attribute {
            return Ok(());
        }
        if !locked(&inode.runtime_stages).stack.is_empty() {
            // The client then copies, and the copy comes under the rule.
            return Err(Error::CrossDevice);
        }
        if !inode.is_plain() {
            return Ok(());
        }
        self.convert_to(inode, attached, text)
    }

    fn convert_as_ruled(
        &self,
        caller: &Caller,
        inode: &Inode,
        ruled: Attached,
        text: Option<&Text>,
    ) -> Result<()> {
        let same = match (&locked(&inode.file).attached, &ruled) {
            (Attached::Plain, Attached::Plain) => true,
            (Attached::Network(one), Attached::Network(other)) => {
                one.to_string() == other.to_string()
            }
            // The client copies the content that a link shows.
            (Attached::View(_) | Attached::Unusable(_), _) => return Err(Error::CrossDevice),
            _ => false,
        };
        if let Attached::Unusable(why) = &ruled {
            return Err(again(why));
        }
        if !locked(&inode.runtime_stages).stack.is_empty() {
            return Err(Error::CrossDevice);
        }
        if !same {
            self.convert_to(inode, ruled, text)?;
        }
        if text.is_none() {
            match self.mount.below.removexattr(caller, inode.below(), NETWORK_ATTRIBUTE) {
                Ok(()) | Err(Error::NoAttribute | Error::Unsupported(_)) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn convert_to(&self, inode: &Inode, attached: Attached, text: Option<&Text>) -> Result<()> {
        self.wait_no_passthrough(inode.ino);
        let mut file = self.mount.file(inode);
        self.check_no_passthrough(inode.ino).map_err(|_| Error::CrossDevice)?;
        file.convert(attached)?;
        drop(file);
        if let Some(text) = text.filter(|_| self.options.pin) {
            self.pin(inode.below(), text);
        }
        Ok(())
    }

    /// Checks that the rules of the mount give all files in a directory the same networks under
    /// both paths.
    fn check_same_below(&self, directory: &Inode, old: &[u8], new: &[u8]) -> Result<()> {
        let path = |bytes| Path::new(OsStr::from_bytes(bytes));
        let rules = &self.options.rules;
        if self.options.trust == Trust::Tree || rules.say_the_same_below(path(old), path(new)) {
            return Ok(());
        }
        let differs = |name: &[u8]| {
            let said = |directory| {
                let ruling = rules.ruling(Path::new(OsStr::from_bytes(&join(directory, name))));
                ruling.map(|ruling| ruling.network.map(ToString::to_string))
            };
            said(old) != said(new)
        };
        let mut left = LOOKED_AT_MAX;
        // The directories to visit: the inode below, and the path relative to the directory that
        // moves.
        let mut todo = vec![(directory.below(), Vec::new())];
        let mut result = Ok(());
        while let Some((at, within)) = todo.pop() {
            let mut names = Vec::new();
            let listed = self.mount.below.readdir(at, DirCursor::START, &mut |entry| {
                if !matches!(entry.name, b"." | b"..") {
                    names.push((entry.kind, join(&within, entry.name), entry.name.to_vec()));
                }
                names.len() <= left
            });
            for (kind, inner, name) in names {
                left = left.saturating_sub(1);
                if left == 0 || kind == FileKind::Regular && differs(&inner) {
                    result = Err(Error::CrossDevice);
                }
                if result.is_ok()
                    && kind == FileKind::Directory
                    && let Ok(entry) = self.mount.below.lookup(at, &name)
                {
                    todo.push((entry.attr.ino, inner));
                }
            }
            if at != directory.below() {
                self.mount.below.forget(at, 1);
            }
            result = result.and(listed);
            if result.is_err() {
                break;
            }
        }
        for (at, _) in todo.into_iter().filter(|(at, _)| *at != directory.below()) {
            self.mount.below.forget(at, 1);
        }
        result
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
        let inode = self.known(&parent, name);
        let result = self.mount.below.unlink(caller, parent.below(), name);
        self.lost_name(inode.as_ref());
        drop(names);
        self.views_lose_names(inode.as_ref(), &parent);
        self.named(name);
        self.done_with([inode]);
        result
    }

    pub(super) fn remove_directory(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        let parent = self.inode(parent)?;
        let inode = self.known(&parent, name);
        let mut result = self.mount.below.rmdir(caller, parent.below(), name);
        if matches!(result, Err(Error::NotEmpty)) && name != b".." {
            // The directory may contain only temporary files of interrupted commits, which listing
            // removes.
            if let Ok(entry) = self.lookup(parent.ino, name) {
                let mut names = 0;
                self.list(entry.attr.ino, DirCursor::START, &mut |_| {
                    names += 1;
                    true
                })?;
                self.forget(entry.attr.ino, 1);
                if names <= 2 {
                    result = self.mount.below.rmdir(caller, parent.below(), name);
                }
            }
        }
        self.forget_rules();
        self.lost_name(inode.as_ref());
        self.done_with([inode]);
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
        self.convert_for(caller, &parent, name, &new_parent, new_name)?;
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if exchange {
            self.convert_for(caller, &new_parent, new_name, &parent, name)?;
        }
        let names = locked(&self.mount.names);
        let moving = self.known(&parent, name);
        let there = self.known(&new_parent, new_name);
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
            self.moved(moving.as_ref(), &new_parent, new_name);
            if exchange {
                self.moved(there.as_ref(), &parent, name);
            } else {
                self.lost_name(there.as_ref());
            }
        }
        drop(names);
        self.views_lose_names(moving.as_ref(), &parent);
        self.views_lose_names(there.as_ref(), &new_parent);
        self.done_with([moving, there]);
        for name in [name, new_name] {
            self.named(name);
        }
        result
    }
}
