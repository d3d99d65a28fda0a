//! Recipients of keys: the key pair of a client, and a key wrapped by one for another.
//!
//! The pair is for this alone. A client has a certificate too, but that is issued by the server's
//! authority, which also states whose it is: the very party that must not read. So clients take no
//! public key from the cell; a person sends it to a person, by mail or aloud, as one line of text:
//!
//! ```text
//! weftid1.KEY.CHECKSUM        in hex: 64 digits, and 16 of the BLAKE3 hash of what is before them
//! ```
//!
//! A key is wrapped by HPKE (RFC 9180) in its mode *Auth*, with DHKEM(X25519, HKDF-SHA256),
//! HKDF-SHA256 and ChaCha20-Poly1305, in one message: it authenticates its sender to the recipient.
//! Its purpose (cell, directory, keys, and both ids) is bound to it as HPKE's `info`, so a wrapped
//! key is valid for that alone.

use std::fmt::{self, Write as _};
use std::io;
use std::str::FromStr;

use hpke::aead::ChaCha20Poly1305;
use hpke::kdf::HkdfSha256;
use hpke::kem::X25519HkdfSha256;
use hpke::rand_core::{CryptoRng, RngCore};
use hpke::{
    Deserializable, Kem, OpModeR, OpModeS, Serializable, single_shot_open, single_shot_seal,
};
use weft_ringer::{Fingerprint, KeyId, RnodeId, from_hex};
use weft_ringer_net::fill_random;
use zeroize::Zeroizing;

use super::keys::{KeyTextError, fields, hex, with_checksum};
use super::secret::{Secret, id_of};

const ID_PREFIX: &str = "weftid";
const SECRET_PREFIX: &str = "weftsecret";
const FINGERPRINT_CONTEXT: &str = "weft-ringer 2026 fingerprint of a member";
const INFO: &[u8] = b"weft-ringer 2026 key of a directory for a member";
/// The encapsulated key, the wrapped key, and the tag.
pub(super) const WRAPPED_BYTES: usize = 32 + 32 + 16;

/// The id of a recipient of keys: the public key of a client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemberId(pub(super) [u8; 32]);

/// Why a text is not the id of a member.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemberIdError {
    /// It has another form.
    #[error("not a member id: expected weftid1.KEY.CHECKSUM")]
    Form,
    /// It is of a later version of this program.
    #[error("unsupported id version {0}: this weft supports version 1")]
    Version(String),
    /// Part of it is missing or changed.
    #[error("the id is damaged: checksum mismatch")]
    Damaged,
}

impl From<KeyTextError> for MemberIdError {
    fn from(e: KeyTextError) -> Self {
        match e {
            KeyTextError::Form => Self::Form,
            KeyTextError::Version(version) => Self::Version(version),
            KeyTextError::Damaged => Self::Damaged,
        }
    }
}

impl MemberId {
    /// A hash of it, as stored in the cell: it reveals nothing to a reader without the id.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        let hash = blake3::derive_key(FINGERPRINT_CONTEXT, &self.0);
        let mut id = [0; 16];
        id.copy_from_slice(&hash[..16]);
        Fingerprint(id)
    }
}

/// As a line of text.
impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = format!("{ID_PREFIX}1.");
        hex(&self.0, &mut text);
        f.write_str(&with_checksum(Zeroizing::new(text)))
    }
}

impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemberId({})", self.fingerprint())
    }
}

impl FromStr for MemberId {
    type Err = MemberIdError;

    fn from_str(text: &str) -> Result<Self, MemberIdError> {
        match fields(ID_PREFIX, "1", text)?[..] {
            [key] => from_hex(key).map(Self).ok_or(MemberIdError::Form),
            _ => Err(MemberIdError::Form),
        }
    }
}

/// The secret half of a client's pair, wiped when it is dropped.
#[derive(Clone)]
pub(super) struct MemberSecret(Secret);

impl fmt::Debug for MemberSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemberSecret({})", self.id().fingerprint())
    }
}

/// The purpose of a wrapped key: it can be unwrapped for nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Purpose {
    pub(super) cell: u64,
    pub(super) directory: RnodeId,
    /// The first key of the directory, which names the ring of all its keys.
    pub(super) ring: KeyId,
    /// The number of keys that the directory had before this one.
    pub(super) generation: u32,
    pub(super) key: KeyId,
}

impl Purpose {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = self.cell.to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.directory.0.to_le_bytes());
        bytes.extend_from_slice(&self.ring.0);
        bytes.extend_from_slice(&self.generation.to_le_bytes());
        bytes.extend_from_slice(&self.key.0);
        bytes
    }

    fn info(self, from: &MemberId, to: &MemberId) -> Vec<u8> {
        [INFO, &self.to_bytes(), &from.0, &to.0].concat()
    }
}

/// The kernel's random bytes for HPKE, whose interface cannot report a failure to get them.
struct Kernel(io::Result<()>);

