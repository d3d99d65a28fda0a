//! The directories of a destination in a volume: found, made, and followed where a symbolic link is in
//! their place.
//!
//! A member of a layer names `bin/tool`, and the tree below has `bin -> usr/bin`: as `dpkg` and `tar
//! --keep-directory-symlink` do, the link is followed. It is resolved as if the destination were the
//! root: an absolute target begins there, and `..` does not lead above it; so nothing is put outside
//! of the destination, whatever a link says.

use super::acls;
use super::split_last;
use super::volume_sink::{Ownership, VolumeSink, made_for};
use crate::Result;
use weft_vfs::path::{Node, SYMLINKS_MAX};
use weft_vfs::{Caller, Error as FsError, FileKind, FileSystem, Ino, SetAttr, acl};

/// A directory in the destination.
pub(super) struct Directory<'a> {
    pub(super) node: Node<'a>,
    /// Whether new items inherit access control lists from it.
    gives_lists: bool,
    /// Whether a symbolic link was followed to it: then its attributes are not the item's.
    followed: bool,
}

/// A directory that gets an item.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parent {
    pub(super) ino: Ino,
    pub(super) gives_lists: bool,
}

impl<'a> Directory<'a> {
    /// A directory that was there before.
    pub(super) fn existing(fs: &dyn FileSystem, node: Node<'a>) -> Self {
        let gives_lists = fs.getxattr(node.ino(), acl::DEFAULT).is_ok();
        Self { node, gives_lists, followed: false }
    }

    pub(super) fn parent(&self) -> Parent {
        Parent { ino: self.node.ino(), gives_lists: self.gives_lists }
    }
}

impl<'a> VolumeSink<'a> {
    /// Returns the directory at `full`, which is made, with its parents, if the stream did not name
    /// it.
    pub(super) fn directory(&mut self, full: &[u8]) -> Result<Parent> {
        if full == self.last_parent.0 {
            return Ok(self.last_parent.1);
        }
        let parent = if full.is_empty() {
            self.top.parent()
        } else {
            if !self.directories.contains_key(full) {
                let (uid, gid) = match self.ownership {
                    Ownership::Keep => (0, 0),
                    Ownership::Fixed { uid, gid } => (uid, gid),
                };
                let caller = Caller { uid, gid, ..Caller::ROOT };
                self.make_directories(full, &caller, None)?;
            }
            self.parent_of(full)
        };
        self.last_parent.0.clear();
        self.last_parent.0.extend_from_slice(full);
        self.last_parent.1 = parent;
        Ok(parent)
    }

    /// Returns the directory at `full`, which is made if it is not there, for its item; `None` if
    /// the item has no say in its attributes, as a symbolic link leads to it.
    pub(super) fn enter(&mut self, full: &[u8], caller: &Caller, perm: u16) -> Result<Option<Ino>> {
        if full.is_empty() {
            return Ok(Some(self.top.node.ino()));
        }
        if !self.directories.contains_key(full) {
            self.make_directories(full, caller, Some(perm))?;
        }
        let found = self.directories.get(full).filter(|directory| !directory.followed);
        Ok(found.map(|directory| directory.node.ino()))
    }

    /// The directory at a path that is known; `top` if it is not.
    fn parent_of(&self, full: &[u8]) -> Parent {
        self.directories.get(full).map_or_else(|| self.top.parent(), Directory::parent)
    }

    /// Makes a directory with its parents, from the top down: a stream may name a file ten levels
    /// deep. `perm` is the mode of its item, if it has one.
    fn make_directories(&mut self, full: &[u8], caller: &Caller, perm: Option<u16>) -> Result<()> {
        let mut missing = Vec::new();
        let mut at = split_last(full).0;
        while !at.is_empty() && !self.directories.contains_key(at) {
            missing.push(at);
            at = split_last(at).0;
        }
        for path in missing.into_iter().rev() {
            self.make_directory(path, caller, None)?;
        }
        self.make_directory(full, caller, perm)
    }

    fn make_directory(&mut self, full: &[u8], caller: &Caller, perm: Option<u16>) -> Result<()> {
        let fs = self.fs;
        let (above, name) = split_last(full);
        let parent = self.parent_of(above);
        let failed = |e| self.error("make directory", full, e);
        // One that no item describes is made as usual.
        let asked = perm.map_or(0o755, made_for);
        let make = || fs.mkdir(caller, parent.ino, name, asked);
        let entry = match make() {
            Err(FsError::Exists) => {
                let there = fs.lookup(parent.ino, name).map_err(failed)?;
                let there = Node::from_entry(fs, there);
                if there.is_dir() {
                    self.directories.insert(full.to_vec(), Directory::existing(fs, there));
                    return Ok(());
                }
                let followed = match there.kind() {
                    FileKind::Symlink => match self.follow(parent.ino, &there) {
                        Ok(node) if node.is_dir() => Some(node),
                        Ok(_) | Err(FsError::NotFound | FsError::NotADirectory) => None,
                        Err(e) => return Err(failed(e)),
                    },
                    _ => None,
                };
                if let Some(node) = followed {
                    let directory = Directory { followed: true, ..Directory::existing(fs, node) };
                    self.directories.insert(full.to_vec(), directory);
                    return Ok(());
                }
                // As GNU tar: a directory replaces what is in its place; what is not named as one
                // does not.
                if perm.is_none() {
                    return Err(failed(FsError::NotADirectory));
                }
                self.check_not_another(full, &there)?;
                drop(there);
                fs.unlink(&Caller::ROOT, parent.ino, name)
                    .map_err(|e| self.error("replace", full, e))?;
                make()
            }
            other => other,
        };
        let node = Node::from_entry(fs, entry.map_err(failed)?);
        let attr = *node.attr();
        if parent.gives_lists {
            self.take_lists(full, attr.ino, true)?;
            if perm.is_none() {
                // The mode is limited by the list, too.
                let set = SetAttr { perm: Some(asked | attr.perm & 0o2000), ..SetAttr::default() };
                self.set_attr(attr.ino, &set)
                    .map_err(|e| self.error("set the mode of", full, e))?;
            }
        }
        let directory = Directory { node, gives_lists: false, followed: false };
        self.directories.insert(full.to_vec(), directory);
        Ok(())
    }

