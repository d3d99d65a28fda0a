//! Names: looking up, creating, linking, removing.
//!
//! The order in which changes become durable (soft updates) is stated where each is made: a new
//! name follows its inode, a link count goes up before the name it counts, and down after the
//! name is gone.

use super::xattr::XATTR_BLOCKS;
use super::{Ext2, Node, State, plain};
use crate::layout::{FAST_SYMLINK_MAX_BYTES, Inode, LINK_MAX, file_type_code};
use crate::volume::{Patches, push_patch};
use crate::{Error, Result};
use weft_patch::{BlockNr, Op, Owner, PatchId};
use weft_vfs::{Caller, Entry, Error as FsError, FileKind, Ino, Time, check_name};

/// Blocks that making or removing one name may change: two directories with their maps, a new
/// block with its map and bitmap, inodes, an inode bitmap, descriptors, the superblock.
pub(super) const NAME_BLOCKS: u32 = 32;
const SETGID: u16 = 0o2000;

/// What is to be created.
pub(super) enum What<'a> {
    /// A regular file, FIFO, socket or device node.
    Node {
        kind: FileKind,
        rdev: u32,
    },
    Directory,
    Symlink {
        target: &'a [u8],
    },
}

impl What<'_> {
    fn kind(&self) -> FileKind {
        match self {
            Self::Node { kind, .. } => *kind,
            Self::Directory => FileKind::Directory,
            Self::Symlink { .. } => FileKind::Symlink,
        }
    }
}

/// Refuses `.` and `..` where a new name is asked for.
pub(super) fn check_new_name(name: &[u8]) -> Result<()> {
    check_name(name)?;
    if name == b"." || name == b".." { Err(FsError::Exists.into()) } else { Ok(()) }
}

impl State {
    /// The inode that `name` in `parent` names.
    pub(super) fn find(&mut self, op: &mut Op<'_>, parent: u32, name: &[u8]) -> Result<u32> {
        self.load_dir(op, parent)?;
        check_name(name)?;
        let Self { vol, nodes, .. } = self;
        let Some(dir) = nodes.get_mut(&parent) else {
            return Err(FsError::Stale(u64::from(parent)).into());
        };
        if name == b"." {
            return Ok(parent);
        }
        if name == b".." {
            vol.index_dir(op, dir)?;
            return Ok(dir.parent);
        }
        let found = vol.find_entry(op, dir, name)?.ok_or(FsError::NotFound)?;
        Ok(found.ino)
    }

    /// Loads what an entry of `dir` names: that there is such an inode is for the volume to keep.
    pub(super) fn load_entry(&mut self, op: &mut Op<'_>, dir: u32, ino: u32) -> Result<&mut Node> {
        match self.load(op, ino) {
            Ok(_) => {
                let node = self.node(ino)?;
                // `.` and `..` are entries, too; a directory's parent is what its own `..` says.
                if node.kind != FileKind::Directory {
                    node.parent = dir;
                }
                Ok(node)
            }
            Err(Error::Vfs(FsError::Stale(_))) => Err(Error::corrupt(
                format!("directory {dir}"),
                0,
                format!("an entry names inode {ino}, which is free or reserved"),
            )),
            Err(e) => Err(e),
        }
    }

