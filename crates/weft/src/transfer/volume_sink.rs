//! A directory of a volume as a destination.
//!
//! An existing item of the same name is replaced, as `tar` does, except for directories, which are
//! merged. A file that is replaced stays until the new one is complete (`volume_make`). A symbolic
//! link in place of a directory is followed within the destination and never out of it
//! (`volume_places`).
//!
//! An item gets exactly the mode and the access control lists of its source, as with `cp -a`, `rsync
//! -AX` and `tar --acls`: what it would inherit from the directory that it is put into is taken away
//! again. No user has more rights at any time than in the source: an item is made for its owner
//! alone, and gets its owner, its lists and its mode, in this order, when its content is there. The
//! lists, modes and times of directories are set at the end: nothing inherits a default list that is
//! not there yet, and nothing changes the times any more.

use super::acls::{self, is_list};
use super::volume_make::{Made, hash};
use super::volume_places::{Directory, Parent};
use super::volume_whiteouts::is_opaque_mark;
use super::{Content, Item, ItemKind, RUN_BYTES, Sink, below, join, split_last};
use crate::{Error, Result};
use std::collections::{HashMap, HashSet};
use weft_vfs::path::Node;
use weft_vfs::{
    Caller, Error as FsError, FileKind, FileSystem, Handle, Ino, SetAttr, SetTime, XattrSet, acl,
};

/// The owners of the items that are put into the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ownership {
    /// The source's user and group ids.
    #[default]
    Keep,
    /// Fixed ids, for everything.
    Fixed {
        /// User id.
        uid: u32,
        /// Group id.
        gid: u32,
    },
}

/// What a directory gets at the end.
#[derive(Debug, Default)]
struct Deferred {
    set: SetAttr,
    access: Option<Vec<u8>>,
    default: Option<Vec<u8>>,
}

/// Puts items into a volume, in process.
pub struct VolumeSink<'a> {
    pub(super) fs: &'a dyn FileSystem,
    /// The directory that paths start at; `shown` is its path, for messages.
    pub(super) top: Directory<'a>,
    shown: Vec<u8>,
    /// The name of the top item in `top`; `None` if it is `top` itself.
    name: Option<Vec<u8>>,
    pub(super) ownership: Ownership,
    /// Every directory seen, with a reference, by its path from `top`.
    pub(super) directories: HashMap<Vec<u8>, Directory<'a>>,
    pub(super) last_parent: (Vec<u8>, Parent),
    /// The directories in the order in which they came, and the place of each in it.
    deferred: Vec<(Ino, Deferred)>,
    deferred_at: HashMap<Ino, usize>,
    /// For each item but directories that was made, the hash of its path: on a volume where case
    /// does not count, another path may lead to it, and would replace it silently.
    pub(super) made: HashMap<Ino, u64>,
    /// The items from earlier sources, which no path may replace.
    pub(super) earlier: HashSet<Ino>,
    /// The items that were made and have several paths.
    pub(super) several: HashSet<Ino>,
    pub(super) buffer: Vec<u8>,
    /// Whether the items are of a layer, and some of them take others away.
    pub(super) whiteouts: bool,
    xattrs_left_out: u64,
    lists_left_out: u64,
    left_out: Vec<String>,
    remarks: Vec<String>,
}

impl std::fmt::Debug for VolumeSink<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VolumeSink").field("top", &self.top.node.ino()).finish_non_exhaustive()
    }
}

impl<'a> VolumeSink<'a> {
    /// Puts items under `top`, or under `name` in it. `shown` is the path of `top`, for messages.
    #[must_use]
    pub fn new(
        fs: &'a dyn FileSystem,
        top: Node<'a>,
        name: Option<&[u8]>,
        shown: &[u8],
        ownership: Ownership,
    ) -> Self {
        let top = Directory::existing(fs, top);
        let last_parent = (Vec::new(), top.parent());
        Self {
            fs,
            top,
            shown: shown.to_vec(),
            name: name.map(<[u8]>::to_vec),
            ownership,
            directories: HashMap::new(),
            last_parent,
            deferred: Vec::new(),
            deferred_at: HashMap::new(),
            made: HashMap::new(),
            earlier: HashSet::new(),
            several: HashSet::new(),
            buffer: vec![0; RUN_BYTES],
            whiteouts: false,
            xattrs_left_out: 0,
            lists_left_out: 0,
            left_out: Vec::new(),
            remarks: Vec::new(),
        }
    }

    /// Sets whether whiteouts take away what is below them, as in a layer of an image or an overlay;
    /// otherwise they are files and nodes like others.
    #[must_use]
    pub fn with_whiteouts(mut self, yes: bool) -> Self {
        self.whiteouts = yes;
        self
    }

