//! The encryption of one block.
//!
//! ```text
//! offset 0    4 bytes   "weB1", or "weR1" if it is part of a write in the journal
//!        4   16 bytes   the id of the directory's key
//!       20   16 bytes   the id of the file
//!       36   24 bytes   nonce, random
//!       60    n bytes   ciphertext, as long as what is in it
//!     60+n   16 bytes   tag
//! ```
//!
//! XChaCha20-Poly1305 (draft-irtf-cfrg-xchacha-03; ChaCha20 and Poly1305 as in RFC 8439), under a
//! key of the file's own:
//! `BLAKE3::derive_key("weft-ringer 2026 key of an encrypted file", key ‖ file id)`. The associated
//! data are the first 36 bytes and the position: of a block its index in the file (4 bytes,
//! little-endian), of a write the name of the open block (32 bytes) and the offset of the write in
//! it (4 bytes, little-endian). So a block is valid at its position in its file alone.
//!
//! Why this cipher: a file that is changed again and again has blocks encrypted again and again,
//! each with a nonce that no counter protects (several machines write to one file, and a machine
//! may be put back to an earlier state). A file has up to 2^16 blocks; changed as a whole a million
//! times that is 2^36 under one key. Two of so many random nonces of 192 bits are the same with a
//! chance of 2^-121. Those of AES-256-GCM have 96 bits: 2^-25 there, and one such pair gives away
//! how to forge. AES-256-GCM-SIV withstands that, but reads everything twice to encrypt it.

use chacha20poly1305::XChaCha20Poly1305;
use chacha20poly1305::aead::{AeadInPlace, KeyInit};
use weft_ringer::{BlockHash, ENCRYPTED_OVERHEAD_BYTES, Encryption, FileId, KeyId};
use weft_ringer_net::fill_random;
use zeroize::Zeroizing;

use super::secret::Secret;

const BLOCK_MAGIC: &[u8; 4] = b"weB1";
const REDO_MAGIC: &[u8; 4] = b"weR1";
const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;
/// The length of the authenticated header: magic and ids.
const BOUND_BYTES: usize = 36;
const HEAD_BYTES: usize = BOUND_BYTES + NONCE_BYTES;
const CONTEXT: &str = "weft-ringer 2026 key of an encrypted file";

const _: () = assert!(HEAD_BYTES + TAG_BYTES == ENCRYPTED_OVERHEAD_BYTES as usize);

/// Why bytes are not a ciphertext made with a key, for a file, at a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// It is too short, or has another header.
    #[error("not encrypted, or in an unknown format")]
    Format,
    /// It says that it belongs to another file.
    #[error("encrypted for another file or key (file {}, key {})", .0.file, .0.key)]
    Foreign(Encryption),
    /// It belongs to another position in the file, or was changed.
    #[error("authentication failed: it was changed, or moved here from another place")]
    Forged,
    /// It contains fewer bytes than the file should have there.
    #[error("wrong length: {has} bytes, expected {wanted}")]
    Short {
        /// The number of bytes.
        has: usize,
        /// The number that the file states.
        wanted: usize,
    },
}

/// An encrypted block, parsed and not yet decrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncryptedBlock<'a> {
    /// The file and key that its header names.
    pub encryption: Encryption,
    bound: &'a [u8],
    nonce: &'a [u8],
    ciphertext: &'a [u8],
    tag: &'a [u8],
}

impl<'a> EncryptedBlock<'a> {
    /// Parses a block.
    ///
    /// # Errors
    /// [`BlockError::Format`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BlockError> {
        Self::parse_as(BLOCK_MAGIC, bytes).ok_or(BlockError::Format)
    }

    fn parse_as(magic: &[u8; 4], bytes: &'a [u8]) -> Option<Self> {
        let (bound, rest) = bytes.split_at_checked(BOUND_BYTES)?;
        let (nonce, rest) = rest.split_at_checked(NONCE_BYTES)?;
        let (ciphertext, tag) = rest.split_at_checked(rest.len().checked_sub(TAG_BYTES)?)?;
        let ids = bound.strip_prefix(magic)?;
        let (key, file) = ids.split_at_checked(16)?;
        let encryption =
            Encryption { key: KeyId(key.try_into().ok()?), file: FileId(file.try_into().ok()?) };
        Some(Self { encryption, bound, nonce, ciphertext, tag })
    }
}

