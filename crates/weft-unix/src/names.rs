//! Names: looking up, creating, linking, removing.
//!
//! The order in which changes become durable (soft updates) is stated where each is made: a new
//! name follows its inode, a link count goes up before the name it counts, and down after the
//! name is gone.

use crate::Result;
use crate::attributes::ATTRIBUTE_BLOCKS;
use crate::counts::Removal;
use crate::format::Format;
use crate::front::UnixFs;
use crate::name_changes::Position;
use crate::needs::Need;
use crate::node::{Attribute, Inode, Node, Patches, push_patch};
use crate::state::State;
use weft_patch::{Op, PatchId};
use weft_vfs::{Caller, Entry, Error as FsError, FileKind, Ino, Time, check_name};

/// Blocks that making or removing one name may change: two directories with their maps, a new
/// block with its map and bitmap, inodes, an inode bitmap, descriptors, the superblock.
pub(crate) const NAME_BLOCKS: u32 = 32;
const SETGID: u16 = 0o2000;

/// The inode to create.
pub(crate) enum What<'a> {
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

/// Refuses `.` and `..` as a new name.
pub(crate) fn check_new_name(name: &[u8]) -> Result<()> {
    check_name(name)?;
    if name == b"." || name == b".." { Err(FsError::Exists.into()) } else { Ok(()) }
}

impl<F: Format> State<F> {
    /// Returns the inode that `name` in `parent` names.
    pub(crate) fn find(&mut self, op: &mut Op<'_>, parent: Ino, name: &[u8]) -> Result<Ino> {
        self.load_dir(op, parent)?;
        check_name(name)?;
        let (format, dir) = self.with_node(parent)?;
        if name == b"." {
            return Ok(parent);
        }
        if name == b".." {
            format.load_dir(op, dir)?;
            return Ok(dir.parent);
        }
        Ok(format.find(op, dir, name)?.ok_or(FsError::NotFound)?.ino)
    }

    pub(crate) fn create(
        &mut self,
        op: &mut Op<'_>,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        perm: u16,
        what: &What<'_>,
    ) -> Result<Ino> {
        let kind = what.kind();
        let limits = self.format.limits();
        if let What::Symlink { target } = what {
            if target.is_empty() {
                return Err(FsError::NotFound.into());
            }
            if target.len() > limits.target_max_bytes {
                return Err(FsError::NameTooLong.into());
            }
        }
        self.load_dir(op, parent)?;
        check_new_name(name)?;
        let generation = self.next_generation();
        let (perm, inherited) = self.inherit(op, parent, kind, perm, caller.umask)?;
        let (format, dir) = self.with_node(parent)?;
        if format.find(op, dir, name)?.is_some() {
            return Err(FsError::Exists.into());
        }
        self.check_gains_name(parent)?;
        if kind == FileKind::Directory {
            if self.node(parent)?.links() >= limits.links_max {
                return Err(FsError::TooManyLinks.into());
            }
            self.make_countable(op, parent)?;
        }
        let (format, dir) = self.with_node(parent)?;
        let reserved = format.reserve(op, dir, name, kind)?;
        let position = Position::new(parent, format.position(format.place(&reserved)));

        let mut befores = Patches::new();
        let ino = format.alloc_inode(op, dir, kind, &mut befores)?;
        let rdev = if let What::Node { rdev, .. } = what { *rdev } else { 0 };
        let inode = new_inode(caller, &dir.inode, kind, perm, generation, rdev);
        let mut node = new_node(format, ino, kind, inode, dir);
        let content =
            format.place_attributes(op, &mut node, &inherited).and_then(|()| match what {
                What::Directory => {
                    node.inode.links = 2;
                    node.parent = parent;
                    format.init_dir(op, &mut node, parent)
                }
                What::Symlink { target } => {
                    node.inode.size_bytes = target.len() as u64;
                    format.set_target(op, &mut node, target)
                }
                What::Node { .. } => Ok(()),
            });
        if let Err(e) = content {
            format.abandon_inode(op, &node)?;
            return Err(e);
        }
        // The inode follows its bit in the bitmap (which may over-count, never under-count) and
        // its content, the name follows the inode.
        let mut born_after = Patches::from_vec(std::mem::take(&mut node.born_after));
        befores.iter().for_each(|bit| push_patch(&mut born_after, *bit));
        dir.modified(format);
        if kind == FileKind::Directory {
            dir.inode.links += 1;
        }
        dir.patch = format.write_inode(op, dir, &[])?;
        if kind == FileKind::Directory {
            // `..` of the new directory is a name of its parent, as soon as the inode is there.
            push_patch(&mut born_after, dir.patch);
        }
        node.patch = format.init_inode(op, &mut node, &born_after)?;
        if inherited.is_empty() {
            node.born = node.patch;
        }
        let named = format.fill(op, dir, reserved, ino, &[node.patch])?;
        dir.epoch += 1;
        node.names.give(op, position, named);
        node.parent = parent;
        self.nodes.insert(node);
        Ok(ino)
    }

