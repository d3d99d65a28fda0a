//! The keys of an encrypted directory as the cell has them: the present one wrapped for each member
//! that the directory is shared with, and a part that only those can open. The value of an
//! attribute of that directory.
//!
//! ```text
//! offset 0    4 bytes   weS1
//!        4   16 bytes   the id of the directory's first key, as in its mark; names its key ring
//!       20    4 bytes   number of keys before the present one, little-endian
//!       24   16 bytes   the id of the present key
//!       40    2 bytes   n: number of wrapped keys, little-endian
//!       42  112 bytes   n times: fingerprints of the recipient and of the wrapping member, 16
//!                       bytes each, and the key, wrapped (80 bytes)
//! 42+112*n   24 bytes   nonce, random
//! 66+112*n  32*m bytes  encrypted with the present key: the earlier keys, the oldest first, and
//!                       the members' public keys, in order
//!        +   16 bytes   tag
//! ```
//!
//! The last part is sealed with XChaCha20-Poly1305 under a key derived from the present one; cell,
//! directory, and everything before it are bound to it. So a member with the present key has all
//! earlier ones, and can wrap the next one for all members. The server learns the number of
//! members, their fingerprints, which member wrapped for which, and the number of key changes.

use chacha20poly1305::XChaCha20Poly1305;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use weft_ringer::{Bytes, Fingerprint, KeyId, Rnode, RnodeId, SHARES_MAX_BYTES, SHARES_XATTR};
use weft_ringer_net::fill_random;
use zeroize::Zeroizing;

use super::member::{MemberId, Purpose, WRAPPED_BYTES};
use super::secret::{Secret, id_of};

const MAGIC: &[u8; 4] = b"weS1";
const HEAD_BYTES: usize = 42;
const SHARE_BYTES: usize = 32 + WRAPPED_BYTES;
const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;
const CONTEXT: &str = "weft-ringer 2026 members and earlier keys of a directory";
/// The maximum number of members that a directory is shared with, including the sharing member.
pub(super) const MEMBERS_MAX: usize = 64;
/// The most keys before the present one.
pub(super) const GENERATION_MAX: u32 = 255;

const LONGEST_BYTES: usize = HEAD_BYTES
    + MEMBERS_MAX * (SHARE_BYTES + 32)
    + NONCE_BYTES
    + TAG_BYTES
    + 32 * GENERATION_MAX as usize;
const _: () = assert!(LONGEST_BYTES <= SHARES_MAX_BYTES);

/// Why the shares of a directory cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SharesError {
    /// They are damaged, or of a later version of this program.
    #[error("the list of its shares has an unknown format: a newer weft is needed")]
    Format,
    /// They were changed without the key, or are of another directory.
    #[error(
        "the list of its shares is not authentic: not made with its key, or for another directory"
    )]
    Forged,
}

/// The present key, wrapped for one member.
#[derive(Clone, PartialEq, Eq)]
pub struct Share {
    /// The recipient.
    pub to: Fingerprint,
    /// The member that wrapped it.
    pub from: Fingerprint,
    pub(super) wrapped: [u8; WRAPPED_BYTES],
}

impl std::fmt::Debug for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} to {}", self.from, self.to)
    }
}

/// The shares of a directory, as the cell has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shares {
    /// The directory's first key.
    pub ring: KeyId,
    /// The number of keys before the present one.
    pub generation: u32,
    /// The present key.
    pub key: KeyId,
    /// The present key, wrapped for each recipient.
    pub shares: Vec<Share>,
    sealed: Vec<u8>,
}

/// The sealed part of shares.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Inside {
    /// The earlier keys, the oldest first.
    pub(super) earlier: Vec<Secret>,
    /// The members, in the order of the shares.
    pub(super) members: Vec<MemberId>,
}

fn array<const N: usize>(from: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = from.split_first_chunk()?;
    *from = rest;
    Some(*taken)
}

impl Shares {
    /// Parses the attribute.
    ///
    /// # Errors
    /// [`SharesError::Format`].
    pub fn parse(bytes: &[u8]) -> Result<Self, SharesError> {
        Self::parse_all(bytes).ok_or(SharesError::Format)
    }

