//! The key that content is encrypted with, as all clients see it: ids in an attribute, never a key.
//!
//! A directory is encrypted by an attribute ([`ENCRYPTION_XATTR`]), so that is versioned, leased
//! and seen by all clients. An rnode made in the directory inherits it: a directory the same value,
//! a regular file that value and the file's own random id, which is copied into snapshots. Its text
//! form:
//!
//! ```text
//! v1 KEY           of a directory: format and the key's id, 32 digits in hex
//! v1 KEY FILE      of a file: the same, and the file's id, 32 digits in hex
//! ```
//!
//! Invariants, enforced when a change is carried out ([`op::execute`](crate::op::execute)), so by
//! every client and by the server:
//! - A directory gets the attribute, or another value, only while it is empty; it never loses it.
//! - A file has it exactly if the directories that hold its names have it, with the same format and
//!   key; so have the directories below an encrypted one, unless one of them is given a key of its
//!   own.
//! - The attribute that shares the key ([`SHARES_XATTR`]) exists on encrypted directories alone; it
//!   is changed, and never removed.
//! - So no rnode moves between directories of two keys, or of one and none: it is copied.

use std::fmt;
use std::str::FromStr;

use data_encoding::HEXLOWER;

use crate::error::Refusal;
use crate::rnode::{Body, Bytes, Rnode};
use crate::wire::{Reader, Wire, WireError, wire_struct};

/// The attribute of a directory that is encrypted, and of the files in it.
pub const ENCRYPTION_XATTR: &[u8] = b"user.weft.encryption";
/// The attribute of an encrypted directory with its key wrapped for members: each client unwraps it
/// with its own secret.
pub const SHARES_XATTR: &[u8] = b"user.weft.shares";
/// The longest value of [`SHARES_XATTR`], in bytes.
pub const SHARES_MAX_BYTES: usize = 20 << 10;
/// The longest value of a directory's encryption attribute, in bytes: later formats may need more.
const MARK_MAX_BYTES: usize = 256;
const FORMAT: &str = "v1";

/// The text is not the id of a key or a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an id has 32 digits in hex")]
pub struct NotAnId;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub [u8; 16]);

        impl Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.0);
            }

            fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
                let bytes = from.take(16, $what)?;
                bytes.try_into().map(Self).map_err(|_| WireError::Short { what: $what })
            }
        }

        /// In hex.
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = NotAnId;

            fn from_str(text: &str) -> Result<Self, NotAnId> {
                from_hex(text).map(Self).ok_or(NotAnId)
            }
        }
    };
}

id!(
    /// The id of a key, a hash of it.
    KeyId,
    "the id of a key"
);
id!(
    /// The id of an encrypted file: chosen at random when the file is made, and never reused.
    FileId,
    "the id of a file"
);

id!(
    /// The id of a member of a cell that keys are wrapped for, a hash of the member's public key.
    Fingerprint,
    "a fingerprint"
);

/// Decodes `N` bytes from lower-case hex, the one form accepted; `None` for any other text.
#[must_use]
pub fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let fits = HEXLOWER.decode_len(text.len()) == Ok(N);
    // Decode into the array directly: the bytes may be a secret, of which no copy may stay behind.
    (fits && HEXLOWER.decode_mut(text.as_bytes(), &mut bytes).is_ok()).then_some(bytes)
}

/// The encryption of a file's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Encryption {
    /// The key that the file's own key is derived from.
    pub key: KeyId,
    /// The id of the file.
    pub file: FileId,
}
wire_struct!(Encryption { key, file });

/// The attribute is in the format of a later version of this program, or damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("encrypted in an unknown format: a newer weft is needed")]
pub struct UnknownFormat;

fn attribute(rnode: &Rnode) -> Option<&Bytes> {
    // Most rnodes have no attributes, and this is called before every read.
    if rnode.xattrs.is_empty() {
        return None;
    }
    rnode.xattrs.get(&Bytes(ENCRYPTION_XATTR.to_vec()))
}

fn words(rnode: &Rnode) -> Result<Option<(KeyId, Option<FileId>)>, UnknownFormat> {
    let Some(value) = attribute(rnode) else { return Ok(None) };
    let parsed = (|| {
        let mut words = std::str::from_utf8(&value.0).ok()?.split(' ');
        let (format, key, file) = (words.next()?, words.next()?, words.next());
        let file = file.map(FileId::from_str).transpose().ok()?;
        let is_whole = format == FORMAT && words.next().is_none();
        Some((key.parse().ok()?, file)).filter(|_| is_whole)
    })();
    parsed.map(Some).ok_or(UnknownFormat)
}

impl KeyId {
    /// Returns the attribute of a directory that is encrypted with the key.
    #[must_use]
    pub fn mark(&self) -> Bytes {
        Bytes(format!("{FORMAT} {self}").into_bytes())
    }

    /// Returns the key that rnodes made in a directory are encrypted with, if it is encrypted.
    ///
    /// # Errors
    /// [`UnknownFormat`]: nothing can be made in the directory.
    pub fn of_directory(rnode: &Rnode) -> Result<Option<Self>, UnknownFormat> {
        match words(rnode)? {
            None => Ok(None),
            Some((key, None)) if rnode.is_dir() => Ok(Some(key)),
            Some(_) => Err(UnknownFormat),
        }
    }
}

impl Encryption {
    /// Returns the encryption of a file, if it is encrypted.
    ///
    /// # Errors
    /// [`UnknownFormat`]: the file can be neither read nor written.
    pub fn of(rnode: &Rnode) -> Result<Option<Self>, UnknownFormat> {
        match words(rnode)? {
            None => Ok(None),
            Some((key, Some(file))) if !rnode.is_dir() => Ok(Some(Self { key, file })),
            Some(_) => Err(UnknownFormat),
        }
    }
}

