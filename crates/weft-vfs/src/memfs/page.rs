//! A page of a file's content, shared by all trees in which it is the same.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::OnceLock;

use super::file::PAGE_BYTES;

/// The number of bytes in a page.
const BYTES: usize = PAGE_BYTES as usize;

/// 4 KiB of a file's content, in a [`Snapshot`](super::Snapshot) or a mounted file.
///
/// Pages are shared (`Arc<Page>`); a change of one is a change of a copy.
#[derive(Clone)]
pub struct Page {
    bytes: [u8; BYTES],
    hash: OnceLock<Option<u128>>,
}

impl Default for Page {
    fn default() -> Self {
        Self { bytes: [0; BYTES], hash: OnceLock::new() }
    }
}

impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Page").field("hash", &self.hash()).finish_non_exhaustive()
    }
}

impl Page {
    /// Returns the bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8; BYTES] {
        &self.bytes
    }

    /// Returns the bytes, to change them.
    pub fn bytes_mut(&mut self) -> &mut [u8; BYTES] {
        self.hash.take();
        &mut self.bytes
    }

    /// Returns a hash of the bytes, which is computed once; `None` if all are zero, as they are in a
    /// hole.
    #[must_use]
    pub fn hash(&self) -> Option<u128> {
        *self.hash.get_or_init(|| {
            let some = self.bytes.iter().any(|&byte| byte != 0);
            some.then(|| hash128(|hasher| hasher.write(&self.bytes)))
        })
    }
}

/// Returns a hash of 128 bits of what `feed` feeds: two of 64 bits, of different beginnings. It is the
/// same in every process of one build, and not meant to withstand somebody who looks for collisions.
pub fn hash128(feed: impl Fn(&mut DefaultHasher)) -> u128 {
    let half = |seed: u64| {
        let mut hasher = DefaultHasher::new();
        seed.hash(&mut hasher);
        feed(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}