    fn parse_all(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes.strip_prefix(MAGIC)?;
        let from = &mut rest;
        let ring = KeyId(array(from)?);
        let generation = u32::from_le_bytes(array(from)?);
        let key = KeyId(array(from)?);
        let count = usize::from(u16::from_le_bytes(array(from)?));
        if count > MEMBERS_MAX || generation > GENERATION_MAX {
            return None;
        }
        let share = |from: &mut &[u8]| {
            let (to, by) = (Fingerprint(array(from)?), Fingerprint(array(from)?));
            Some(Share { to, from: by, wrapped: array(from)? })
        };
        let shares = (0..count).map(|_| share(from)).collect::<Option<Vec<_>>>()?;
        let inside_bytes = 32 * (count + generation as usize);
        let is_whole = rest.len() == NONCE_BYTES + inside_bytes + TAG_BYTES;
        // The first key names the ring.
        let is_ring = (generation == 0) == (ring == key);
        let sealed = rest.to_vec();
        (is_whole && is_ring).then_some(Self { ring, generation, key, shares, sealed })
    }

    /// The shares of a directory, if it has any.
    ///
    /// # Errors
    /// [`SharesError::Format`].
    pub(super) fn of(rnode: &Rnode) -> Result<Option<Self>, SharesError> {
        let value = rnode.xattrs.get(&Bytes(SHARES_XATTR.to_vec()));
        value.map(|value| Self::parse(&value.0)).transpose()
    }

    fn head(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&self.ring.0);
        bytes.extend_from_slice(&self.generation.to_le_bytes());
        bytes.extend_from_slice(&self.key.0);
        // There are at most 64.
        let count = u16::try_from(self.shares.len()).unwrap_or(u16::MAX);
        bytes.extend_from_slice(&count.to_le_bytes());
        for share in &self.shares {
            bytes.extend_from_slice(&share.to.0);
            bytes.extend_from_slice(&share.from.0);
            bytes.extend_from_slice(&share.wrapped);
        }
        bytes
    }

    /// The value of the attribute.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        [self.head(), self.sealed.clone()].concat()
    }

    /// The purpose for which the present key of a directory is wrapped.
    pub(super) fn purpose(&self, cell: u64, directory: RnodeId) -> Purpose {
        let (ring, generation, key) = (self.ring, self.generation, self.key);
        Purpose { cell, directory, ring, generation, key }
    }

    fn cipher(key: &Secret) -> XChaCha20Poly1305 {
        let derived = Zeroizing::new(blake3::derive_key(CONTEXT, &key[..]));
        XChaCha20Poly1305::new((&*derived).into())
    }

    fn bound(&self, purpose: Purpose) -> Vec<u8> {
        [purpose.to_bytes(), self.head()].concat()
    }

    /// Makes shares of the key `secret`, with a part that only holders of that key can open.
    ///
    /// # Errors
    /// The kernel has no random bytes.
    pub(super) fn seal(
        purpose: Purpose,
        secret: &Secret,
        shares: Vec<Share>,
        inside: &Inside,
    ) -> std::io::Result<Self> {
        let Purpose { ring, generation, key, .. } = purpose;
        let mut new = Self { ring, generation, key, shares, sealed: Vec::new() };
        let mut plain = Zeroizing::new(Vec::with_capacity(LONGEST_BYTES));
        inside.earlier.iter().for_each(|key| plain.extend_from_slice(&key[..]));
        inside.members.iter().for_each(|member| plain.extend_from_slice(&member.0));
        let mut nonce = [0; NONCE_BYTES];
        fill_random(&mut nonce)?;
        let payload = Payload { msg: &plain, aad: &new.bound(purpose) };
        let sealed = Self::cipher(secret).encrypt((&nonce).into(), payload);
        let sealed = sealed.map_err(|_| std::io::Error::other("too long to encrypt"))?;
        new.sealed = [&nonce[..], &sealed].concat();
        Ok(new)
    }

    /// Opens the sealed part, with the key of the shares.
    ///
    /// # Errors
    /// [`SharesError::Forged`].
    pub(super) fn open(&self, purpose: Purpose, secret: &Secret) -> Result<Inside, SharesError> {
        let inside = (|| {
            let (nonce, sealed) = self.sealed.split_at_checked(NONCE_BYTES)?;
            let payload = Payload { msg: sealed, aad: &self.bound(purpose) };
            let nonce = chacha20poly1305::XNonce::from_slice(nonce);
            let plain = Zeroizing::new(Self::cipher(secret).decrypt(nonce, payload).ok()?);
            let mut keys = plain.chunks_exact(32).map(|key| <[u8; 32]>::try_from(key).ok());
            let earlier = keys.by_ref().take(self.generation as usize);
            let earlier = earlier.map(|key| key.map(Secret::new)).collect::<Option<Vec<_>>>()?;
            let members = keys.map(|key| key.map(MemberId)).collect::<Option<Vec<_>>>()?;
            let is_first = earlier.first().is_none_or(|first| id_of(first) == self.ring);
            let named = self.shares.iter().map(|share| share.to);
            let is_named = named.eq(members.iter().map(MemberId::fingerprint));
            (is_first && is_named).then_some(Inside { earlier, members })
        })();
        inside.ok_or(SharesError::Forged)
    }
}

