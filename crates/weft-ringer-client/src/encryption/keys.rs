//! The keys of encrypted directories that this client has, in a file of its local store with mode
//! 600: a line for each, which is also the form in which a key is carried to another machine.
//!
//! ```text
//! weftkey1.CELL.DIRECTORY.KEY.CHECKSUM
//! ```
//!
//! Numbers in hex: 16 digits each for the cell's number and the directory's inode, 64 for the key,
//! and 16 of the BLAKE3 hash of all that is before the last point.
//!
//! Invariant: a key is durable before anything relies on it.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Mutex;

use data_encoding::HEXLOWER;
use weft_ringer::{Encryption, KeyId, RnodeId, from_hex};
use weft_ringer_net::{fill_random, replace};
use zeroize::Zeroizing;

use super::block::FileCipher;
use super::secret::{Secret, id_of};
use crate::mutex::locked;

const PREFIX: &str = "weftkey";
const VERSION: &str = "1";
/// The longest text of a key, in bytes, including white space.
const TEXT_MAX_BYTES: usize = 1024;

/// The key of an encrypted directory.
#[derive(Clone, PartialEq, Eq)]
pub struct DirectoryKey {
    /// The cell that the directory is in.
    pub cell: u64,
    /// The directory that was encrypted with it.
    pub directory: RnodeId,
    pub(super) secret: Secret,
}

impl fmt::Debug for DirectoryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key does not belong in a log.
        f.debug_struct("DirectoryKey").field("id", &self.id()).finish_non_exhaustive()
    }
}

/// Why a text is not a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyTextError {
    /// It has another form.
    #[error("not a key: expected weftkey1.CELL.DIRECTORY.KEY.CHECKSUM")]
    Form,
    /// It is of a later version of this program.
    #[error("unsupported key version {0}: this weft supports version 1")]
    Version(String),
    /// Part of it is missing or changed.
    #[error("the key is damaged: checksum mismatch")]
    Damaged,
}

fn checksum(text: &str) -> String {
    let mut hash = blake3::hash(text.as_bytes()).to_hex();
    hash.truncate(16);
    hash.to_string()
}

/// Appends bytes in hex.
pub(super) fn hex(bytes: &[u8], to: &mut String) {
    HEXLOWER.encode_append(bytes, to);
}

/// A line of text, ended with its checksum.
pub(super) fn with_checksum(mut text: Zeroizing<String>) -> Zeroizing<String> {
    let sum = checksum(&text);
    let _ = write!(text, ".{sum}");
    text
}

/// Returns the fields between the version and the checksum of a line of text, which points
/// separate.
///
/// # Errors
/// The prefix or the version is another, or the checksum does not match.
pub(super) fn fields<'a>(
    prefix: &str,
    known: &str,
    text: &'a str,
) -> Result<Vec<&'a str>, KeyTextError> {
    let text = text.trim();
    if text.len() > TEXT_MAX_BYTES {
        return Err(KeyTextError::Form);
    }
    let versioned = text.strip_prefix(prefix).ok_or(KeyTextError::Form)?;
    let (version, _) = versioned.split_once('.').ok_or(KeyTextError::Form)?;
    if version != known {
        let is_version = !version.is_empty() && version.bytes().all(|b| b.is_ascii_digit());
        let later = KeyTextError::Version(version.to_owned());
        return Err(if is_version { later } else { KeyTextError::Form });
    }
    let (said, sum) = text.rsplit_once('.').ok_or(KeyTextError::Form)?;
    if checksum(said) != sum {
        return Err(KeyTextError::Damaged);
    }
    // The first is prefix and version.
    Ok(said.split('.').skip(1).collect())
}

impl DirectoryKey {
    /// Makes a random key.
    ///
    /// # Errors
    /// The kernel has no random bytes.
    pub(super) fn generate(cell: u64, directory: RnodeId) -> io::Result<Self> {
        let mut secret = Secret::new([0; 32]);
        fill_random(&mut secret[..])?;
        Ok(Self { cell, directory, secret })
    }

    /// Its id, which identifies the key and reveals nothing else of it.
    #[must_use]
    pub fn id(&self) -> KeyId {
        id_of(&self.secret)
    }

    /// The key as text: possession of the text is possession of the key.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        // The buffer never grows, so no copy of the key stays behind.
        let mut text = Zeroizing::new(String::with_capacity(TEXT_MAX_BYTES));
        let _ = write!(text, "{PREFIX}{VERSION}.{:016x}.{:016x}.", self.cell, self.directory.0);
        hex(&self.secret[..], &mut text);
        with_checksum(text)
    }
}

impl FromStr for DirectoryKey {
    type Err = KeyTextError;

    fn from_str(text: &str) -> Result<Self, KeyTextError> {
        let [cell, directory, secret] = fields(PREFIX, VERSION, text)?[..] else {
            return Err(KeyTextError::Form);
        };
        let number = |digits| from_hex(digits).map(u64::from_be_bytes);
        let parsed = number(cell).zip(number(directory).filter(|directory| *directory > 0));
        let (cell, directory) = parsed.ok_or(KeyTextError::Form)?;
        let secret = from_hex(secret).map(Secret::new).ok_or(KeyTextError::Form)?;
        Ok(Self { cell, directory: RnodeId(directory), secret })
    }
}

/// Parses keys as a local store keeps them: a line each.
///
/// # Errors
/// The error of the first line that is not a key, with its number from 1 on.
pub fn parse_keys(text: &str) -> Result<Vec<DirectoryKey>, (usize, KeyTextError)> {
    let lines = (1..).zip(text.lines());
    lines.map(|(number, line)| line.parse().map_err(|e| (number, e))).collect()
}