    /// Takes over the record of the items that another sink has put into the same directory: none
    /// of them is replaced.
    pub fn go_on_from(&mut self, other: &mut Self) {
        self.earlier = std::mem::take(&mut other.earlier);
        self.earlier.extend(other.made.keys());
    }

    /// The number of extended attributes that the volume cannot store.
    #[must_use]
    pub fn xattrs_left_out(&self) -> u64 {
        self.xattrs_left_out
    }

    /// The number of access control lists that the volume cannot store.
    #[must_use]
    pub fn lists_left_out(&self) -> u64 {
        self.lists_left_out
    }

    /// The items that the volume cannot store: links and device nodes, by their paths.
    #[must_use]
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// What became of files that were to be replaced, where the volume had no room for both.
    #[must_use]
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// Returns the path of an item for messages.
    fn shown_path(&self, full: &[u8]) -> String {
        let shown = below(&self.shown, full);
        format!("/{}", String::from_utf8_lossy(shown.strip_prefix(b"/").unwrap_or(&shown)))
    }

    fn leave_out(&mut self, full: &[u8], what: &str) {
        let shown = self.shown_path(full);
        self.left_out.push(format!("{shown}: the volume has no {what}"));
    }

    pub(super) fn remark(&mut self, full: &[u8], what: &str) {
        let shown = self.shown_path(full);
        self.remarks.push(format!("{shown}: {what}"));
    }

    /// Sets attributes; owners only if the volume stores them.
    pub(super) fn set_attr(&self, ino: Ino, set: &SetAttr) -> weft_vfs::Result<()> {
        match self.fs.setattr(&Caller::ROOT, ino, set) {
            Err(FsError::NotPermitted) if set.uid.is_some() || set.gid.is_some() => {
                let set = SetAttr { uid: None, gid: None, ..*set };
                self.fs.setattr(&Caller::ROOT, ino, &set).map(drop)
            }
            other => other.map(drop),
        }
    }

    /// Removes an attribute, if it is there.
    pub(super) fn remove_xattr(&self, full: &[u8], ino: Ino, name: &[u8]) -> Result<()> {
        match self.fs.removexattr(&Caller::ROOT, ino, name) {
            Ok(()) | Err(FsError::NoAttribute | FsError::Unsupported(_)) => Ok(()),
            Err(e) => Err(self.error("remove an attribute of", full, e)),
        }
    }

    fn full(&self, path: &[u8]) -> Vec<u8> {
        match &self.name {
            None => path.to_vec(),
            Some(name) if path.is_empty() => name.clone(),
            Some(name) => join(name, path),
        }
    }

    pub(super) fn error(&self, action: &'static str, full: &[u8], e: FsError) -> Error {
        Error::file(action, &below(&self.shown, full), e)
    }

    fn owner(&self, item: &Item<'_>) -> (u32, u32) {
        match self.ownership {
            Ownership::Keep => (item.uid, item.gid),
            Ownership::Fixed { uid, gid } => (uid, gid),
        }
    }

    /// Sets an attribute; returns whether the volume stores it.
    fn set_xattr(&self, full: &[u8], ino: Ino, name: &[u8], value: &[u8]) -> Result<bool> {
        match self.fs.setxattr(&Caller::ROOT, ino, name, value, XattrSet::Any) {
            Ok(()) => Ok(true),
            Err(FsError::Unsupported(_)) => Ok(false),
            // The attributes of a file have little room, of which nobody speaks before.
            Err(FsError::NoSpace) if self.has_free_blocks() => Ok(false),
            Err(e) => Err(self.error("set an attribute of", full, e)),
        }
    }

    fn has_free_blocks(&self) -> bool {
        self.fs.statfs().is_ok_and(|space| space.blocks_available > 0)
    }

    /// Sets the attributes of an item, without its lists.
    fn set_xattrs(&mut self, full: &[u8], ino: Ino, item: &Item<'_>) -> Result<()> {
        for (name, value) in item.xattrs.iter().filter(|(name, _)| !is_list(name)) {
            if self.whiteouts && item.kind == ItemKind::Directory && is_opaque_mark(name, value) {
                self.remove_old(full, ino)?;
            } else if !self.set_xattr(full, ino, name, value)? {
                self.xattrs_left_out += 1;
            }
        }
        Ok(())
    }