#[cfg(test)]
mod tests {
    use super::super::member::MemberSecret;
    use super::*;
    use proptest::prelude::*;

    fn purpose(secret: &Secret, ring: &Secret, generation: u32) -> Purpose {
        let (ring, key) = (id_of(ring), id_of(secret));
        Purpose { cell: 7, directory: RnodeId(1 << 40), ring, generation, key }
    }

    /// Makes shares of the last of some keys with some members.
    fn made(keys: u8, members: usize) -> (Secret, Purpose, Shares, Inside) {
        let mut earlier: Vec<Secret> = (1..=keys).map(|n| Secret::new([n; 32])).collect();
        let ring = earlier[0].clone();
        let secret = earlier.pop().expect("at least one");
        let purpose = purpose(&secret, &ring, u32::from(keys) - 1);
        let giver = MemberSecret::generate().expect("random bytes");
        let members = (0..members).map(|_| MemberSecret::generate().expect("random bytes").id());
        let members: Vec<MemberId> = members.collect();
        let share = |to: &MemberId| Share {
            to: to.fingerprint(),
            from: giver.id().fingerprint(),
            wrapped: giver.wrap(to, purpose, &secret).expect("wrapped"),
        };
        let shares = members.iter().map(share).collect();
        let inside = Inside { earlier, members };
        let shares = Shares::seal(purpose, &secret, shares, &inside).expect("sealed");
        (secret, purpose, shares, inside)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn shares_roundtrip_and_alterations_are_rejected(
            keys in 1..5_u8, members in 0..4_usize, at: usize, bit in 0..8,
        ) {
            let (secret, purpose, shares, inside) = made(keys, members);
            let bytes = shares.to_bytes();
            let read = Shares::parse(&bytes);
            prop_assert_eq!(read.as_ref(), Ok(&shares));
            prop_assert_eq!(read.expect("read").open(purpose, &secret), Ok(inside));
            let mut changed = bytes.clone();
            let at = at % changed.len();
            changed[at] ^= 1_u8 << bit;
            let opened = Shares::parse(&changed).and_then(|s| s.open(purpose, &secret));
            prop_assert!(opened.is_err());
            prop_assert!(Shares::parse(&bytes[..at]).is_err());
            prop_assert!(Shares::parse(&[&bytes[..], &[0]].concat()).is_err());
            for elsewhere in [
                Purpose { cell: 8, ..purpose },
                Purpose { directory: RnodeId(1), ..purpose },
            ] {
                prop_assert_eq!(shares.open(elsewhere, &secret), Err(SharesError::Forged));
            }
            let other = Secret::new([99; 32]);
            prop_assert_eq!(shares.open(purpose, &other), Err(SharesError::Forged));
        }

        #[test]
        fn share_encoding_is_canonical(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            for bytes in [bytes.clone(), [&MAGIC[..], &bytes].concat()] {
                if let Ok(shares) = Shares::parse(&bytes) {
                    prop_assert_eq!(shares.to_bytes(), bytes);
                }
            }
        }
    }

    #[test]
    fn longest_shares_fit_an_attribute() {
        let (_, _, shares, _) = made(255, MEMBERS_MAX);
        assert!(shares.to_bytes().len() <= SHARES_MAX_BYTES);
        assert_eq!(Shares::parse(&shares.to_bytes()), Ok(shares));
    }
}
