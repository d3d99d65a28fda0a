//! The interface of a cell's client to the tree of cells that it is part of.

use std::time::Duration;

use weft_ringer::client::{Call, Outcome};
use weft_ringer::{Bytes, CELL_MOUNT_XATTR, CellId, Rnode, RnodeId};
use weft_vfs::{Attr, FileSystem, Ino, Result};

use super::engine::Engine;
use super::folder_table::{RemoteSearch, is_of_folders};
use super::fs::RingerFs;
use super::mutex::locked;

/// The time limit for reading a cell's root attributes without entering the cell.
const GLANCE: Duration = Duration::from_secs(1);

fn cell_mount_of(rnode: &Rnode) -> Option<Vec<u8>> {
    let cell_mount = rnode.xattrs.get(&Bytes(CELL_MOUNT_XATTR.to_vec()));
    cell_mount.filter(|_| rnode.is_dir()).map(|text| text.0.clone())
}

impl Engine {
    /// The mount point that an rnode is, or `Some(None)` if it is none; `None` if no lease tells.
    fn known_cell_mount(&self, id: RnodeId) -> Option<Option<Vec<u8>>> {
        locked(&self.inner).client.cached(id).map(cell_mount_of)
    }
}

impl RingerFs {
    /// Returns the text that names the cell shown at a directory, if it is a mount point. One in a
    /// snapshot is the empty directory that it was.
    pub(super) fn cell_mount_at(&self, ino: Ino) -> Result<Option<Vec<u8>>> {
        let id = RnodeId(ino.0);
        if is_of_folders(ino) || id.is_of_snapshot() || id == RnodeId::ROOT {
            return Ok(None);
        }
        match self.client.engine.known_cell_mount(id) {
            Some(known) => Ok(known),
            None => Ok(cell_mount_of(&*self.client.get(id)?)),
        }
    }

    /// Adds a reference on an inode that has one.
    pub(super) fn refer(&self, ino: Ino) {
        self.client.add_reference(RnodeId(ino.0));
    }

    /// The attributes of the root, if they can be had soon.
    pub(super) fn glance(&self) -> Option<Attr> {
        let engine = &self.client.engine;
        let root = Call::Get { id: RnodeId::ROOT };
        // While there is no connection, only leases can answer.
        let found = if engine.is_linked() {
            engine.call_within(root, GLANCE).ok()
        } else {
            engine.call_now(root).ok().flatten()
        };
        match found?.0 {
            Outcome::Rnode(rnode) => Some(self.client.attr_of_root(&rnode)),
            _ => None,
        }
    }

    /// The number of the cell.
    pub(super) fn cell(&self) -> CellId {
        CellId(self.client.engine.cell())
    }

    /// Returns whether the server is connected, the number of changes that it may not have, the
    /// number of conflicts, and the reason for no connection if it is known.
    pub(super) fn standing(&self) -> (bool, usize, usize, Option<String>) {
        let engine = &self.client.engine;
        let conflicts = locked(&engine.conflicts).count();
        (engine.is_linked(), engine.unflushed(), conflicts, engine.trouble())
    }

    /// Returns true if the root's attributes are available soon, from leases or the server.
    pub(super) fn is_at_hand(&self) -> bool {
        self.glance().is_some()
    }

    /// Sets the searcher for the attached cells.
    pub(super) fn search_with(&self, remote: Box<dyn RemoteSearch>) {
        let _ = self.client.folders.remote_cells.set(remote);
    }

    pub(super) fn is_root(&self, ino: Ino) -> bool {
        ino == self.root()
    }
}
