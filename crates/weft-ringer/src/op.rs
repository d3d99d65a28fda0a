//! The changes of a cell, and their effects. There is one definition, [`execute`]: a client runs it
//! on its state under write leases, and the server runs it again on its store when the change
//! reaches it. Both have the same state before, so both have the same state after; a change carries
//! everything that would differ between them (the time, the number of a new rnode).
//!
//! Semantics are those of [`weft_vfs::FileSystem`]. Permissions are checked by the front end.

use std::collections::BTreeMap;

use weft_vfs::{FileKind, RenameFlags, Time, access::without_privileges};

use crate::block_map::{BLOCK_MAX_BYTES, BLOCK_MIN_BYTES, BLOCKS_MAX, Block, BlockMap};
use crate::cell_mount::{CELL_MOUNT_XATTR, CellMount};
use crate::encryption::{self, FileId};
use crate::error::Refusal;
use crate::rnode::{
    Body, Bytes, Dirent, LINKS_MAX, Name, Rnode, TARGET_MAX_BYTES, XATTR_MAX_BYTES,
    XATTRS_MAX_BYTES,
};
use crate::types::{Cookie, Epoch, RnodeId, Seq, Version};
use crate::wire::{wire_enum, wire_struct};

/// The kind of a new rnode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Make {
    /// An empty regular file with blocks of this size in bytes.
    File {
        /// A power of two, 64 KiB to 4 MiB.
        block_bytes: u32,
    },
    /// An empty regular file in a directory that is encrypted.
    EncryptedFile {
        /// As of `File`.
        block_bytes: u32,
        /// The file's id.
        file: FileId,
    },
    /// An empty directory.
    Directory {},
    /// A symbolic link.
    Symlink {
        /// The path that it points to.
        target: Bytes,
    },
    /// A device node, FIFO or socket.
    Special {
        /// The kind of special file.
        kind: FileKind,
        /// Device number.
        rdev: u32,
    },
}
wire_enum!(Make {
    1 => File { block_bytes },
    2 => Directory {},
    3 => Symlink { target },
    4 => Special { kind, rdev },
    5 => EncryptedFile { block_bytes, file },
});

/// Attributes to change; `None` leaves one as it is. As [`weft_vfs::SetAttr`], but with all times
/// given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Change {
    /// Permission bits.
    pub perm: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes.
    pub size_bytes: Option<u64>,
    /// Last access.
    pub atime: Option<Time>,
    /// Last change of content.
    pub mtime: Option<Time>,
    /// Last change.
    pub ctime: Option<Time>,
    /// Clear setuid and setgid.
    pub kill_privileges: bool,
}
wire_struct!(Change { perm, uid, gid, size_bytes, atime, mtime, ctime, kill_privileges });

/// One change, atomic. Field names are those of [`weft_vfs::FileSystem`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the arguments of the calls of FileSystem")]
pub enum Op {
    /// `mknod`, `mkdir`, `symlink`: makes rnode `id`.
    Create { parent: RnodeId, name: Name, id: RnodeId, make: Make, perm: u16, uid: u32, gid: u32 },
    /// `link`.
    Link { id: RnodeId, parent: RnodeId, name: Name },
    /// `unlink`.
    Unlink { parent: RnodeId, name: Name },
    /// `rmdir`.
    Rmdir { parent: RnodeId, name: Name },
    /// `rename`; `flags` are the bits of [`RenameFlags`].
    Rename { parent: RnodeId, name: Name, new_parent: RnodeId, new_name: Name, flags: u32 },
    /// `setattr`.
    SetAttr { id: RnodeId, change: Change },
    /// `setxattr`; its create and replace flags were checked before.
    SetXattr { id: RnodeId, name: Bytes, value: Bytes },
    /// `removexattr`.
    RemoveXattr { id: RnodeId, name: Bytes },
    /// `write`, and every other change of content: these blocks replace those at the same positions
    /// (`None` makes a hole), and the file is at least `end_bytes` long.
    Write { id: RnodeId, blocks: Vec<(u32, Option<Block>)>, end_bytes: u64, kill_privileges: bool },
    /// Not a call: adds the file's present content to its history, if a policy asks for history.
    Keep { id: RnodeId },
}
wire_enum!(Op {
    1 => Create { parent, name, id, make, perm, uid, gid },
    2 => Link { id, parent, name },
    3 => Unlink { parent, name },
    4 => Rmdir { parent, name },
    5 => Rename { parent, name, new_parent, new_name, flags },
    6 => SetAttr { id, change },
    7 => SetXattr { id, name, value },
    8 => RemoveXattr { id, name },
    9 => Write { id, blocks, end_bytes, kill_privileges },
    20 => Keep { id },
});

