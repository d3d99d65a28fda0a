//! Making an item in a volume, also in place of another one.
//!
//! An item that replaces another one is made beside it, under a name that says so, and gets its name
//! by a rename when it is complete: if it cannot be completed, the old one is still there. Where the
//! volume has no room for both, and room for the new one alone, the old one is removed first, and
//! that is said.

use super::Content;
use super::volume_places::{Directory, Parent};
use super::volume_sink::VolumeSink;
use crate::{Error, Result};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use weft_vfs::path::Node;
use weft_vfs::{Caller, Entry, Error as FsError, Handle, Ino, RenameFlags};

/// The reason to refuse an item that would replace another one of the same transfer.
const SAME_NAME: &str = "another name of the source is the same on this volume";

/// What is said of a file that was removed before the one that replaces it was complete.
pub(super) const REMOVED_FIRST: &str =
    "the old file was removed first, as the volume has no room for both";

/// The beginning of the names of items that are not complete.
pub(super) const INCOMPLETE: &str = ".weft-incomplete-";

/// A new item.
pub(super) struct Made<'a> {
    pub(super) node: Node<'a>,
    parent: Ino,
    /// The name that it has now.
    name: Vec<u8>,
    /// What it replaces when it is complete.
    replaces: Option<Replaced>,
}

/// An item that is to be replaced.
struct Replaced {
    name: Vec<u8>,
    /// The bytes that the volume gets back when it is gone; `None` if it is.
    frees_bytes: Option<u64>,
}

impl<'a> VolumeSink<'a> {
    /// Refuses to replace an item that was made under another name of the source, or is of an earlier
    /// source: on a volume where case does not count, that would lose it. A stream may have a path
    /// twice, and the second counts.
    pub(super) fn check_not_another(&self, full: &[u8], there: &Node<'_>) -> Result<()> {
        let ino = there.ino();
        let differs = |made: &u64| *made != hash(full);
        let leads_there = |(path, directory): (&Vec<u8>, &Directory<'_>)| {
            directory.node.ino() == ino && path != full
        };
        let another = self.made.get(&ino).is_some_and(differs)
            || there.is_dir() && self.directories.iter().any(leads_there)
            || self.earlier.contains(&ino);
        if another {
            return Err(self.error("make", full, FsError::Invalid(SAME_NAME)));
        }
        Ok(())
    }

