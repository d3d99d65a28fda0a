//! Blocks of files, and the targets of symbolic links.

use super::Inodes;
use crate::{Node, Patches, Result};
use std::fmt::Debug;
use weft_patch::{BlockNr, Op, PatchId};
use weft_vfs::Ino;

/// A run of a file's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The first block on the volume; `None` for a hole.
    pub start: Option<BlockNr>,
    /// The number of blocks that follow each other on the volume, or are holes; at least 1.
    pub len: u64,
}

/// Pointers that were cleared to make a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unmapped {
    /// The number of blocks of the file that are a hole now, or were one already.
    pub len: u64,
    /// The run of blocks that no pointer names any more; as long as `len`.
    pub freed: Option<BlockNr>,
    /// The change that cleared the pointers; `None` if they lie in the inode, which the caller
    /// writes.
    pub cleared: Option<PatchId>,
}

/// The map of a file's blocks, and their allocation.
pub trait FileBlocks: Inodes {
    /// The blocks and pointers that a [cut](Self::cut) takes off a file.
    type Cut: Debug + Send;

    /// Returns the run of blocks that starts with block `fbn` of a file, of 1 to `max` blocks.
    ///
    /// # Errors
    /// [`FsError::TooLarge`](weft_vfs::Error::TooLarge) if no file has a block `fbn`;
    /// [`Error::Corrupt`](crate::Error::Corrupt) if a pointer leads out of the volume's data.
    fn map(&self, op: &mut Op<'_>, node: &mut Node<Self>, fbn: u64, max: u64) -> Result<Run>;

    /// Allocates blocks for the first part of a hole of `max` blocks at `fbn`. Returns the first
    /// block and the number of blocks. Adds the patches that a pointer to them must follow to
    /// `after`, and those that the inode must follow already to `befores`.
    ///
    /// # Errors
    /// [`FsError::NoSpace`](weft_vfs::Error::NoSpace),
    /// [`FsError::TooLarge`](weft_vfs::Error::TooLarge).
    fn allocate(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node<Self>,
        fbn: u64,
        max: u64,
        after: &mut Patches,
        befores: &mut Patches,
    ) -> Result<(BlockNr, u64)>;

    /// Points block `fbn` and those behind it at `run` (first block and number of blocks), which
    /// was [allocated](Self::allocate) for them, and adds the run to the inode's count of blocks.
    /// `after` are the patches of the bitmap and of the blocks' content. Adds the patches that the
    /// inode must follow to `befores`.
    ///
    /// # Errors
    /// Those of the engine.
    fn point(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node<Self>,
        fbn: u64,
        run: (BlockNr, u64),
        after: &[PatchId],
        befores: &mut Patches,
    ) -> Result<()>;

    /// Clears the pointers of one run of at most `max` blocks from `fbn` on. The caller
    /// [frees](Self::free) the blocks.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt), and those of the engine.
    fn unmap(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node<Self>,
        fbn: u64,
        max: u64,
    ) -> Result<Unmapped>;

    /// Frees `len` blocks from `start` on. `cleared` is the patch that removed the pointers to
    /// them; they are allocated again only when it is durable.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) if one of them is free.
    fn free(&mut self, op: &mut Op<'_>, start: BlockNr, len: u64, cleared: PatchId) -> Result<()>;

    /// Begins to cut a file down to `keep` blocks: takes pointers out of the inode in memory and
    /// collects the blocks to free, from the end backwards and at most what one operation can free.
    /// Returns them with the number of blocks that the file still has. With `whole`, and if no
    /// block is left, the inode is being deleted, and its attributes go too.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt).
    fn cut(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node<Self>,
        keep: u64,
        whole: bool,
    ) -> Result<(Self::Cut, u64)>;

    /// Asks for what a [cut](Self::cut) to `keep` blocks reads and changes (see [`Op::want`]). By
    /// default asks for nothing.
    ///
    /// # Errors
    /// [`Error::NotInMemory`](weft_patch::Error::NotInMemory), and those of a read.
    fn want_cut(&mut self, op: &mut Op<'_>, node: &mut Node<Self>, keep: u64) -> Result<()> {
        let _ = (op, node, keep);
        Ok(())
    }

    /// Ends a cut of the inode `ino`: clears the pointers outside of it and frees the blocks.
    /// `written` is the patch of the inode without them.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt), and those of the engine.
    fn finish_cut(
        &mut self,
        op: &mut Op<'_>,
        ino: Ino,
        cut: Self::Cut,
        written: PatchId,
    ) -> Result<()>;

    /// Declares on the volume, where it needs that, that a file has `size_bytes` bytes. Adds the
    /// patches that the inode must follow to `befores`. By default no size needs it.
    ///
    /// # Errors
    /// [`FsError::TooLarge`](weft_vfs::Error::TooLarge).
    fn allow_size(
        &mut self,
        op: &mut Op<'_>,
        size_bytes: u64,
        befores: &mut Patches,
    ) -> Result<()> {
        let _ = (op, size_bytes, befores);
        Ok(())
    }

    /// Reserves up to `want` free blocks behind the end of a file for it, in memory. By default
    /// reserves none.
    ///
    /// # Errors
    /// [`FsError::NoSpace`](weft_vfs::Error::NoSpace) if fewer than `want` blocks are free.
    fn reserve_blocks(&mut self, op: &mut Op<'_>, node: &mut Node<Self>, want: u64) -> Result<()> {
        let _ = (op, node, want);
        Ok(())
    }

    /// Releases the blocks that are reserved for the file `ino`.
    fn release_reserved(&mut self, ino: Ino) {
        let _ = ino;
    }
}

/// Targets of symbolic links.
pub trait Symlinks: Inodes {
    /// Stores the target of a new symbolic link. Adds the patches that the inode must follow to its
    /// [`born_after`](Node::born_after).
    ///
    /// # Errors
    /// [`FsError::NoSpace`](weft_vfs::Error::NoSpace).
    fn set_target(&mut self, op: &mut Op<'_>, node: &mut Node<Self>, target: &[u8]) -> Result<()>;

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt).
    fn target(&self, op: &mut Op<'_>, node: &Node<Self>) -> Result<Vec<u8>>;
}
