//! Snapshots as a mount shows them: `DIR/.snapshots/NAME/` is what the directory was.
//!
//! `.snapshots` is in every directory but those of snapshots, and in no listing. What is in it are
//! rnodes of the cell, read under leases as all others; nobody may change them. Their blocks go by the
//! numbers of the files that they were.

use weft_vfs::{DirCursor, DirEntry, Error, FileKind, Ino, Result};

use super::copies::unexpected;
use super::fs::Live;
use super::home::fill_random;
use crate::client::Call;
use crate::error::Refusal;
use crate::rnode::Name;
use crate::types::RnodeId;
use crate::wire::{Reply, RequestBody, SnapshotEntry};

/// The folder of a directory's snapshots, in the directory.
pub(super) const SNAPSHOTS_NAME: &[u8] = b".snapshots";
/// The longest list that an attribute holds, in bytes.
const LIST_MAX_BYTES: usize = 60 << 10;

impl Live {
    fn snapshots(&self, dir: RnodeId) -> Result<Vec<SnapshotEntry>> {
        let mut reply = self.ask(RequestBody::Snapshots { dir })?;
        if reply == (Reply::No { why: Refusal::Stale }) {
            // Perhaps it was made here just now.
            self.engine.call(Call::Sync)?;
            reply = self.ask(RequestBody::Snapshots { dir })?;
        }
        match reply {
            Reply::Snapshots { snapshots } => Ok(snapshots),
            Reply::No { why } => Err(self.refused(dir, why)),
            _ => Err(unexpected()),
        }
    }

    /// The root of a snapshot.
    pub(super) fn find_snapshot(&self, dir: RnodeId, name: &[u8]) -> Result<RnodeId> {
        let all = self.snapshots(dir)?;
        let found = all.iter().find(|snapshot| snapshot.name.bytes() == name);
        found.map(|snapshot| snapshot.root).ok_or(Error::NotFound)
    }

    /// Calls `each` with the snapshots of a directory, from `cursor` on: the first is behind 2.
    pub(super) fn read_snapshots(
        &self,
        dir: RnodeId,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        for (index, snapshot) in (2_u64..).zip(self.snapshots(dir)?) {
            let entry = DirEntry {
                ino: Ino(snapshot.root.0),
                kind: FileKind::Directory,
                name: snapshot.name.bytes(),
                next: DirCursor(index + 1),
            };
            if index >= cursor.0 && !each(entry) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The snapshots of a directory, a line each: time in seconds, number of names, what it is called;
    /// with tabs between them. A list that is too long ends with the line `more`.
    pub(super) fn list_snapshots(&self, dir: RnodeId) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        for SnapshotEntry { name, at, names, .. } in self.snapshots(dir)? {
            if text.len() > LIST_MAX_BYTES {
                text.extend_from_slice(b"more\n");
                break;
            }
            text.extend_from_slice(format!("{}\t{names}\t", at.secs).as_bytes());
            text.extend_from_slice(name.bytes());
            text.push(b'\n');
        }
        Ok(text)
    }

    /// Does what was written into the attribute: `create NAME` or `remove NAME`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a text that makes no sense or a snapshot of what is in one,
    /// [`Error::Exists`], [`Error::NotFound`], [`Error::TooLarge`] if there are more names below the
    /// directory than a snapshot may have.
    pub(super) fn change_snapshots(&self, dir: RnodeId, text: &[u8]) -> Result<()> {
        const WHAT: Error = Error::Invalid("write create NAME, or remove NAME");
        let (creates, name) = match (text.strip_prefix(b"create "), text.strip_prefix(b"remove ")) {
            (Some(name), _) => (true, name),
            (None, Some(name)) => (false, name),
            (None, None) => return Err(WHAT),
        };
        let name = Name::new(name).map_err(Error::from)?;
        // The server is to know the directory.
        self.engine.call(Call::Sync)?;
        let body = if creates {
            let mut mark = [0; 8];
            fill_random(&mut mark).map_err(|e| super::content::io_error(&e))?;
            RequestBody::Snapshot { dir, name, mark: u64::from_le_bytes(mark) }
        } else {
            RequestBody::RemoveSnapshot { dir, name }
        };
        match self.ask(body)? {
            Reply::Held {} => Ok(()),
            Reply::No { why } => Err(self.refused(dir, why)),
            _ => Err(unexpected()),
        }
    }
}
