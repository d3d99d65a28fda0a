//! Archives as directory trees: `x.tar@tree`, `x.zip@tree/inner.tar.gz@tree`. Read-only, hidden
//! from listings.
//!
//! The root of a tree has owner and permissions of the archive ([`super::derived`]), and none of its
//! other attributes depend on the archive's content. An archive that all users may read is opened
//! when its tree is looked up, which is not found if the file is not an archive; any other is
//! opened on the first access inside the tree, which the kernel permits only to readers of the
//! archive. A tree lives as long as any of its inodes is referenced. Its inodes have numbers of
//! their own; it shows the archive as it was when it was listed, and once the archive has changed,
//! all of them are stale: looking up the name again makes a new tree. So the name is looked up on
//! each use.

use std::sync::{Arc, Mutex};

use weft_vfs::{Attr, DirCursor, DirEntry, Entry, Error, FileKind, FileSystem, Ino, Result};

use super::access::ACCESS_LIST;
use super::archive_tree::{ArchiveBase, DEPTH_MAX, Tree, Within, look};
use super::locked_file::ContentStore;
use super::locks::locked;
use super::path::MARK;
use super::transform_fs::TransformFs;
use crate::Network;
use crate::archive::Archive;
use crate::store::{Single, Store, open};

/// The name of the view.
const NAME: &[u8] = b"tree";

/// The number of names that are read from a directory at a time: initially, as many as one call of
/// the kernel mostly takes, and at most.
const BATCH: (usize, usize) = (32, 512);

/// Returns the stages before the tree in a view that ends in one: `~gzip` in `~gzip+tree`.
fn stages(view: &[u8]) -> Option<&[u8]> {
    let before = view.strip_suffix(NAME)?;
    if before.is_empty() { Some(before) } else { before.strip_suffix(b"+") }
}

/// Maximum number of skippable frames at the beginning of a file.
const SKIPPED_MAX: usize = 16;

/// Returns the stage that unpacks a common compression format, by the magic number of the file, or
/// the first one behind skippable frames (with which `pzstd` begins).
fn packing(store: &mut dyn Store) -> Result<Option<&'static str>> {
    let mut head = [0; 8];
    let (mut at, mut got) = (0, store.read_at(0, &mut head)?);
    for _ in 0..SKIPPED_MAX {
        let [0x50..=0x5F, 0x2A, 0x4D, 0x18, len @ ..] = head else { break };
        if got < head.len() {
            break;
        }
        at += 8 + u64::from(u32::from_le_bytes(len));
        got = store.read_at(at, &mut head)?;
    }
    let known: [(&[u8], &str); 4] = [
        (&[0x1F, 0x8B], "~gzip"),
        (&[0x28, 0xB5, 0x2F, 0xFD], "~zstd"),
        (&[0xFD, b'7', b'z', b'X', b'Z', 0], "~xz"),
        (&[4, 0x22, 0x4D, 0x18], "~lz4"),
    ];
    Ok(known.iter().find(|(magic, _)| head[..got].starts_with(magic)).map(|(_, text)| *text))
}

impl TransformFs {
    /// Looks up the tree of a view that ends in one; `None` if it does not.
    pub(super) fn tree(&self, parent: Ino, base: &[u8], view: &[u8]) -> Option<Result<Entry>> {
        let stages = stages(view)?;
        let found = match self.lookup(parent, base) {
            Ok(found) => found,
            Err(e) => return Some(Err(e)),
        };
        let made = self.tree_of(parent, &found.attr, stages);
        match &made {
            // The tree has taken over the use of the archive.
            Ok((_, true)) => {}
            _ => self.forget(found.attr.ino, 1),
        }
        Some(made.map(|(attr, _)| Entry { attr, generation: found.generation }))
    }

