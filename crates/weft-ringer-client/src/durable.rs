//! Syncing of files, with their names.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Syncs files, and the two directories above each.
pub(super) fn sync_all(paths: &[PathBuf]) -> io::Result<()> {
    let mut dirs = BTreeSet::new();
    for path in paths {
        match File::open(path) {
            Ok(file) => file.sync_data()?,
            // It was replaced meanwhile.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(e),
        }
        dirs.extend(path.ancestors().skip(1).take(2).map(Path::to_path_buf));
    }
    for dir in dirs {
        match File::open(&dir) {
            Ok(dir) => dir.sync_all()?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
