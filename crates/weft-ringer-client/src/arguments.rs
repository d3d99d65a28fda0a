//! Validation of names and inode numbers in requests.

use weft_ringer::{Name, RnodeId};
use weft_vfs::{Error, Ino, Result};

use super::folder_table::{TOP_NAME, is_of_folders};

/// The folder of a directory's snapshots, in the directory.
pub(super) const SNAPSHOTS_NAME: &[u8] = b".snapshots";

/// A name that a file or directory may have.
pub(super) fn name(bytes: &[u8]) -> Result<Name> {
    weft_vfs::check_name(bytes)?;
    // The names that remain are the two that every directory has.
    Name::new(bytes).map_err(|_| Error::Exists)
}

/// A name that may be created in `parent`.
pub(super) fn new_name(parent: RnodeId, bytes: &[u8]) -> Result<Name> {
    let is_ours = bytes == SNAPSHOTS_NAME || (parent == RnodeId::ROOT && bytes == TOP_NAME);
    if is_ours { Err(Error::Exists) } else { name(bytes) }
}

/// Returns the rnode with this inode number. Entries of query folders are no rnodes, and read-only.
pub(super) fn id(ino: Ino) -> Result<RnodeId> {
    match ino.0 {
        0 => Err(Error::Stale(0)),
        _ if is_of_folders(ino) => Err(Error::ReadOnly),
        number => Ok(RnodeId(number)),
    }
}

/// Returns the rnode likewise, for a change to it.
pub(super) fn changeable(ino: Ino) -> Result<RnodeId> {
    let id = id(ino)?;
    if id.is_of_snapshot() { Err(Error::ReadOnly) } else { Ok(id) }
}
