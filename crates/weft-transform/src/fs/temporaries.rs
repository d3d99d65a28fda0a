//! Temporary files: beside the files that they are to replace, hidden from clients.
//!
//! A directory that clients see empty can be removed: temporary files in it, of files that are still
//! open and have lost their names, move to the directory above.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use weft_vfs::{Caller, DirCursor, Error, Ino, RenameFlags, Result};

use super::locks::locked;
use super::mount::Mount;
use super::path::FRESH_PREFIX;

/// Maximum number of attempts to remove a directory in which temporary files appear.
const ATTEMPTS: usize = 16;

/// The temporary files of a mount.
pub(super) struct Temporaries {
    /// Part of their names, different for each mount.
    session: u32,
    /// The other part: the number of temporary files that the mount has created. The names of the
    /// first 2^40 fit into the 31 bytes of HFS.
    count: AtomicU64,
    /// The directories below that they are in. They change under [`Mount::names`].
    parents: Mutex<HashMap<u64, Ino>>,
    root: Ino,
}

impl Temporaries {
    pub(super) fn new(session: u32, root: Ino) -> Self {
        Self { session, count: AtomicU64::new(0), parents: Mutex::default(), root }
    }

    /// Returns an unused name, and its number.
    pub(super) fn new_name(&self) -> (u64, Vec<u8>) {
        let id = self.count.fetch_add(1, Ordering::Relaxed);
        (id, [FRESH_PREFIX, format!("{:08x}-{id:x}", self.session).as_bytes()].concat())
    }

    /// Returns the number in a name; `None` if an earlier mount has made the file.
    pub(super) fn number(&self, name: &[u8]) -> Option<u64> {
        let name = std::str::from_utf8(name.strip_prefix(FRESH_PREFIX)?).ok()?;
        let number = name.strip_prefix(&format!("{:08x}-", self.session))?;
        u64::from_str_radix(number, 16).ok()
    }

    pub(super) fn made(&self, id: u64, parent: Ino) {
        locked(&self.parents).insert(id, parent);
    }

    pub(super) fn gone(&self, id: u64) {
        locked(&self.parents).remove(&id);
    }

    /// Returns the directory that a temporary file is in.
    pub(super) fn parent(&self, id: u64) -> Ino {
        locked(&self.parents).get(&id).copied().unwrap_or(self.root)
    }
}

impl Mount {
    /// Removes or replaces the directory `directory` below, in `parent`, by `remove`, which is called
    /// under no lock. Temporary files in it are moved out of the way.
    pub(super) fn without_temporaries(
        &self,
        directory: Ino,
        parent: Ino,
        remove: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        for _ in 0..ATTEMPTS {
            match remove() {
                Err(Error::NotEmpty) => {}
                result => return result,
            }
            let _names = locked(&self.names);
            let (mut temporary, mut others) = (Vec::new(), false);
            self.below.readdir(directory, DirCursor::START, &mut |entry| {
                if entry.name.starts_with(FRESH_PREFIX) {
                    temporary.push(entry.name.to_vec());
                } else {
                    others |= !matches!(entry.name, b"." | b"..");
                }
                !others
            })?;
            if others {
                break;
            }
            for name in temporary {
                self.move_temporary(&name, directory, parent)?;
            }
        }
        Err(Error::NotEmpty)
    }

    /// Moves a temporary file to another directory; removes one that an earlier mount has left.
    fn move_temporary(&self, name: &[u8], from: Ino, to: Ino) -> Result<()> {
        let Some(id) = self.temporaries.number(name) else {
            return match self.below.unlink(&Caller::ROOT, from, name) {
                Err(Error::NotFound) => Ok(()),
                result => result,
            };
        };
        let flags = RenameFlags::empty();
        match self.below.rename(&Caller::ROOT, from, name, to, name, flags) {
            Ok(()) => {
                self.temporaries.made(id, to);
                Ok(())
            }
            Err(Error::NotFound) => Ok(()),
            Err(e) => Err(e),
        }
    }
}