/// The keys of a client.
#[derive(Debug)]
pub(in super::super) struct Keys {
    path: PathBuf,
    keys: Mutex<BTreeMap<KeyId, DirectoryKey>>,
}

impl Keys {
    pub(in super::super) fn open(path: &Path) -> io::Result<Self> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => Zeroizing::new(text),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Zeroizing::default(),
            Err(e) => return Err(e),
        };
        let damaged = |(line, e)| {
            let text = format!("line {line} of {}: {e}", path.display());
            io::Error::new(io::ErrorKind::InvalidData, text)
        };
        let keys = parse_keys(&text).map_err(damaged)?.into_iter().map(|key| (key.id(), key));
        Ok(Self { path: path.into(), keys: Mutex::new(keys.collect()) })
    }

    /// Replaces the keys, durably or not at all.
    fn change(&self, change: impl FnOnce(&mut BTreeMap<KeyId, DirectoryKey>)) -> io::Result<()> {
        let mut keys = locked(&self.keys);
        let mut new = keys.clone();
        change(&mut new);
        let mut text = Zeroizing::new(String::with_capacity(new.len() * TEXT_MAX_BYTES));
        for key in new.values() {
            text.push_str(&key.to_text());
            text.push('\n');
        }
        replace(&self.path, text.as_bytes())?;
        *keys = new;
        Ok(())
    }

    /// Stores a key, durably.
    pub(super) fn add(&self, key: DirectoryKey) -> io::Result<()> {
        self.change(|keys| drop(keys.insert(key.id(), key)))
    }

    /// Removes a key that nothing was encrypted with.
    pub(super) fn remove(&self, id: &KeyId) -> io::Result<()> {
        self.change(|keys| drop(keys.remove(id)))
    }

    pub(super) fn is_empty(&self) -> bool {
        locked(&self.keys).is_empty()
    }

    pub(super) fn get(&self, id: &KeyId) -> Option<DirectoryKey> {
        locked(&self.keys).get(id).cloned()
    }

    pub(super) fn has(&self, id: &KeyId) -> bool {
        locked(&self.keys).contains_key(id)
    }

    /// The keys that a directory is known to have been encrypted with.
    pub(super) fn of_directory(&self, id: RnodeId) -> Vec<KeyId> {
        let keys = locked(&self.keys);
        keys.iter().filter(|(_, key)| key.directory == id).map(|(id, _)| *id).collect()
    }

    /// Each key's id, with its directory.
    pub(super) fn list(&self) -> Vec<(KeyId, RnodeId)> {
        locked(&self.keys).iter().map(|(id, key)| (*id, key.directory)).collect()
    }

    /// Returns the cipher of a file, if its key is here.
    pub(in super::super) fn cipher(&self, encryption: Encryption) -> Option<FileCipher> {
        let keys = locked(&self.keys);
        keys.get(&encryption.key).map(|key| FileCipher::new(&key.secret, encryption))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn key(seed: u8) -> DirectoryKey {
        DirectoryKey { cell: 7, directory: RnodeId(1 << 40), secret: Secret::new([seed; 32]) }
    }

    #[test]
    fn keys_roundtrip_and_damage_is_detected() {
        let key = key(9);
        let text = key.to_text();
        assert_eq!(text.parse(), Ok(key.clone()));
        assert_eq!(format!(" {}\n", *text).parse(), Ok(key.clone()));
        assert!(!format!("{key:?}").contains("0909"), "the key is shown");
        assert!(!text.contains(&key.id().to_string()));
        for at in 0..text.len() {
            assert!(text[..at].parse::<DirectoryKey>().is_err(), "{at}");
            let mut other = text.as_bytes().to_vec();
            other[at] ^= 1;
            let other = String::from_utf8(other).expect("still text");
            assert!(other.parse::<DirectoryKey>().is_err(), "{other}");
        }
        let later = text.replace("weftkey1", "weftkey2");
        assert_eq!(later.parse::<DirectoryKey>(), Err(KeyTextError::Version("2".into())));
        let swapped = text.replace("0909", "0990");
        assert_eq!(swapped.parse::<DirectoryKey>(), Err(KeyTextError::Damaged));
        // The checksum matches, but the fields are invalid.
        for bad in ["weftkey1.00.00.00", "weftkey1.é", "weftkey1.", "weftkey1.0.0.0.0"] {
            let bad = format!("{bad}.{}", checksum(bad));
            assert_eq!(bad.parse::<DirectoryKey>(), Err(KeyTextError::Form), "{bad}");
        }
        for bad in ["", "weft1.0.0", "weftkeyx.0", "weftkey", "weftkey.", &"x".repeat(5000)] {
            assert_eq!(bad.parse::<DirectoryKey>(), Err(KeyTextError::Form), "{bad}");
        }
    }

    #[test]
    fn key_file_is_private_and_checked() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("keys");
        let keys = Keys::open(&path).expect("none");
        assert!(keys.is_empty());
        keys.add(key(1)).expect("kept");
        keys.add(key(2)).expect("kept");
        keys.remove(&key(1).id()).expect("gone");
        let mode = std::fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let again = Keys::open(&path).expect("one");
        assert!(again.has(&key(2).id()) && !again.has(&key(1).id()));
        assert_eq!(again.of_directory(RnodeId(1 << 40)), [key(2).id()]);
        let text = std::fs::read_to_string(&path).expect("text");
        std::fs::write(&path, text.replace("0202", "0203")).expect("damaged");
        let error = Keys::open(&path).expect_err("it is damaged").to_string();
        assert!(error.contains("line 1") && error.contains("checksum"), "{error}");
    }
}
