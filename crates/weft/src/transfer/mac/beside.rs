//! A file that replaces another one: made beside it, and renamed over it when it is complete.
//!
//! Packed files may be damaged, which shows at their end: until then the old file stays. Where the
//! volume has no room for both, and room for the new one alone, the old one is removed first.

use crate::transfer::volume_make::INCOMPLETE;
use weft_hfs::streams::MacVolume;
use weft_vfs::path::Node;
use weft_vfs::{Caller, Error as FsError, FileKind, Ino, RenameFlags, Result};

/// A new file that has not got its name yet, if another one has it.
pub(super) struct Beside<'a> {
    volume: &'a dyn MacVolume,
    parent: Ino,
    pub(super) node: Node<'a>,
    /// The name that it has now.
    own: Vec<u8>,
    /// Whether the old file was removed first.
    pub(super) removed_first: bool,
}

impl<'a> Beside<'a> {
    /// Makes an empty file that is to be called `name` and to take `need_bytes`.
    ///
    /// # Errors
    /// Those of the volume. The old file is still there then.
    pub(super) fn make(
        volume: &'a dyn MacVolume,
        parent: Ino,
        name: &[u8],
        need_bytes: u64,
    ) -> Result<Self> {
        let make = |own: &[u8]| {
            let kind = FileKind::Regular;
            let entry = volume.mknod(&Caller::ROOT, parent, own, kind, 0o644, 0)?;
            Ok(Node::from_entry(volume, entry))
        };
        let done = |node, own: &[u8], removed_first| Self {
            volume,
            parent,
            node,
            own: own.to_vec(),
            removed_first,
        };
        match make(name) {
            Ok(node) => return Ok(done(node, name, false)),
            Err(FsError::Exists) => {}
            Err(e) => return Err(e),
        }
        let old = *Node::from_entry(volume, volume.lookup(parent, name)?).attr();
        // A companion is a part of its file, and has no other name.
        let is_companion = weft_hfs::view::is_companion(old.ino);
        let space = volume.statfs()?;
        let unit = u64::from(space.block_bytes);
        let free = space.blocks_available.saturating_mul(unit);
        // With the ends of the blocks of both forks, and what the catalog may grow by.
        let need = need_bytes.saturating_add(4 * unit);
        let has_room_alone = need <= free.saturating_add(old.blocks_512.saturating_mul(512));
        if is_companion || need > free && has_room_alone {
            volume.unlink(&Caller::ROOT, parent, name)?;
            return Ok(done(make(name)?, name, !is_companion));
        }
        for number in 0_u32.. {
            let own = format!("{INCOMPLETE}{number}").into_bytes();
            match make(&own) {
                // Left by a transfer that was killed.
                Err(FsError::Exists) => {}
                made => return Ok(done(made?, &own, false)),
            }
        }
        Err(FsError::Exists)
    }

    /// Gives the file, which is complete, its name.
    pub(super) fn settle(&self, name: &[u8]) -> Result<()> {
        if self.own == name {
            return Ok(());
        }
        let (from, flags) = (&self.own, RenameFlags::empty());
        self.volume.rename(&Caller::ROOT, self.parent, from, self.parent, name, flags)
    }

    /// Removes the file, which could not be completed.
    pub(super) fn discard(self) {
        // What made it incomplete is reported.
        let _ = self.volume.unlink(&Caller::ROOT, self.parent, &self.own);
    }
}
