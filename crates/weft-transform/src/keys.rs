//! Keys by name, supplied by the caller and wiped on drop.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use zeroize::{Zeroize, Zeroizing};

/// Length of a key in bytes.
pub const KEY_BYTES: usize = 32;

/// A secret key.
#[derive(Clone)]
pub struct Key(Arc<Zeroizing<[u8; KEY_BYTES]>>);

impl Key {
    /// Creates a key of these bytes.
    #[must_use]
    pub fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self(Arc::new(Zeroizing::new(bytes)))
    }

    /// Parses the content of a key file or variable: 64 hex digits (surrounding white space is
    /// ignored), or 32 raw bytes.
    #[must_use]
    pub fn from_file_content(content: &[u8]) -> Option<Self> {
        let hex = content.trim_ascii();
        let mut bytes = [0; KEY_BYTES];
        if hex.len() == 2 * KEY_BYTES {
            let decoded = data_encoding::HEXLOWER_PERMISSIVE.decode(hex).ok()?;
            let decoded = Zeroizing::new(decoded);
            bytes.copy_from_slice(&decoded);
        } else {
            bytes.copy_from_slice(content.get(..KEY_BYTES).filter(|k| k.len() == content.len())?);
        }
        let key = Self::new(bytes);
        bytes.zeroize();
        Some(key)
    }

    /// The key's id: identifies the key that sealed a file, and reveals nothing else of the key.
    #[must_use]
    pub fn id(&self) -> [u8; 16] {
        let hash = blake3::derive_key("weft 2026 key id", &self.0[..]);
        let mut id = [0; 16];
        id.copy_from_slice(&hash[..16]);
        id
    }

    /// Derives a key for one file and one purpose.
    pub(crate) fn derive(&self, purpose: &str, file_id: &[u8; 16]) -> Zeroizing<[u8; KEY_BYTES]> {
        let mut hasher = blake3::Hasher::new_derive_key(purpose);
        hasher.update(&self.0[..]);
        hasher.update(file_id);
        Zeroizing::new(*hasher.finalize().as_bytes())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(secret)")
    }
}

/// Keys by name. A name may have several keys: the first seals new files, all can open existing
/// ones, so a key is rotated by putting a new one before the old.
#[derive(Debug, Clone, Default)]
pub struct KeyRing {
    keys: BTreeMap<String, Vec<Key>>,
}

impl KeyRing {
    /// Adds a key behind those of the same name.
    pub fn add(&mut self, name: impl Into<String>, key: Key) {
        self.keys.entry(name.into()).or_default().push(key);
    }

    /// The keys of a name, the one for new files first.
    #[must_use]
    pub fn named(&self, name: &str) -> &[Key] {
        self.keys.get(name).map_or(&[], Vec::as_slice)
    }
}
