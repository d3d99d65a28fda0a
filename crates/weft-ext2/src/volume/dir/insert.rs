//! The record of a new entry, and the gap that it is put in.

use super::super::node::Node;
use super::super::state::Volume;
use super::record::{Lengths, MIN_RECORD, Place, Reserved, SECTOR, sector};
use crate::layout::{DIRENT_HEADER_BYTES, Dirents, dirent_len, put_dirent};
use std::hash::BuildHasher;
use weft_patch::{BlockNr, Op, Owner, PatchId};
use weft_unix::{Patches, Result, push_patch};
use weft_vfs::Error as FsError;

impl Volume {
    /// Reserves an entry in one block. Returns `None` if the block has less room than the index
    /// says, or its gap had to be cut.
    #[expect(clippy::too_many_arguments, reason = "one step of reserve")]
    pub(super) fn reserve_in(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        (block, nr): (usize, BlockNr),
        name: &[u8],
        file_type: u8,
        need: usize,
        after: PatchId,
    ) -> Result<Option<Reserved>> {
        let filetype = self.has_filetype();
        // One pass: the first gap that serves, and the largest and the next largest of all.
        let mut chosen = None;
        let mut relied = Lengths::default();
        let (mut largest, mut rest_largest) = (0, 0);
        for entry in Dirents::new(op.read(nr)?, filetype) {
            let e = entry.map_err(|e| Self::dir_error(node.ino, nr, e))?;
            let gap = e.rec_len - e.used_bytes();
            largest = largest.max(gap);
            if chosen.is_none() {
                relied.pass(&e);
            }
            if chosen.is_none() && gap >= need {
                chosen = Some((e.offset, e.rec_len, e.used_bytes()));
            } else {
                rest_largest = rest_largest.max(gap);
            }
        }
        let Some(index) = node.own.dir.as_deref_mut() else { return Ok(None) };
        let Some((at, rec_len, used)) = chosen else {
            index.set_room(block, largest);
            return Ok(None);
        };
        let own = Owner(node.ino.0);
        if sector(at) != sector(at + rec_len - 1)
            && let Some(cut) = self.cut_gap(op, nr, at, rec_len, used, &relied, after)?
        {
            node.own.spanning = op.join(&[node.own.spanning, cut])?;
            op.own(nr, own);
            let mut room = rest_largest;
            for entry in Dirents::new(op.peek(nr)?, filetype).flatten() {
                room = room.max(entry.rec_len - entry.used_bytes());
            }
            index.set_room(block, room);
            return Ok(None);
        }
        let new_at = at + used;
        let new_len = rec_len - used;
        let mut record = [0_u8; dirent_len(255)];
        put_dirent(&mut record, 0, new_len, 0, file_type, name);
        let record = &record[..DIRENT_HEADER_BYTES + name.len()];
        // All of it, although a free record keeps its length and has no inode: what is written
        // over the number that was cleared follows its clearing, which may wait for another block.
        let mut structure = op.write_relying(nr, new_at, record, &relied.0, &[after])?;
        if used > 0 {
            let len = u16::try_from(used).unwrap_or(u16::MAX);
            let befores = [structure, after];
            structure = op.write_relying(nr, at + 4, &len.to_le_bytes(), &relied.0, &befores)?;
        }
        op.own(nr, own);
        index.set_room(block, rest_largest.max(new_len - need));
        let offset = u32::try_from(block * self.block_bytes() + new_at)
            .map_err(|_| FsError::Overflow("directory offset"))?;
        Ok(Some(Reserved {
            place: Place { nr, at: new_at, offset },
            hash: index.hasher.hash_one(name),
            structure,
        }))
    }

    /// Cuts the gap of a record that spans sectors into free records that do not: writes these
    /// first, where no length leads to them, then the record's length. Returns `None` if there is
    /// nothing to cut.
    #[expect(clippy::too_many_arguments, reason = "one step of reserve_in")]
    fn cut_gap(
        &mut self,
        op: &mut Op<'_>,
        nr: BlockNr,
        at: usize,
        rec_len: usize,
        used: usize,
        relied: &Lengths,
        after: PatchId,
    ) -> Result<Option<PatchId>> {
        let end = at + rec_len;
        let first = (at + used.max(MIN_RECORD)).next_multiple_of(SECTOR);
        let mut patches = Patches::new();
        let mut cut = first;
        while cut + MIN_RECORD <= end {
            let mut next = cut + SECTOR;
            if next + MIN_RECORD > end {
                next = end;
            }
            let mut header = [0_u8; DIRENT_HEADER_BYTES];
            put_dirent(&mut header, 0, next - cut, 0, 0, b"");
            let patch = op.write_relying(nr, cut, &header, &relied.0, &[after])?;
            push_patch(&mut patches, patch);
            cut = next;
        }
        if patches.is_empty() {
            return Ok(None);
        }
        let joined = op.join(&patches)?;
        let len = u16::try_from(first - at).unwrap_or(u16::MAX);
        let befores = [joined, after];
        let cut = op.write_relying(nr, at + 4, &len.to_le_bytes(), &relied.0, &befores)?;
        Ok(Some(cut))
    }
}
