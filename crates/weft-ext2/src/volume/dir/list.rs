//! Listing a directory. A cursor is the byte offset of the next entry: entries never move, so it
//! stays valid while names come and go.

use super::super::{Node, Volume};
use crate::layout::{Dirents, file_type_kind};
use weft_patch::{BlockNr, Op};
use weft_unix::{Listed, Listing, Result};
use weft_vfs::Ino;

impl Volume {
    /// At most `max` entries from byte `at` of a directory on, of one block.
    pub(in crate::volume) fn list_entries(
        &self,
        op: &mut Op<'_>,
        node: &mut Node,
        mut at: u64,
        max: usize,
    ) -> Result<Listing> {
        let mut listing = Listing::default();
        let bs = self.block_bytes() as u64;
        let filetype = self.has_filetype();
        while at < node.inode.size_bytes {
            let fbn = at / bs;
            let (nr, run) =
                self.map_run(op, node, fbn, node.inode.size_bytes.div_ceil(bs) - fbn)?;
            if nr == 0 {
                at = (fbn + run) * bs;
                continue;
            }
            let mut full = false;
            for entry in Dirents::new(op.peek(BlockNr(u64::from(nr)))?, filetype) {
                let entry = entry.map_err(|e| Self::dir_error(node.ino, nr, e))?;
                let offset = fbn * bs + entry.offset as u64;
                if offset < at || entry.ino == 0 {
                    continue;
                }
                if listing.entries.len() == max {
                    full = true;
                    listing.next = Some(offset);
                    break;
                }
                let from = listing.names.len();
                listing.names.extend_from_slice(entry.name);
                listing.entries.push(Listed {
                    ino: Ino(u64::from(entry.ino)),
                    kind: file_type_kind(entry.file_type),
                    name: from..listing.names.len(),
                    next: offset + entry.rec_len as u64,
                });
            }
            at = (fbn + 1) * bs;
            if full {
                break;
            }
            if !listing.entries.is_empty() {
                listing.next = Some(at);
                break;
            }
        }
        Ok(listing)
    }
}