    pub(super) fn create(
        &mut self,
        op: &mut Op<'_>,
        caller: &Caller,
        parent: u32,
        name: &[u8],
        perm: u16,
        what: &What<'_>,
    ) -> Result<u32> {
        let kind = what.kind();
        let block_bytes = self.vol.block_bytes();
        if let What::Symlink { target } = what {
            if target.is_empty() {
                return Err(FsError::NotFound.into());
            }
            if target.len() >= block_bytes.min(4096) {
                return Err(FsError::NameTooLong.into());
            }
        }
        self.load_dir(op, parent)?;
        check_new_name(name)?;
        let generation = self.next_generation();
        let (perm, mut inherited) = self.inherit(op, parent, kind, perm, caller.umask)?;
        let Self { vol, nodes, .. } = self;
        let dir = nodes.get_mut(&parent).ok_or(FsError::Stale(u64::from(parent)))?;
        if vol.find_entry(op, dir, name)?.is_some() {
            return Err(FsError::Exists.into());
        }
        self.check_gains_name(parent)?;
        let Self { vol, nodes, .. } = self;
        let dir = nodes.get_mut(&parent).ok_or(FsError::Stale(u64::from(parent)))?;
        if kind == FileKind::Directory && dir.inode.links >= LINK_MAX {
            return Err(FsError::TooManyLinks.into());
        }
        let file_type = if vol.has_filetype() { file_type_code(kind) } else { 0 };
        let reserved = vol.reserve_entry(op, dir, name, file_type)?;

        let mut befores = Patches::new();
        let ino = vol.alloc_inode(op, parent, dir.inode.flags, kind, &mut befores)?;
        let inode = new_inode(vol.new_extra_bytes(), caller, &dir.inode, kind, perm, generation);
        let mut node = Node::new(ino, kind, inode);
        let content = inherited.place(vol, op, &mut node).and_then(|()| match what {
            What::Directory => {
                node.inode.links = 2;
                vol.init_dir(op, &mut node, parent)
            }
            What::Symlink { target } => Self::init_symlink(vol, op, &mut node, target),
            What::Node { rdev, .. } => {
                if matches!(kind, FileKind::BlockDevice | FileKind::CharDevice) {
                    node.inode.set_rdev(*rdev);
                }
                Ok(())
            }
        });
        if let Err(e) = content {
            // Nothing names the inode, nor did anything ever.
            if node.inode.file_acl != 0 {
                vol.release_xattr_block(op, node.inode.file_acl, PatchId::DURABLE)?;
            }
            vol.free_inode(op, ino, Some(kind), PatchId::DURABLE)?;
            return Err(e);
        }
        // The inode follows its bit in the bitmap (which may over-count, never under-count) and
        // its content, the name follows the inode.
        let mut born_after = std::mem::take(&mut node.born_after);
        befores.iter().for_each(|bit| push_patch(&mut born_after, *bit));
        dir.modified();
        if kind == FileKind::Directory {
            dir.inode.links += 1;
        }
        dir.patch = vol.write_inode(op, parent, &dir.inode, &[])?;
        if kind == FileKind::Directory {
            // `..` of the new directory is a name of its parent, as soon as the inode is there.
            push_patch(&mut born_after, dir.patch);
        }
        node.patch = inherited.init_inode(vol, op, &node, &born_after)?;
        let mut befores = Patches::from_slice(&[node.patch]);
        let named = vol.fill_entry(op, dir, reserved, ino, &mut befores)?;
        dir.epoch += 1;
        node.names.push((parent, named));
        node.parent = parent;
        nodes.insert(ino, node);
        Ok(ino)
    }

    fn init_symlink(
        vol: &mut crate::volume::Volume,
        op: &mut Op<'_>,
        node: &mut Node,
        target: &[u8],
    ) -> Result<()> {
        if target.len() <= FAST_SYMLINK_MAX_BYTES {
            node.inode.set_fast_symlink(target);
            return Ok(());
        }
        let mut patches = Patches::new();
        let goal = vol.goal(node);
        let (nr, _) = vol.alloc_blocks(op, node.ino, goal, 1, 0, &mut patches)?;
        let mut block = vec![0; vol.block_bytes()];
        if let Some(to) = block.get_mut(..target.len()) {
            to.copy_from_slice(target);
        }
        // Links are metadata: without their target they are damaged.
        let init = op.init(BlockNr(u64::from(nr)), &block, &[])?;
        op.own(BlockNr(u64::from(nr)), Owner(u64::from(node.ino)));
        push_patch(&mut patches, init);
        node.inode.block[0] = nr;
        node.inode.size_bytes = target.len() as u64;
        vol.count_blocks(node, 1)?;
        node.born_after = patches;
        Ok(())
    }

