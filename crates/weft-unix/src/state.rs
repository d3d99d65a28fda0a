//! Everything that the file system's lock protects: inodes in memory, and the lists they are on.

use crate::format::Format;
use crate::node::Node;
use crate::nodes::Nodes;
use crate::{Error, Result};
use hashbrown::HashSet;
use smallvec::SmallVec;
use weft_patch::{Op, PatchId, Policy};
use weft_vfs::{Error as FsError, FileKind, HandleTable, Ino, OpenFlags, Time};

/// Inodes in memory by default: some 4 MiB. A larger number would save reading inodes from the engine's
/// cache, which takes much less time than a call of the kernel.
const MAX_NODES: usize = 8192;
/// Inodes that may be dropped at the end of an operation, beside those that take the place of others.
const TRIM_MORE: usize = 4;
/// The same at a time when there is nothing to write: a millisecond of work.
const TIDY_MORE: usize = 8192;

/// Inodes with access times to write that one operation writes.
pub(crate) const LAZY_BATCH: usize = 32;

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
    /// Inodes with lowerings of their counts that are put off.
    pub(crate) deferred: HashSet<Ino>,
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
            nodes: Nodes::new(MAX_NODES),
            handles: HandleTable::default(),
            deferred: HashSet::new(),
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
        if !self.nodes.touch(ino) {
            if !self.format.can_hold(ino) {
                return Err(FsError::Stale(ino.0).into());
            }
            let (inode, own) = self.format.read_inode(op, ino)?;
            let Some(kind) = inode.kind().filter(|_| inode.links > 0) else {
                return Err(FsError::Stale(ino.0).into());
            };
            self.nodes.insert(Node::new(ino, kind, inode, own));
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
        self.nodes.get_mut(ino).ok_or_else(|| FsError::Stale(ino.0).into())
    }

    /// Returns the format, and an inode in memory.
    ///
    /// # Errors
    /// [`FsError::Stale`] if the inode is not in memory.
    pub fn with_node(&mut self, ino: Ino) -> Result<(&mut F, &mut Node<F>)> {
        let node = self.nodes.get_mut(ino).ok_or(FsError::Stale(ino.0))?;
        Ok((&mut self.format, node))
    }

    /// Notes that an inode lost a reference or a handle.
    pub(crate) fn released(&mut self, ino: Ino) {
        let Some(node) = self.nodes.get_mut(ino) else { return };
        if node.opens > 0 {
            return;
        }
        self.format.release_reserved(ino);
        if node.refs > 0 {
            return;
        }
        if node.inode.links == 0 {
            self.doomed.push(ino);
        }
    }

    /// Releases all references and handles: the inodes that only these kept alive will be deleted.
    pub(crate) fn give_up_references(&mut self) {
        self.handles.clear();
        for ino in self.nodes.forget_all() {
            self.released(ino);
        }
    }

    /// Drops inodes from memory if there are too many: at the end of each operation.
    pub(crate) fn trim(&mut self, op: &Op<'_>) {
        self.trim_more(op, TRIM_MORE);
    }

    /// Does as [`trim`](Self::trim) and looks at `more` inodes besides.
    pub(crate) fn trim_more(&mut self, op: &Op<'_>, more: usize) {
        let Self { nodes, format, root, .. } = self;
        let mut dropped = SmallVec::<[Ino; 16]>::new();
        nodes.trim(
            more,
            |node| node.ino != *root && node.is_settled(op, format),
            |ino| dropped.push(ino),
        );
        for ino in dropped {
            self.format.release_reserved(ino);
        }
    }

    /// Drops from memory what is needed no more, while the engine has nothing to write. Returns about
    /// how many bytes that was.
    pub(crate) fn tidy(&mut self, op: &mut Op<'_>) -> usize {
        let before = self.nodes.len();
        if self.format.has_pending() {
            self.format.settle(op);
        }
        // An error is met again by the next sync.
        let _ = self.settle_durable(op);
        self.nodes.hurry();
        self.trim_more(op, TIDY_MORE);
        self.nodes.shrink();
        (before - self.nodes.len()) * size_of::<Node<F>>()
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
        self.lower_durable(op, ino);
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
            if self.nodes.get(ino).is_some() {
                self.write_node(op, ino, &[])?;
            }
            self.lazy.remove(&ino);
        }
        Ok(())
    }
}
