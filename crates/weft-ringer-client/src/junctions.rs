//! What a client says of its own cell to the tree of cells that it is part of.

use std::time::Duration;

use weft_ringer::client::{Call, Outcome};
use weft_ringer::{Bytes, CellId, JUNCTION_XATTR, Rnode, RnodeId};
use weft_vfs::{Attr, FileSystem, Ino, Result};

use super::engine::{Engine, locked};
use super::folders::{SearchesBeyond, is_of_folders};
use super::fs::RingerFs;

/// How long who looks at a cell from outside, and does not walk into it, waits for its server.
const GLANCE: Duration = Duration::from_secs(1);

fn junction_of(rnode: &Rnode) -> Option<Vec<u8>> {
    let junction = rnode.xattrs.get(&Bytes(JUNCTION_XATTR.to_vec()));
    junction.filter(|_| rnode.is_dir()).map(|text| text.0.clone())
}

impl Engine {
    /// The junction that an rnode is, or that it is none; `None` if no lease says.
    fn known_junction(&self, id: RnodeId) -> Option<Option<Vec<u8>>> {
        locked(&self.inner).client.cached(id).map(junction_of)
    }
}

impl RingerFs {
    /// What a directory says of the cell that is seen in its place, if it is a junction. One in a
    /// snapshot is the empty directory that it was.
    pub(super) fn junction_at(&self, ino: Ino) -> Result<Option<Vec<u8>>> {
        let id = RnodeId(ino.0);
        if is_of_folders(ino) || id.is_of_snapshot() || id == RnodeId::ROOT {
            return Ok(None);
        }
        match self.live.engine.known_junction(id) {
            Some(known) => Ok(known),
            None => Ok(junction_of(&*self.live.get(id)?)),
        }
    }

    /// One more reference on an inode that has one.
    pub(super) fn refer(&self, ino: Ino) {
        self.live.add_reference(RnodeId(ino.0));
    }

    /// The attributes of the root, if they can be had soon.
    pub(super) fn glance(&self) -> Option<Attr> {
        let engine = &self.live.engine;
        let root = Call::Get { id: RnodeId::ROOT };
        // While there is no connection, what leases do not answer nobody does.
        let found = if engine.is_linked() {
            engine.call_within(root, GLANCE).ok()
        } else {
            engine.call_now(root).ok().flatten()
        };
        match found?.0 {
            Outcome::Rnode(rnode) => Some(rnode.attr()),
            _ => None,
        }
    }

    /// The number of the cell.
    pub(super) fn cell(&self) -> CellId {
        CellId(self.live.engine.cell())
    }

    /// Whether the server is connected, how many changes it may not know, how many conflicts there
    /// are, and why it is not connected if that is known.
    pub(super) fn standing(&self) -> (bool, usize, usize, Option<String>) {
        let engine = &self.live.engine;
        let conflicts = locked(&engine.conflicts).count();
        (engine.is_linked(), engine.unflushed(), conflicts, engine.trouble())
    }

    /// Whether the root is told of by its own cell, whatever its server does.
    pub(super) fn is_at_hand(&self) -> bool {
        self.glance().is_some()
    }

    /// Has the cells that are attached searched too.
    pub(super) fn search_with(&self, beyond: Box<dyn SearchesBeyond>) {
        let _ = self.live.folders.beyond.set(beyond);
    }

    pub(super) fn is_root(&self, ino: Ino) -> bool {
        ino == self.root()
    }
}