/// Returns true if a file or directory is encrypted, in any format.
#[must_use]
pub fn is_encrypted(rnode: &Rnode) -> bool {
    attribute(rnode).is_some()
}

/// Returns the encryption attribute of a new regular file in `dir`, `file` being its id if the
/// client encrypts it. Refused if the client's view of the directory's encryption is out of date.
pub(crate) fn of_new_file(
    dir: &Rnode,
    file: Option<&FileId>,
) -> Result<Option<(Bytes, Bytes)>, Refusal> {
    match (attribute(dir), file) {
        (None, None) => Ok(None),
        (Some(mark), Some(file)) => {
            let value = [&mark.0[..], b" ", file.to_string().as_bytes()].concat();
            Ok(Some((Bytes(ENCRYPTION_XATTR.to_vec()), Bytes(value))))
        }
        _ => Err(Refusal::EncryptionChanged),
    }
}

/// Returns the encryption attribute that a new directory inherits from its parent `dir`.
pub(crate) fn of_new_directory(dir: &Rnode) -> Option<(Bytes, Bytes)> {
    attribute(dir).map(|mark| (Bytes(ENCRYPTION_XATTR.to_vec()), mark.clone()))
}

/// Checks that names may move from one directory to another.
pub(crate) fn check_move(from: &Rnode, to: &Rnode) -> Result<(), Refusal> {
    if attribute(from) == attribute(to) { Ok(()) } else { Err(Refusal::CrossDevice) }
}

/// Checks that an rnode may have a name in a directory.
pub(crate) fn check_link(rnode: &Rnode, dir: &Rnode) -> Result<(), Refusal> {
    let is_file = matches!(rnode.body, Body::File { .. });
    if !is_file || mark(rnode) == mark(dir) { Ok(()) } else { Err(Refusal::CrossDevice) }
}

/// Returns the encryption of a directory, or of the directories that a file may be in.
pub(crate) fn mark(rnode: &Rnode) -> Option<&[u8]> {
    let value = &attribute(rnode)?.0[..];
    match rnode.body {
        // The file's id follows the last blank.
        Body::File { .. } => value.rsplitn(2, |b| *b == b' ').last(),
        _ => Some(value),
    }
}

/// Checks that an attribute may be set (`Some`), or removed (`None`).
pub(crate) fn check_attribute(
    rnode: &Rnode,
    name: &Bytes,
    value: Option<&Bytes>,
) -> Result<(), Refusal> {
    if name.0 == SHARES_XATTR {
        let value = value.ok_or(Refusal::NotPermitted)?;
        let is_of_encrypted = rnode.is_dir() && is_encrypted(rnode);
        let is_bounded = value.0.len() <= SHARES_MAX_BYTES;
        return if is_of_encrypted && is_bounded { Ok(()) } else { Err(Refusal::Invalid) };
    }
    if name.0 != ENCRYPTION_XATTR {
        return Ok(());
    }
    match (&rnode.body, value) {
        // The content of another cell is not encrypted by this one.
        (Body::Directory { .. }, Some(_)) if rnode.is_cell_mount() => Err(Refusal::Invalid),
        (Body::Directory { entries: 0, .. }, Some(value)) => {
            let is_mark = (1..=MARK_MAX_BYTES).contains(&value.0.len());
            if is_mark { Ok(()) } else { Err(Refusal::Invalid) }
        }
        (Body::Directory { .. }, Some(_)) => Err(Refusal::NotEmpty),
        _ => Err(Refusal::NotPermitted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_vfs::Time;

    fn with(value: &[u8]) -> Rnode {
        let mut rnode = Rnode::root(Time::default());
        rnode.xattrs.insert(Bytes(ENCRYPTION_XATTR.to_vec()), Bytes(value.to_vec()));
        rnode
    }

    #[test]
    fn encryption_attributes_roundtrip() {
        let (key, file) = (KeyId([0xab; 16]), FileId([7; 16]));
        let plain = Rnode::root(Time::default());
        assert_eq!((KeyId::of_directory(&plain), Encryption::of(&plain)), (Ok(None), Ok(None)));
        let dir = with(&key.mark().0);
        assert_eq!(KeyId::of_directory(&dir), Ok(Some(key)));
        let (_, value) = of_new_file(&dir, Some(&file)).expect("both are").expect("one");
        let mut made = with(&value.0);
        assert_eq!(KeyId::of_directory(&made), Err(UnknownFormat), "a file's");
        made.body = Body::Symlink { target: Bytes(b"x".to_vec()) };
        assert_eq!(Encryption::of(&made), Ok(Some(Encryption { key, file })));
        for bad in ["", "v1", "v1 ", "v2 00", &format!("v2 {key}"), &format!("v1 {key} {file} ")] {
            let bad = with(bad.as_bytes());
            assert_eq!(KeyId::of_directory(&bad), Err(UnknownFormat), "{bad:?}");
            assert!(is_encrypted(&bad));
        }
        assert_eq!(of_new_file(&dir, None), Err(Refusal::EncryptionChanged));
        assert_eq!(of_new_file(&plain, Some(&file)), Err(Refusal::EncryptionChanged));
    }

    #[test]
    fn ids_have_one_encoding() {
        let id = KeyId([0x0f; 16]);
        assert_eq!(id.to_string().parse(), Ok(id));
        for bad in ["", "0f", &id.to_string().to_uppercase(), &format!("{id}00"), &"+1".repeat(16)]
        {
            assert_eq!(bad.parse::<KeyId>(), Err(NotAnId), "{bad}");
        }
    }
}
