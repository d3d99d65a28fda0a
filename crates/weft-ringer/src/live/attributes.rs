//! Attributes through which a mount says how things are and is told what to do. None of them is kept
//! with the file, and none is listed.

use weft_vfs::{Error, FileSystem, Ino, Result};

use super::conflicts::CONFLICTS_XATTR;
use super::fs::RingerFs;
use crate::policy::{POLICY_XATTR, Policy};
use crate::types::RnodeId;

/// The attribute of a file that tells who has copies of it, and of a directory what is wanted.
pub const HOLDERS_XATTR: &[u8] = b"user.weft.holders";
/// The attribute that a file or directory has while it is pinned: kept here whole, with what is below
/// it. Of this client alone.
pub const PIN_XATTR: &[u8] = b"user.weft.pin";
/// The attribute of a mount's root that tells how the local store is.
pub const STORE_XATTR: &[u8] = b"user.weft.store";
/// The attribute that tells what a file was, and what was removed below a directory.
pub const HISTORY_XATTR: &[u8] = b"user.weft.history";
/// The attribute that makes a file what it was, when it is set.
pub const RESTORE_XATTR: &[u8] = b"user.weft.restore";

/// The attribute of a directory that tells which snapshots of it there are, and makes and removes them
/// when it is set.
pub const SNAPSHOTS_XATTR: &[u8] = b"user.weft.snapshots";

impl RingerFs {
    /// The value of an attribute that is not kept with the file; `None` for any other.
    pub(super) fn told(&self, ino: Ino, name: &[u8]) -> Option<Result<Vec<u8>>> {
        let (live, id) = (&self.live, RnodeId(ino.0));
        let is_root = ino == self.root();
        Some(match name {
            CONFLICTS_XATTR if is_root => Ok(self.list_conflicts()),
            STORE_XATTR if is_root => Ok(live.describe_store()),
            HOLDERS_XATTR => live.list_holders(id),
            HISTORY_XATTR => live.list_history(id),
            SNAPSHOTS_XATTR => live.list_snapshots(id),
            PIN_XATTR if live.is_pinned(id) => Ok(b"1".to_vec()),
            _ => return None,
        })
    }

    /// Does what setting an attribute asks for, if it is one that is not kept with the file. A policy
    /// is kept with its directory, and is only checked here.
    pub(super) fn tell(&self, ino: Ino, name: &[u8], value: &[u8]) -> Option<Result<()>> {
        let id = RnodeId(ino.0);
        Some(match name {
            CONFLICTS_XATTR if ino == self.root() => self.settle_conflict(value),
            PIN_XATTR => self.live.get(id).and_then(|_| self.live.pin(id, true)),
            RESTORE_XATTR => self.restore_from(ino, value),
            SNAPSHOTS_XATTR => self.live.change_snapshots(id, value),
            STORE_XATTR | HOLDERS_XATTR | HISTORY_XATTR => Err(Error::NotPermitted),
            POLICY_XATTR => match self.check_policy(id, value) {
                Ok(()) => return None,
                Err(e) => Err(e),
            },
            _ => return None,
        })
    }

    fn check_policy(&self, id: RnodeId, value: &[u8]) -> Result<()> {
        let is_policy = std::str::from_utf8(value).is_ok_and(|t| t.parse::<Policy>().is_ok());
        let is_one = is_policy && self.live.get(id)?.is_dir();
        if is_one { Ok(()) } else { Err(Error::Invalid("not a policy of a directory")) }
    }
}
