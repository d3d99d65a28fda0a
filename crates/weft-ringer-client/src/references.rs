//! Rnodes of a cell in use here: references held by the front end, and open files.

use weft_ringer::RnodeId;
use weft_ringer::op::{Change, Op};
use weft_vfs::{Entry, Error, FileKind, OpenFlags, Opened, Result};

use super::client_fs::{ClientFs, OpenFile};
use super::mutex::locked;

impl ClientFs {
    pub(super) fn is_used(&self, id: RnodeId) -> bool {
        id == RnodeId::ROOT || locked(&self.references).contains_key(&id)
    }

    /// Returns true if a program has a file open, or a mapping of it. The kernel remembers files for
    /// much longer.
    pub(super) fn is_open(&self, id: RnodeId) -> bool {
        locked(&self.handles).values().any(|open| open.id == id)
    }

    pub(super) fn add_reference(&self, id: RnodeId) {
        *locked(&self.references).entry(id).or_default() += 1;
    }

    pub(super) fn drop_references(&self, id: RnodeId, count: u64) {
        let mut references = locked(&self.references);
        let Some(left) = references.get_mut(&id) else { return };
        *left = left.saturating_sub(count);
        if *left == 0 {
            references.remove(&id);
            drop(references);
            locked(&self.above).remove(&id);
            locked(&self.changing).remove(&id);
            locked(&self.seen).remove(&id);
            locked(&self.listings).remove(id);
            locked(&self.shared_memory).remove(&id);
            self.encrypted.forget(id);
            self.is_perhaps_dead(id);
        }
    }

    /// Queues an rnode without users and names for a later check whether it can be released.
    pub(super) fn is_perhaps_dead(&self, id: RnodeId) {
        if !self.is_used(id) && self.engine.lost_its_names(id) {
            locked(&self.maybe_dead).push(id);
        }
    }

    /// A directory that an rnode has a name in, if it is in use here.
    pub(super) fn directory_of(&self, id: RnodeId) -> Option<RnodeId> {
        locked(&self.above).get(&id).copied()
    }

    /// Records that an rnode has a name in `dir` now, no longer where it had one: another policy
    /// may hold for it.
    pub(super) fn was_moved(&self, id: RnodeId, dir: RnodeId) {
        let is_no_directory = locked(&self.above).get_mut(&id).map(|above| *above = dir).is_some();
        if is_no_directory {
            self.has_changed(id);
        }
    }

    /// The entry of an rnode that was found in `dir`, with a reference on it.
    pub(super) fn entry_in(&self, dir: RnodeId, id: RnodeId) -> Result<Entry> {
        let entry = self.entry(id)?;
        if entry.attr.kind != FileKind::Directory {
            locked(&self.above).insert(id, dir);
        }
        Ok(entry)
    }

    /// The entry of an rnode, with a reference on it.
    pub(super) fn entry(&self, id: RnodeId) -> Result<Entry> {
        // The reference comes first: it keeps the rnode from being given up meanwhile.
        self.add_reference(id);
        match self.get(id).and_then(|rnode| self.attr(&rnode)) {
            Ok(attr) => Ok(Entry { attr, generation: 0 }),
            Err(e) => {
                self.drop_references(id, 1);
                Err(e)
            }
        }
    }

    pub(super) fn open(&self, id: RnodeId, flags: OpenFlags) -> Result<Opened> {
        // The reference comes first, as for an entry.
        self.add_reference(id);
        let opened = self.open_referenced(id, flags);
        if opened.is_err() {
            self.drop_references(id, 1);
        }
        opened
    }

    pub(super) fn open_referenced(&self, id: RnodeId, flags: OpenFlags) -> Result<Opened> {
        self.check_shared_memory(id, flags)?;
        let mut rnode = self.get(id)?;
        match rnode.kind() {
            FileKind::Directory if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE) => {
                return Err(Error::IsADirectory);
            }
            // A client without the key gets an error at once.
            FileKind::Regular => drop(self.cipher(&rnode)?),
            _ => {}
        }
        if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE) {
            // The changes may be those of another process; the kernel reports the last close late.
            self.is_left(id);
        }
        if flags.contains(OpenFlags::TRUNCATE) {
            self.before_change(id)?;
            let change = Change { size_bytes: Some(0), ..Change::default() };
            let (_, seq) = self.apply(Op::SetAttr { id, change }, id)?;
            self.was_cut(&rnode, 0, seq);
            rnode = self.get(id)?;
        }
        let seen = locked(&self.seen).insert(id, rnode.version);
        let handle = locked(&self.handles).open(OpenFile { id, flags, locked_in: None });
        let keep_cache = seen == Some(rnode.version);
        // Bypasses the kernel's page cache. It would show written data to others on this machine
        // before it is known whether the write can be done. And while one process writes here, it
        // discards the attributes by which another would see that a third has changed the cached
        // content.
        let direct_io = true;
        Ok(Opened { handle, keep_cache, direct_io })
    }
}
