//! The state that the threads of the file system share, and the calls that all its parts make.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use weft_ringer::client::{Call, Outcome};
use weft_ringer::op::{Make, Op};
use weft_ringer::{Body, Epoch, OwnerKind, Refusal, Rnode, RnodeId, Seq, Version};
use weft_vfs::{Caller, Entry, Error, HandleTable, Ino, OpenFlags, Result};

use super::arguments::{self, changeable, new_name};
use super::encryption::Encrypted;
use super::engine::Engine;
use super::folder_table::Folders;
use super::listing::{Listings, changed_directories};
use super::lost_leases::Sink;
use super::mutex::locked;
use super::owners::Owners;
use super::skipped_texts::SkippedTexts;

/// The number of locks of writers. A file belongs to one of them, which one writer holds at a time.
pub(super) const WRITERS: usize = 64;

/// The state of a file that was changed here.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Changing {
    /// True if the file was changed since it was last closed or synced.
    pub(super) begun: bool,
    /// The time when this client last kept a version.
    pub(super) kept: Option<Instant>,
}

/// The progress of a scrub.
#[derive(Debug, Default)]
pub(super) struct Scrub {
    pub(super) running: bool,
    pub(super) begun: u64,
    pub(super) blocks: u64,
    pub(super) bytes: u64,
    pub(super) healed: u64,
    pub(super) lost: u64,
    pub(super) why_ended: Option<String>,
    pub(super) named: Vec<String>,
}

/// The present or last scrub since this client started.
pub(super) type Scrubbing = Mutex<Scrub>;

/// The state of an open file.
pub(super) struct OpenFile {
    pub(super) id: RnodeId,
    pub(super) flags: OpenFlags,
    /// The epoch in which a lock was taken through it.
    pub(super) locked_in: Option<Epoch>,
}

/// The state that the threads of the file system share.
pub(super) struct ClientFs {
    pub(super) engine: Arc<Engine>,
    /// References held by the front end, and one for each open handle.
    pub(super) references: Mutex<HashMap<RnodeId, u64>>,
    /// For each referenced rnode, a directory in which it was found.
    pub(super) above: Mutex<HashMap<RnodeId, RnodeId>>,
    pub(super) handles: Mutex<HandleTable<OpenFile>>,
    pub(super) writers: [Mutex<()>; WRITERS],
    /// Files that this client changed.
    pub(super) changing: Mutex<HashMap<RnodeId, Changing>>,
    /// The version of each file whose content the front end may have cached.
    pub(super) seen: Mutex<HashMap<RnodeId, Version>>,
    /// Rnodes that may have lost their last name and that this client no longer uses.
    pub(super) maybe_dead: Mutex<Vec<RnodeId>>,
    pub(super) folders: Folders,
    pub(super) encrypted: Encrypted,
    /// Files whose text need not be reported.
    pub(super) skipped_texts: Mutex<SkippedTexts>,
    pub(super) scrubbing: Scrubbing,
    /// Files named like a database's shared-memory file.
    pub(super) shared_memory: Mutex<BTreeSet<RnodeId>>,
    /// The names of directories that are being read.
    pub(super) listings: Mutex<Listings>,
    pub(super) owners: Owners,
    pub(super) sink: Sink,
}

impl std::fmt::Debug for ClientFs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientFs").field("options", &self.engine.options).finish_non_exhaustive()
    }
}

impl ClientFs {
    /// The lock of a file's writers.
    pub(super) fn writer(&self, id: RnodeId) -> &Mutex<()> {
        &self.writers[id.count() as usize % WRITERS]
    }

    pub(super) fn refused(&self, id: RnodeId, why: Refusal) -> Error {
        match why {
            Refusal::Stale => Error::Stale(id.0),
            why => why.into(),
        }
    }

