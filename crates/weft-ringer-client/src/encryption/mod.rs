//! Encrypted directories on this client: keys, ciphers of files, and decrypted blocks.
//!
//! Content is encrypted where it becomes a block with a hash, and where it goes to the journal. So
//! the server, other clients, archives, and the files of this client's own store, have ciphertext
//! alone; they keep copies, history and snapshots as of any other file, without the key.
//!
//! Invariants:
//! - Nothing is written plain to a file that is encrypted, nor to one that should be. The server is
//!   not trusted: a directory that this client has a key of is encrypted, and everything below an
//!   encrypted directory is. A file is, while it is in use here, encrypted as it was when it was
//!   first used.
//! - A block that is read was encrypted with the file's key, for that file, and for that position
//!   in it.
//! - An encrypted file is read with its key only while it is in a directory of that key: so an
//!   attacker cannot have it copied to a plain directory by showing it there under another name.

mod block;
mod files;
mod keys;
mod member;
mod members;
mod opened;
mod secret;
mod shares;
mod sharing;

pub(super) use self::block::FileCipher;
pub use self::block::{BlockError, EncryptedBlock};
pub(super) use self::keys::Keys;
pub use self::keys::{DirectoryKey, KeyTextError, parse_keys};
pub use self::member::{MemberId, MemberIdError};
pub(super) use self::members::Members;
pub(super) use self::opened::Encrypted;
pub use self::shares::{Share, Shares, SharesError};

/// The attribute of any directory of a mount that lists this client's keys, by their ids, and takes
/// a key when it is set.
pub const KEYS_XATTR: &[u8] = b"user.weft.keys";
/// The attribute of any directory of a mount that shows the id by which others hand keys to this
/// client.
pub const MEMBER_XATTR: &[u8] = b"user.weft.member";
/// The attribute of a mount's root that lists the ids of members whose keys are accepted; each line
/// that it is set to is an id to trust from now on, or no longer if a `-` is before it.
pub const TRUSTED_XATTR: &[u8] = b"user.weft.trusted";
/// The attribute of any directory of a mount that lists this client's keys, with the members that
/// their directories are shared with.
pub const SHARED_KEYS_XATTR: &[u8] = b"user.weft.keys.shared";
/// The first word of the text that [`SHARES_XATTR`](weft_ringer::SHARES_XATTR) of a directory is set to, to share it with the
/// members whose ids follow.
pub const SHARE: &str = "share";
