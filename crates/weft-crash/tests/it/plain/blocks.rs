//! The plain format's map of a file's blocks, and targets of links.

use super::format::{BLOCKS, Plain};
use super::inodes::PlainInode;
use super::layout::{DIRECT, get32};
use weft_patch::{BlockNr, Op, Owner, PatchId};
use weft_unix::{FileBlocks, Patches, Result, Run, Symlinks, Unmapped, push_patch};
use weft_vfs::{Error as FsError, Ino};

/// Blocks freed by a cut, and the range of pointers to clear in the block of further ones.
#[derive(Debug, Default)]
pub struct PlainCut {
    freed: Vec<u32>,
    clear: Option<(u32, usize)>,
}

impl FileBlocks for Plain {
    type Cut = PlainCut;

    fn map(&self, op: &mut Op<'_>, node: &mut PlainInode, fbn: u64, max: u64) -> Result<Run> {
        let nr = self.pointer(op, node, fbn)?;
        let mut len = 1;
        let next = |len: u64| if nr == 0 { 0 } else { nr + len as u32 };
        let end = (DIRECT + self.block_bytes / 4) as u64 - fbn;
        while len < max.min(end) && self.pointer(op, node, fbn + len)? == next(len) {
            len += 1;
        }
        Ok(Run { start: (nr != 0).then_some(BlockNr(u64::from(nr))), len })
    }

    fn allocate(
        &mut self,
        op: &mut Op<'_>,
        node: &mut PlainInode,
        fbn: u64,
        _: u64,
        after: &mut Patches,
        befores: &mut Patches,
    ) -> Result<(BlockNr, u64)> {
        if fbn as usize >= DIRECT && node.own.pointers.indirect == 0 {
            let zeroes = vec![0; self.block_bytes];
            node.own.pointers.indirect = self.new_block(op, node, &zeroes, befores)?;
        }
        Ok((BlockNr(self.take(op, BLOCKS, after)?), 1))
    }

    fn point(
        &mut self,
        op: &mut Op<'_>,
        node: &mut PlainInode,
        fbn: u64,
        (start, _): (BlockNr, u64),
        after: &[PatchId],
        befores: &mut Patches,
    ) -> Result<()> {
        node.inode.blocks_512 += self.sectors();
        if let Some(nr) = node.own.pointers.direct.get_mut(fbn as usize) {
            *nr = start.0 as u32;
            befores.extend_from_slice(after);
            return Ok(());
        }
        if node.own.pointers.indirect == 0 {
            let zeroes = vec![0; self.block_bytes];
            node.own.pointers.indirect = self.new_block(op, node, &zeroes, befores)?;
        }
        let nr = BlockNr(u64::from(node.own.pointers.indirect));
        let at = 4 * (fbn as usize - DIRECT);
        push_patch(befores, op.write(nr, at, &(start.0 as u32).to_le_bytes(), after)?);
        op.own(nr, Owner(node.ino.0));
        Ok(())
    }

    fn unmap(
        &mut self,
        op: &mut Op<'_>,
        node: &mut PlainInode,
        fbn: u64,
        max: u64,
    ) -> Result<Unmapped> {
        let run = self.map(op, node, fbn, max)?;
        let Some(start) = run.start else {
            return Ok(Unmapped { len: run.len, freed: None, cleared: None });
        };
        node.inode.blocks_512 -= self.sectors();
        let cleared = match node.own.pointers.direct.get_mut(fbn as usize) {
            Some(nr) => {
                *nr = 0;
                None
            }
            None => {
                let nr = BlockNr(u64::from(node.own.pointers.indirect));
                op.own(nr, Owner(node.ino.0));
                Some(op.write(nr, 4 * (fbn as usize - DIRECT), &[0; 4], &[])?)
            }
        };
        Ok(Unmapped { len: 1, freed: Some(start), cleared })
    }