    /// Sets the access list, and returns the mode to set with it: without a list that the volume
    /// cannot store, the mode gives nobody more.
    fn set_access(&mut self, full: &[u8], ino: Ino, list: &[u8], perm: u16) -> Result<u16> {
        if self.set_xattr(full, ino, acl::ACCESS, list)? {
            return Ok(perm);
        }
        self.lists_left_out += 1;
        Ok(acls::without(perm, list))
    }

    /// Notes what a directory gets at the end, in place of what was noted before.
    fn defer(&mut self, ino: Ino, deferred: Deferred) {
        match self.deferred_at.get(&ino).and_then(|at| self.deferred.get_mut(*at)) {
            Some(place) => place.1 = deferred,
            None => {
                self.deferred_at.insert(ino, self.deferred.len());
                self.deferred.push((ino, deferred));
            }
        }
    }

    fn put_directory(&mut self, full: &[u8], item: &Item<'_>) -> Result<()> {
        let (uid, gid) = self.owner(item);
        let caller = Caller { uid, gid, ..Caller::ROOT };
        let Some(ino) = self.enter(full, &caller, item.perm)? else { return Ok(()) };
        let list = acls::access(item);
        self.narrow(full, ino, item.perm, list, (uid, gid))?;
        self.set_xattrs(full, ino, item)?;
        let set = SetAttr {
            perm: Some(item.perm),
            atime: item.atime.map(SetTime::At),
            mtime: Some(SetTime::At(item.mtime)),
            ..SetAttr::default()
        };
        let access = list.map(<[u8]>::to_vec);
        let default = acls::default(item).map(<[u8]>::to_vec);
        self.defer(ino, Deferred { set, access, default });
        Ok(())
    }

    /// Gives a new item its content and its attributes.
    fn complete(
        &mut self,
        made: &mut Made<'a>,
        full: &[u8],
        item: &Item<'_>,
        content: &mut dyn Content,
    ) -> Result<()> {
        let attr = *made.node.attr();
        let mut set = SetAttr {
            atime: item.atime.map(SetTime::At),
            mtime: Some(SetTime::At(item.mtime)),
            ..SetAttr::default()
        };
        if let ItemKind::File { len_bytes } = item.kind {
            let end = self.fill(made, full, len_bytes, content)?;
            // Some file systems store content only when the file is closed.
            self.fs.flush(attr.ino, Handle::NONE).map_err(|e| self.error("write", full, e))?;
            if end < len_bytes {
                let set = SetAttr { size_bytes: Some(len_bytes), ..SetAttr::default() };
                self.set_attr(attr.ino, &set).map_err(|e| self.error("write", full, e))?;
            }
        }
        // An item in a setgid directory has the group of the directory.
        let gid = self.owner(item).1;
        if attr.gid != gid {
            let set = SetAttr { gid: Some(gid), ..SetAttr::default() };
            self.set_attr(attr.ino, &set).map_err(|e| self.error("set the owner of", full, e))?;
        }
        self.set_xattrs(full, attr.ino, item)?;
        if !matches!(item.kind, ItemKind::Symlink(_)) {
            let mut perm = item.perm;
            if let Some(list) = acls::access(item) {
                perm = self.set_access(full, attr.ino, list, perm)?;
            }
            // A volume that gives a new file more than was asked for stores no modes.
            if attr.perm & 0o777 & !made_for(item.perm) == 0 {
                set.perm = Some(perm);
            }
        }
        self.set_attr(attr.ino, &set).map_err(|e| self.error("set the times of", full, e))
    }

    /// Makes a copy in place of another name, for a volume without hard links.
    fn copy(&mut self, full: &[u8], parent: Parent, name: &[u8], first: &Node<'_>) -> Result<()> {
        let fs = self.fs;
        let attr = first.stat().map_err(|e| self.error("copy", full, e))?;
        let made = self.make(full, parent, name, attr.size_bytes, |name| {
            fs.mknod(&Caller::ROOT, parent.ino, name, FileKind::Regular, attr.perm, 0)
        })?;
        let (from, to) = (first.ino(), made.node.ino());
        let copied = fs.copy_range(&Caller::ROOT, from, 0, to, 0, attr.size_bytes);
        let whole =
            copied.and_then(
                |copied| {
                    if copied < attr.size_bytes { Err(FsError::NoSpace) } else { Ok(()) }
                },
            );
        let set = SetAttr { mtime: Some(SetTime::At(attr.mtime)), ..SetAttr::default() };
        let done = whole.map_err(|e| self.error("copy", full, e)).and_then(|()| {
            fs.setattr(&Caller::ROOT, to, &set)
                .map(drop)
                .map_err(|e| self.error("set the times of", full, e))
        });
        self.settle(full, made, done)
    }

