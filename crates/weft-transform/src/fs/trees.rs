//! Archives as directory trees: `x.tar@tree`, `x.zip@tree/inner.tar.gz@tree`. Read-only, hidden
//! from listings.
//!
//! The root of a tree has owner and permissions of the archive ([`super::reach`]), and none of its
//! other attributes depend on the archive's content. An archive that all users may read is opened
//! when its tree is looked up, which is not found if the file is not an archive; any other is
//! opened on the first access inside the tree, which the kernel permits only to readers of the
//! archive. A tree lives as long as any of its inodes is referenced. Its inodes have numbers of
//! their own; it shows the archive as it was when it was listed, and once the archive has changed,
//! all of them are stale: looking up the name again makes a new tree. So the name is looked up on
//! each use.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use weft_vfs::{
    Attr, DirCursor, DirEntry, Entry, Error, FileKind, FileSystem, Handle, Ino, OpenFlags, Opened,
    Result, Time,
};

use super::base::locked;
use super::ground::{Ground, Through};
use super::nodes::Node;
use super::reach::{ACCESS_LIST, as_directory, list_as_directory};
use super::{Open, TransformFs};
use crate::Network;
use crate::archive::{Archive, Item};
use crate::store::{Single, Store, open};

/// The name of the view.
pub(super) const NAME: &[u8] = b"tree";

/// Inode numbers from here on belong to trees, and to the mount's own directory.
pub(super) const FIRST: u64 = 3 << 62;
/// The bits of an inode number that identify the item in its tree.
const ITEM_BITS: u32 = 32;
/// Maximum nesting of trees within trees.
const DEPTH_MAX: u32 = 8;
/// Maximum number of unreferenced trees whose numbers are remembered.
const PAST_MAX: usize = 4096;
/// The number of names that are read from a directory at a time: initially, as many as one call of
/// the kernel mostly takes, and at most.
const BATCH: (usize, usize) = (32, 512);

/// All referenced trees.
#[derive(Default)]
pub(super) struct Trees {
    trees: HashMap<u64, (Arc<Tree>, u64)>,
    /// Tree numbers by the inode of the archive, and the stages that it is read through.
    known: HashMap<(Ino, Vec<u8>), u64>,
    /// The numbers of trees that are no longer referenced, and the state of their archives: while
    /// that is unchanged, they get the same inode numbers again.
    past: HashMap<(Ino, Vec<u8>), (u64, Look)>,
    next: u64,
}

pub(super) struct Tree {
    nr: u64,
    key: (Ino, Vec<u8>),
    base: Base,
    /// The directory of the archive.
    parent: Ino,
    /// The stages in its name; without any, they follow from the archive's magic number.
    network: Option<Network>,
    /// The archive, once it was opened.
    archive: Mutex<Option<Archive>>,
    depth: u32,
}

/// The archive of a tree.
enum Base {
    /// A file, with one use, and its state.
    File(Arc<Ground>, Arc<Node>, Look),
    /// A file in a tree.
    Within(Arc<Tree>, usize),
}

impl Base {
    fn look(&self) -> Option<Look> {
        match self {
            Self::File(_, _, look) => Some(*look),
            Self::Within(..) => None,
        }
    }
}

/// The state of a file, by which changes are detected: length, mtime, version.
type Look = (u64, Time, u64);

fn look(ground: &Ground, node: &Node) -> Result<Look> {
    let (version, view) = {
        let file = locked(&node.file);
        (file.version, file.view().cloned())
    };
    // The reported length of a view depends on its permissions, so that of the base is used.
    let attr = match view {
        Some(view) => view.base_attr()?.0,
        None => ground.attr(node)?.0,
    };
    Ok((attr.size_bytes, attr.mtime, version))
}

impl Tree {
    /// Fails with [`Error::Stale`] once the archive has changed.
    fn check(&self) -> Result<()> {
        match &self.base {
            Base::File(ground, node, was) if look(ground, node)? == *was => Ok(()),
            Base::File(_, node, _) => Err(Error::Stale(node.ino.0)),
            Base::Within(tree, _) => tree.check(),
        }
    }

