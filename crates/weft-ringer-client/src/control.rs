//! Requests of the user who runs a mount, and of root, about the mount itself: what it keeps, its
//! conflicts, its keys. They are the same as the control attributes (`attributes`), but come on a
//! socket of the mount. For an attribute the kernel first asks for the permission to read or write
//! the file or directory that has it, which in a cell of several people is often another's.
//!
//! An administrator of the cell may also change its root and set policies, whoever owns the
//! directory: the server is asked whether the mount's member is one.

use weft_ringer::op::{Change, Op};
use weft_ringer::wire::{wire_enum, wire_struct};
use weft_ringer::{Bytes, OwnerKind, POLICY_XATTR, RnodeId};
use weft_ringer_net::{Answer, Ask, ask};
use weft_vfs::{Caller, Error, FileSystem, Ino, Result, XattrSet};

use super::attributes::{HISTORY_XATTR, HOLDERS_XATTR, PIN_XATTR, STORE_XATTR};
use super::cells::CellTree;
use super::conflicts::CONFLICTS_XATTR;
use super::encryption::{KEYS_XATTR, MEMBER_XATTR, SHARED_KEYS_XATTR, TRUSTED_XATTR};
use super::errors::{ETIMEDOUT, unexpected};
use super::folder_table::CELLS_XATTR;
use super::fs::RingerFs;
use super::scrubbing::SCRUB_XATTR;

/// `EPERM`
const EPERM: i32 = 1;

/// A request to a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlRequest {
    /// Reads a control attribute.
    Get {
        /// The inode number, as the mount shows it.
        ino: u64,
        /// The attribute.
        name: Bytes,
    },
    /// Sets a control attribute.
    Set {
        /// As of `Get`.
        ino: u64,
        /// As of `Get`.
        name: Bytes,
        /// The value.
        value: Bytes,
    },
    /// Removes a control attribute.
    Remove {
        /// As of `Get`.
        ino: u64,
        /// As of `Get`.
        name: Bytes,
    },
    /// Changes the owner or mode of the cell's root. Needs an administrator of the cell.
    Own {
        /// The new owner.
        uid: Option<u32>,
        /// The new group.
        gid: Option<u32>,
        /// The new permission bits.
        perm: Option<u32>,
    },
}
wire_enum!(ControlRequest {
    1 => Get { ino, name },
    2 => Set { ino, name, value },
    3 => Remove { ino, name },
    4 => Own { uid, gid, perm },
});

/// The reply to a [`ControlRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlReply {
    /// The error; 0 for none.
    pub errno: u32,
    /// The value that was read, or the error in words.
    pub text: Bytes,
}
wire_struct!(ControlReply { errno, text });

/// What the mount's user may read, whatever the permissions of the file.
const READ: [&[u8]; 10] = [
    CONFLICTS_XATTR,
    STORE_XATTR,
    SCRUB_XATTR,
    KEYS_XATTR,
    SHARED_KEYS_XATTR,
    MEMBER_XATTR,
    TRUSTED_XATTR,
    PIN_XATTR,
    CELLS_XATTR,
    HOLDERS_XATTR,
];
/// What the mount's user may set: all of it is about the mount, and none of it changes the cell,
/// except that a conflict is settled by changes that this mount has made before.
const SET: [&[u8]; 5] = [CONFLICTS_XATTR, SCRUB_XATTR, KEYS_XATTR, TRUSTED_XATTR, PIN_XATTR];

impl CellTree {
    /// Carries out a request of the user who runs the mount, or of root.
    #[must_use]
    pub fn control(&self, request: &ControlRequest) -> ControlReply {
        let done = match request {
            ControlRequest::Get { ino, name } => self.control_get(Ino(*ino), &name.0),
            ControlRequest::Set { ino, name, value } => self.may_set(&name.0).and_then(|()| {
                let how = XattrSet::Any;
                self.setxattr(&Caller::ROOT, Ino(*ino), &name.0, &value.0, how)?;
                Ok(Vec::new())
            }),
            ControlRequest::Remove { ino, name } => self.may_set(&name.0).and_then(|()| {
                self.removexattr(&Caller::ROOT, Ino(*ino), &name.0)?;
                Ok(Vec::new())
            }),
            ControlRequest::Own { uid, gid, perm } => {
                self.outer.own_root(*uid, *gid, *perm).map(|()| Vec::new())
            }
        };
        match done {
            Ok(text) => ControlReply { errno: 0, text: Bytes(text) },
            Err(e) => ControlReply {
                errno: u32::try_from(e.errno()).unwrap_or(5),
                text: Bytes(e.to_string().into_bytes()),
            },
        }
    }

    fn control_get(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        if name == POLICY_XATTR || name == HISTORY_XATTR || READ.contains(&name) {
            self.getxattr(ino, name)
        } else {
            Err(Error::NotPermitted)
        }
    }

    /// Checks that an attribute may be set or removed in this way.
    fn may_set(&self, name: &[u8]) -> Result<()> {
        match name {
            POLICY_XATTR => self.outer.check_administrator(),
            name if SET.contains(&name) => Ok(()),
            _ => Err(Error::NotPermitted),
        }
    }
}

impl RingerFs {
    /// Asks the server whether this client's member is an administrator of the cell.
    fn check_administrator(&self) -> Result<()> {
        let options = &self.client.engine.options;
        let tls = options.tls.as_ref().map(|(tls, _)| tls);
        let mut why = String::from("no server is known");
        for server in &options.servers {
            // A request that changes nothing, and that needs an administrator.
            match ask(server, tls, &Ask::Archives {}) {
                Ok(Answer::Archives { .. }) => return Ok(()),
                Ok(_) => return Err(unexpected()),
                Err(weft_ringer_net::Error::Denied(denial)) => {
                    return Err(Error::Io { errno: EPERM, message: denial.to_string() });
                }
                Err(e) => why = format!("{server}: {e}"),
            }
        }
        Err(Error::Io { errno: ETIMEDOUT, message: why })
    }

    /// Changes the owner or mode of the cell's root.
    fn own_root(&self, uid: Option<u32>, gid: Option<u32>, perm: Option<u32>) -> Result<()> {
        self.check_administrator()?;
        if perm.is_some_and(|perm| perm > 0o7777) {
            return Err(Error::Invalid("not a mode of a directory"));
        }
        let perm = perm.and_then(|perm| u16::try_from(perm).ok());
        let stored = |kind, number: Option<u32>| {
            number.map(|number| self.client.stored(kind, number)).transpose()
        };
        let (uid, gid) = (stored(OwnerKind::User, uid)?, stored(OwnerKind::Group, gid)?);
        let change = Change { uid, gid, perm, ..Change::default() };
        self.client.apply(Op::SetAttr { id: RnodeId::ROOT, change }, RnodeId::ROOT)?;
        self.client.engine.sync()
    }
}