    fn put_link(&mut self, full: &[u8], parent: Parent, name: &[u8], first: &[u8]) -> Result<()> {
        let fs = self.fs;
        let first_full = self.full(first);
        let failed = |e| self.error("link to", &first_full, e);
        let (first_above, first_name) = split_last(&first_full);
        let first_parent = self.find_directory(first_above).map_err(failed)?;
        let entry = fs.lookup(first_parent, first_name).map_err(failed)?;
        let first = Node::from_entry(fs, entry);
        if let Ok(there) = fs.lookup(parent.ino, name) {
            // It is there already: renaming one name of an inode to another would change nothing.
            if Node::from_entry(fs, there).ino() == first.ino() {
                return Ok(());
            }
        }
        let made = self.make(full, parent, name, 0, |name| {
            fs.link(&Caller::ROOT, first.ino(), parent.ino, name)
        });
        match made {
            Err(Error::File { source: FsError::NotPermitted, .. })
                if first.kind() == FileKind::Regular =>
            {
                self.copy(full, parent, name, &first)
            }
            other => {
                let made = other?;
                self.settle(full, made, Ok(()))
            }
        }
    }
}

/// The permission bits with which an item of mode `perm` is made: nobody but its owner sees it before
/// it is complete.
pub(super) fn made_for(perm: u16) -> u16 {
    perm & 0o700
}

impl Sink for VolumeSink<'_> {
    fn put(&mut self, item: &Item<'_>, content: &mut dyn Content) -> Result<()> {
        let fs = self.fs;
        let full = self.full(item.path);
        let (above, name) = split_last(&full);
        if self.apply_whiteout(&full, item)? {
            return Ok(());
        }
        if item.kind == ItemKind::Directory {
            return self.put_directory(&full, item);
        }
        if full.is_empty() {
            return Err(self.error("replace", &full, FsError::IsADirectory));
        }
        let (uid, gid) = self.owner(item);
        let caller = Caller { uid, gid, ..Caller::ROOT };
        let parent = self.directory(above)?;
        let (ino, perm) = (parent.ino, made_for(item.perm));
        let mut made = match item.kind {
            ItemKind::HardLink(first) => return self.put_link(&full, parent, name, first),
            ItemKind::File { len_bytes } => self.make(&full, parent, name, len_bytes, |name| {
                fs.mknod(&caller, ino, name, FileKind::Regular, perm, 0)
            })?,
            ItemKind::Symlink(target) => {
                let made = self
                    .make(&full, parent, name, 0, |name| fs.symlink(&caller, ino, name, target));
                if is_unsupported(&made) {
                    self.leave_out(&full, "symbolic links");
                    return Ok(());
                }
                made?
            }
            ItemKind::Special { kind, rdev } => {
                let made = self.make(&full, parent, name, 0, |name| {
                    fs.mknod(&caller, ino, name, kind, perm, rdev)
                });
                if is_unsupported(&made) {
                    self.leave_out(&full, "device nodes");
                    return Ok(());
                }
                made?
            }
            ItemKind::Directory => return Ok(()),
        };
        let done = self.complete(&mut made, &full, item, content);
        self.settle(&full, made, done)?;
        // On a Macintosh volume it may have become another file when it was closed.
        if name.starts_with(b"._")
            && let Ok(entry) = fs.lookup(ino, name)
        {
            self.made.insert(Node::from_entry(fs, entry).ino(), hash(&full));
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.deferred_at.clear();
        let mut first = Ok(());
        for (ino, deferred) in std::mem::take(&mut self.deferred).into_iter().rev() {
            let done = self.finish_directory(ino, deferred);
            first = first.and(done);
        }
        first
    }

    fn abandon(&mut self) {
        // The directories have fewer rights than they should until this. The error that ended the
        // transfer is the one to report.
        let _ = self.finish();
    }
}

impl VolumeSink<'_> {
    fn finish_directory(&mut self, ino: Ino, deferred: Deferred) -> Result<()> {
        let Deferred { mut set, access, default } = deferred;
        if let (Some(list), Some(perm)) = (access, set.perm) {
            set.perm = Some(self.set_access(&[], ino, &list, perm)?);
        }
        if let Some(list) = default
            && !self.set_xattr(&[], ino, acl::DEFAULT, &list)?
        {
            self.lists_left_out += 1;
        }
        self.set_attr(ino, &set).map_err(|e| self.error("set the times below", &[], e))
    }
}

/// Returns true if the volume has no items of this kind.
fn is_unsupported<T>(made: &Result<T>) -> bool {
    matches!(made, Err(Error::File { source: FsError::NotPermitted | FsError::Unsupported(_), .. }))
}
