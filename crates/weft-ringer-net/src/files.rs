//! Files and directories that only the user of a process may read.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use weft_vfs::host_file;

/// A file for this user alone.
pub fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// A directory for this user alone, and those above it that are not there. Not durable: see
/// [`host_file::create_dir_all`].
pub fn private_dir(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Puts a small file for this user alone in the place of another, durably.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    host_file::replace(path, bytes, 0o600)
}
