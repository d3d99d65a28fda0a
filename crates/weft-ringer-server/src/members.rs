//! Admission to the cell: members by the fingerprints of their certificates, and invitations by the
//! hashes of their secrets. Both are in the cell's store, so that all its servers agree.
//!
//! ```text
//! I hash     Invitation
//! M name     Member
//! ```
//!
//! Invariants:
//! - An invitation makes one member: it is marked used in the transaction that makes the member.
//! - A revoked member stays on record, so that its name and its certificate are never valid again.

use std::collections::BTreeMap;

use weft_ringer::mds::{Access, Grant, Level};
use weft_ringer::store::{Store, StoreError, StoreResult, Transaction};
use weft_ringer::wire::{Wire, decode, encode, wire_struct};
use weft_ringer::{BlockHash, Bytes};
use weft_ringer_net::Denial;
use weft_ringer_net::pki::is_member_name;

/// The maximum number of members and invitations: each is requested by an administrator.
const RECORDS_MAX: usize = 100_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Invitation {
    /// The expiry, in seconds since 1970.
    pub(super) until_secs: i64,
    pub(super) access: Access,
    pub(super) used: bool,
}
wire_struct!(Invitation { until_secs, access, used });

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) certificate: BlockHash,
    pub(super) access: Access,
    pub(super) revoked: bool,
}
wire_struct!(Member { certificate, access, revoked });

/// All members, present and revoked, and the administrators.
#[derive(Debug)]
pub(super) struct Members {
    by_name: BTreeMap<String, Member>,
    by_certificate: BTreeMap<BlockHash, String>,
    /// The certificates of administrators, from the server's own directory.
    admins: Vec<BlockHash>,
}

fn member_key(name: &str) -> Vec<u8> {
    [b"M", name.as_bytes()].concat()
}

fn invitation_key(hash: &BlockHash) -> Vec<u8> {
    [&b"I"[..], &hash.0].concat()
}

fn read<T: Wire>(value: &[u8]) -> StoreResult<T> {
    decode(value).map_err(|_| StoreError::Failed("the record of a member is damaged".into()))
}

impl Members {
    pub(super) fn load(store: &dyn Store, admins: Vec<BlockHash>) -> StoreResult<Self> {
        let (mut by_name, mut by_certificate) = (BTreeMap::new(), BTreeMap::new());
        for (key, record) in store.range(b"M", b"N", RECORDS_MAX)? {
            let member: Member = read(&record.value)?;
            let name = String::from_utf8_lossy(key.get(1..).unwrap_or_default()).into_owned();
            by_certificate.insert(member.certificate, name.clone());
            by_name.insert(name, member);
        }
        Ok(Self { by_name, by_certificate, admins })
    }

    /// Returns the name and permissions of the owner of a certificate.
    pub(super) fn admit(&self, certificate: &BlockHash) -> Result<(String, Access), Denial> {
        if self.admins.contains(certificate) {
            return Ok((weft_ringer_net::pki::ADMIN_NAME.to_owned(), Access::full()));
        }
        let name = self.by_certificate.get(certificate).ok_or(Denial::Stranger)?;
        let member = self.by_name.get(name).ok_or(Denial::Stranger)?;
        if member.revoked {
            Err(Denial::Revoked)
        } else {
            Ok((name.clone(), member.access.clone()))
        }
    }

    /// Returns the certificate of a member.
    pub(super) fn certificate_of(&self, name: &str) -> Option<BlockHash> {
        self.by_name.get(name).map(|member| member.certificate)
    }

    /// The revoked certificates.
    pub(super) fn revoked(&self) -> Vec<BlockHash> {
        let revoked = self.by_name.values().filter(|member| member.revoked);
        revoked.map(|member| member.certificate).collect()
    }

    pub(super) fn list(&self) -> Vec<weft_ringer_net::MemberStatus> {
        let members = self.by_name.iter().map(|(name, member)| weft_ringer_net::MemberStatus {
            name: Bytes(name.clone().into_bytes()),
            grants: member.access.grants.clone(),
            revoked: member.revoked,
        });
        members.collect()
    }

    /// Stores an invitation.
    pub(super) fn invite(
        store: &mut dyn Store,
        secret: &BlockHash,
        access: Access,
        until_secs: i64,
    ) -> StoreResult<()> {
        let invitation = Invitation { until_secs, access, used: false };
        let mut transaction = Transaction::default();
        let key = invitation_key(secret);
        transaction.expect.push((key.clone(), None));
        transaction.put(key, encode(&invitation));
        store.commit(&transaction).map(|_| ())
    }