/// A change in a client's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logged {
    /// Its position in the log.
    pub seq: Seq,
    /// The client's epoch when it was first made; unchanged when it is made again.
    pub epoch: Epoch,
    /// The time it was made, by the client's clock: the times it sets.
    pub stamp: Time,
    /// The change.
    pub op: Op,
    /// The version of each rnode that it changes, as the client had it. The server compares them: a
    /// change that was made on another state is refused.
    pub base: Vec<(RnodeId, Version)>,
}
wire_struct!(Logged { seq, epoch, stamp, op, base });

impl Logged {
    /// Returns the mark that it leaves on the rnodes that it changes.
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark { stamp: self.stamp, epoch: self.epoch, seq: self.seq }
    }
}

/// Returns true if two bases are the same in any order.
pub(crate) fn same_base(a: &[(RnodeId, Version)], b: &[(RnodeId, Version)]) -> bool {
    let sorted = |list: &[(RnodeId, Version)]| {
        let mut list = list.to_vec();
        list.sort();
        list
    };
    sorted(a) == sorted(b)
}

/// The time and version that a change leaves on each rnode that it changes, beside its effects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The time that it sets.
    pub stamp: Time,
    /// The epoch of its client.
    pub epoch: Epoch,
    /// Its position in its client's log; with the epoch it names the state after the change.
    pub seq: Seq,
}

/// The state that a change is carried out on.
pub trait View {
    /// The reason why it stopped: a [`Refusal`], or state that must be fetched first.
    type Stop: From<Refusal>;

    /// Returns an rnode, for reading. [`Refusal::Stale`] if it does not exist.
    ///
    /// # Errors
    /// Those of the view.
    fn rnode(&self, id: RnodeId) -> Result<Rnode, Self::Stop>;

    /// Makes sure that an rnode may be changed.
    ///
    /// # Errors
    /// Those of the view.
    fn claim(&self, id: RnodeId) -> Result<(), Self::Stop>;

    /// Returns the entry `name` of `dir`, if it exists.
    ///
    /// # Errors
    /// Those of the view.
    fn dirent(&self, dir: RnodeId, name: &Name) -> Result<Option<Dirent>, Self::Stop>;

    /// Returns true if directory `dir` is `ancestor` or lies below it.
    ///
    /// # Errors
    /// Those of the view.
    fn is_within(&self, dir: RnodeId, ancestor: RnodeId) -> Result<bool, Self::Stop>;
}

/// The effects of a change: the states after it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Effects {
    /// Each rnode that was made or changed. One with `nlink` 0 has lost its last name.
    pub rnodes: BTreeMap<RnodeId, Rnode>,
    /// Each name that was set or removed.
    pub dirents: BTreeMap<(RnodeId, Name), Option<Dirent>>,
    /// The versions before the change, of the rnodes that existed.
    pub base: Vec<(RnodeId, Version)>,
}

/// Carries out `op`, marked with `mark`, on the state that `view` shows, without changing it.
///
/// # Errors
/// A [`Refusal`] that `FileSystem`'s call would give, or what stops the view.
pub fn execute<V: View>(op: &Op, mark: Mark, view: &V) -> Result<Effects, V::Stop> {
    let mut draft = Draft { view, mark, effects: Effects::default() };
    match op {
        Op::Create { parent, name, id, make, perm, uid, gid } => {
            draft.create(*parent, name, *id, make, *perm, (*uid, *gid))?;
        }
        Op::Link { id, parent, name } => draft.link(*id, *parent, name)?,
        Op::Unlink { parent, name } => draft.remove(*parent, name, false)?,
        Op::Rmdir { parent, name } => draft.remove(*parent, name, true)?,
        Op::Rename { parent, name, new_parent, new_name, flags } => {
            let flags = RenameFlags::from_bits(*flags)
                .filter(|flags| !flags.contains(RenameFlags::WHITEOUT))
                .ok_or(Refusal::Invalid)?;
            draft.rename((*parent, name), (*new_parent, new_name), flags)?;
        }
        Op::SetAttr { id, change } => draft.set_attr(*id, change)?,
        Op::SetXattr { id, name, value } => draft.set_xattr(*id, name, Some(value))?,
        Op::RemoveXattr { id, name } => draft.set_xattr(*id, name, None)?,
        Op::Write { id, blocks, end_bytes, kill_privileges } => {
            draft.write(*id, blocks, *end_bytes, *kill_privileges)?;
        }
        Op::Keep { id } => draft.keep(*id)?,
    }
    Ok(draft.effects)
}

