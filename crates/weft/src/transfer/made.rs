//! The files and directories that a transfer has made on the host, so that none of them is replaced by another.
//!
//! Files are known by device and inode number: two names may be one on the host's file system,
//! where case does not count.

use crate::{Error, Result};
use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The files that were made.
#[derive(Debug, Default)]
pub(super) struct Made(HashSet<(u64, u64)>);

impl Made {
    /// Removes an existing file, but not a directory, unless this transfer made it. Returns whether
    /// the name is free.
    pub(super) fn clear(&self, host: &Path) -> Result<bool> {
        let meta = match std::fs::symlink_metadata(host) {
            Ok(meta) => meta,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(true),
            Err(e) => return Err(Error::host("stat", host, e)),
        };
        if self.0.contains(&(meta.dev(), meta.ino())) {
            return Ok(false);
        }
        std::fs::remove_file(host).map_err(|e| Error::host("replace", host, e))?;
        Ok(true)
    }

    /// Returns true if the transfer made what is at this path.
    pub(super) fn has(&self, host: &Path) -> bool {
        let meta = std::fs::symlink_metadata(host);
        meta.is_ok_and(|meta| self.0.contains(&(meta.dev(), meta.ino())))
    }

    /// Notes a file or directory that was made.
    pub(super) fn add(&mut self, host: &Path) -> Result<()> {
        let meta = std::fs::symlink_metadata(host).map_err(|e| Error::host("stat", host, e))?;
        self.0.insert((meta.dev(), meta.ino()));
        Ok(())
    }
}