    /// Returns an rnode, even if only other clients use it.
    pub(super) fn get_any(&self, id: RnodeId) -> Result<Box<Rnode>> {
        match self.engine.call(Call::Get { id })?.0 {
            Outcome::Rnode(rnode) => Ok(rnode),
            Outcome::Refused(why) => Err(self.refused(id, why)),
            _ => Err(Error::Stale(id.0)),
        }
    }

    pub(super) fn get(&self, id: RnodeId) -> Result<Box<Rnode>> {
        let rnode = self.get_any(id)?;
        if rnode.nlink == 0 && !self.is_used(id) { Err(Error::Stale(id.0)) } else { Ok(rnode) }
    }

    pub(super) fn apply(&self, op: Op, about: RnodeId) -> Result<(Option<RnodeId>, Seq)> {
        match self.change(op)? {
            (Outcome::Done(id), seq) => Ok((id, seq)),
            (Outcome::Refused(why), _) => Err(self.refused(about, why)),
            _ => Err(Error::Stale(about.0)),
        }
    }

    /// Makes a change. A program that is listing a directory sees it in the rest of the listing.
    fn change(&self, op: Op) -> Result<(Outcome, Seq)> {
        let directories = changed_directories(&op);
        let changed = self.engine.call(Call::Apply { op, if_version: None });
        if let [Some(dir), other] = directories {
            let mut listings = locked(&self.listings);
            listings.remove(dir);
            other.into_iter().for_each(|dir| listings.remove(dir));
        }
        changed
    }

    pub(super) fn find(&self, parent: RnodeId, name: &[u8]) -> Result<RnodeId> {
        if name == b"." || name == b".." {
            return match self.get(parent)?.body {
                Body::Directory { parent: above, .. } => {
                    Ok(if name == b"." { parent } else { above })
                }
                _ => Err(Error::NotADirectory),
            };
        }
        let name = arguments::name(name)?;
        match self.engine.call(Call::Lookup { dir: parent, name })?.0 {
            Outcome::Found(Some(dirent)) => Ok(dirent.id),
            Outcome::Refused(why) => Err(self.refused(parent, why)),
            _ => Err(Error::NotFound),
        }
    }

    pub(super) fn make(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        perm: u16,
        make: &Make,
    ) -> Result<Entry> {
        let parent = changeable(parent)?;
        self.check_new_name(parent, name)?;
        let name = new_name(parent, name)?;
        let block_bytes = self.engine.options.block_bytes;
        let uid = self.stored(OwnerKind::User, caller.uid)?;
        let gid = self.stored(OwnerKind::Group, caller.gid)?;
        let mut tried = None;
        loop {
            let make = match make {
                Make::File { .. } => self.new_file(parent, block_bytes)?,
                other => other.clone(),
            };
            // The client chooses the number.
            let (id, name) = (RnodeId::ROOT, name.clone());
            let is_encrypted = Some(matches!(make, Make::EncryptedFile { .. }));
            let op = Op::Create { parent, name, id, make, perm, uid, gid };
            match self.change(op)?.0 {
                Outcome::Refused(Refusal::EncryptionChanged) if tried != is_encrypted => {
                    tried = is_encrypted;
                }
                Outcome::Refused(why) => return Err(self.refused(parent, why)),
                Outcome::Done(Some(id)) => return self.entry_in(parent, id),
                _ => return Err(Error::Stale(parent.0)),
            }
        }
    }

    /// Records a change of a file's content by this client: the front end's cached content stays up
    /// to date if it was before.
    pub(super) fn wrote(&self, id: RnodeId, before: Version, seq: Seq) {
        let epoch = self.engine.epoch();
        if let Some(seen) = locked(&self.seen).get_mut(&id).filter(|v| **v == before) {
            *seen = before.next(epoch, seq);
        }
    }

    /// Releases every lease and ends the session.
    pub(super) fn leave(&self) -> Result<()> {
        let synced = self.engine.sync();
        if synced.is_ok() {
            for (id, _) in self.engine.leases() {
                let _ = self.engine.call(Call::Evict { id });
            }
        }
        self.engine.leave_list();
        self.engine.end();
        synced
    }
}