    pub(super) fn link(
        &mut self,
        op: &mut Op<'_>,
        ino: u32,
        parent: u32,
        name: &[u8],
    ) -> Result<()> {
        let node = self.load(op, ino)?;
        if node.kind == FileKind::Directory {
            return Err(FsError::NotPermitted.into());
        }
        self.load_dir(op, parent)?;
        check_new_name(name)?;
        let node = self.node(ino)?;
        let (kind, links, unnamed) = (node.kind, node.inode.links, node.unnamed);
        let Self { vol, nodes, .. } = self;
        let dir = nodes.get_mut(&parent).ok_or(FsError::Stale(u64::from(parent)))?;
        if vol.find_entry(op, dir, name)?.is_some() {
            return Err(FsError::Exists.into());
        }
        self.check_gains_name(parent)?;
        self.check_mutable(ino, false)?;
        if links == 0 && !unnamed {
            return Err(FsError::NotFound.into());
        }
        if links >= LINK_MAX {
            return Err(FsError::TooManyLinks.into());
        }
        let Self { vol, nodes, .. } = self;
        let dir = nodes.get_mut(&parent).ok_or(FsError::Stale(u64::from(parent)))?;
        let file_type = if vol.has_filetype() { file_type_code(kind) } else { 0 };
        let reserved = vol.reserve_entry(op, dir, name, file_type)?;
        dir.modified();
        dir.epoch += 1;
        if unnamed {
            self.end_unnamed(op, ino)?;
        }
        let node = self.node(ino)?;
        node.inode.links += 1;
        node.changed();
        // The count goes up before the name is there.
        let counted = self.write_node(op, ino, &[])?;
        self.write_node(op, parent, &[])?;
        let Self { vol, nodes, .. } = self;
        let dir = nodes.get_mut(&parent).ok_or(FsError::Stale(u64::from(parent)))?;
        let mut befores = Patches::from_slice(&[counted]);
        let named = vol.fill_entry(op, dir, reserved, ino, &mut befores)?;
        let node = self.node(ino)?;
        node.note_name(op, parent, named);
        node.parent = parent;
        Ok(())
    }

    /// Removes a name: of a directory if `directory`, else of anything else. Returns the inode.
    pub(super) fn remove(
        &mut self,
        op: &mut Op<'_>,
        parent: u32,
        name: &[u8],
        directory: bool,
    ) -> Result<()> {
        match name {
            b"." if directory => return Err(FsError::Invalid("`.` cannot be removed").into()),
            b".." if directory => return Err(FsError::NotEmpty.into()),
            _ => {}
        }
        self.load_dir(op, parent)?;
        check_name(name)?;
        if name == b"." || name == b".." {
            return Err(FsError::IsADirectory.into());
        }
        let Self { vol, nodes, .. } = self;
        let dir = nodes.get_mut(&parent).ok_or(FsError::Stale(u64::from(parent)))?;
        let found = vol.find_entry(op, dir, name)?.ok_or(FsError::NotFound)?;
        let ino = found.ino;
        let kind = self.load_entry(op, parent, ino)?.kind;
        self.check_loses_name(parent, ino)?;
        match (directory, kind == FileKind::Directory) {
            (true, false) => return Err(FsError::NotADirectory.into()),
            (false, true) => return Err(FsError::IsADirectory.into()),
            _ => {}
        }
        let mut befores = Patches::new();
        if directory {
            self.check_empty(op, ino)?;
            push_patch(&mut befores, self.out_of(op, ino, parent)?);
        }
        let Self { vol, nodes, .. } = self;
        let dir = nodes.get_mut(&parent).ok_or(FsError::Stale(u64::from(parent)))?;
        let cleared = vol.clear_entry(op, dir, found.place, &befores)?;
        dir.modified();
        dir.epoch += 1;
        if !directory {
            self.write_node(op, parent, &[])?;
            self.lost_name(op, ino, parent, cleared)?;
            return Ok(());
        }
        self.lost_subdir(op, ino, parent, cleared)
    }

    /// Directory `parent` lost the empty directory `ino`, whose name `cleared` removed.
    pub(super) fn lost_subdir(
        &mut self,
        op: &mut Op<'_>,
        ino: u32,
        parent: u32,
        cleared: PatchId,
    ) -> Result<()> {
        let had_other = self.node(ino)?.has_other_name();
        // The parent's count goes down after the inode is gone: until then its `..` counts.
        let gone = self.lost_name(op, ino, parent, cleared)?;
        if !had_other {
            let dir = self.node(parent)?;
            dir.inode.links = dir.inode.links.saturating_sub(1).max(2);
        }
        self.write_node(op, parent, &[gone])?;
        Ok(())
    }