    /// Returns the attributes of the root of an archive's tree, with one more use, and whether the
    /// tree took over the use of the archive.
    fn tree_of(&self, parent: Ino, archive: &Attr, stages: &[u8]) -> Result<(Attr, bool)> {
        if archive.kind != FileKind::Regular {
            return Err(Error::NotFound);
        }
        let key = (archive.ino, stages.to_vec());
        let known = locked(&self.trees).known(&key);
        if let Some(tree) = known {
            if tree.check().is_ok() {
                return Ok((tree.attr(0)?, false));
            }
            self.release_tree(tree.nr, 1);
        }
        let network = self.stages_of(stages)?;
        let (base, depth) = match self.in_tree(archive.ino) {
            Ok((tree, item)) => {
                if tree.depth >= DEPTH_MAX {
                    return Err(Error::SymlinkLoop);
                }
                let depth = tree.depth + 1;
                (ArchiveBase::Within(tree, item), depth)
            }
            Err(_) => {
                let (mount, inode) = (self.mount.clone(), self.inode(archive.ino)?);
                let was = look(&mount, &inode)?;
                (ArchiveBase::File(mount, inode, was), 1)
            }
        };
        let nr = locked(&self.trees).number(&key, &base);
        let archive = Mutex::default();
        let tree = Tree { nr, key, base, parent, network, archive, depth };
        if tree.all_may_read()? {
            let opened = self.open_archive(&tree);
            // If the permissions changed meanwhile, the result is not revealed.
            if tree.all_may_read()? {
                opened.map_err(|e| {
                    if matches!(e, Error::NotADirectory) { Error::NotFound } else { e }
                })?;
            }
        }
        let attr = tree.attr(0)?;
        locked(&self.trees).insert(tree);
        Ok((attr, true))
    }

    /// Builds the network of the stages before the tree in a name, if any.
    fn stages_of(&self, stages: &[u8]) -> Result<Option<Network>> {
        if stages.is_empty() {
            return Ok(None);
        }
        let stages = std::str::from_utf8(stages).map_err(|_| Error::NotFound)?;
        self.network_of_name(stages).map(Some).map_err(|_| Error::NotFound)
    }

    /// Opens the archive of a tree, unless it is open.
    ///
    /// # Errors
    /// [`Error::NotADirectory`] if it is not an archive, and those of reading it.
    fn open_archive(&self, tree: &Tree) -> Result<()> {
        let mut archive = locked(&tree.archive);
        if archive.is_none() {
            let store: Box<dyn Store> = match &tree.base {
                ArchiveBase::File(mount, inode, _) => {
                    Box::new(ContentStore { mount: mount.clone(), base: inode.clone() })
                }
                ArchiveBase::Within(tree, item) => Box::new(Within(tree.clone(), *item)),
            };
            let store = self.unpacked(store, tree.network.as_ref())?;
            *archive = Some(Archive::open(store)?.ok_or(Error::NotADirectory)?);
        }
        Ok(())
    }

    /// Opens an archive through the stages in its name, or else through the one that matches its
    /// magic number.
    fn unpacked(
        &self,
        mut store: Box<dyn Store>,
        network: Option<&Network>,
    ) -> Result<Box<dyn Store>> {
        let looks = match network {
            Some(_) => None,
            None => packing(&mut *store)?.map(|text| self.registry.parse(&format!("view: {text}"))),
        };
        let looks = looks.transpose().map_err(|_| Error::NotADirectory)?;
        let Some(network) = network.or(looks.as_ref()) else { return Ok(store) };
        let base = Box::new(Single::to_read(store));
        let mut store = open(base, network, &self.mount.limits)?;
        // A file that is read sequentially knows its length once it was verified.
        store.read_at(0, &mut [0])?;
        Ok(store)
    }

    /// Returns the tree and the item of an inode.
    pub(super) fn in_tree(&self, ino: Ino) -> Result<(Arc<Tree>, usize)> {
        locked(&self.trees).get(ino)
    }

    /// Releases `count` uses of a tree; with the last one the tree is dropped, and releases its
    /// archive.
    pub(super) fn release_tree(&self, nr: u64, count: u64) {
        let gone = locked(&self.trees).drop_uses(nr, count);
        match gone.as_ref().map(|tree| &tree.base) {
            Some(ArchiveBase::File(_, inode, _)) => self.mount.release_uses(inode.ino, 1),
            Some(ArchiveBase::Within(within, _)) => self.release_tree(within.nr, 1),
            None => {}
        }
    }