/// The effects computed so far, over the view. An rnode's version grows by one, however often it
/// changes.
struct Draft<'a, V> {
    view: &'a V,
    mark: Mark,
    effects: Effects,
}

impl<V: View> Draft<'_, V> {
    /// Returns an rnode with the effects so far, for reading.
    fn rnode(&self, id: RnodeId) -> Result<Rnode, V::Stop> {
        match self.effects.rnodes.get(&id) {
            Some(rnode) => Ok(rnode.clone()),
            None => self.view.rnode(id),
        }
    }

    /// Returns an rnode for changing; its ctime becomes the time of the change.
    fn change(&mut self, id: RnodeId) -> Result<&mut Rnode, V::Stop> {
        if !self.effects.rnodes.contains_key(&id) {
            self.view.claim(id)?;
            let mut rnode = self.view.rnode(id)?;
            self.effects.base.push((id, rnode.version));
            rnode.version = rnode.version.next(self.mark.epoch, self.mark.seq);
            rnode.ctime = self.mark.stamp;
            self.effects.rnodes.insert(id, rnode);
        }
        Ok(self.effects.rnodes.get_mut(&id).ok_or(Refusal::Stale)?)
    }

    fn directory(&self, id: RnodeId) -> Result<Rnode, V::Stop> {
        let rnode = self.rnode(id)?;
        if rnode.is_dir() { Ok(rnode) } else { Err(Refusal::NotADirectory.into()) }
    }

    fn find(&self, dir: RnodeId, name: &Name) -> Result<Option<Dirent>, V::Stop> {
        match self.effects.dirents.get(&(dir, name.clone())) {
            Some(dirent) => Ok(*dirent),
            None => self.view.dirent(dir, name),
        }
    }

    /// Checks that `name` can be added to the directory: it is not removed, and the name is free.
    fn place(&self, dir: RnodeId, name: &Name) -> Result<Rnode, V::Stop> {
        let rnode = self.directory(dir)?;
        if self.find(dir, name)?.is_some() {
            return Err(Refusal::Exists.into());
        }
        if rnode.nlink == 0 {
            return Err(Refusal::NotFound.into());
        }
        self.check_plain(&rnode)?;
        Ok(rnode)
    }

    /// Refuses changes of a cell mount: it stays empty and in place, as another cell is shown there.
    fn check_plain(&self, rnode: &Rnode) -> Result<(), V::Stop> {
        if rnode.is_cell_mount() { Err(Refusal::CellMount.into()) } else { Ok(()) }
    }

    /// Sets or removes a name, and keeps the directory's account of its entries and times.
    fn set_name(
        &mut self,
        dir: RnodeId,
        name: &Name,
        to: Option<(RnodeId, FileKind)>,
    ) -> Result<(), V::Stop> {
        let had = self.find(dir, name)?;
        let stamp = self.mark.stamp;
        let rnode = self.change(dir)?;
        rnode.mtime = stamp;
        let Body::Directory { entries, last, .. } = &mut rnode.body else {
            return Err(Refusal::NotADirectory.into());
        };
        *entries = *entries + u64::from(to.is_some()) - u64::from(had.is_some());
        let dirent = to.map(|(id, kind)| {
            // A listing in progress sees a name at its old cookie or not at all, never twice.
            last.0 += 1;
            Dirent { id, kind, cookie: *last }
        });
        self.effects.dirents.insert((dir, name.clone()), dirent);
        Ok(())
    }

    fn create(
        &mut self,
        parent: RnodeId,
        name: &Name,
        id: RnodeId,
        make: &Make,
        perm: u16,
        (uid, gid): (u32, u32),
    ) -> Result<(), V::Stop> {
        let dir = self.place(parent, name)?;
        let mut of_dir = None;
        let (body, kind) = match make {
            Make::File { block_bytes } | Make::EncryptedFile { block_bytes, .. } => {
                let file = match make {
                    Make::EncryptedFile { file, .. } => Some(file),
                    _ => None,
                };
                of_dir = encryption::of_new_file(&dir, file)?;
                let sizes = BLOCK_MIN_BYTES..=BLOCK_MAX_BYTES;
                if !block_bytes.is_power_of_two() || !sizes.contains(block_bytes) {
                    return Err(Refusal::Invalid.into());
                }
                let (size_bytes, block_bytes, blocks) = (0, *block_bytes, BlockMap::default());
                let content = Version::default().next(self.mark.epoch, self.mark.seq);
                let kept = Version::default();
                let body = Body::File { size_bytes, block_bytes, blocks, content, kept };
                (body, FileKind::Regular)
            }
            Make::Directory {} => {
                if dir.nlink >= LINKS_MAX {
                    return Err(Refusal::TooManyLinks.into());
                }
                of_dir = encryption::of_new_directory(&dir);
                (Body::Directory { parent, entries: 0, last: Cookie(0) }, FileKind::Directory)
            }
            Make::Symlink { target } => {
                if target.0.is_empty() {
                    return Err(Refusal::Invalid.into());
                }
                if target.0.len() > TARGET_MAX_BYTES {
                    return Err(Refusal::NameTooLong.into());
                }
                (Body::Symlink { target: target.clone() }, FileKind::Symlink)
            }
            Make::Special { kind, rdev } => {
                if matches!(kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink) {
                    return Err(Refusal::Invalid.into());
                }
                (Body::Special { kind: *kind, rdev: *rdev }, *kind)
            }
        };
        let is_dir = kind == FileKind::Directory;
        let setgid = dir.perm & 0o2000;
        let now = self.mark.stamp;
        let rnode = Rnode {
            id,
            version: Version::default().next(self.mark.epoch, self.mark.seq),
            perm: (perm & 0o7777) | if is_dir { setgid } else { 0 },
            nlink: if is_dir { 2 } else { 1 },
            uid,
            gid: if setgid == 0 { gid } else { dir.gid },
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            xattrs: of_dir.into_iter().collect(),
            body,
        };
        self.set_name(parent, name, Some((id, kind)))?;
        self.change(parent)?.nlink += u32::from(is_dir);
        self.effects.rnodes.insert(id, rnode);
        Ok(())
    }

    fn link(&mut self, id: RnodeId, parent: RnodeId, name: &Name) -> Result<(), V::Stop> {
        let rnode = self.rnode(id)?;
        if rnode.is_dir() {
            return Err(Refusal::NotPermitted.into());
        }
        encryption::check_link(&rnode, &self.place(parent, name)?)?;
        if rnode.nlink == 0 {
            return Err(Refusal::NotFound.into());
        }
        if rnode.nlink >= LINKS_MAX {
            return Err(Refusal::TooManyLinks.into());
        }
        self.view.claim(parent)?;
        self.change(id)?.nlink += 1;
        self.set_name(parent, name, Some((id, rnode.kind())))
    }

    fn remove(&mut self, parent: RnodeId, name: &Name, dir: bool) -> Result<(), V::Stop> {
        self.directory(parent)?;
        let dirent = self.find(parent, name)?.ok_or(Refusal::NotFound)?;
        match (dir, dirent.kind == FileKind::Directory) {
            (true, false) => return Err(Refusal::NotADirectory.into()),
            (false, true) => return Err(Refusal::IsADirectory.into()),
            _ => {}
        }
        self.check_empty(dirent.id)?;
        self.view.claim(parent)?;
        self.lose_name(dirent.id)?;
        self.set_name(parent, name, None)?;
        self.change(parent)?.nlink -= u32::from(dir);
        Ok(())
    }

    /// Checks that a directory that is to be removed has no names, and is no cell mount.
    fn check_empty(&self, id: RnodeId) -> Result<(), V::Stop> {
        let rnode = self.rnode(id)?;
        match rnode.body {
            Body::Directory { entries: 1.., .. } => Err(Refusal::NotEmpty.into()),
            _ => self.check_plain(&rnode),
        }
    }

    /// Removes one link of an rnode; a directory has only one name.
    fn lose_name(&mut self, id: RnodeId) -> Result<(), V::Stop> {
        let rnode = self.change(id)?;
        rnode.nlink = if rnode.is_dir() { 0 } else { rnode.nlink.saturating_sub(1) };
        Ok(())
    }

    fn rename(
        &mut self,
        (parent, name): (RnodeId, &Name),
        (new_parent, new_name): (RnodeId, &Name),
        flags: RenameFlags,
    ) -> Result<(), V::Stop> {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if exchange && flags.contains(RenameFlags::NO_REPLACE) {
            return Err(Refusal::Invalid.into());
        }
        let dir = self.directory(parent)?;
        let new_dir = self.directory(new_parent)?;
        self.check_plain(&new_dir)?;
        let from = self.find(parent, name)?.ok_or(Refusal::NotFound)?;
        let to = self.find(new_parent, new_name)?;
        if to.is_some() && flags.contains(RenameFlags::NO_REPLACE) {
            return Err(Refusal::Exists.into());
        }
        if new_dir.nlink == 0 {
            return Err(Refusal::NotFound.into());
        }
        encryption::check_move(&dir, &new_dir)?;
        // Claim all leases before the first question that only the server can answer.
        for id in [parent, new_parent, from.id].into_iter().chain(to.map(|to| to.id)) {
            self.view.claim(id)?;
        }
        let moves = parent != new_parent;
        let from_dir = from.kind == FileKind::Directory;
        if from_dir && moves && self.view.is_within(new_parent, from.id)? {
            return Err(Refusal::Invalid.into());
        }
        if exchange {
            let to = to.ok_or(Refusal::NotFound)?;
            let to_dir = to.kind == FileKind::Directory;
            if to_dir && moves && self.view.is_within(parent, to.id)? {
                return Err(Refusal::Invalid.into());
            }
            if to.id == from.id {
                return Ok(());
            }
            self.set_name(parent, name, Some((to.id, to.kind)))?;
            self.set_name(new_parent, new_name, Some((from.id, from.kind)))?;
            self.moved(from, parent, new_parent)?;
            return self.moved(to, new_parent, parent);
        }
        if let Some(to) = to {
            if to.id == from.id {
                return Ok(());
            }
            match (from_dir, to.kind == FileKind::Directory) {
                (true, false) => return Err(Refusal::NotADirectory.into()),
                (false, true) => return Err(Refusal::IsADirectory.into()),
                _ => self.check_empty(to.id)?,
            }
            self.lose_name(to.id)?;
            self.change(new_parent)?.nlink -= u32::from(from_dir);
        }
        self.set_name(parent, name, None)?;
        self.set_name(new_parent, new_name, Some((from.id, from.kind)))?;
        self.moved(from, parent, new_parent)
    }

    /// Updates the parent and link counts after the rnode of `dirent` moved from `old` to `new`.
    fn moved(&mut self, dirent: Dirent, old: RnodeId, new: RnodeId) -> Result<(), V::Stop> {
        if let Body::Directory { parent, .. } = &mut self.change(dirent.id)?.body {
            *parent = new;
            self.change(old)?.nlink -= 1;
            let dir = self.change(new)?;
            dir.nlink += 1;
            if dir.nlink > LINKS_MAX {
                return Err(Refusal::TooManyLinks.into());
            }
        }
        Ok(())
    }

    fn set_attr(&mut self, id: RnodeId, change: &Change) -> Result<(), V::Stop> {
        let stamp = self.mark.stamp;
        if let Some(size_bytes) = change.size_bytes {
            match self.rnode(id)?.body {
                Body::File { block_bytes, .. } => check_end(size_bytes, block_bytes)?,
                Body::Directory { .. } => return Err(Refusal::IsADirectory.into()),
                Body::Symlink { .. } | Body::Special { .. } => return Err(Refusal::Invalid.into()),
            }
        }
        let rnode = self.change(id)?;
        if let Some(size) = change.size_bytes {
            cut(rnode, size);
            rnode.mtime = stamp;
        }
        rnode.perm = change.perm.map_or(rnode.perm, |perm| perm & 0o7777);
        rnode.uid = change.uid.unwrap_or(rnode.uid);
        rnode.gid = change.gid.unwrap_or(rnode.gid);
        rnode.atime = change.atime.unwrap_or(rnode.atime);
        rnode.mtime = change.mtime.unwrap_or(rnode.mtime);
        rnode.ctime = change.ctime.unwrap_or(rnode.ctime);
        if change.kill_privileges {
            rnode.perm = without_privileges(rnode.perm);
        }
        Ok(())
    }

    fn keep(&mut self, id: RnodeId) -> Result<(), V::Stop> {
        let Body::File { content, kept, .. } = self.rnode(id)?.body else {
            return Err(Refusal::Invalid.into());
        };
        if content == kept {
            return Ok(());
        }
        // Adding to the history does not change the ctime.
        let ctime = self.rnode(id)?.ctime;
        let rnode = self.change(id)?;
        rnode.ctime = ctime;
        if let Body::File { content, kept, .. } = &mut rnode.body {
            *kept = *content;
        }
        Ok(())
    }

    fn set_xattr(
        &mut self,
        id: RnodeId,
        name: &Bytes,
        value: Option<&Bytes>,
    ) -> Result<(), V::Stop> {
        if name.0.is_empty() || name.0.len() > 255 || name.0.contains(&0) {
            return Err(Refusal::Invalid.into());
        }
        let rnode = self.rnode(id)?;
        encryption::check_attribute(&rnode, name, value)?;
        let mut xattrs = rnode.xattrs;
        match value {
            None => {
                xattrs.remove(name).ok_or(Refusal::NoAttribute)?;
            }
            Some(value) => {
                if name.0 == CELL_MOUNT_XATTR {
                    self.check_cell_mount(id, value)?;
                }
                xattrs.insert(name.clone(), value.clone());
                let all: usize = xattrs.iter().map(|(n, v)| n.0.len() + v.0.len()).sum();
                if value.0.len() > XATTR_MAX_BYTES || all > XATTRS_MAX_BYTES {
                    return Err(Refusal::NoSpace.into());
                }
            }
        }
        self.change(id)?.xattrs = xattrs;
        Ok(())
    }

    /// Checks that an rnode can become a cell mount: only an empty directory can, not an encrypted
    /// one, and never the root of a cell.
    fn check_cell_mount(&self, id: RnodeId, value: &Bytes) -> Result<(), V::Stop> {
        if id == RnodeId::ROOT || CellMount::parse(&value.0).is_err() {
            return Err(Refusal::Invalid.into());
        }
        let rnode = self.directory(id)?;
        if encryption::is_encrypted(&rnode) {
            // The content of the other cell would look encrypted.
            return Err(Refusal::Invalid.into());
        }
        match rnode.body {
            Body::Directory { entries: 1.., .. } => Err(Refusal::NotEmpty.into()),
            _ => Ok(()),
        }
    }

    fn write(
        &mut self,
        id: RnodeId,
        changed: &[(u32, Option<Block>)],
        end_bytes: u64,
        kill_privileges: bool,
    ) -> Result<(), V::Stop> {
        let stamp = self.mark.stamp;
        self.view.claim(id)?;
        let block_size = match self.rnode(id)?.body {
            Body::File { block_bytes, .. } => block_bytes,
            Body::Directory { .. } => return Err(Refusal::IsADirectory.into()),
            Body::Symlink { .. } | Body::Special { .. } => return Err(Refusal::Invalid.into()),
        };
        check_end(end_bytes, block_size)?;
        let rnode = self.change(id)?;
        rnode.mtime = stamp;
        if kill_privileges {
            rnode.perm = without_privileges(rnode.perm);
        }
        let Body::File { size_bytes, blocks, content, .. } = &mut rnode.body else {
            return Err(Refusal::Invalid.into());
        };
        *content = rnode.version;
        *size_bytes = (*size_bytes).max(end_bytes);
        for (at, block) in changed {
            let begins = u64::from(*at) * u64::from(block_size);
            let valid = match block {
                // Bytes past the end of the file would appear when it grows.
                Some(b) => {
                    b.len_bytes <= block_size
                        && begins + u64::from(b.len_bytes) <= *size_bytes
                        && b.len_bytes > 0
                }
                None => *at < BLOCKS_MAX,
            };
            if !valid {
                return Err(Refusal::Invalid.into());
            }
            blocks.set(*at, *block);
        }
        Ok(())
    }
}

fn check_end(end_bytes: u64, block_bytes: u32) -> Result<(), Refusal> {
    let longest = u64::from(block_bytes) * u64::from(BLOCKS_MAX);
    if end_bytes > longest { Err(Refusal::TooLarge) } else { Ok(()) }
}

/// Sets a file's length. The part cut off reads as zeroes if the file grows again.
fn cut(rnode: &mut Rnode, new_bytes: u64) {
    let Body::File { size_bytes, block_bytes, blocks, content, .. } = &mut rnode.body else {
        return;
    };
    *content = rnode.version;
    *size_bytes = new_bytes;
    blocks.cut(*block_bytes, new_bytes);
}
