//! Everything that the file system's lock protects: inodes in memory, and the lists they are on.

use crate::format::Format;
use crate::node::Node;
use crate::{Error, Result};
use hashbrown::{HashMap, HashSet};
use std::collections::VecDeque;
use weft_patch::{Op, PatchId, Policy};
use weft_vfs::{Error as FsError, FileKind, HandleTable, Ino, OpenFlags, Time};

/// Inodes without references kept in memory.
const MAX_IDLE: usize = 16_384;

/// Inodes with access times to write that one operation writes.
pub(crate) const LAZY_BATCH: usize = 32;

/// The inodes in memory.
pub type Nodes<F> = HashMap<Ino, Node<F>>;

/// An open file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpenFile {
    pub ino: Ino,
    pub flags: OpenFlags,
}

/// The state that a change works on: the format, and the inodes in memory.
#[derive(Debug)]
pub struct State<F: Format> {
    /// The format's own state.
    pub format: F,
    /// The inodes in memory.
    pub nodes: Nodes<F>,
    pub(crate) handles: HandleTable<OpenFile>,
    idle: VecDeque<Ino>,
    /// Inodes with [`Node::lazy`] changes.
    pub(crate) lazy: HashSet<Ino>,
    /// Inodes without names, references and handles, waiting to be deleted.
    pub(crate) doomed: Vec<Ino>,
    /// Inodes without names that are not deleted yet.
    pub(crate) nameless: HashSet<Ino>,
    /// Changes that were made: by it a thread that finds no space sees that others took some.
    pub(crate) changes: u64,
    generation: u32,
    pub(crate) policy: Policy,
    pub(crate) root: Ino,
    pub(crate) block_bytes: u32,
    pub(crate) file_max_bytes: u64,
}

impl<F: Format> State<F> {
    pub(crate) fn new(format: F, policy: Policy) -> Self {
        let limits = format.limits();
        Self {
            format,
            nodes: HashMap::new(),
            handles: HandleTable::default(),
            idle: VecDeque::new(),
            lazy: HashSet::new(),
            doomed: Vec::new(),
            nameless: HashSet::new(),
            changes: 0,
            generation: Time::now().nanos,
            policy,
            root: limits.root,
            block_bytes: limits.block_bytes,
            file_max_bytes: limits.file_max_bytes,
        }
    }

    /// Returns a generation number for a new inode.
    pub(crate) fn next_generation(&mut self) -> u32 {
        self.generation = self.generation.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.generation
    }

    /// Returns the inode `ino`, and reads it if it is not in memory. An inode without names is
    /// found only while it is in memory.
    ///
    /// # Errors
    /// [`FsError::Stale`], [`Error::Corrupt`].
    pub fn load(&mut self, op: &mut Op<'_>, ino: Ino) -> Result<&mut Node<F>> {
        if !self.nodes.contains_key(&ino) {
            if !self.format.can_hold(ino) {
                return Err(FsError::Stale(ino.0).into());
            }
            let (inode, own) = self.format.read_inode(op, ino)?;
            let Some(kind) = inode.kind().filter(|_| inode.links > 0) else {
                return Err(FsError::Stale(ino.0).into());
            };
            self.trim(op);
            let mut node = Node::new(ino, kind, inode, own);
            node.idle = true;
            self.idle.push_back(ino);
            self.nodes.insert(ino, node);
        }
        self.node(ino)
    }

    /// Returns the inode `ino` as [`load`](Self::load) does, if it is a directory that has a name.
    pub(crate) fn load_dir(&mut self, op: &mut Op<'_>, ino: Ino) -> Result<&mut Node<F>> {
        let node = self.load(op, ino)?;
        if node.kind != FileKind::Directory {
            return Err(FsError::NotADirectory.into());
        }
        if node.inode.links == 0 {
            return Err(FsError::NotFound.into());
        }
        Ok(node)
    }

    /// Loads the inode that an entry of `dir` names. That there is no such inode is damage.
    pub(crate) fn load_entry(
        &mut self,
        op: &mut Op<'_>,
        dir: Ino,
        ino: Ino,
    ) -> Result<&mut Node<F>> {
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
                format!("directory {}", dir.0),
                0,
                format!("an entry names inode {}, which is free or reserved", ino.0),
            )),
            Err(e) => Err(e),
        }
    }

    /// Returns an inode in memory.
    ///
    /// # Errors
    /// [`FsError::Stale`] if it is not in memory.
    pub fn node(&mut self, ino: Ino) -> Result<&mut Node<F>> {
        self.nodes.get_mut(&ino).ok_or_else(|| FsError::Stale(ino.0).into())
    }

    /// Returns the format, and an inode in memory.
    ///
    /// # Errors
    /// [`FsError::Stale`] if the inode is not in memory.
    pub fn with_node(&mut self, ino: Ino) -> Result<(&mut F, &mut Node<F>)> {
        let node = self.nodes.get_mut(&ino).ok_or(FsError::Stale(ino.0))?;
        Ok((&mut self.format, node))
    }

    /// Notes that an inode lost a reference or a handle.
    pub(crate) fn released(&mut self, ino: Ino) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        if node.opens > 0 {
            return;
        }
        self.format.release_reserved(ino);
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

    /// Releases all references and handles: the inodes that only these kept alive will be deleted.
    pub(crate) fn give_up_references(&mut self) {
        self.handles.clear();
        let all: Vec<Ino> = self.nodes.keys().copied().collect();
        for ino in all {
            if let Some(node) = self.nodes.get_mut(&ino) {
                let used = node.is_used();
                node.refs = 0;
                node.opens = 0;
                if used {
                    self.released(ino);
                }
            }
        }
    }

    /// Drops unused inodes from memory when there are many. Keeps those that a sync may still need.
    fn trim(&mut self, op: &Op<'_>) {
        let mut tries = if self.idle.len() > MAX_IDLE { 4 } else { 0 };
        while tries > 0 {
            tries -= 1;
            let Some(ino) = self.idle.pop_front() else { break };
            let Some(node) = self.nodes.get_mut(&ino) else { continue };
            node.idle = false;
            if node.is_used() || ino == self.root {
                continue;
            }
            if node.lazy || !node.is_settled(op, &self.format) || node.inode.links == 0 {
                node.idle = true;
                self.idle.push_back(ino);
                continue;
            }
            self.format.release_reserved(ino);
            self.nodes.remove(&ino);
        }
    }

    /// Writes an inode, with everything that has changed of it.
    ///
    /// # Errors
    /// [`FsError::Stale`] if it is not in memory, and those of the engine.
    pub fn write_node(
        &mut self,
        op: &mut Op<'_>,
        ino: Ino,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let (format, node) = self.with_node(ino)?;
        let patch = format.write_inode(op, node, befores)?;
        node.patch = patch;
        if node.lazy {
            node.lazy = false;
            self.lazy.remove(&ino);
        }
        Ok(patch)
    }

    /// Writes the inodes whose access times have changed.
    pub(crate) fn write_lazy(&mut self, op: &mut Op<'_>) -> Result<()> {
        let some: Vec<Ino> = self.lazy.iter().take(LAZY_BATCH).copied().collect();
        for ino in some {
            if self.nodes.contains_key(&ino) {
                self.write_node(op, ino, &[])?;
            }
            self.lazy.remove(&ino);
        }
        Ok(())
    }
}
