//! The state of a file's output in the output cache, and the keys under which outputs are cached.

use std::sync::Arc;

use blake3::{Hash, Hasher};
use weft_vfs::{
    Attr, FileSystem, Handle, Ino, Result, Time, check_interrupt, keeping_access_times,
};

use super::fill::Fill;
use super::version::FileVersion;
use crate::outputs::Entry;

/// The time in seconds since the last change after which a file may be cached.
const SETTLED_SECS: i64 = 2;

/// Bytes of a stored file that are read at a time for hashing.
const HASHED_BYTES: usize = 1 << 20;

/// The state of a file's output in the cache.
#[derive(Default)]
pub(super) struct Output {
    /// The state of the file at the time of the cache lookup.
    pub(super) of: Option<(FileVersion, u64)>,
    pub(super) state: OutputState,
    /// The schedule of repeated attempts.
    pub(super) retry: Retry,
    /// The length of an entry that turned out to be damaged while it was read: readers in the
    /// middle of the file continue with newly produced output, and must not see a shorter length
    /// meanwhile.
    pub(super) len_bytes: Option<u64>,
}

#[derive(Default, Clone)]
pub(super) enum OutputState {
    /// The output is not cached, and will not be.
    #[default]
    Nothing,
    Kept(Arc<Entry>, Hash),
    /// The lookup is to be repeated when the file is opened, as scheduled by [`Retry`].
    Again,
    Filling(Arc<Fill>),
}

/// Exponential backoff, counted in opens: a failed attempt is repeated on a later open of the file,
/// because each attempt costs a file, and perhaps a read of the whole stored file.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Retry {
    failures: u32,
    /// The number of opens to skip before the next attempt.
    left: u32,
}

/// Maximum number of doublings: at most 63 opens are skipped.
const DOUBLINGS_MAX: u32 = 6;

impl Retry {
    pub(super) fn failed(&mut self) {
        self.left = (1 << self.failures.min(DOUBLINGS_MAX)) - 1;
        self.failures += 1;
    }

    /// Returns true if an attempt is due on this open.
    pub(super) fn is_due(&mut self) -> bool {
        let due = self.left == 0;
        self.left = self.left.saturating_sub(1);
        due
    }
}

impl Output {
    /// Returns the state of the output, if the file is unchanged.
    pub(super) fn now(&self, seen: FileVersion, version: u64) -> Option<&OutputState> {
        (self.of == Some((seen, version))).then_some(&self.state)
    }

    /// Returns the length recorded in the entry.
    pub(super) fn len_bytes(&self, seen: FileVersion, version: u64) -> Option<u64> {
        match self.now(seen, version)? {
            OutputState::Kept(entry, _) => Some(entry.len_bytes()),
            OutputState::Nothing | OutputState::Again | OutputState::Filling(_) => self.len_bytes,
        }
    }

    pub(super) fn is_damaged(&mut self, len_bytes: u64) {
        self.state = OutputState::Again;
        self.len_bytes = Some(len_bytes);
    }

    pub(super) fn is_kept(&self) -> bool {
        matches!(self.state, OutputState::Kept(..)) || self.len_bytes.is_some()
    }
}

/// Returns true if a file was not changed within the last [`SETTLED_SECS`].
pub(super) fn is_settled(attr: &Attr) -> bool {
    let now = Time::from(std::time::SystemTime::now()).secs;
    attr.mtime.secs.max(attr.ctime.secs).saturating_add(SETTLED_SECS) <= now
}

/// Hashes inode number, length and times of a stored file.
pub(super) fn update_with_looks(hasher: &mut Hasher, attr: &Attr) {
    for n in [attr.ino.0, attr.size_bytes] {
        hasher.update(&n.to_le_bytes());
    }
    for time in [attr.mtime, attr.ctime] {
        hasher.update(&time.secs.to_le_bytes()).update(&time.nanos.to_le_bytes());
    }
}

pub(super) fn looks_same(a: &Attr, b: &Attr) -> bool {
    (a.ino, a.size_bytes, a.mtime, a.ctime) == (b.ino, b.size_bytes, b.mtime, b.ctime)
}

/// Returns the hash of the stored content of an inode.
pub(super) fn content_hash(fs: &dyn FileSystem, ino: Ino) -> Result<Hash> {
    let mut hasher = Hasher::new();
    let mut buf = vec![0; HASHED_BYTES];
    let mut at = 0;
    loop {
        check_interrupt()?;
        let got = keeping_access_times(true, || fs.read(ino, Handle::NONE, at, &mut buf))?;
        if got == 0 {
            return Ok(hasher.finalize());
        }
        hasher.update(&buf[..got]);
        at += got as u64;
    }
}

/// Returns the key of an output.
pub(super) fn key(network: &Hash, content: &Hash) -> Hash {
    let mut hasher = Hasher::new();
    hasher.update(network.as_bytes()).update(content.as_bytes());
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_tried_again_ever_more_openings_later() {
        let mut retry = Retry::default();
        let tried: Vec<usize> =
            (0..300).filter(|_| retry.is_due().then(|| retry.failed()).is_some()).collect();
        assert_eq!(tried, [0, 1, 3, 7, 15, 31, 63, 127, 191, 255]);
    }
}
