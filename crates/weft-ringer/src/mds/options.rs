//! The options of a metadata server.

use crate::owner_names::OwnerNames;

/// Options of a metadata server.
#[derive(Debug, Clone)]
pub struct MdsOptions {
    /// The time an epoch lasts without being renewed, in microseconds. Long epochs survive long
    /// interruptions; short ones let other clients go on sooner when a client dies. 15 s is a third
    /// of what NFS servers use, and survives a change of wireless network.
    pub epoch_micros: u64,
    /// The time after which an unanswered recall is sent again, in microseconds.
    pub recall_retry_micros: u64,
    /// The owner and mode of the root, if the cell is made now.
    pub root: RootOwner,
}

impl Default for MdsOptions {
    fn default() -> Self {
        let root = RootOwner::default();
        Self { epoch_micros: 15_000_000, recall_retry_micros: 1_000_000, root }
    }
}

/// The owner and mode of the root of a new cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootOwner {
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The permission bits.
    pub perm: u16,
    /// The names of the owner and the group, for clients that map owners by name.
    pub names: OwnerNames,
}

impl Default for RootOwner {
    fn default() -> Self {
        Self { uid: 0, gid: 0, perm: 0o755, names: OwnerNames::default() }
    }
}
