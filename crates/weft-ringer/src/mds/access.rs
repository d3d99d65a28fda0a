//! Access rights of members, by subtrees.
//!
//! Every change is made under write leases on all rnodes it touches, so only the granting of leases
//! has to be checked: a client without a write lease changes nothing, whatever it sends. To read is
//! to be granted a read lease, or to be told of an rnode without one.
//!
//! A member with a right in a subtree also sees the directories above it, and the names in them, to
//! be able to reach it.

use weft_vfs::FileKind;

use crate::rnode::{Body, Dirent, Name};
use crate::store::{Store, StoreResult};
use crate::types::{Mode, RnodeId};
use crate::wire::{RequestBody, wire_enum, wire_struct};

use super::records;

/// The level of access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Read.
    Read,
    /// Read and write.
    Write,
    /// In the whole cell: read, write, and invite and revoke members.
    Admin,
}
wire_enum!(Level { 1 => Read, 2 => Write, 3 => Admin });

/// A right to the tree below a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The directory; the root is the whole cell.
    pub dir: RnodeId,
    /// The level.
    pub level: Level,
}
wire_struct!(Grant { dir, level });

/// The access rights of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// The grants; all else is denied.
    pub grants: Vec<Grant>,
}
wire_struct!(Access { grants });

/// The longest path to the root that is followed, in steps.
const DEPTH_MAX: usize = 4096;

/// Returns the directory at a path from the root of the cell.
///
/// # Errors
/// Those of the store.
pub fn find_directory(store: &dyn Store, path: &[u8]) -> StoreResult<Option<RnodeId>> {
    let mut at = RnodeId::ROOT;
    for part in path.split(|b| *b == b'/').filter(|part| !part.is_empty()) {
        let Ok(name) = Name::new(part) else { return Ok(None) };
        let key = records::dirent_key(at, &name);
        let dirent: Option<Dirent> = records::load(store, &key, "name")?;
        match dirent {
            Some(dirent) if dirent.kind == FileKind::Directory => at = dirent.id,
            _ => return Ok(None),
        }
    }
    Ok(Some(at))
}

impl Access {
    /// Returns the right to everything.
    #[must_use]
    pub fn full() -> Self {
        Self { grants: vec![Grant { dir: RnodeId::ROOT, level: Level::Admin }] }
    }

    /// Returns the level in the whole cell.
    #[must_use]
    pub fn everywhere(&self) -> Option<Level> {
        self.grants.iter().filter(|g| g.dir == RnodeId::ROOT).map(|g| g.level).max()
    }

    /// Returns true if it includes all rights of `other`.
    #[must_use]
    pub fn includes(&self, other: &Self) -> bool {
        other.grants.iter().all(|theirs| {
            let same = |g: &&Grant| g.dir == theirs.dir || g.dir == RnodeId::ROOT;
            self.grants.iter().filter(same).any(|g| g.level >= theirs.level)
        })
    }

    /// Returns true if a request is allowed. Requests about rnodes that the server does not know
    /// are for later checks to refuse.
    ///
    /// # Errors
    /// Those of the store.
    pub fn allows(&self, store: &dyn Store, body: &RequestBody) -> StoreResult<bool> {
        if self.everywhere() >= Some(Level::Write) {
            return Ok(true);
        }
        match body {
            // Nothing is shown of an rnode that is gone.
            RequestBody::Acquire { rnode, .. } | RequestBody::Peek { rnode }
                if records::load_rnode(store, *rnode)?.is_none() =>
            {
                Ok(true)
            }
            RequestBody::Acquire { rnode, mode: Mode::Write } => {
                self.level(store, *rnode).map(|level| level >= Some(Level::Write))
            }
            RequestBody::Acquire { rnode, .. } | RequestBody::Peek { rnode } => {
                self.sees(store, *rnode)
            }
            RequestBody::Reclaim { claims, .. } => {
                for claim in claims {
                    let is_there = records::load_rnode(store, claim.rnode)?.is_some();
                    let level = self.level(store, claim.rnode)?;
                    if is_there && claim.mode == Mode::Write && level < Some(Level::Write) {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            // The rnode behind the name is not known until this is granted.
            RequestBody::AcquireNamed { .. } => Ok(self.everywhere().is_some()),
            // A text affects the searches of others; a snapshot takes up their space.
            RequestBody::Text { rnode, .. }
            | RequestBody::Snapshot { dir: rnode, .. }
            | RequestBody::RemoveSnapshot { dir: rnode, .. } => {
                self.level(store, *rnode).map(|level| level >= Some(Level::Write))
            }
            RequestBody::Removed { dir: rnode }
            | RequestBody::Snapshots { dir: rnode }
            | RequestBody::AcquireLocks { rnode }
            | RequestBody::Hold { rnode, .. }
            | RequestBody::Release { rnode, .. }
            | RequestBody::Versions { rnode }
            | RequestBody::OldVersion { rnode, .. } => {
                // The former path of a file that is gone is unknown.
                self.level(store, *rnode).map(|level| level.is_some())
            }
            // The writer of a file may drop it because of the one report, and keeps it longer than it
            // need because of the other.
            RequestBody::Archived { rnode, .. } | RequestBody::ArchiveLacks { rnode, .. } => {
                self.level(store, *rnode).map(|level| level >= Some(Level::Write))
            }
            // One level deep: a request enclosed within this one is refused.
            RequestBody::Relay { body, .. } => match body.open() {
                Ok(RequestBody::Relay { .. }) | Err(_) => Ok(false),
                Ok(body) => self.allows(store, &body),
            },
            // Checked by the leases it needs, which were granted or not; or not about the tree.
            _ => Ok(true),
        }
    }

    /// Returns the level for an rnode: the highest by any of its names.
    ///
    /// # Errors
    /// Those of the store.
    pub fn level(&self, store: &dyn Store, id: RnodeId) -> StoreResult<Option<Level>> {
        let mut level = self.everywhere();
        if self.grants.iter().all(|g| g.dir == RnodeId::ROOT) {
            return Ok(level);
        }
        let dirs = match records::load_rnode(store, id)?.map(|rnode| rnode.body) {
            Some(Body::Directory { .. }) => vec![id],
            _ => records::directories_of(store, id)?,
        };
        for dir in dirs {
            let mut at = Some(dir);
            for _ in 0..DEPTH_MAX {
                let Some(dir) = at else { break };
                let here = self.grants.iter().filter(|g| g.dir == dir).map(|g| g.level).max();
                level = level.max(here);
                at = parent(store, dir)?;
            }
        }
        Ok(level)
    }

    /// Returns true if an rnode may be looked at: it may be read, or is on the path to a subtree
    /// that may.
    fn sees(&self, store: &dyn Store, id: RnodeId) -> StoreResult<bool> {
        if self.level(store, id)?.is_some() {
            return Ok(true);
        }
        for grant in &self.grants {
            let mut at = Some(grant.dir);
            for _ in 0..DEPTH_MAX {
                match at {
                    Some(dir) if dir == id => return Ok(true),
                    Some(dir) => at = parent(store, dir)?,
                    None => break,
                }
            }
        }
        Ok(false)
    }
}

/// Returns the parent of a directory; `None` for the root, or if the directory is gone.
fn parent(store: &dyn Store, dir: RnodeId) -> StoreResult<Option<RnodeId>> {
    match records::load_rnode(store, dir)?.map(|rnode| rnode.body) {
        Some(Body::Directory { parent, .. }) if parent != dir => Ok(Some(parent)),
        _ => Ok(None),
    }
}
