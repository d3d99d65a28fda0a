//! Disk space that is reserved before it is needed, so that a client can always release its leases,
//! however full its disk is.
//!
//! Other clients wait for a lease until the changes under it are with the server; changes that name
//! an open block wait until it is stored, and that takes room. So:
//!
//! Invariants:
//! - For each open block there is a file `room/NAME`, with as many bytes allocated as storing the
//!   block takes ([`Blocks::reserve`](super::blocks::Blocks::reserve) comes before the write that
//!   makes it longer). The block is stored in that very file, which gets its name: no other process
//!   can take the room in between.
//! - A directory entry may take a block of the disk. For that, and for journal records about the
//!   outcome of changes, there is a [`Spare`]: a file that is given up when the disk is full, and
//!   made again when there is room.
//! - A change is made only when its record has room in the journal
//!   ([`Journal::make_room`](super::journal::Journal::make_room)), with enough after it for records
//!   about changes already made.
//!
//! On a file system that cannot allocate ahead (`EOPNOTSUPP`) nothing is reserved.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use rustix::fs::{FallocateFlags, fallocate};
use weft_ringer_net::private;

/// The room reserved for directory entries and small files, in bytes.
const SPARE_BYTES: u64 = 1 << 20;
/// The minimum allocated for a block, in bytes.
const LEAST_BYTES: u64 = 16 << 10;

/// Returns true if an error says that the disk, or a quota, is full.
pub(super) fn is_full(e: &io::Error) -> bool {
    // `EDQUOT` is a full disk to a writer.
    matches!(e.raw_os_error(), Some(28 | 122))
}

/// Allocates `len_bytes` of a file from `offset` on, without making it longer. `false` if the file
/// system cannot.
pub(super) fn allocate(file: &File, offset: u64, len_bytes: u64) -> io::Result<bool> {
    match fallocate(file, FallocateFlags::KEEP_SIZE, offset, len_bytes.max(1)) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// The bytes to allocate for a block of `len_bytes`, which may grow.
pub(super) fn rounded(len_bytes: u64, max_bytes: u64) -> u64 {
    len_bytes.max(LEAST_BYTES).next_power_of_two().min(max_bytes).max(len_bytes)
}

/// Reserved room without content.
#[derive(Debug)]
pub(super) struct Spare {
    path: PathBuf,
}

impl Spare {
    pub(super) fn new(path: PathBuf) -> Self {
        let spare = Self { path };
        spare.restore();
        spare
    }

    /// Reserves it again, if it is not reserved and there is room.
    pub(super) fn restore(&self) {
        if self.path.exists() {
            return;
        }
        let made = private().write(true).create_new(true).open(&self.path);
        let allocated = made.and_then(|file| allocate(&file, 0, SPARE_BYTES));
        if let Err(e) = allocated {
            tracing::debug!("{}: {e}", self.path.display());
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// Runs `work`, and if the disk is full releases the spare room and runs it again.
    pub(super) fn with<T>(&self, work: impl Fn() -> io::Result<T>) -> io::Result<T> {
        match work() {
            Err(e) if is_full(&e) && std::fs::remove_file(&self.path).is_ok() => work(),
            done => done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocation_suffices_and_is_tight() {
        for len in [0, 1, 16 << 10, (16 << 10) + 1, 70_000, 262_144, 262_172] {
            let got = rounded(len, 262_172);
            assert!(got >= len && got <= (2 * len).max(LEAST_BYTES), "{len}: {got}");
        }
    }

    #[test]
    fn spare_room_is_released_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let spare = Spare::new(dir.path().join("spare"));
        let tries = std::cell::Cell::new(0);
        let full = || {
            tries.set(tries.get() + 1);
            Err::<(), _>(io::Error::from_raw_os_error(28))
        };
        assert!(spare.with(full).is_err());
        assert_eq!((tries.get(), dir.path().join("spare").exists()), (2, false));
        assert!(spare.with(full).is_err());
        assert_eq!(tries.get(), 3, "there is nothing to give up");
        spare.restore();
        assert!(dir.path().join("spare").exists());
    }
}