    fn ino(&self, item: usize) -> Ino {
        Ino(FIRST + (self.nr << ITEM_BITS) + item as u64)
    }

    /// Runs `look` with the archive, which must have been opened.
    fn with<T>(&self, look: impl FnOnce(&mut Archive) -> Result<T>) -> Result<T> {
        let mut archive = locked(&self.archive);
        look(archive.as_mut().ok_or(Error::NotADirectory)?)
    }

    /// Returns true if all users who can reach the tree may read the archive.
    fn all_may_read(&self) -> Result<bool> {
        match &self.base {
            Base::File(ground, node, _) => ground.all_may_read_node(node),
            Base::Within(tree, nr) => {
                let attr = tree.attr(*nr)?;
                Ok(tree.ground().all_may_read(&attr, || false))
            }
        }
    }

    fn ground(&self) -> &Ground {
        match &self.base {
            Base::File(ground, ..) => ground,
            Base::Within(tree, _) => tree.ground(),
        }
    }

    /// Returns the item of a name in a directory.
    fn child(&self, nr: usize, name: &[u8]) -> Result<Option<usize>> {
        self.with(|archive| Self::child_in(archive, nr, name))
    }

    fn child_in(archive: &Archive, nr: usize, name: &[u8]) -> Result<Option<usize>> {
        let item = archive.item(nr).ok_or(Error::NotFound)?;
        Ok(match name {
            _ if item.kind != FileKind::Directory => return Err(Error::NotADirectory),
            b"." => Some(nr),
            b".." => Some(item.parent()),
            name => archive.child(nr, name),
        })
    }

    /// Returns up to `count` names of a directory with their attributes, after the first `skip`.
    fn names(&self, nr: usize, skip: usize, count: usize) -> Vec<(Vec<u8>, Attr)> {
        let archive = locked(&self.archive);
        let Some(archive) = &*archive else { return Vec::new() };
        let children = archive.children(nr, skip).take(count);
        let attr = |nr| archive.item(nr).map(|item| self.attr_of(nr, item));
        children.filter_map(|(nr, name)| Some((name.to_vec(), attr(nr)?))).collect()
    }

    /// Returns the attributes of the archive itself.
    fn base_attr(&self) -> Result<Attr> {
        match &self.base {
            Base::File(ground, node, _) => Ok(ground.attr(node)?.0),
            Base::Within(tree, nr) => tree.attr(*nr),
        }
    }

    /// Returns the access list of the root, which is that of the archive.
    fn access_list(&self) -> Option<Vec<u8>> {
        let Base::File(ground, node, _) = &self.base else { return None };
        let view = locked(&node.file).view().cloned();
        let list = match view {
            Some(view) => view.access_list(),
            None => ground.access_list(node.below()),
        };
        list.map(list_as_directory)
    }

    /// Returns the attributes of an item. Only users who may read the archive may enter the root;
    /// below it the archive determines the permissions.
    fn attr(&self, nr: usize) -> Result<Attr> {
        if nr == 0 {
            let base = self.base_attr()?;
            return Ok(Attr {
                ino: self.ino(0),
                kind: FileKind::Directory,
                perm: as_directory(base.perm),
                nlink: 2,
                rdev: 0,
                size_bytes: 0,
                blocks_512: 0,
                io_bytes: 4096,
                atime: base.mtime,
                btime: None,
                ..base
            });
        }
        self.with(|archive| self.item_attr(archive, nr))
    }

    fn item_attr(&self, archive: &Archive, nr: usize) -> Result<Attr> {
        Ok(self.attr_of(nr, archive.item(nr).ok_or(Error::NotFound)?))
    }

    fn attr_of(&self, nr: usize, item: &Item) -> Attr {
        Attr {
            ino: self.ino(nr),
            kind: item.kind,
            // Trees are read-only.
            perm: item.perm & !0o6222,
            nlink: if item.kind == FileKind::Directory { 2 } else { 1 },
            uid: item.uid,
            gid: item.gid,
            rdev: 0,
            size_bytes: item.len_bytes,
            blocks_512: item.len_bytes.div_ceil(512),
            io_bytes: 4096,
            atime: item.mtime(),
            mtime: item.mtime(),
            ctime: item.mtime(),
            btime: None,
        }
    }
}

