//! The blocks that a change will read: they are brought into memory before it begins.
//!
//! A change that has begun cannot be taken back, and reads what is missing under the engine's lock,
//! while all others wait. So the front states the needs of a change; they are read before it begins,
//! when it can still be tried again (see [`Engine::begin_after`](weft_patch::Engine::begin_after)).
//! A need that is not stated costs time, not correctness.

use crate::Result;
use crate::format::Format;
use crate::state::{LAZY_BATCH, State};
use weft_patch::Op;
use weft_vfs::{FileKind, Ino};

/// Something that a change reads, which is brought into memory before it begins.
#[derive(Debug, Clone, Copy)]
pub enum Need<'a> {
    /// An inode, to be changed.
    Inode(Ino),
    /// A name in a directory, and the inode that it names.
    Name(Ino, &'a [u8]),
    /// A name that is taken away from its inode, which may end with it.
    Removal(Ino, &'a [u8]),
    /// The directories above a directory that gets a name moved into it.
    Way(Ino),
    /// The place of a new inode of this kind in a directory.
    NewInode(Ino, FileKind),
    /// The map of a file from the first byte to the one behind the last, and the blocks of which
    /// only a part is in between.
    Range(Ino, u64, u64),
    /// The inodes whose access times are written next, and the summary of the volume.
    Lazy,
    /// The map of a file from this length in bytes on, and those of free space that it gives back.
    Cut(Ino, u64),
}

impl<F: Format> State<F> {
    /// Looks at what a change needs. Errors are left to the change, which meets them again.
    pub(crate) fn bring(&mut self, op: &mut Op<'_>, needs: &[Need<'_>]) {
        for &need in needs {
            let _ = self.bring_one(op, need);
        }
    }

    fn bring_one(&mut self, op: &mut Op<'_>, need: Need<'_>) -> Result<()> {
        match need {
            Need::Inode(ino) => self.bring_inode(op, ino),
            Need::Name(dir, name) => self.bring_name(op, dir, name).map(|_| ()),
            Need::Removal(dir, name) => {
                let ino = self.bring_name(op, dir, name)?;
                let node = self.node(ino)?;
                let ends = node.links() <= 1 && !node.is_used();
                if ends { self.bring_one(op, Need::Cut(ino, 0)) } else { Ok(()) }
            }
            Need::Way(dir) => {
                self.way_to(op, dir);
                Ok(())
            }
            Need::NewInode(dir, kind) => {
                self.load_dir(op, dir)?;
                let (format, dir) = self.with_node(dir)?;
                format.want_new_inode(op, dir, kind)
            }
            Need::Range(ino, from, to) => {
                self.bring_inode(op, ino)?;
                let block_bytes = u64::from(self.block_bytes);
                let (format, node) = self.with_node(ino)?;
                for (at, edge) in [(from, from), (to.saturating_sub(1), to)] {
                    let block = format.map(op, node, at / block_bytes, 1)?.start;
                    if !edge.is_multiple_of(block_bytes) {
                        op.want(block)?;
                    }
                }
                Ok(())
            }
            Need::Lazy => {
                let some: Vec<Ino> = self.lazy.iter().take(LAZY_BATCH).copied().collect();
                for ino in some {
                    let _ = self.bring_inode(op, ino);
                }
                self.format.want_summary(op)
            }
            Need::Cut(ino, len_bytes) => {
                self.bring_one(op, Need::Range(ino, len_bytes, len_bytes))?;
                let keep = len_bytes.div_ceil(u64::from(self.block_bytes));
                let (format, node) = self.with_node(ino)?;
                format.want_cut(op, node, keep)
            }
        }
    }

    /// Brings a name with its directory and its inode, and returns the inode.
    fn bring_name(&mut self, op: &mut Op<'_>, dir: Ino, name: &[u8]) -> Result<Ino> {
        self.bring_inode(op, dir)?;
        self.load_dir(op, dir)?;
        let (format, node) = self.with_node(dir)?;
        format.want_room(op, node, name)?;
        let ino = self.find(op, dir, name)?;
        self.bring_inode(op, ino)?;
        Ok(ino)
    }

    fn bring_inode(&mut self, op: &mut Op<'_>, ino: Ino) -> Result<()> {
        self.load(op, ino)?;
        let (format, node) = self.with_node(ino)?;
        format.want_inode(op, node)
    }
}