    /// Removes the lists that an item has inherited.
    pub(super) fn take_lists(&self, full: &[u8], ino: Ino, is_directory: bool) -> Result<()> {
        self.remove_xattr(full, ino, acl::ACCESS)?;
        if is_directory { self.remove_xattr(full, ino, acl::DEFAULT) } else { Ok(()) }
    }

    /// Takes from a directory, until all that belongs into it is there, what its item does not give:
    /// rights, lists and an owner that it had before.
    pub(super) fn narrow(
        &mut self,
        full: &[u8],
        ino: Ino,
        perm: u16,
        list: Option<&[u8]>,
        (uid, gid): (u32, u32),
    ) -> Result<()> {
        let fs = self.fs;
        let attr = fs.getattr(ino).map_err(|e| self.error("read", full, e))?;
        let failed = |e| self.error("set the mode of", full, e);
        let there = fs.getxattr(ino, acl::ACCESS).ok().filter(|there| Some(&there[..]) != list);
        let had = there.as_deref().map_or(attr.perm, |there| acls::without(attr.perm, there));
        let keep = attr.perm & 0o7000 | had & perm & 0o777;
        if keep != attr.perm {
            let set = SetAttr { perm: Some(keep), ..SetAttr::default() };
            self.set_attr(ino, &set).map_err(failed)?;
        }
        if there.is_some() {
            self.remove_xattr(full, ino, acl::ACCESS)?;
        }
        if (attr.uid, attr.gid) != (uid, gid) {
            let set = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
            self.set_attr(ino, &set).map_err(failed)?;
        }
        let known =
            if full.is_empty() { Some(&mut self.top) } else { self.directories.get_mut(full) };
        if let Some(directory) = known
            && std::mem::take(&mut directory.gives_lists)
        {
            self.remove_xattr(full, ino, acl::DEFAULT)?;
            if self.last_parent.1.ino == ino {
                self.last_parent.1.gives_lists = false;
            }
        }
        Ok(())
    }

    /// Returns the directory at `full`, which must be there.
    pub(super) fn find_directory(&self, full: &[u8]) -> weft_vfs::Result<Ino> {
        if full.is_empty() {
            return Ok(self.top.node.ino());
        }
        if let Some(directory) = self.directories.get(full) {
            return Ok(directory.node.ino());
        }
        let mut at =
            self.fs.lookup(self.top.node.ino(), b".").map(|e| Node::from_entry(self.fs, e))?;
        for name in full.split(|b| *b == b'/') {
            let next = at.lookup(name)?;
            at = match next.kind() {
                FileKind::Symlink => self.follow(at.ino(), &next)?,
                _ => next,
            };
            if !at.is_dir() {
                return Err(FsError::NotADirectory);
            }
        }
        Ok(at.ino())
    }

    /// Returns what a symbolic link in the directory `dir` leads to, within the destination.
    fn follow(&self, dir: Ino, link: &Node<'_>) -> weft_vfs::Result<Node<'a>> {
        let top = self.top.node.ino();
        let dup = |ino: Ino| self.fs.lookup(ino, b".").map(|e| Node::from_entry(self.fs, e));
        let mut at = dup(dir)?;
        // The components that are still to be walked, the next one last.
        let mut rest: Vec<Vec<u8>> = Vec::new();
        let mut target = link.readlink()?;
        let mut links = 1;
        loop {
            if target.first() == Some(&b'/') {
                at = dup(top)?;
            }
            let names = target.split(|b| *b == b'/').rev();
            rest.extend(names.filter(|name| !name.is_empty() && *name != b".").map(<[u8]>::to_vec));
            target = loop {
                let Some(name) = rest.pop() else { return Ok(at) };
                if !at.is_dir() {
                    return Err(FsError::NotADirectory);
                }
                if name == b".." && at.ino() == top {
                    continue;
                }
                let next = at.lookup(&name)?;
                if next.kind() == FileKind::Symlink {
                    break next.readlink()?;
                }
                at = next;
            };
            links += 1;
            if links > SYMLINKS_MAX {
                return Err(FsError::SymlinkLoop);
            }
        }
    }
}