/// A file in a tree, as the archive of another tree.
struct Within(Arc<Tree>, usize);

impl Store for Within {
    fn len_bytes(&mut self) -> crate::Result<Option<u64>> {
        Ok(Some(self.0.attr(self.1)?.size_bytes))
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> crate::Result<usize> {
        match &mut *locked(&self.0.archive) {
            Some(archive) => archive.read(self.1, offset, buf),
            None => Err(Error::NotADirectory.into()),
        }
    }
}

/// Returns the stages before the tree in a view that ends in one: `~gzip` in `~gzip+tree`.
fn stages(view: &[u8]) -> Option<&[u8]> {
    let before = view.strip_suffix(NAME)?;
    if before.is_empty() { Some(before) } else { before.strip_suffix(b"+") }
}

/// Returns the stage that unpacks a common compression format, by the magic number of the file.
fn packing(store: &mut dyn Store) -> Result<Option<&'static str>> {
    let mut head = [0; 6];
    let got = store.read_at(0, &mut head)?;
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
        if let Some(tree) = self.known_tree(&key) {
            if tree.check().is_ok() {
                return Ok((tree.attr(0)?, false));
            }
            self.give_back_tree(tree.nr, 1);
        }
        let network = self.stages_of(stages)?;
        let (base, depth) = match self.in_tree(archive.ino) {
            Ok((tree, item)) => {
                if tree.depth >= DEPTH_MAX {
                    return Err(Error::SymlinkLoop);
                }
                let depth = tree.depth + 1;
                (Base::Within(tree, item), depth)
            }
            Err(_) => {
                let (ground, node) = (self.ground.clone(), self.node(archive.ino)?);
                let was = look(&ground, &node)?;
                (Base::File(ground, node, was), 1)
            }
        };
        let nr = self.tree_number(&key, &base);
        let archive = Mutex::default();
        let tree = Tree { nr, key: key.clone(), base, parent, network, archive, depth };
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
        let mut trees = locked(&self.trees);
        trees.trees.insert(nr, (Arc::new(tree), 1));
        trees.known.insert(key, nr);
        Ok((attr, true))
    }

    /// Returns the number of a tree: the one it had before, or a new one.
    fn tree_number(&self, key: &(Ino, Vec<u8>), base: &Base) -> u64 {
        let mut trees = locked(&self.trees);
        let before = trees.past.remove(key).filter(|(_, was)| base.look() == Some(*was));
        match before {
            Some((nr, _)) => nr,
            None => {
                trees.next += 1;
                trees.next
            }
        }
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
                Base::File(ground, node, _) => {
                    Box::new(Through { ground: ground.clone(), base: node.clone() })
                }
                Base::Within(tree, item) => Box::new(Within(tree.clone(), *item)),
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
        let mut store = open(base, network, &self.ground.limits)?;
        // A file that is read sequentially knows its length once it was verified.
        store.read_at(0, &mut [0])?;
        Ok(store)
    }

    /// Returns the tree of a key, with one more use.
    fn known_tree(&self, key: &(Ino, Vec<u8>)) -> Option<Arc<Tree>> {
        let mut trees = locked(&self.trees);
        let nr = *trees.known.get(key)?;
        let (tree, uses) = trees.trees.get_mut(&nr)?;
        *uses += 1;
        Some(tree.clone())
    }

    /// Returns the tree and the item of an inode.
    pub(super) fn in_tree(&self, ino: Ino) -> Result<(Arc<Tree>, usize)> {
        let number = ino.0.checked_sub(FIRST).ok_or(Error::Stale(ino.0))?;
        let trees = locked(&self.trees);
        let (tree, _) = trees.trees.get(&(number >> ITEM_BITS)).ok_or(Error::Stale(ino.0))?;
        let item = number & ((1 << ITEM_BITS) - 1);
        Ok((tree.clone(), usize::try_from(item).unwrap_or(usize::MAX)))
    }

    pub(super) fn tree_forget(&self, ino: Ino, count: u64) {
        if let Ok((tree, _)) = self.in_tree(ino) {
            self.give_back_tree(tree.nr, count);
        }
    }

    /// Releases `count` uses of a tree; with the last one the tree is dropped, and releases its
    /// archive.
    fn give_back_tree(&self, nr: u64, count: u64) {
        let gone = {
            let mut trees = locked(&self.trees);
            let Some((_, uses)) = trees.trees.get_mut(&nr) else { return };
            *uses = uses.saturating_sub(count);
            if *uses > 0 {
                return;
            }
            let gone = trees.trees.remove(&nr);
            if let Some((tree, _)) = &gone
                && trees.known.get(&tree.key) == Some(&nr)
            {
                trees.known.remove(&tree.key);
                if trees.past.len() >= PAST_MAX {
                    trees.past.clear();
                }
                if let Some(look) = tree.base.look() {
                    trees.past.insert(tree.key.clone(), (nr, look));
                }
            }
            gone
        };
        match gone.map(|(tree, _)| tree).as_deref() {
            Some(Tree { base: Base::File(_, node, _), .. }) => self.give_back(node.ino, 1),
            Some(Tree { base: Base::Within(within, _), .. }) => self.give_back_tree(within.nr, 1),
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
            let at = name.iter().rposition(|&b| b == super::views::MARK);
            let at = at.filter(|at| *at > 0).ok_or(Error::NotFound)?;
            let tree = self.tree(parent, &name[..at], &name[at + 1..]);
            return tree.unwrap_or(Err(Error::NotFound));
        };
        let attr = tree.attr(found)?;
        if let Some((_, uses)) = locked(&self.trees).trees.get_mut(&tree.nr) {
            *uses += 1;
        }
        Ok(Entry { attr, generation: 0 })
    }

    /// Returns true if an inode is the root of a tree.
    pub(super) fn is_tree_root(&self, ino: Ino) -> bool {
        self.in_tree(ino).is_ok_and(|(_, nr)| nr == 0)
    }

    pub(super) fn tree_attr(&self, ino: Ino) -> Result<Attr> {
        let (tree, nr) = self.in_tree(ino)?;
        tree.attr(nr)
    }

    pub(super) fn tree_open(&self, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE) {
            return Err(Error::ReadOnly);
        }
        let (tree, nr) = self.in_tree(ino)?;
        tree.check()?;
        if tree.attr(nr)?.kind == FileKind::Directory {
            return Err(Error::IsADirectory);
        }
        let handle =
            self.new_handle(Open { ino, flags, below: None, direct_io: false, past: false });
        Ok(Opened { handle, keep_cache: true, direct_io: false })
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

    pub(super) fn tree_list(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.tree_entries(ino, cursor, &mut |entry, _| each(entry))
    }

    /// As [`tree_list`](Self::tree_list), with the entry of each name, to which it adds one use.
    /// The entries of `.` and `..` are left to the caller.
    pub(super) fn tree_list_plus(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>, Option<Entry>) -> bool,
    ) -> Result<()> {
        let tree = self.in_tree(ino)?.0;
        let count_use = |uses: u64| {
            if let Some((_, count)) = locked(&self.trees).trees.get_mut(&tree.nr) {
                *count += uses;
            }
        };
        self.tree_entries(ino, cursor, &mut |entry, attr| {
            let Some(attr) = attr else { return each(entry, None) };
            count_use(1);
            let goes_on = each(entry, Some(Entry { attr: *attr, generation: 0 }));
            if !goes_on {
                self.give_back_tree(tree.nr, 1);
            }
            goes_on
        })
    }

    fn tree_entries(
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

    /// Releases a handle of a file in a tree.
    pub(super) fn tree_release(&self, handle: Handle) {
        // As a tree's files keep no state, closing one of them twice is no error.
        let _ = locked(&self.handles).close(handle);
    }
}
