//! The bytes of a key, and its id.

use weft_ringer::KeyId;
use zeroize::Zeroizing;

const ID_CONTEXT: &str = "weft-ringer 2026 id of a key";

/// The bytes of a key, wiped when they are dropped.
pub(super) type Secret = Zeroizing<[u8; 32]>;

pub(super) fn id_of(secret: &Secret) -> KeyId {
    let hash = blake3::derive_key(ID_CONTEXT, &secret[..]);
    let mut id = [0; 16];
    id.copy_from_slice(&hash[..16]);
    KeyId(id)
}