    /// Looks an invitation up and validates it, before a certificate is made for it.
    pub(super) fn look(
        &self,
        store: &dyn Store,
        secret: &BlockHash,
        name: &str,
        now_secs: i64,
    ) -> StoreResult<Result<Invitation, Denial>> {
        let Some(record) = store.get(&invitation_key(secret))? else {
            return Ok(Err(Denial::NoInvitation));
        };
        let invitation: Invitation = read(&record.value)?;
        let is_taken = name == weft_ringer_net::pki::ADMIN_NAME || self.by_name.contains_key(name);
        Ok(if invitation.used {
            Err(Denial::Used)
        } else if now_secs >= invitation.until_secs {
            Err(Denial::Expired)
        } else if !is_member_name(name) || is_taken {
            Err(Denial::Name)
        } else {
            Ok(invitation)
        })
    }

    /// Makes a member by an invitation that [`look`](Self::look) has validated.
    pub(super) fn enroll(
        &mut self,
        store: &mut dyn Store,
        secret: &BlockHash,
        name: &str,
        invitation: Invitation,
        certificate: BlockHash,
    ) -> StoreResult<()> {
        let key = invitation_key(secret);
        let member = Member { certificate, access: invitation.access.clone(), revoked: false };
        let mut transaction = Transaction::default();
        transaction.expect.push((key.clone(), store.get(&key)?.map(|r| r.revision)));
        transaction.put(key, encode(&Invitation { used: true, ..invitation }));
        transaction.put(member_key(name), encode(&member));
        store.commit(&transaction)?;
        self.by_certificate.insert(certificate, name.to_owned());
        self.by_name.insert(name.to_owned(), member);
        Ok(())
    }

    /// Revokes a member permanently. `None` if there is no such member.
    pub(super) fn revoke(
        &mut self,
        store: &mut dyn Store,
        name: &str,
    ) -> StoreResult<Option<BlockHash>> {
        let Some(member) = self.by_name.get_mut(name) else { return Ok(None) };
        let revoked = Member { revoked: true, ..member.clone() };
        let mut transaction = Transaction::default();
        transaction.put(member_key(name), encode(&revoked));
        store.commit(&transaction)?;
        *member = revoked;
        Ok(Some(member.certificate))
    }
}

/// Resolves the paths of an invitation's grants.
pub(super) fn access(
    store: &dyn Store,
    wanted: &[(Bytes, Level)],
) -> StoreResult<Result<Access, String>> {
    let mut grants = Vec::new();
    for (path, level) in wanted {
        let Some(dir) = weft_ringer::mds::find_directory(store, &path.0)? else {
            let path = String::from_utf8_lossy(&path.0).into_owned();
            return Ok(Err(format!("no such directory in the cell: {path}")));
        };
        grants.push(Grant { dir, level: *level });
    }
    Ok(Ok(Access { grants }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_ringer::store::MemoryStore;

    #[test]
    fn invitation_is_valid_once_until_it_expires() {
        let mut store = MemoryStore::new();
        let mut members = Members::load(&store, Vec::new()).expect("none");
        let (secret, print) = (BlockHash([1; 32]), BlockHash([2; 32]));
        Members::invite(&mut store, &secret, Access::full(), 100).expect("kept");
        let look = |members: &Members, store: &MemoryStore, secret, name: &str, now| {
            members.look(store, &secret, name, now).expect("memory")
        };
        assert_eq!(look(&members, &store, BlockHash([9; 32]), "a", 1), Err(Denial::NoInvitation));
        assert_eq!(look(&members, &store, secret, "a", 100), Err(Denial::Expired));
        for bad in ["", "admin", "a b"] {
            assert_eq!(look(&members, &store, secret, bad, 1), Err(Denial::Name));
        }
        let invitation = look(&members, &store, secret, "a", 99).expect("good");
        assert_eq!(members.admit(&print), Err(Denial::Stranger));
        members.enroll(&mut store, &secret, "a", invitation, print).expect("a member");
        assert_eq!(members.admit(&print), Ok(("a".to_owned(), Access::full())));
        assert_eq!(look(&members, &store, secret, "b", 1), Err(Denial::Used));

        assert_eq!(members.revoke(&mut store, "b").expect("memory"), None);
        assert_eq!(members.revoke(&mut store, "a").expect("memory"), Some(print));
        // As it is after a restart.
        let members = Members::load(&store, vec![BlockHash([3; 32])]).expect("one");
        assert_eq!(members.admit(&print), Err(Denial::Revoked));
        assert_eq!(members.revoked(), [print]);
        assert!(members.admit(&BlockHash([3; 32])).is_ok());
        assert_eq!(look(&members, &store, secret, "a", 1), Err(Denial::Used));
    }
}
