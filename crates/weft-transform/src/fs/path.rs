//! Names and paths in the tree.

use weft_vfs::{Error, Result};

/// The prefix of the names of temporary files, which replace others. They are not listed, and
/// clients cannot name them.
pub(super) const FRESH_PREFIX: &[u8] = b".weft-fresh-";

/// The separator between the name of a file and that of a view.
pub(super) const MARK: u8 = b'@';

/// Refuses the names of temporary files, which clients cannot use.
pub(super) fn check_visible(name: &[u8]) -> Result<()> {
    if name.starts_with(FRESH_PREFIX) { Err(Error::NotPermitted) } else { Ok(()) }
}

/// Returns the path of a name in a directory; the path of the root is empty.
pub(super) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}