    /// What the removal of the empty directory `ino` from `parent` must follow: on the disk it may
    /// hold the only names of what moved out of it. `parent` has to stay for that, too.
    ///
    /// The names may have arrived in the block of `parent` that names the directory: a write of
    /// their own, so that a torn one cannot bring its removal alone.
    pub(super) fn out_of(&mut self, op: &mut Op<'_>, ino: u32, parent: u32) -> Result<PatchId> {
        let index = self.node(ino)?.dir.as_deref();
        let out = index.map_or(&[][..], |index| index.moved_out());
        let out: Vec<_> = out.iter().copied().filter(|patch| !op.is_durable(*patch)).collect();
        self.note_moved_out(op, parent, &out)?;
        Ok(op.join(&out)?)
    }

    /// Something moved out of directory `dir` to where it is when `arrived` is durable.
    pub(super) fn note_moved_out(
        &mut self,
        op: &Op<'_>,
        dir: u32,
        arrived: &[PatchId],
    ) -> Result<()> {
        if let Some(index) = self.node(dir)?.dir.as_deref_mut() {
            index.note_moved_out(op, arrived);
        }
        Ok(())
    }

    /// Refuses a directory that holds names.
    pub(super) fn check_empty(&mut self, op: &mut Op<'_>, ino: u32) -> Result<()> {
        let Self { vol, nodes, .. } = self;
        let node = nodes.get_mut(&ino).ok_or(FsError::Stale(u64::from(ino)))?;
        vol.index_dir(op, node)?;
        if node.dir.as_deref().is_some_and(crate::volume::DirIndex::is_empty) {
            Ok(())
        } else {
            Err(FsError::NotEmpty.into())
        }
    }

    /// An inode lost a name, which `cleared` removed: its count goes down after that. Returns the
    /// change of the inode.
    pub(super) fn lost_name(
        &mut self,
        op: &mut Op<'_>,
        ino: u32,
        parent: u32,
        cleared: PatchId,
    ) -> Result<PatchId> {
        let node = self.node(ino)?;
        node.changed();
        node.note_name(op, parent, cleared);
        node.inode.links = match node.kind {
            FileKind::Directory if !node.has_other_name() => 0,
            _ => node.inode.links.saturating_sub(1),
        };
        if node.inode.links > 0 {
            return self.write_node(op, ino, &[cleared]);
        }
        node.unlinked = cleared;
        self.lost_last_name(op, ino)
    }
}

pub(super) fn new_inode(
    extra_bytes: u16,
    caller: &Caller,
    parent: &Inode,
    kind: FileKind,
    perm: u16,
    generation: u32,
) -> Inode {
    let mut mode = u16::try_from(kind.mode_bits()).unwrap_or(0) | (perm & 0o7777);
    let mut gid = caller.gid;
    if parent.mode & SETGID != 0 {
        gid = parent.gid;
        let member = caller.uid == 0 || caller.gid == gid || caller.groups.contains(&gid);
        if kind == FileKind::Directory {
            mode |= SETGID;
        } else if mode & (SETGID | 0o010) == SETGID | 0o010 && !member {
            mode &= !SETGID;
        }
    }
    let mut inode = Inode {
        mode,
        uid: caller.uid,
        gid,
        links: 1,
        flags: parent.inherited_flags(kind),
        generation,
        extra_bytes,
        ..Inode::default()
    };
    let now = inode.storable(Time::now());
    inode.atime = now;
    inode.mtime = now;
    inode.ctime = now;
    inode.btime = (extra_bytes >= 24).then_some(now);
    inode
}

impl Ext2 {
    pub(super) fn do_lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        let parent = plain(parent)?;
        self.look(|st, op| {
            let ino = st.find(op, parent, name)?;
            let node = st.load_entry(op, parent, ino)?;
            node.refs += 1;
            Ok(node.entry(self.block_bytes))
        })
    }

    pub(super) fn do_create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        perm: u16,
        what: &What<'_>,
    ) -> Result<Entry> {
        let parent = plain(parent)?;
        let entry = self.change(NAME_BLOCKS + XATTR_BLOCKS, |st, op| {
            let ino = st.create(op, caller, parent, name, perm, what)?;
            let node = st.node(ino)?;
            node.refs += 1;
            Ok(node.entry(self.block_bytes))
        })?;
        self.sync_names_if_flagged(&[parent], Some(plain(entry.attr.ino)?))?;
        Ok(entry)
    }
}