    /// Makes an item that is not a directory by `make`, which is given its name; `len_bytes` is its
    /// length, if that is known.
    pub(super) fn make(
        &mut self,
        full: &[u8],
        parent: Parent,
        name: &[u8],
        len_bytes: u64,
        make: impl Fn(&[u8]) -> weft_vfs::Result<Entry>,
    ) -> Result<Made<'a>> {
        let (entry, own, replaces) = match make(name) {
            Err(FsError::Exists) => self.make_over(full, parent.ino, name, len_bytes, &make)?,
            other => {
                let entry = other.map_err(|e| self.error("make", full, e))?;
                (entry, name.to_vec(), None)
            }
        };
        let node = Node::from_entry(self.fs, entry);
        if node.attr().nlink == 1 {
            self.made.insert(node.ino(), hash(full));
        } else {
            // It legitimately has several paths.
            self.made.remove(&node.ino());
            self.several.insert(node.ino());
        }
        let made = Made { node, parent: parent.ino, name: own, replaces };
        if parent.gives_lists
            && let Err(e) = self.take_lists(full, made.node.ino(), false)
        {
            return Err(self.discard(full, made, e));
        }
        Ok(made)
    }

    /// Makes an item where another one has its name. Returns the name that it has, and what it
    /// replaces.
    fn make_over(
        &mut self,
        full: &[u8],
        parent: Ino,
        name: &[u8],
        len_bytes: u64,
        make: &dyn Fn(&[u8]) -> weft_vfs::Result<Entry>,
    ) -> Result<(Entry, Vec<u8>, Option<Replaced>)> {
        let fs = self.fs;
        let failed = |e| self.error("replace", full, e);
        let there = fs.lookup(parent, name).map_err(failed)?;
        let there = Node::from_entry(fs, there);
        self.check_not_another(full, &there)?;
        let attr = *there.attr();
        let is_companion = weft_hfs::view::is_companion(attr.ino);
        // Without this reference the old item is gone, and its space free, with its name.
        drop(there);
        let at_once = |remove: weft_vfs::Result<()>| {
            remove.map_err(failed)?;
            let entry = make(name).map_err(|e| self.error("make", full, e))?;
            Ok((entry, name.to_vec(), None))
        };
        if attr.kind == weft_vfs::FileKind::Directory {
            // One that is empty, as with tar.
            return at_once(fs.rmdir(&Caller::ROOT, parent, name));
        }
        if is_companion {
            // It is a part of its file, and has no other name.
            return at_once(fs.unlink(&Caller::ROOT, parent, name));
        }
        let frees_bytes = if attr.nlink == 1 { attr.blocks_512.saturating_mul(512) } else { 0 };
        let mut replaced = Replaced { name: name.to_vec(), frees_bytes: Some(frees_bytes) };
        for number in 0_u32.. {
            let own = format!("{INCOMPLETE}{number}").into_bytes();
            match make(&own) {
                Ok(entry) => return Ok((entry, own, Some(replaced))),
                // Left by a transfer that was killed.
                Err(FsError::Exists) => {}
                Err(FsError::NoSpace) => {
                    if self.make_room(full, parent, &mut replaced, len_bytes)? {
                        let entry = make(name).map_err(|e| self.error("make", full, e))?;
                        return Ok((entry, name.to_vec(), None));
                    }
                    return Err(self.error("make", full, FsError::NoSpace));
                }
                Err(e) => return Err(self.error("make", full, e)),
            }
        }
        Err(self.error("make", full, FsError::Exists))
    }

    /// Removes the item that is to be replaced, if that makes room for `need_bytes` more. Returns
    /// whether it did.
    fn make_room(
        &mut self,
        full: &[u8],
        parent: Ino,
        replaced: &mut Replaced,
        need_bytes: u64,
    ) -> Result<bool> {
        let Some(frees_bytes) = replaced.frees_bytes else { return Ok(false) };
        let space = self.fs.statfs().map_err(|e| self.error("measure", full, e))?;
        let unit = u64::from(space.block_bytes);
        let free = space.blocks_available.saturating_mul(unit).saturating_add(frees_bytes);
        // With what the volume needs to find the blocks.
        let need = need_bytes.saturating_add(need_bytes / 128).saturating_add(4 * unit);
        if need > free {
            return Ok(false);
        }
        self.fs
            .unlink(&Caller::ROOT, parent, &replaced.name)
            .map_err(|e| self.error("replace", full, e))?;
        replaced.frees_bytes = None;
        self.remark(full, REMOVED_FIRST);
        Ok(true)
    }

    /// Writes the content of a file; returns its end.
    pub(super) fn fill(
        &mut self,
        made: &mut Made<'a>,
        full: &[u8],
        len_bytes: u64,
        content: &mut dyn Content,
    ) -> Result<u64> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut end = 0;
        let result = loop {
            match content.next_run(&mut buffer) {
                Ok(None) => break Ok(end),
                Ok(Some((at, len))) => {
                    let run = buffer.get(..len).unwrap_or(&[]);
                    match self.write(made, full, (at, run), len_bytes) {
                        Ok(()) => end = at + len as u64,
                        Err(e) => break Err(e),
                    }
                }
                Err(e) => break Err(e),
            }
        };
        self.buffer = buffer;
        result
    }

    fn write(
        &mut self,
        made: &mut Made<'a>,
        full: &[u8],
        (mut at, mut run): (u64, &[u8]),
        len_bytes: u64,
    ) -> Result<()> {
        while !run.is_empty() {
            match self.fs.write(&Caller::ROOT, made.node.ino(), Handle::NONE, at, run) {
                Ok(taken) if taken > 0 => {
                    at += taken as u64;
                    run = run.get(taken..).unwrap_or(&[]);
                }
                Ok(_) | Err(FsError::NoSpace) => {
                    // How much is to come is known only of a file whose length is.
                    let need = len_bytes.checked_sub(at);
                    let makes_room = match (&mut made.replaces, need) {
                        (Some(replaced), Some(need)) => {
                            self.make_room(full, made.parent, replaced, need)?
                        }
                        _ => false,
                    };
                    if !makes_room {
                        return Err(self.error("write", full, FsError::NoSpace));
                    }
                }
                Err(e) => return Err(self.error("write", full, e)),
            }
        }
        Ok(())
    }

    /// Gives a complete item its name; removes one that could not be completed.
    pub(super) fn settle(&mut self, full: &[u8], made: Made<'a>, done: Result<()>) -> Result<()> {
        let named = done.and_then(|()| match &made.replaces {
            None => Ok(()),
            Some(Replaced { name, .. }) => {
                let from = (made.parent, &made.name[..]);
                self.fs
                    .rename(&Caller::ROOT, from.0, from.1, from.0, name, RenameFlags::empty())
                    .map_err(|e| self.error("replace", full, e))
            }
        });
        named.map_err(|e| self.discard(full, made, e))
    }

    /// Removes an item that could not be completed, and returns the error to report, which is the
    /// first one.
    fn discard(&mut self, full: &[u8], made: Made<'a>, e: Error) -> Error {
        let Made { node, parent, name, replaces } = made;
        self.made.remove(&node.ino());
        let _ = self.fs.unlink(&Caller::ROOT, parent, &name);
        let old_is_there = replaces.is_some_and(|replaced| replaced.frees_bytes.is_some());
        if old_is_there && matches!(e, Error::File { source: FsError::NoSpace, .. }) {
            self.remark(full, "the old file is still there");
        }
        e
    }
}

pub(super) fn hash(full: &[u8]) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(full)
}