    /// Makes the inode of a whiteout, a character device 0:0, which gets its name from the caller.
    pub(crate) fn make_whiteout(
        &mut self,
        op: &mut Op<'_>,
        caller: &Caller,
        parent: Ino,
    ) -> Result<Ino> {
        let kind = FileKind::CharDevice;
        let generation = self.next_generation();
        let (format, dir) = self.with_node(parent)?;
        let mut befores = Patches::new();
        let ino = format.alloc_inode(op, dir, kind, &mut befores)?;
        let inode = new_inode(caller, &dir.inode, kind, 0, generation, 0);
        let mut node = new_node(format, ino, kind, inode, dir);
        node.patch = format.init_inode(op, &mut node, &befores)?;
        node.parent = parent;
        self.nodes.insert(node);
        Ok(ino)
    }

    pub(crate) fn link(
        &mut self,
        op: &mut Op<'_>,
        ino: Ino,
        parent: Ino,
        name: &[u8],
    ) -> Result<()> {
        let node = self.load(op, ino)?;
        if node.kind == FileKind::Directory {
            return Err(FsError::NotPermitted.into());
        }
        self.load_dir(op, parent)?;
        check_new_name(name)?;
        let node = self.node(ino)?;
        let (kind, links, unnamed) = (node.kind, node.links(), node.unnamed);
        let (format, dir) = self.with_node(parent)?;
        if format.find(op, dir, name)?.is_some() {
            return Err(FsError::Exists.into());
        }
        self.check_gains_name(parent)?;
        self.check_mutable(ino, false)?;
        if links == 0 && !unnamed {
            return Err(FsError::NotFound.into());
        }
        if links >= self.format.limits().links_max {
            return Err(FsError::TooManyLinks.into());
        }
        self.make_countable(op, ino)?;
        let (format, dir) = self.with_node(parent)?;
        let reserved = format.reserve(op, dir, name, kind)?;
        let position = Position::new(parent, format.position(format.place(&reserved)));
        dir.modified(format);
        dir.epoch += 1;
        let (format, node) = self.with_node(ino)?;
        node.inode.links += 1;
        node.changed(format);
        if unnamed {
            node.unnamed = false;
            self.mark_named(op, ino)?;
        }
        // The count goes up before the name is there.
        let counted = self.write_node(op, ino, &[])?;
        self.write_node(op, parent, &[])?;
        let (format, dir) = self.with_node(parent)?;
        let named = format.fill(op, dir, reserved, ino, &[counted])?;
        self.gave_name(op, ino, position, named)?;
        self.node(ino)?.parent = parent;
        Ok(())
    }

    /// Notes that an inode was given a name. If the volume has it all the time, as the same patch has
    /// taken it away, then the inode counts it once.
    pub(crate) fn gave_name(
        &mut self,
        op: &mut Op<'_>,
        ino: Ino,
        position: Position,
        named: PatchId,
    ) -> Result<()> {
        let node = self.node(ino)?;
        if let Some(cleared) = node.names.give(op, position, named)
            && node.keep_count(position.dir, cleared)
        {
            self.write_node(op, ino, &[])?;
        }
        Ok(())
    }

