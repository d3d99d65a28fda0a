//! Extended attributes that show the state of a mount and control it. None of them is stored with
//! the file, and none is listed.

use weft_ringer::client::{Call, Outcome};
use weft_ringer::mds::ORIGIN_XATTR;
use weft_ringer::op::Op;
use weft_ringer::{
    Bytes, ENCRYPTION_XATTR, OWNERS_XATTR, POLICY_XATTR, Policy, Refusal, RnodeId, SHARES_XATTR,
};
use weft_vfs::{Error, FileSystem, Ino, Result, XattrSet};

use super::client_fs::ClientFs;
use super::conflicts::CONFLICTS_XATTR;
use super::encryption::{KEYS_XATTR, MEMBER_XATTR, SHARED_KEYS_XATTR, TRUSTED_XATTR};
use super::folder_table::CELLS_XATTR;
use super::fs::RingerFs;
use super::scrubbing::SCRUB_XATTR;

/// The attribute that lists the holders of a file's copies; of a directory, the wanted copies.
pub const HOLDERS_XATTR: &[u8] = b"user.weft.holders";
/// The attribute that a file or directory has while it is pinned: kept here whole, with all below
/// it. Of this client alone.
pub const PIN_XATTR: &[u8] = b"user.weft.pin";
/// The attribute of a mount's root that shows the state of the local store.
pub const STORE_XATTR: &[u8] = b"user.weft.store";
/// The attribute that lists the versions of a file, or the files removed below a directory.
pub const HISTORY_XATTR: &[u8] = b"user.weft.history";
/// The attribute that restores a file to an earlier version, when it is set.
pub const RESTORE_XATTR: &[u8] = b"user.weft.restore";

/// The value of [`ENCRYPTION_XATTR`] that encrypts an empty directory with a new key.
pub const ENCRYPT: &[u8] = b"new";
/// The attribute of a directory that lists its snapshots, and makes and removes them when it is
/// set.
pub const SNAPSHOTS_XATTR: &[u8] = b"user.weft.snapshots";

impl ClientFs {
    /// The names of the extended attributes stored with an rnode, for listing.
    pub(super) fn list_attributes(&self, id: RnodeId) -> Result<Vec<Vec<u8>>> {
        let names = self.get(id)?.xattrs.into_keys().map(|name| name.0);
        // They would be copied with a file.
        let hidden = [ORIGIN_XATTR, ENCRYPTION_XATTR, SHARES_XATTR, OWNERS_XATTR];
        let is_ours = |name: &[u8]| hidden.contains(&name);
        Ok(names.filter(|name| !is_ours(name)).collect())
    }

    /// Sets an attribute that is stored with the rnode.
    pub(super) fn set_attribute(
        &self,
        id: RnodeId,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
    ) -> Result<()> {
        const SPACES: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"system."];
        // If they were stored but not enforced, they would promise access control that does not
        // exist.
        let is_acl = name.starts_with(b"system.posix_acl");
        if is_acl || !SPACES.iter().any(|space| name.starts_with(space)) {
            return Err(Error::Unsupported("attribute name space"));
        }
        if name.len() > 255 || SPACES.contains(&name) {
            return Err(Error::Range);
        }
        let (name, value) = (Bytes(name.to_vec()), Bytes(value.to_vec()));
        loop {
            let rnode = self.get(id)?;
            match (how, rnode.xattrs.contains_key(&name)) {
                (XattrSet::Create, true) => return Err(Error::Exists),
                (XattrSet::Replace, false) => return Err(Error::NoAttribute),
                _ => {}
            }
            let op = Op::SetXattr { id, name: name.clone(), value: value.clone() };
            let if_version = (how != XattrSet::Any).then_some((id, rnode.version));
            match self.engine.call(Call::Apply { op, if_version })?.0 {
                Outcome::Refused(Refusal::Changed) => {}
                Outcome::Refused(why) => return Err(self.refused(id, why)),
                _ => return Ok(()),
            }
        }
    }

    /// Removes an attribute, or the pin.
    pub(super) fn remove_attribute(&self, id: RnodeId, name: &[u8]) -> Result<()> {
        if name == PIN_XATTR {
            return self.pin(id, false);
        }
        if name == OWNERS_XATTR && id == RnodeId::ROOT {
            return Err(Error::NotPermitted);
        }
        self.get(id)?;
        self.apply(Op::RemoveXattr { id, name: Bytes(name.to_vec()) }, id)?;
        Ok(())
    }
}

