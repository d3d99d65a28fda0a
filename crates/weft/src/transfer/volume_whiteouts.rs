//! Whiteouts: the members of a layer that take away what the layers below it have.
//!
//! | form | of an item | of all that a directory had |
//! |---|---|---|
//! | OCI images, aufs | an empty file `.wh.NAME` | a file `.wh..wh..opq` in it |
//! | upper directories of overlayfs | a device 0:0 called `NAME` | its attribute `trusted.overlay.opaque`, or `user.overlay.opaque`, is `y` |
//!
//! They hold for what was there before the layer alone, whatever the order of its members.
//!
//! Sources: OCI image specification, "Image Layer Filesystem Changeset"; the kernel's
//! Documentation/filesystems/overlayfs.rst.

use super::volume_sink::VolumeSink;
use super::{Item, ItemKind, join, split_last};
use crate::Result;
use weft_vfs::path::Node;
use weft_vfs::{Caller, Error as FsError, FileKind, Ino};

const PREFIX: &[u8] = b".wh.";
/// What aufs keeps for itself, and the mark of a directory.
const OWN_PREFIX: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
const OPAQUE_ATTRIBUTES: [&[u8]; 2] = [b"trusted.overlay.opaque", b"user.overlay.opaque"];

/// What an item of a layer takes away.
enum Whiteout<'a> {
    /// The item of this path.
    Item(Vec<u8>),
    /// All that the directory of this path had.
    Content(&'a [u8]),
    /// Nothing.
    Nothing,
}

fn whiteout<'a>(full: &'a [u8], item: &Item<'_>) -> Option<Whiteout<'a>> {
    let (above, name) = split_last(full);
    match item.kind {
        ItemKind::Special { kind: FileKind::CharDevice, rdev: 0 } => {
            Some(Whiteout::Item(full.to_vec()))
        }
        ItemKind::Directory => None,
        _ if name == OPAQUE => Some(Whiteout::Content(above)),
        _ if name.starts_with(OWN_PREFIX) => Some(Whiteout::Nothing),
        _ => {
            let name = name.strip_prefix(PREFIX).filter(|name| !name.is_empty())?;
            Some(Whiteout::Item(join(above, name)))
        }
    }
}

/// Whether an attribute marks a directory of an overlay whose old content is hidden.
pub(super) fn is_opaque_mark(name: &[u8], value: &[u8]) -> bool {
    OPAQUE_ATTRIBUTES.contains(&name) && value == b"y"
}

impl VolumeSink<'_> {
    /// Applies an item that is a whiteout; returns whether it was one.
    pub(super) fn apply_whiteout(&mut self, full: &[u8], item: &Item<'_>) -> Result<bool> {
        if !self.whiteouts {
            return Ok(false);
        }
        match whiteout(full, item) {
            None => return Ok(false),
            Some(Whiteout::Nothing) => {}
            Some(Whiteout::Content(dir)) => {
                if let Some(ino) = self.existing(dir)? {
                    self.remove_old(dir, ino)?;
                }
            }
            Some(Whiteout::Item(path)) => {
                let (above, name) = split_last(&path);
                if let Some(parent) = self.existing(above)? {
                    self.remove_old_item(&path, parent, name)?;
                }
            }
        }
        Ok(true)
    }

    fn existing(&self, dir: &[u8]) -> Result<Option<Ino>> {
        match self.find_directory(dir) {
            Ok(ino) => Ok(Some(ino)),
            Err(FsError::NotFound | FsError::NotADirectory) => Ok(None),
            Err(e) => Err(self.error("look into", dir, e)),
        }
    }

    /// Removes all that a directory had before this transfer.
    pub(super) fn remove_old(&mut self, full: &[u8], ino: Ino) -> Result<()> {
        let failed = |e| self.error("list", full, e);
        let dir = self.fs.lookup(ino, b".").map_err(failed)?;
        let names = Node::from_entry(self.fs, dir).list().map_err(failed)?;
        for listed in names {
            self.remove_old_item(&join(full, &listed.name), ino, &listed.name)?;
        }
        Ok(())
    }

    /// Removes an item with all below it, unless it is of this transfer. A directory that this
    /// transfer has put something into loses only the rest.
    fn remove_old_item(&mut self, full: &[u8], parent: Ino, name: &[u8]) -> Result<()> {
        let there = match self.fs.lookup(parent, name) {
            Ok(there) => Node::from_entry(self.fs, there),
            Err(FsError::NotFound) => return Ok(()),
            Err(e) => return Err(self.error("remove", full, e)),
        };
        let (ino, is_dir) = (there.ino(), there.is_dir());
        if self.made.contains_key(&ino) || self.several.contains(&ino) {
            return Ok(());
        }
        drop(there);
        let removed = if is_dir {
            self.remove_old(full, ino)?;
            if self.directories.values().any(|known| known.node.ino() == ino) {
                return Ok(());
            }
            match self.fs.rmdir(&Caller::ROOT, parent, name) {
                // It holds what this transfer has put into it.
                Err(FsError::NotEmpty) => Ok(()),
                other => other,
            }
        } else {
            self.fs.unlink(&Caller::ROOT, parent, name)
        };
        removed.map_err(|e| self.error("remove", full, e))
    }
}