    /// Removes the name of an inode at `place` of a directory, if the volume has never had it and will
    /// not have it. Returns whether that is so.
    pub(crate) fn take_back(
        &mut self,
        op: &mut Op<'_>,
        dir: Ino,
        place: F::Place,
        ino: Ino,
    ) -> Result<bool> {
        if !self.puts_off() {
            return Ok(false);
        }
        let position = Position::new(dir, self.format.position(place));
        let Some(named) = self.node(ino)?.names.fresh(position) else { return Ok(false) };
        let (format, node) = self.with_node(dir)?;
        if !format.take_back(op, node, place, named)? {
            return Ok(false);
        }
        self.node(ino)?.names.forget(position);
        Ok(true)
    }

    /// Removes a name: of a directory if `directory`, else of anything else.
    pub(crate) fn remove(
        &mut self,
        op: &mut Op<'_>,
        parent: Ino,
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
        let (format, dir) = self.with_node(parent)?;
        let found = format.find(op, dir, name)?.ok_or(FsError::NotFound)?;
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
        let position = Position::new(parent, self.format.position(found.place));
        let mut cleared = PatchId::DURABLE;
        if !befores.is_empty() || !self.take_back(op, parent, found.place, ino)? {
            let (format, dir) = self.with_node(parent)?;
            cleared = format.clear(op, dir, found.place, &befores)?;
            self.node(ino)?.names.remove(op, position, cleared);
        }
        let (format, dir) = self.with_node(parent)?;
        dir.modified(format);
        dir.epoch += 1;
        if !directory {
            self.write_node(op, parent, &[])?;
            self.lost_name(op, ino, parent, cleared)?;
            return Ok(());
        }
        self.lost_subdir(op, ino, parent, cleared)
    }

    /// Lowers the counts after directory `parent` lost the empty directory `ino`, whose name
    /// `cleared` removed.
    pub(crate) fn lost_subdir(
        &mut self,
        op: &mut Op<'_>,
        ino: Ino,
        parent: Ino,
        cleared: PatchId,
    ) -> Result<()> {
        let had_other = self.node(ino)?.has_other_name();
        let born = self.node(ino)?.born;
        // The parent's count goes down after the inode is gone: until then its `..` counts.
        let mut gone = self.lost_name(op, ino, parent, cleared)?;
        if gone.is_with(born) {
            // It never was there.
            gone = PatchId::DURABLE;
        }
        if had_other {
            return self.write_node(op, parent, &[]).map(drop);
        }
        self.lower(op, parent, Removal::of_inode(gone))
    }

    /// Returns the patch that the removal of the empty directory `ino` from `parent` must follow:
    /// on the disk it may hold the only names of inodes that moved out of it. `parent` has to stay
    /// for them, too.
    ///
    /// The names may have arrived in the block of `parent` that names the directory: a write of
    /// their own, so that a torn one cannot bring its removal alone.
    pub(crate) fn out_of(&mut self, op: &mut Op<'_>, ino: Ino, parent: Ino) -> Result<PatchId> {
        let out = self.node(ino)?.moved_out.pending(op);
        self.node(parent)?.moved_out.note(op, &out);
        Ok(op.join(&out)?)
    }

    /// Refuses a directory that holds names.
    pub(crate) fn check_empty(&mut self, op: &mut Op<'_>, ino: Ino) -> Result<()> {
        let (format, node) = self.with_node(ino)?;
        format.load_dir(op, node)?;
        if format.is_empty(op, node)? { Ok(()) } else { Err(FsError::NotEmpty.into()) }
    }

    /// Lowers the count of an inode that lost a name, after `cleared`, which removed it. Returns
    /// the change of the inode: of one that has lost its last name, the one that ended it.
    pub(crate) fn lost_name(
        &mut self,
        op: &mut Op<'_>,
        ino: Ino,
        parent: Ino,
        cleared: PatchId,
    ) -> Result<PatchId> {
        let (format, node) = self.with_node(ino)?;
        node.changed(format);
        let last = match node.kind {
            FileKind::Directory => !node.has_other_name(),
            _ => node.links() <= 1,
        };
        if !last {
            self.lower(op, ino, Removal::of_name(parent, cleared))?;
            return Ok(self.node(ino)?.patch);
        }
        // All other names that it had must be gone, too.
        let mut removals = node.end_links(op);
        push_patch(&mut removals, cleared);
        self.deferred.remove(&ino);
        let unlinked = match removals[..] {
            [] => PatchId::DURABLE,
            [one] => one,
            _ => op.join(&removals)?,
        };
        self.node(ino)?.unlinked = unlinked;
        self.lost_last_name(op, ino)
    }