    pub(super) fn tree_lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        let (tree, nr) = self.in_tree(parent)?;
        tree.check()?;
        let found = match name {
            b".." if nr == 0 => return self.lookup(tree.parent, b"."),
            b"." if nr == 0 => Some(0),
            name => {
                self.open_archive(&tree)?;
                tree.child(nr, name)?
            }
        };
        let Some(found) = found else {
            let at = name.iter().rposition(|&b| b == MARK);
            let at = at.filter(|at| *at > 0).ok_or(Error::NotFound)?;
            let tree = self.tree(parent, &name[..at], &name[at + 1..]);
            return tree.unwrap_or(Err(Error::NotFound));
        };
        let attr = tree.attr(found)?;
        locked(&self.trees).add_use(tree.nr);
        Ok(Entry { attr, generation: 0 })
    }

    /// Checks that a file can be opened.
    pub(super) fn tree_open(&self, ino: Ino) -> Result<()> {
        let (tree, nr) = self.in_tree(ino)?;
        tree.check()?;
        if tree.attr(nr)?.kind == FileKind::Directory {
            return Err(Error::IsADirectory);
        }
        Ok(())
    }

    pub(super) fn tree_read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let (tree, nr) = self.in_tree(ino)?;
        tree.check()?;
        let read = tree.with(|archive| Ok(archive.read(nr, offset, buf)?));
        read.inspect_err(|e| tracing::error!(ino = ino.0, offset, "{e}"))
    }

    /// Returns an extended attribute of an inode in a tree: the root has the access list of its
    /// archive.
    pub(super) fn tree_attribute(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let (tree, nr) = self.in_tree(ino)?;
        let list = (nr == 0 && name == ACCESS_LIST).then(|| tree.access_list()).flatten();
        list.ok_or(Error::NoAttribute)
    }

    pub(super) fn tree_link(&self, ino: Ino) -> Result<Vec<u8>> {
        let (tree, nr) = self.in_tree(ino)?;
        if nr == 0 {
            return Err(Error::Invalid("a directory is no symbolic link"));
        }
        tree.with(|archive| Ok(archive.target(nr).to_vec()))
    }

    /// Lists a directory with the entry of each name, to which it adds one use: they are known
    /// without looking up each.
    pub(super) fn tree_list_plus(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>, Entry) -> bool,
    ) -> Result<()> {
        let tree = self.in_tree(ino)?.0;
        let mut looked_up = Ok(());
        self.tree_entries(ino, cursor, &mut |entry, attr| match attr {
            Some(attr) => {
                locked(&self.trees).add_use(tree.nr);
                let goes_on = each(entry, Entry { attr: *attr, generation: 0 });
                if !goes_on {
                    self.release_tree(tree.nr, 1);
                }
                goes_on
            }
            // `.` and `..`, which must not add a use.
            None => match self.lookup(ino, entry.name) {
                Ok(found) => {
                    let goes_on = each(entry, found);
                    self.forget(found.attr.ino, 1);
                    goes_on
                }
                Err(e) => {
                    looked_up = Err(e);
                    false
                }
            },
        })?;
        looked_up
    }

    /// Lists a directory with the attributes of all but `.` and `..`.
    pub(super) fn tree_entries(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>, Option<&Attr>) -> bool,
    ) -> Result<()> {
        let (tree, nr) = self.in_tree(ino)?;
        tree.check()?;
        self.open_archive(&tree)?;
        let up = match tree.child(nr, b"..")? {
            Some(up) if nr != 0 => tree.ino(up),
            _ => tree.parent,
        };
        let mut next = cursor.0;
        for (at, name, ino) in [(0, &b"."[..], ino), (1, b"..", up)] {
            let kind = FileKind::Directory;
            if next == at {
                next += 1;
                if !each(DirEntry { ino, kind, name, next: DirCursor(next) }, None) {
                    return Ok(());
                }
            }
        }
        let begun = next;
        let mut batch = BATCH.0;
        loop {
            let skip = usize::try_from(next - 2).unwrap_or(usize::MAX);
            let names = tree.names(nr, skip, batch);
            batch = (batch * 2).min(BATCH.1);
            if names.is_empty() {
                // A listing of the root of a damaged archive returns the intact members, and then
                // the error.
                let is_end_of_root = nr == 0 && next == begun;
                return if is_end_of_root {
                    tree.with(|archive| Ok(archive.check_whole()?))
                } else {
                    Ok(())
                };
            }
            for (name, attr) in names {
                next += 1;
                let (ino, kind, next) = (attr.ino, attr.kind, DirCursor(next));
                if !each(DirEntry { ino, kind, name: &name, next }, Some(&attr)) {
                    return Ok(());
                }
            }
        }
    }
}
