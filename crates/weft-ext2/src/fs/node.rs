//! Inodes in memory, and the lists they are on.

use crate::layout::{Inode, ROOT_INO};
use crate::volume::{DirIndex, Patches, Volume};
use crate::{Error, Result};
use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;
use std::collections::VecDeque;
use weft_patch::{Op, PatchId, Policy};
use weft_vfs::{Attr, Entry, Error as FsError, FileKind, Ino, OpenFlags, Time};

/// Inodes without references kept in memory.
const MAX_IDLE: usize = 16_384;

/// An inode in memory.
#[derive(Debug)]
pub(crate) struct Node {
    pub ino: u32,
    pub kind: FileKind,
    pub inode: Inode,
    /// References of the front.
    pub refs: u64,
    /// Open handles.
    pub opens: u32,
    /// Goes up with every change of content or map: a read without lock checks it.
    pub epoch: u64,
    /// The leaf last used: its first file block, and its block.
    pub leaf: Option<(u64, u32)>,
    /// Indirect blocks made by the operation under way, which writes the inode at its end: until
    /// then nothing on the volume leads to them.
    pub unreached: SmallVec<[u32; 4]>,
    /// Where the next block should go; 0 if nothing is known.
    pub goal: u64,
    pub dir: Option<Box<DirIndex>>,
    /// Of a directory: what `..` names. Of another file: the directory where it was seen last.
    pub parent: u32,
    /// The change that took the directory's hash tree away.
    pub unindexed: PatchId,
    /// Changes of the directory's records that span sectors (weft makes none, others do). All
    /// others must follow in a later write: a torn one could bring half of both.
    pub spanning: PatchId,
    /// All changes that gave the directory the blocks it grew by, pointers included.
    pub grown: PatchId,
    /// The last change of the inode.
    pub patch: PatchId,
    /// Changes of names of this inode that may not be durable, each with its directory.
    pub names: SmallVec<[(u32, PatchId); 2]>,
    /// What the first write of a new inode must follow.
    pub born_after: Patches,
    /// The change that removed the last name.
    pub unlinked: PatchId,
    /// Made without a name, and may still get one.
    pub unnamed: bool,
    /// Fields changed that are not worth a write by themselves (access time).
    pub lazy: bool,
    /// On the list of idle inodes.
    idle: bool,
}

impl Node {
    pub fn new(ino: u32, kind: FileKind, inode: Inode) -> Self {
        Self {
            ino,
            kind,
            inode,
            refs: 0,
            opens: 0,
            epoch: 0,
            leaf: None,
            unreached: SmallVec::new(),
            goal: 0,
            dir: None,
            parent: 0,
            unindexed: PatchId::DURABLE,
            spanning: PatchId::DURABLE,
            grown: PatchId::DURABLE,
            patch: PatchId::DURABLE,
            names: SmallVec::new(),
            born_after: Patches::new(),
            unlinked: PatchId::DURABLE,
            unnamed: false,
            lazy: false,
            idle: false,
        }
    }

    pub fn attr(&self, block_bytes: u32) -> Attr {
        Attr {
            ino: Ino(u64::from(self.ino)),
            kind: self.kind,
            perm: self.inode.perm(),
            nlink: u32::from(self.inode.links),
            uid: self.inode.uid,
            gid: self.inode.gid,
            rdev: self.inode.rdev(),
            size_bytes: self.inode.size_bytes,
            blocks_512: u64::from(self.inode.blocks_512),
            io_bytes: block_bytes,
            atime: self.inode.atime,
            mtime: self.inode.mtime,
            ctime: self.inode.ctime,
            btime: self.inode.btime,
        }
    }

    pub fn entry(&self, block_bytes: u32) -> Entry {
        Entry { attr: self.attr(block_bytes), generation: u64::from(self.inode.generation) }
    }

    /// Notes a change of a name, forgetting those that are durable.
    pub fn note_name(&mut self, op: &Op<'_>, dir: u32, patch: PatchId) {
        self.names.retain(|(_, p)| !op.is_durable(*p));
        self.names.push((dir, patch));
    }

    /// Sets mtime and ctime.
    pub fn modified(&mut self) {
        let now = self.inode.storable(Time::now());
        self.inode.mtime = now;
        self.inode.ctime = now;
    }

    /// Sets ctime.
    pub fn changed(&mut self) {
        self.inode.ctime = self.inode.storable(Time::now());
    }

    /// Whether an empty directory counts more than its name and its `.`: a crash while it was
    /// renamed has left it with two names (or just with a count too high). It may lose one of
    /// them, but not its life: the other one would name a free inode.
    pub fn has_other_name(&self) -> bool {
        self.kind == FileKind::Directory && self.inode.links > 2
    }

    fn is_settled(&self, op: &Op<'_>) -> bool {
        op.is_durable(self.patch)
            && op.is_durable(self.grown)
            && op.is_durable(self.unindexed)
            && op.is_durable(self.spanning)
            && self.dir.as_deref().is_none_or(|index| index.is_settled(op))
            && self.names.iter().all(|(_, p)| op.is_durable(*p))
    }
}

/// An open file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpenFile {
    pub ino: u32,
    pub flags: OpenFlags,
}

/// Everything the file system's lock protects.
#[derive(Debug)]
pub(crate) struct State {
    pub vol: Volume,
    pub nodes: HashMap<u32, Node>,
    pub handles: HashMap<u64, OpenFile>,
    pub next_handle: u64,
    idle: VecDeque<u32>,
    /// Inodes with [`Node::lazy`] changes.
    pub lazy: HashSet<u32>,
    /// Inodes without names, references and handles, waiting to be deleted.
    pub doomed: Vec<u32>,
    /// Inodes without names that are not deleted yet.
    pub nameless: HashSet<u32>,
    /// Inodes on the disk's chain of orphans, the head last (with a journal).
    pub orphans: Vec<u32>,
    pub generation: u32,
    /// The volume was clean when it was opened.
    pub was_clean: bool,
    pub policy: Policy,
}