/// The cipher for the blocks of one file.
pub(in super::super) struct FileCipher {
    pub(in super::super) encryption: Encryption,
    cipher: XChaCha20Poly1305,
}

impl std::fmt::Debug for FileCipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileCipher").field("encryption", &self.encryption).finish_non_exhaustive()
    }
}

impl FileCipher {
    pub(super) fn new(secret: &Secret, encryption: Encryption) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        hasher.update(&secret[..]).update(&encryption.file.0);
        let key = Zeroizing::new(*hasher.finalize().as_bytes());
        Self { encryption, cipher: XChaCha20Poly1305::new((&*key).into()) }
    }

    fn encrypt(&self, magic: &[u8; 4], place: &[u8], plain: &[u8]) -> std::io::Result<Vec<u8>> {
        let mut out = Vec::with_capacity(plain.len() + ENCRYPTED_OVERHEAD_BYTES as usize);
        out.extend_from_slice(magic);
        out.extend_from_slice(&self.encryption.key.0);
        out.extend_from_slice(&self.encryption.file.0);
        let associated = [&out[..], place].concat();
        let mut nonce = [0; NONCE_BYTES];
        fill_random(&mut nonce)?;
        out.extend_from_slice(&nonce);
        out.extend_from_slice(plain);
        let sealed = self.cipher.encrypt_in_place_detached(
            (&nonce).into(),
            &associated,
            &mut out[HEAD_BYTES..],
        );
        let tag = sealed.map_err(|_| std::io::Error::other("a block is too long to encrypt"))?;
        out.extend_from_slice(&tag);
        Ok(out)
    }

    fn open(&self, magic: &[u8; 4], place: &[u8], bytes: &[u8]) -> Result<Vec<u8>, BlockError> {
        let block = EncryptedBlock::parse_as(magic, bytes).ok_or(BlockError::Format)?;
        if block.encryption != self.encryption {
            return Err(BlockError::Foreign(block.encryption));
        }
        let associated = [block.bound, place].concat();
        let mut plain = block.ciphertext.to_vec();
        let nonce = chacha20poly1305::XNonce::from_slice(block.nonce);
        let tag = chacha20poly1305::Tag::from_slice(block.tag);
        let opened = self.cipher.decrypt_in_place_detached(nonce, &associated, &mut plain, tag);
        opened.map(|()| plain).map_err(|_| BlockError::Forged)
    }

    /// Returns the encrypted block, as it is stored.
    ///
    /// # Errors
    /// The kernel has no random bytes.
    pub(in super::super) fn encrypt_block(
        &self,
        index: u32,
        plain: &[u8],
    ) -> std::io::Result<Vec<u8>> {
        self.encrypt(BLOCK_MAGIC, &index.to_le_bytes(), plain)
    }

    /// Decrypts a stored block.
    ///
    /// # Errors
    /// [`BlockError`].
    pub(in super::super) fn open_block(
        &self,
        index: u32,
        stored: &[u8],
    ) -> Result<Vec<u8>, BlockError> {
        self.open(BLOCK_MAGIC, &index.to_le_bytes(), stored)
    }

    /// Encrypts a write into an open block, as it is stored in the journal.
    ///
    /// # Errors
    /// The kernel has no random bytes.
    pub(in super::super) fn encrypt_redo(
        &self,
        name: &BlockHash,
        within: u32,
        plain: &[u8],
    ) -> std::io::Result<Vec<u8>> {
        self.encrypt(REDO_MAGIC, &[&name.0[..], &within.to_le_bytes()].concat(), plain)
    }

    /// Decrypts such a write.
    ///
    /// # Errors
    /// [`BlockError`].
    pub(in super::super) fn open_redo(
        &self,
        name: &BlockHash,
        within: u32,
        stored: &[u8],
    ) -> Result<Vec<u8>, BlockError> {
        self.open(REDO_MAGIC, &[&name.0[..], &within.to_le_bytes()].concat(), stored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weft_ringer::Incarnation;

    fn cipher(secret: u8, file: u8) -> FileCipher {
        let secret = Secret::new([secret; 32]);
        let encryption =
            Encryption { key: super::super::secret::id_of(&secret), file: FileId([file; 16]) };
        FileCipher::new(&secret, encryption)
    }

    proptest! {
        #[test]
        fn encrypted_block_is_valid_at_its_position_only(
            plain in prop::collection::vec(any::<u8>(), 0..200), index: u32, at: usize, bit in 0..8,
        ) {
            let own = cipher(1, 1);
            let stored = own.encrypt_block(index, &plain).expect("random bytes");
            prop_assert_eq!(stored.len(), plain.len() + ENCRYPTED_OVERHEAD_BYTES as usize);
            prop_assert_eq!(own.open_block(index, &stored), Ok(plain.clone()));
            let again = own.encrypt_block(index, &plain).expect("random bytes");
            prop_assert!(stored != again, "no two are alike");
            let elsewhere = own.open_block(index.wrapping_add(1), &stored);
            prop_assert_eq!(elsewhere, Err(BlockError::Forged));
            for other in [cipher(1, 2), cipher(2, 1)] {
                let foreign = Err(BlockError::Foreign(own.encryption));
                prop_assert_eq!(other.open_block(index, &stored), foreign);
            }
            // The ids of another file replace its own.
            let mut renamed = stored.clone();
            renamed[20..36].copy_from_slice(&[2; 16]);
            prop_assert_eq!(cipher(1, 2).open_block(index, &renamed), Err(BlockError::Forged));
            let mut damaged = stored.clone();
            let at = at % damaged.len();
            damaged[at] ^= 1_u8 << bit;
            prop_assert!(own.open_block(index, &damaged).is_err());
            for cut in [0, at, stored.len() - 1] {
                prop_assert!(own.open_block(index, &stored[..cut]).is_err());
            }
            prop_assert!(own.open_block(index, &[&stored[..], &[0]].concat()).is_err());
        }

        #[test]
        fn any_block_is_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            let own = cipher(1, 1);
            prop_assert!(own.open_block(0, &bytes).is_err());
            let named = [&BLOCK_MAGIC[..], &bytes].concat();
            let is_long = named.len() >= ENCRYPTED_OVERHEAD_BYTES as usize;
            prop_assert_eq!(EncryptedBlock::parse(&named).is_ok(), is_long);
        }
    }

    #[test]
    fn encrypted_write_is_valid_in_its_open_block_only() {
        let own = cipher(1, 1);
        let names = [1, 2].map(|n| BlockHash::open(Incarnation(1), n));
        let stored = own.encrypt_redo(&names[0], 7, b"words").expect("random bytes");
        assert_eq!(own.open_redo(&names[0], 7, &stored), Ok(b"words".to_vec()));
        assert_eq!(own.open_redo(&names[1], 7, &stored), Err(BlockError::Forged));
        assert_eq!(own.open_redo(&names[0], 8, &stored), Err(BlockError::Forged));
        assert_eq!(own.open_block(0, &stored), Err(BlockError::Format));
    }

    /// The stored format stays readable.
    #[test]
    fn format_is_stable() {
        let own = cipher(1, 1);
        let stored = weft_ringer::from_hex::<79>(GOLDEN).expect("hex");
        assert_eq!(own.open_block(5, &stored), Ok(b"abc".to_vec()));
    }

    const GOLDEN: &str = "776542311fe4145a50466ed41c299562567e4389010101010101010101010101010101018a2c03df\
                          1b5a21fda0e5cdfcb75a571ce64e019c7c7fca61e97e1bbb7f81eb968f77a44a9118922ae9faa9";
}