    /// Makes a regular file without a name.
    pub(crate) fn create_unnamed(
        &mut self,
        op: &mut Op<'_>,
        caller: &Caller,
        parent: Ino,
        perm: u16,
    ) -> Result<Ino> {
        let kind = FileKind::Regular;
        self.load_dir(op, parent)?;
        self.check_gains_name(parent)?;
        let generation = self.next_generation();
        let (perm, inherited): (u16, Vec<Attribute>) =
            self.inherit(op, parent, kind, perm, caller.umask)?;
        let (format, dir) = self.with_node(parent)?;
        let mut befores = Patches::new();
        let ino = format.alloc_inode(op, dir, kind, &mut befores)?;
        let inode = new_inode(caller, &dir.inode, kind, perm, generation, 0);
        let mut node = new_node(format, ino, kind, inode, dir);
        node.inode.links = 0;
        node.unnamed = true;
        if let Err(e) = format.place_attributes(op, &mut node, &inherited) {
            format.abandon_inode(op, &node)?;
            return Err(e);
        }
        befores.extend(std::mem::take(&mut node.born_after));
        self.nodes.insert(node);
        self.mark_nameless(op, ino)?;
        let (format, node) = self.with_node(ino)?;
        node.patch = format.init_inode(op, node, &befores)?;
        Ok(ino)
    }
}

/// Returns the fields of a new inode. The format rounds the times.
fn new_inode(
    caller: &Caller,
    parent: &Inode,
    kind: FileKind,
    perm: u16,
    generation: u32,
    rdev: u32,
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
    let device = matches!(kind, FileKind::BlockDevice | FileKind::CharDevice);
    let now = Time::now();
    Inode {
        mode,
        uid: caller.uid,
        gid,
        links: 1,
        generation,
        atime: now,
        mtime: now,
        ctime: now,
        btime: Some(now),
        rdev: if device { rdev } else { 0 },
        ..Inode::default()
    }
}

/// Returns the node of a new inode in directory `dir`.
fn new_node<F: Format>(
    format: &mut F,
    ino: Ino,
    kind: FileKind,
    mut inode: Inode,
    dir: &Node<F>,
) -> Node<F> {
    let own = format.new_node(&mut inode, kind, dir);
    Node::new(ino, kind, inode, own)
}

impl<F: Format> UnixFs<F> {
    pub(crate) fn do_lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.look(|st, op| {
            let ino = st.find(op, parent, name)?;
            let block_bytes = st.block_bytes;
            let node = st.load_entry(op, parent, ino)?;
            node.refs += 1;
            Ok(node.entry(block_bytes))
        })
    }

    pub(crate) fn do_create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        perm: u16,
        what: &What<'_>,
    ) -> Result<Entry> {
        let needs = [Need::Name(parent, name), Need::NewInode(parent, what.kind())];
        let entry = self.change(NAME_BLOCKS + ATTRIBUTE_BLOCKS, &needs, |st, op| {
            let ino = st.create(op, caller, parent, name, perm, what)?;
            st.refer(ino)
        })?;
        self.sync_names_if_flagged(&[parent], Some(entry.attr.ino))?;
        Ok(entry)
    }

    pub(crate) fn do_create_unnamed(
        &self,
        caller: &Caller,
        parent: Ino,
        perm: u16,
    ) -> Result<Entry> {
        let needs = [Need::NewInode(parent, FileKind::Regular)];
        self.change(NAME_BLOCKS + ATTRIBUTE_BLOCKS, &needs, |st, op| {
            let ino = st.create_unnamed(op, caller, parent, perm)?;
            st.refer(ino)
        })
    }
}

impl<F: Format> State<F> {
    /// Takes a reference on an inode in memory.
    pub(crate) fn refer(&mut self, ino: Ino) -> Result<Entry> {
        let block_bytes = self.block_bytes;
        let node = self.node(ino)?;
        node.refs += 1;
        Ok(node.entry(block_bytes))
    }
}
