//! What a member may do, by subtrees.
//!
//! Every change is made under leases to write on all it touches, so nothing but the granting of a
//! lease has to be watched: who is not granted one changes nothing, whatever it says. To read is to be
//! granted a lease to read, or to be told of an rnode without one.
//!
//! Who may do something in a subtree also sees the directories above it, and the names in them: that
//! is how it gets there.

use weft_vfs::FileKind;

use crate::rnode::{Body, Dirent, Name};
use crate::store::{Store, StoreResult};
use crate::types::{Mode, RnodeId};
use crate::wire::{RequestBody, wire_enum, wire_struct};

use super::records;

/// How much somebody may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// To look.
    Read,
    /// To change as well.
    Write,
    /// In the whole cell: to invite others and to send them away as well.
    Admin,
}
wire_enum!(Level { 1 => Read, 2 => Write, 3 => Admin });

/// What somebody may do below a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The directory; the root is the whole cell.
    pub dir: RnodeId,
    /// How much.
    pub level: Level,
}
wire_struct!(Grant { dir, level });

/// What somebody may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// What is not in any of them may not be done.
    pub grants: Vec<Grant>,
}
wire_struct!(Access { grants });

/// The longest way to the root that is gone, in steps.
const DEPTH_MAX: usize = 4096;

/// The directory that a path names, from the root of the cell.
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
    /// Everything.
    #[must_use]
    pub fn full() -> Self {
        Self { grants: vec![Grant { dir: RnodeId::ROOT, level: Level::Admin }] }
    }

    /// What may be done in the whole cell.
    #[must_use]
    pub fn everywhere(&self) -> Option<Level> {
        self.grants.iter().filter(|g| g.dir == RnodeId::ROOT).map(|g| g.level).max()
    }

    /// Whether it is all that another may do, or more.
    #[must_use]
    pub fn includes(&self, other: &Self) -> bool {
        other.grants.iter().all(|theirs| {
            let same = |g: &&Grant| g.dir == theirs.dir || g.dir == RnodeId::ROOT;
            self.grants.iter().filter(same).any(|g| g.level >= theirs.level)
        })
    }

    /// Whether a request is within it. What is made of rnodes that the server does not know is for
    /// others to refuse.
    ///
    /// # Errors
    /// Those of the store.
    pub fn allows(&self, store: &dyn Store, body: &RequestBody) -> StoreResult<bool> {
        if self.everywhere() >= Some(Level::Write) {
            return Ok(true);
        }
        match body {
            // There is nothing to be seen of what is gone.
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
            // What a name is when this is granted nobody knows yet.
            RequestBody::AcquireNamed { .. } => Ok(self.everywhere().is_some()),
            // What it says of a file others find it by; what it keeps takes room of others.
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
                // Of a file that is gone nobody can tell where it was.
                self.level(store, *rnode).map(|level| level.is_some())
            }
            // Who wrote a file may let it go for this.
            RequestBody::Archived { rnode, .. } => {
                self.level(store, *rnode).map(|level| level >= Some(Level::Write))
            }
            // One step deep: what is enclosed in it again is refused.
            RequestBody::Relay { body, .. } => match body.open() {
                Ok(RequestBody::Relay { .. }) | Err(_) => Ok(false),
                Ok(body) => self.allows(store, &body),
            },
            // Under leases, which were granted or not; or of nothing in the tree.
            _ => Ok(true),
        }
    }

    /// How much may be done to an rnode: by any of its names.
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

    /// Whether an rnode may be looked at: it may be read, or is on the way to what may.
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

/// The directory above another; `None` above the root, or if it is gone.
fn parent(store: &dyn Store, dir: RnodeId) -> StoreResult<Option<RnodeId>> {
    match records::load_rnode(store, dir)?.map(|rnode| rnode.body) {
        Some(Body::Directory { parent, .. }) if parent != dir => Ok(Some(parent)),
        _ => Ok(None),
    }
}