impl RingerFs {
    /// Returns true if an attribute is for the owner of the mount alone, because the permissions of
    /// `ino` do not cover what it shows: the mount, its keys and its conflicts, or files below a
    /// directory, even such as only others may see. `user` is the requester, and `value` the value
    /// to set, if any.
    pub(super) fn is_of_owner(
        &self,
        user: u32,
        ino: Ino,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> bool {
        match name {
            CONFLICTS_XATTR | STORE_XATTR | SCRUB_XATTR | KEYS_XATTR | SHARED_KEYS_XATTR
            | MEMBER_XATTR | TRUSTED_XATTR | SHARES_XATTR | PIN_XATTR | CELLS_XATTR => true,
            RESTORE_XATTR => self.restores_for_owner(user, ino, value),
            // Numbers, times and lengths of a file's versions are for all users of the file.
            HISTORY_XATTR => self.client.get(RnodeId(ino.0)).is_ok_and(|rnode| rnode.is_dir()),
            _ => false,
        }
    }

    /// Returns the value of an attribute that is not stored with the file; `None` for any other.
    pub(super) fn told(&self, ino: Ino, name: &[u8]) -> Option<Result<Vec<u8>>> {
        let (client, id) = (&self.client, RnodeId(ino.0));
        let is_root = ino == self.root();
        Some(match name {
            CONFLICTS_XATTR if is_root => Ok(self.list_conflicts()),
            STORE_XATTR if is_root => Ok(client.describe_store()),
            SCRUB_XATTR if is_root => Ok(client.describe_scrub()),
            HOLDERS_XATTR => client.list_holders(id),
            HISTORY_XATTR => client.list_history(id),
            SNAPSHOTS_XATTR => client.list_snapshots(id),
            KEYS_XATTR => client.get(id).map(|_| client.list_keys()),
            SHARED_KEYS_XATTR => client.get(id).map(|_| client.list_shared_keys()),
            MEMBER_XATTR => client.get(id).and_then(|_| client.member_id()),
            TRUSTED_XATTR if is_root => Ok(client.list_trusted()),
            SHARES_XATTR => client.list_shares(id),
            PIN_XATTR if client.is_pinned(id) => Ok(b"1".to_vec()),
            _ => return None,
        })
    }

    /// Carries out the setting of an attribute that is not stored with the file. A policy is stored
    /// with its directory, and is only checked here.
    pub(super) fn tell(&self, ino: Ino, name: &[u8], value: &[u8]) -> Option<Result<()>> {
        let id = RnodeId(ino.0);
        Some(match name {
            CONFLICTS_XATTR if ino == self.root() => self.settle_conflict(value),
            SCRUB_XATTR if ino == self.root() => self.start_scrub(value),
            PIN_XATTR => self.client.get(id).and_then(|_| self.client.pin(id, true)),
            RESTORE_XATTR => self.restore_from(ino, value),
            SNAPSHOTS_XATTR => self.client.change_snapshots(id, value),
            KEYS_XATTR => self.client.import_key(value),
            TRUSTED_XATTR if ino == self.root() => self.client.change_trusted(value),
            SHARES_XATTR => self.client.change_shares(id, value),
            ENCRYPTION_XATTR if value == ENCRYPT => self.client.encrypt(id),
            ENCRYPTION_XATTR => Err(Error::NotPermitted),
            // Who owns the root would decide who owns all files.
            OWNERS_XATTR if ino == self.root() => Err(Error::NotPermitted),
            STORE_XATTR | HOLDERS_XATTR | HISTORY_XATTR | MEMBER_XATTR | SHARED_KEYS_XATTR
            | TRUSTED_XATTR => Err(Error::NotPermitted),
            POLICY_XATTR => match self.check_policy(id, value) {
                Ok(()) => return None,
                Err(e) => Err(e),
            },
            _ => return None,
        })
    }

    fn check_policy(&self, id: RnodeId, value: &[u8]) -> Result<()> {
        let is_policy = std::str::from_utf8(value).is_ok_and(|t| t.parse::<Policy>().is_ok());
        let is_one = is_policy && self.client.get(id)?.is_dir();
        if is_one { Ok(()) } else { Err(Error::Invalid("not a policy of a directory")) }
    }
}
