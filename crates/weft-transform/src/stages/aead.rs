//! Authenticated encryption, block by block, so that files can be read and written at any offset.
//!
//! Each block is sealed with a random nonce; bound to it as associated data are the file's id and
//! the block's number, so that a block cannot be moved within its file or to another. The length of
//! the file is in its header, which has a tag of its own, so that it cannot be truncated. The
//! remaining attack for a user who can write to the stored files is rollback: restoring an earlier
//! version of a whole file, or of a block of it.
//!
//! Keys: one for each file and purpose, derived with BLAKE3 from the named key and the file's id.
//! The number of nonces under one key thus stays far below the bound at which random nonces
//! collide.
//!
//! A stored block is: nonce, ciphertext, tag (16 bytes).

use std::fmt;
use std::sync::Arc;

use aes_gcm::Aes256Gcm;
use chacha20poly1305::XChaCha20Poly1305;
use chacha20poly1305::aead::{AeadInPlace, KeyInit};
use zeroize::Zeroizing;

use crate::keys::{KEY_BYTES, Key};
use crate::parameters::{Parameters, StageInfo};
use crate::{Error, Result, Seal, Sealer, Shape, Transform};

pub(super) const STAGES: &[StageInfo] = &[StageInfo {
    name: "aead",
    summary: "encrypts and authenticates every block",
    parameters: &[
        ("key", "the name of the key"),
        ("cipher", "xchacha20poly1305 or aes256gcm (xchacha20poly1305)"),
        ("block", "bytes of a block: a power of two from 4K to 1M (4K)"),
    ],
    make: |p, context| {
        let name = p.required("key")?;
        let choices =
            [("xchacha20poly1305", Cipher::XChaCha20Poly1305), ("aes256gcm", Cipher::Aes256Gcm)];
        let cipher = p.choice("cipher", &choices, Cipher::XChaCha20Poly1305)?;
        let block_bytes = block_parameter(p, 4 << 10)?;
        let keys = context.keys.named(&name).to_vec();
        if keys.is_empty() {
            return Err(Error::MissingKey { stage: "aead", key: name });
        }
        Ok(Arc::new(Aead { name, keys, cipher, block_bytes }))
    },
}];

/// Takes the parameter `block` of stages that seal blocks.
pub(super) fn block_parameter(p: &mut Parameters<'_>, default: u32) -> Result<u32> {
    let bytes = p.bytes("block", 4 << 10..=1 << 20, u64::from(default))?;
    if !bytes.is_power_of_two() {
        return Err(p.error(format!("block={bytes} is no power of two")));
    }
    // The block length is at most 2^20.
    Ok(bytes as u32)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cipher {
    XChaCha20Poly1305,
    Aes256Gcm,
}

impl Cipher {
    fn nonce_bytes(self) -> usize {
        match self {
            Self::XChaCha20Poly1305 => 24,
            Self::Aes256Gcm => 12,
        }
    }
}

const TAG_BYTES: usize = 16;

struct Aead {
    name: String,
    keys: Vec<Key>,
    cipher: Cipher,
    block_bytes: u32,
}

impl fmt::Debug for Aead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aead")
            .field("key", &self.name)
            .field("cipher", &self.cipher)
            .finish_non_exhaustive()
    }
}

impl Transform for Aead {
    fn name(&self) -> &'static str {
        "aead"
    }

    fn kept_as(&self) -> Option<Vec<u8>> {
        // The purpose of this stage is to keep the plain data off disks.
        None
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Sealed(self)
    }
}

impl Seal for Aead {
    fn stage(&self) -> &'static str {
        "aead"
    }

    fn algorithm(&self) -> u8 {
        match self.cipher {
            Cipher::XChaCha20Poly1305 => 2,
            Cipher::Aes256Gcm => 3,
        }
    }

    fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    fn overhead_bytes(&self) -> usize {
        self.cipher.nonce_bytes() + TAG_BYTES
    }

    fn is_deterministic(&self) -> bool {
        false
    }

    fn key_id(&self) -> [u8; 16] {
        self.keys.first().map_or([0; 16], Key::id)
    }

    fn sealer(&self, file_id: [u8; 16], key_id: [u8; 16]) -> Result<Box<dyn Sealer>> {
        let key = self.keys.iter().find(|key| key.id() == key_id);
        let key = key.ok_or_else(|| Error::WrongKey {
            stage: "aead",
            key: self.name.clone(),
            found: data_encoding::HEXLOWER.encode(&key_id),
        })?;
        let block_key = key.derive("weft 2026 aead blocks", &file_id);
        let tag_key = key.derive("weft 2026 aead header", &file_id);
        Ok(match self.cipher {
            Cipher::XChaCha20Poly1305 => {
                let cipher = XChaCha20Poly1305::new((&*block_key).into());
                Box::new(BlockCipher { cipher, cipher_kind: self.cipher, tag_key, file_id })
            }
            Cipher::Aes256Gcm => {
                let cipher = Aes256Gcm::new((&*block_key).into());
                Box::new(BlockCipher { cipher, cipher_kind: self.cipher, tag_key, file_id })
            }
        })
    }
}

/// The cipher of one file.
struct BlockCipher<C> {
    cipher: C,
    cipher_kind: Cipher,
    tag_key: Zeroizing<[u8; KEY_BYTES]>,
    file_id: [u8; 16],
}

impl<C> BlockCipher<C> {
    fn associated(&self, index: u64) -> [u8; 24] {
        let mut data = [0; 24];
        data[..16].copy_from_slice(&self.file_id);
        data[16..].copy_from_slice(&index.to_le_bytes());
        data
    }
}

impl<C: AeadInPlace + Send + Sync> Sealer for BlockCipher<C> {
    fn seal(&self, index: u64, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let nonce_bytes = self.cipher_kind.nonce_bytes();
        let before = out.len();
        out.resize(before + nonce_bytes, 0);
        getrandom::fill(&mut out[before..]).map_err(|e| Error::Io(e.into()))?;
        out.extend_from_slice(plain);
        let (nonce, data) = out[before..].split_at_mut(nonce_bytes);
        let nonce = chacha20poly1305::aead::Nonce::<C>::from_slice(nonce);
        let tag = self.cipher.encrypt_in_place_detached(nonce, &self.associated(index), data);
        let tag = tag.map_err(|_| Error::Input {
            stage: "aead",
            offset: 0,
            what: "a block that is too long to encrypt".to_owned(),
        })?;
        out.extend_from_slice(&tag);
        Ok(())
    }

    fn open(&self, index: u64, sealed: &[u8], out: &mut [u8]) -> Result<(), &'static str> {
        const SHORT: &str = "shorter than it should be";
        let (nonce, rest) = sealed.split_at_checked(self.cipher_kind.nonce_bytes()).ok_or(SHORT)?;
        let (data, tag) = rest.split_at_checked(out.len()).ok_or(SHORT)?;
        if tag.len() != TAG_BYTES {
            return Err(SHORT);
        }
        out.copy_from_slice(data);
        let nonce = chacha20poly1305::aead::Nonce::<C>::from_slice(nonce);
        let tag = chacha20poly1305::aead::Tag::<C>::from_slice(tag);
        self.cipher
            .decrypt_in_place_detached(nonce, &self.associated(index), out, tag)
            .map_err(|_| "it is not what was written")
    }

    fn tag(&self, what: &[u8]) -> [u8; 16] {
        let hash = blake3::keyed_hash(&self.tag_key, what);
        let mut tag = [0; 16];
        tag.copy_from_slice(&hash.as_bytes()[..16]);
        tag
    }
}
