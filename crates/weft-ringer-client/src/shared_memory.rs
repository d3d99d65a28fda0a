//! Refusal of SQLite's shared-memory files, whose memory is shared on one machine only.
//!
//! SQLite in WAL mode keeps an index of its log in `NAME-shm`, which every process that uses the
//! database maps and changes without a system call. Two machines would each have their own, and
//! overwrite each other's transactions without an error. So that file is refused beside its
//! database: SQLite says that it cannot open the database, in place of losing rows.
//!
//! Source: <https://sqlite.org/wal.html#use_of_wal_without_shared_memory>,
//! <https://sqlite.org/tempfiles.html#shared_memory_files>.

use weft_ringer::RnodeId;
use weft_vfs::{Error, OpenFlags, Result};

use super::client_fs::ClientFs;
use super::mutex::locked;

const SUFFIX: &[u8] = b"-shm";

/// The database whose shared memory a file of this name would be.
fn database(name: &[u8]) -> Option<&[u8]> {
    name.strip_suffix(SUFFIX).filter(|base| !base.is_empty())
}

impl ClientFs {
    fn is_shared_memory(&self, parent: RnodeId, name: &[u8]) -> bool {
        !self.engine.options.allow_shared_memory
            && database(name).is_some_and(|base| self.find(parent, base).is_ok())
    }

    fn refuse(name: &[u8]) -> Error {
        tracing::warn!(
            "{} is refused: a database in WAL mode shares memory between its processes, which machines \
             cannot share, and two of them would lose each other's rows. Use it in another mode \
             (PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=DELETE brings it back), or, if only this \
             machine ever opens it, mount with --allow-shared-memory",
            String::from_utf8_lossy(name)
        );
        Error::Unsupported("memory that processes of several machines share (SQLite's WAL mode)")
    }

    /// Refuses to make a name that is that of the shared memory of a database in `parent`.
    pub(super) fn check_new_name(&self, parent: RnodeId, name: &[u8]) -> Result<()> {
        if self.is_shared_memory(parent, name) { Err(Self::refuse(name)) } else { Ok(()) }
    }

    /// Records whether the file found by a lookup is the shared memory of a database.
    pub(super) fn note_name(&self, parent: RnodeId, name: &[u8], id: RnodeId) {
        if database(name).is_none() {
            return;
        }
        if self.is_shared_memory(parent, name) {
            locked(&self.shared_memory).insert(id);
        } else {
            locked(&self.shared_memory).remove(&id);
        }
    }

    /// Refuses to open a file for writing that has the name of a database's shared memory.
    pub(super) fn check_shared_memory(&self, id: RnodeId, flags: OpenFlags) -> Result<()> {
        let writes = flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE);
        if writes && locked(&self.shared_memory).contains(&id) {
            return Err(Self::refuse(b"the shared memory of a database"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_with_a_database_before_the_suffix() {
        assert_eq!(database(b"a.db-shm"), Some(&b"a.db"[..]));
        assert_eq!(database(b"-shm"), None);
        assert_eq!(database(b"a.db-wal"), None);
        assert_eq!(database(b"a-shm.txt"), None);
    }
}