impl RngCore for Kernel {
    fn next_u32(&mut self) -> u32 {
        let mut bytes = [0; 4];
        self.fill_bytes(&mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn next_u64(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.fill_bytes(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn fill_bytes(&mut self, buf: &mut [u8]) {
        if let Err(e) = fill_random(buf) {
            self.0 = Err(e);
        }
    }
}

impl CryptoRng for Kernel {}

impl MemberSecret {
    pub(super) fn generate() -> io::Result<Self> {
        let mut secret = Secret::new([0; 32]);
        fill_random(&mut secret[..])?;
        Ok(Self(secret))
    }

    /// The secret as text, as it is stored.
    pub(super) fn to_text(&self) -> Zeroizing<String> {
        // The buffer never grows, so no copy of the secret stays behind.
        let mut text = Zeroizing::new(String::with_capacity(128));
        let _ = write!(text, "{SECRET_PREFIX}1.");
        hex(&self.0[..], &mut text);
        with_checksum(text)
    }

    /// Parses a stored secret.
    ///
    /// # Errors
    /// The text is not a secret, or is damaged.
    pub(super) fn from_text(text: &str) -> Result<Self, KeyTextError> {
        match fields(SECRET_PREFIX, "1", text)?[..] {
            [secret] => {
                let secret = from_hex(secret).map(Secret::new);
                secret.map(Self).ok_or(KeyTextError::Form)
            }
            _ => Err(KeyTextError::Form),
        }
    }

    fn pair(&self) -> Option<(<X25519HkdfSha256 as Kem>::PrivateKey, MemberId)> {
        let private = <X25519HkdfSha256 as Kem>::PrivateKey::from_bytes(&self.0[..]).ok()?;
        let public = X25519HkdfSha256::sk_to_pk(&private);
        Some((private, MemberId(public.to_bytes().into())))
    }

    pub(super) fn id(&self) -> MemberId {
        let pair = self.pair();
        pair.expect("any 32 bytes are a secret of X25519").1
    }

    /// Wraps a key for a member.
    ///
    /// # Errors
    /// The kernel has no random bytes, or nothing can be wrapped for this id.
    pub(super) fn wrap(
        &self,
        to: &MemberId,
        purpose: Purpose,
        key: &Secret,
    ) -> io::Result<[u8; WRAPPED_BYTES]> {
        let none = || {
            io::Error::new(io::ErrorKind::InvalidInput, "invalid member id: not a valid public key")
        };
        let (private, own) = self.pair().ok_or_else(none)?;
        let info = purpose.info(&own, to);
        let public = <X25519HkdfSha256 as Kem>::PublicKey::from_bytes(&own.0);
        let mode = OpModeS::Auth((private, public.map_err(|_| none())?));
        let to = <X25519HkdfSha256 as Kem>::PublicKey::from_bytes(&to.0).map_err(|_| none())?;
        let mut kernel = Kernel(Ok(()));
        let sealed = single_shot_seal::<ChaCha20Poly1305, HkdfSha256, X25519HkdfSha256, _>(
            &mode,
            &to,
            &info,
            &key[..],
            &[],
            &mut kernel,
        );
        kernel.0?;
        let (public, ciphertext) = sealed.map_err(|_| none())?;
        let wrapped = [&public.to_bytes()[..], &ciphertext].concat();
        wrapped.try_into().map_err(|_| none())
    }

    /// Unwraps a key that a member wrapped for this one; `None` if another member wrapped it, or
    /// for another recipient, or for another purpose.
    pub(super) fn unwrap(
        &self,
        from: &MemberId,
        purpose: Purpose,
        wrapped: &[u8; WRAPPED_BYTES],
    ) -> Option<Secret> {
        let info = purpose.info(from, &self.id());
        let opened = self.open(from, &info, &[], wrapped)?;
        let key = Secret::new(opened[..].try_into().ok()?);
        (id_of(&key) == purpose.key).then_some(key)
    }

    /// Opens an HPKE message.
    fn open(
        &self,
        from: &MemberId,
        info: &[u8],
        associated: &[u8],
        message: &[u8],
    ) -> Option<Zeroizing<Vec<u8>>> {
        let (public, ciphertext) = message.split_at_checked(32)?;
        let public = <X25519HkdfSha256 as Kem>::EncappedKey::from_bytes(public).ok()?;
        let from = <X25519HkdfSha256 as Kem>::PublicKey::from_bytes(&from.0).ok()?;
        let opened = single_shot_open::<ChaCha20Poly1305, HkdfSha256, X25519HkdfSha256>(
            &OpModeR::Auth(from),
            &self.pair()?.0,
            &public,
            info,
            ciphertext,
            associated,
        );
        opened.ok().map(Zeroizing::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn secret(seed: u8) -> MemberSecret {
        MemberSecret(Secret::new([seed; 32]))
    }

    fn purpose(key: &Secret) -> Purpose {
        let key = id_of(key);
        Purpose { cell: 7, directory: RnodeId(1 << 40), ring: key, generation: 0, key }
    }

    /// RFC 9180, A.2.3: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20-Poly1305, mode Auth.
    #[test]
    fn test_vector_of_the_standard() {
        fn bytes<const N: usize>(text: &str) -> [u8; N] {
            from_hex(text).expect("hex")
        }
        let receiver = MemberSecret(Secret::new(bytes(
            "3ca22a6d1cda1bb9480949ec5329d3bf0b080ca4c45879c95eddb55c70b80b82",
        )));
        let public = "1a478716d63cb2e16786ee93004486dc151e988b34b475043d3e0175bdb01c44";
        assert_eq!(receiver.id(), MemberId(bytes(public)));
        let sender = MemberSecret(Secret::new(bytes(
            "2def0cb58ffcf83d1062dd085c8aceca7f4c0c3fd05912d847b61f3e54121f05",
        )));
        let public = "f0f4f9e96c54aeed3f323de8534fffd7e0577e4ce269896716bcb95643c8712b";
        assert_eq!(sender.id(), MemberId(bytes(public)));
        let message: [u8; 77] = bytes(
            "f7674cc8cd7baa5872d1f33dbaffe3314239f6197ddf5ded1746760bfc847e0e\
             ab1a13c9d4f01a87ec3440dbd756e2677bd2ecf9df0ce7ed73869b98e00c09be\
             111cb9fdf077347aeb88e61bdf",
        );
        let (info, aad) = (b"Ode on a Grecian Urn", b"Count-0");
        let opened = receiver.open(&sender.id(), info, aad, &message).expect("opened");
        assert_eq!(&opened[..], b"Beauty is truth, truth beauty");
        assert!(receiver.open(&receiver.id(), info, aad, &message).is_none(), "by another");
        assert!(receiver.open(&sender.id(), b"other", aad, &message).is_none());
        assert!(receiver.open(&sender.id(), info, b"Count-1", &message).is_none());
        assert!(sender.open(&sender.id(), info, aad, &message).is_none(), "for another");
    }

    proptest! {
        #[test]
        fn wrapped_key_is_bound_to_sender_receiver_and_purpose(
            bytes: [u8; 32], at in 0..WRAPPED_BYTES, bit in 0..8,
        ) {
            let key = Secret::new(bytes);
            let (ada, ben, eve) = (secret(1), secret(2), secret(3));
            let there = purpose(&key);
            let wrapped = ada.wrap(&ben.id(), there, &key).expect("wrapped");
            let unwrap = |who: &MemberSecret, from: &MemberSecret, place, wrapped: &_| {
                who.unwrap(&from.id(), place, wrapped)
            };
            prop_assert_eq!(unwrap(&ben, &ada, there, &wrapped), Some(key.clone()));
            let again = ada.wrap(&ben.id(), there, &key).expect("wrapped");
            prop_assert!(wrapped != again, "no two are alike");
            for (who, from) in [(&ben, &eve), (&eve, &ada), (&ada, &ben), (&ada, &ada), (&ben, &ben)] {
                prop_assert_eq!(unwrap(who, from, there, &wrapped), None);
            }
            let other = KeyId([9; 16]);
            for elsewhere in [
                Purpose { cell: 8, ..there },
                Purpose { directory: RnodeId(1), ..there },
                Purpose { ring: other, ..there },
                Purpose { generation: 1, ..there },
                Purpose { key: other, ..there },
            ] {
                prop_assert_eq!(unwrap(&ben, &ada, elsewhere, &wrapped), None);
            }
            let mut changed = wrapped;
            changed[at] ^= 1_u8 << bit;
            // X25519 ignores the highest bit of a public key, but it is hashed.
            prop_assert_eq!(unwrap(&ben, &ada, there, &changed), None);
        }

        #[test]
        fn member_ids_roundtrip_and_damage_is_detected(bytes: [u8; 32], at in 0..89_usize) {
            let id = MemberId(bytes);
            let text = id.to_string();
            prop_assert_eq!(text.parse(), Ok(id));
            prop_assert_eq!(format!(" {text}\n").parse(), Ok(id));
            prop_assert!(text[..at.min(text.len() - 1)].parse::<MemberId>().is_err());
            let mut other = text.into_bytes();
            let at = at % other.len();
            other[at] ^= 1;
            let other = String::from_utf8(other).expect("still text");
            prop_assert!(other.parse::<MemberId>().is_err());
        }
    }

    #[test]
    fn invalid_member_ids_are_refused() {
        let text = secret(1).id().to_string();
        let later = text.replace("weftid1", "weftid2");
        assert_eq!(later.parse::<MemberId>(), Err(MemberIdError::Version("2".into())));
        let secret_text = secret(1).to_text();
        for bad in ["", "weftid", "weftid1", "weftid1x.", "x", &secret_text] {
            assert_eq!(bad.parse::<MemberId>(), Err(MemberIdError::Form), "{bad}");
        }
        let swapped = text.replacen('1', "2", 2);
        assert!(swapped.parse::<MemberId>().is_err());
        assert!(MemberSecret::from_text(&text).is_err());
        let again = MemberSecret::from_text(&secret_text).expect("as it was");
        assert_eq!(again.id(), secret(1).id());
        assert!(!format!("{again:?}").contains("0101"), "the secret is shown");
        // A point of small order: anyone could open a key wrapped for it.
        let key = Secret::new([5; 32]);
        assert!(secret(1).wrap(&MemberId([0; 32]), purpose(&key), &key).is_err());
    }
}