    fn free(&mut self, op: &mut Op<'_>, start: BlockNr, len: u64, cleared: PatchId) -> Result<()> {
        (start.0..start.0 + len).try_for_each(|nr| self.give(op, BLOCKS, nr, cleared))
    }

    fn cut(
        &mut self,
        op: &mut Op<'_>,
        node: &mut PlainInode,
        keep: u64,
        whole: bool,
    ) -> Result<(PlainCut, u64)> {
        let mut cut = PlainCut::default();
        let all = DIRECT + self.block_bytes / 4;
        let keep_all = usize::try_from(keep).unwrap_or(all).min(all);
        for fbn in keep_all..all {
            let nr = self.pointer(op, node, fbn as u64)?;
            cut.freed.extend((nr != 0).then_some(nr));
        }
        let pointers = &mut node.own.pointers;
        pointers.direct[keep_all.min(DIRECT)..].fill(0);
        if pointers.indirect != 0 {
            if keep_all <= DIRECT {
                cut.freed.push(std::mem::take(&mut pointers.indirect));
            } else {
                cut.clear = Some((pointers.indirect, keep_all - DIRECT));
            }
        }
        if whole && pointers.attributes != 0 {
            cut.freed.push(std::mem::take(&mut pointers.attributes));
        }
        node.inode.blocks_512 -= cut.freed.len() as u64 * self.sectors();
        Ok((cut, keep))
    }

    fn finish_cut(
        &mut self,
        op: &mut Op<'_>,
        ino: Ino,
        cut: PlainCut,
        written: PatchId,
    ) -> Result<()> {
        let mut cleared = written;
        if let Some((nr, from)) = cut.clear {
            let zeroes = vec![0; self.block_bytes - 4 * from];
            if !zeroes.is_empty() {
                cleared = op.write(BlockNr(u64::from(nr)), 4 * from, &zeroes, &[written])?;
                op.own(BlockNr(u64::from(nr)), Owner(ino.0));
            }
        }
        cut.freed.iter().rev().try_for_each(|nr| self.give(op, BLOCKS, u64::from(*nr), cleared))
    }
}

impl Symlinks for Plain {
    fn set_target(&mut self, op: &mut Op<'_>, node: &mut PlainInode, target: &[u8]) -> Result<()> {
        let mut block = target.to_vec();
        block.resize(self.block_bytes, 0);
        let mut after = Patches::new();
        node.own.pointers.direct[0] = self.new_block(op, node, &block, &mut after)?;
        node.born_after.extend(after);
        Ok(())
    }

    fn target(&self, op: &mut Op<'_>, node: &PlainInode) -> Result<Vec<u8>> {
        let nr = BlockNr(u64::from(node.own.pointers.direct[0]));
        Ok(op.peek(nr)?[..node.inode.size_bytes as usize].to_vec())
    }
}

impl Plain {
    /// Allocates and writes a block. Adds the patches that a pointer to it must follow to `after`.
    pub fn new_block(
        &mut self,
        op: &mut Op<'_>,
        node: &mut PlainInode,
        content: &[u8],
        after: &mut Patches,
    ) -> Result<u32> {
        let nr = self.take(op, BLOCKS, after)?;
        push_patch(after, op.init(BlockNr(nr), content, &[])?);
        op.own(BlockNr(nr), Owner(node.ino.0));
        node.inode.blocks_512 += self.sectors();
        Ok(nr as u32)
    }

    pub fn pointer(&self, op: &mut Op<'_>, node: &PlainInode, fbn: u64) -> Result<u32> {
        let (fbn, indirect) = (fbn as usize, node.own.pointers.indirect);
        if let Some(nr) = node.own.pointers.direct.get(fbn) {
            return Ok(*nr);
        }
        if fbn - DIRECT >= self.block_bytes / 4 {
            return Err(FsError::TooLarge.into());
        }
        if indirect == 0 {
            return Ok(0);
        }
        Ok(get32(op.peek(BlockNr(u64::from(indirect)))?, 4 * (fbn - DIRECT)))
    }
}