impl State {
    pub fn new(vol: Volume, policy: Policy) -> Self {
        Self {
            vol,
            nodes: HashMap::new(),
            handles: HashMap::new(),
            next_handle: 1,
            idle: VecDeque::new(),
            lazy: HashSet::new(),
            doomed: Vec::new(),
            nameless: HashSet::new(),
            orphans: Vec::new(),
            generation: Time::now().nanos,
            was_clean: false,
            policy,
        }
    }

    /// A generation number for a new inode.
    pub fn next_generation(&mut self) -> u32 {
        self.generation = self.generation.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.generation
    }

    /// The inode `ino`, read if it is not in memory. One without names counts only while it is
    /// in use.
    pub fn load(&mut self, op: &mut Op<'_>, ino: u32) -> Result<&mut Node> {
        if !self.nodes.contains_key(&ino) {
            let first = self.vol.geometry.first_inode;
            if (ino != ROOT_INO && ino < first) || ino > self.vol.geometry.inodes {
                return Err(FsError::Stale(u64::from(ino)).into());
            }
            self.load_any(op, ino)?;
        }
        self.nodes.get_mut(&ino).ok_or_else(|| FsError::Stale(u64::from(ino)).into())
    }

    /// As [`load`](Self::load), reserved inodes too.
    pub fn load_any(&mut self, op: &mut Op<'_>, ino: u32) -> Result<()> {
        let inode = self.vol.read_inode(op, ino)?;
        let place = self.vol.inode_position(ino)?.0.0;
        if inode.links == 0 {
            return Err(FsError::Stale(u64::from(ino)).into());
        }
        let Some(kind) = inode.kind() else {
            let problem = format!("its mode {:#o} names no kind of file", inode.mode);
            return Err(Error::corrupt(format!("inode {ino}"), place, problem));
        };
        if inode.size_bytes > self.vol.geometry.max_file_bytes() {
            let problem = format!("its size is {} bytes", inode.size_bytes);
            return Err(Error::corrupt(format!("inode {ino}"), place, problem));
        }
        self.trim(op)?;
        let mut node = Node::new(ino, kind, inode);
        node.idle = true;
        self.idle.push_back(ino);
        self.nodes.insert(ino, node);
        Ok(())
    }

    /// As [`load`](Self::load), for a directory that still has a name.
    pub fn load_dir(&mut self, op: &mut Op<'_>, ino: u32) -> Result<&mut Node> {
        let node = self.load(op, ino)?;
        if node.kind != FileKind::Directory {
            return Err(FsError::NotADirectory.into());
        }
        if node.inode.links == 0 {
            return Err(FsError::NotFound.into());
        }
        Ok(node)
    }

    /// An inode in memory.
    pub fn node(&mut self, ino: u32) -> Result<&mut Node> {
        self.nodes.get_mut(&ino).ok_or_else(|| FsError::Stale(u64::from(ino)).into())
    }

    /// Notes that an inode lost a reference or a handle.
    pub fn released(&mut self, ino: u32) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        if node.opens > 0 {
            return;
        }
        self.vol.drop_window(ino);
        if node.refs > 0 {
            return;
        }
        if node.inode.links == 0 {
            self.doomed.push(ino);
        } else if !node.idle {
            node.idle = true;
            self.idle.push_back(ino);
        }
    }

    /// Takes back all references and handles: what lived by them only is doomed.
    pub fn give_up_references(&mut self) {
        self.handles.clear();
        let all: Vec<u32> = self.nodes.keys().copied().collect();
        for ino in all {
            if let Some(node) = self.nodes.get_mut(&ino) {
                let used = node.refs > 0 || node.opens > 0;
                node.refs = 0;
                node.opens = 0;
                if used {
                    self.released(ino);
                }
            }
        }
    }

    /// Drops inodes that nobody uses when there are many. What may still have to be synced stays.
    fn trim(&mut self, op: &mut Op<'_>) -> Result<()> {
        let mut tries = if self.idle.len() > MAX_IDLE { 4 } else { 0 };
        while tries > 0 {
            tries -= 1;
            let Some(ino) = self.idle.pop_front() else { break };
            let Some(node) = self.nodes.get_mut(&ino) else { continue };
            node.idle = false;
            if node.refs > 0 || node.opens > 0 || ino == ROOT_INO {
                continue;
            }
            if node.lazy || !node.is_settled(op) || node.inode.links == 0 {
                node.idle = true;
                self.idle.push_back(ino);
                continue;
            }
            self.vol.drop_window(ino);
            self.nodes.remove(&ino);
        }
        Ok(())
    }

    /// Writes an inode, with everything that has changed of it.
    pub fn write_node(
        &mut self,
        op: &mut Op<'_>,
        ino: u32,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let Self { vol, nodes, lazy, .. } = self;
        let Some(node) = nodes.get_mut(&ino) else {
            return Err(FsError::Stale(u64::from(ino)).into());
        };
        let patch = vol.write_inode(op, ino, &node.inode, befores)?;
        node.patch = patch;
        if node.lazy {
            node.lazy = false;
            lazy.remove(&ino);
        }
        Ok(patch)
    }

    /// Writes the inodes whose access times have changed.
    pub fn write_lazy(&mut self, op: &mut Op<'_>, max: usize) -> Result<()> {
        let some: Vec<u32> = self.lazy.iter().take(max).copied().collect();
        for ino in some {
            if self.nodes.contains_key(&ino) {
                self.write_node(op, ino, &[])?;
            }
            self.lazy.remove(&ino);
        }
        Ok(())
    }
}
