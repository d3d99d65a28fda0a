//! The blocks of the local store that have been read whole and had the hash in their name.
//!
//! A disk may return other bytes than were written to it, without an error. So data from the disk
//! is checked as a whole against the hash, and a part of a block is read only from the kernel's
//! memory, after a check.
//!
//! Invariants:
//! - A part of a block is returned only if all of it was in the kernel's memory (`RWF_NOWAIT`), and
//!   the file is the one that was checked, by its inode number, length and time of last change.
//! - A check does not count if the file had been changed just before: a later change could bear the
//!   same time.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::io::{ReadWriteFlags, preadv2};
use weft_ringer::{BlockHash, RnodeId};

use super::mutex::locked;

/// The maximum number of blocks remembered: some 4 MiB of memory. Beyond it, all are forgotten.
const REMEMBERED_MAX: usize = 1 << 16;
/// The time since the last change of a file before a check counts: some ticks of the kernel's clock
/// for time stamps.
const SETTLED: Duration = Duration::from_millis(50);

/// Identifies one state of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    ino: u64,
    len_bytes: u64,
    changed_secs: i64,
    changed_nanos: i64,
}

impl Stamp {
    /// The stamp of an open file.
    pub(super) fn of(file: &File) -> io::Result<Self> {
        let found = file.metadata()?;
        Ok(Self {
            ino: found.ino(),
            len_bytes: found.len(),
            changed_secs: found.ctime(),
            changed_nanos: found.ctime_nsec(),
        })
    }

    fn is_settled(&self) -> bool {
        let secs = u64::try_from(self.changed_secs).unwrap_or_default();
        let nanos = u32::try_from(self.changed_nanos).unwrap_or_default();
        let changed = UNIX_EPOCH + Duration::new(secs, nanos);
        SystemTime::now().duration_since(changed).is_ok_and(|since| since > SETTLED)
    }
}

/// The blocks that were checked, each with the stamp of its file at that time.
#[derive(Debug, Default)]
pub(super) struct Verified(Mutex<HashMap<(RnodeId, BlockHash), Stamp>>);

impl Verified {
    /// Fills `buf` from byte `offset` of a checked block. Returns `false` if it was not checked, or
    /// has changed since, or if part of it would come from the disk.
    pub(super) fn read(
        &self,
        rnode: RnodeId,
        hash: &BlockHash,
        file: &File,
        offset: u64,
        buf: &mut [u8],
    ) -> bool {
        let Some(stamp) = locked(&self.0).get(&(rnode, *hash)).copied() else { return false };
        if Stamp::of(file).ok() != Some(stamp) {
            return false;
        }
        let wanted = buf.len();
        let mut parts = [IoSliceMut::new(buf)];
        preadv2(file, &mut parts, offset, ReadWriteFlags::NOWAIT).is_ok_and(|n| n == wanted)
    }

    /// Records that a block was read whole and had its hash; `stamp` was taken before the read.
    pub(super) fn remember(&self, rnode: RnodeId, hash: &BlockHash, stamp: Stamp) {
        if !stamp.is_settled() {
            return;
        }
        let mut all = locked(&self.0);
        if all.len() >= REMEMBERED_MAX {
            all.clear();
        }
        all.insert((rnode, *hash), stamp);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn changed_block_counts_as_unverified() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("block");
        std::fs::write(&path, [1; 5000]).expect("written");
        let (verified, rnode, hash) = (Verified::default(), RnodeId(7), BlockHash([3; 32]));
        let file = File::options().read(true).write(true).open(&path).expect("a file");
        let mut buf = [0; 10];
        assert!(!verified.read(rnode, &hash, &file, 0, &mut buf), "never checked");
        while !Stamp::of(&file).expect("a stamp").is_settled() {
            verified.remember(rnode, &hash, Stamp::of(&file).expect("a stamp"));
            std::thread::sleep(Duration::from_millis(5));
        }
        verified.remember(rnode, &hash, Stamp::of(&file).expect("a stamp"));
        // Where the file system cannot tell what is in memory, blocks are checked each time.
        let _ = verified.read(rnode, &hash, &file, 4000, &mut buf);
        assert!(!verified.read(rnode, &hash, &file, 4995, &mut buf), "behind the end");
        file.write_all_at(&[2], 100).expect("written");
        assert!(!verified.read(rnode, &hash, &file, 0, &mut buf), "it has another time");
    }
}
