//! Invalidation of the front end's cached content that another client may have changed.
//!
//! Reads and writes bypass the kernel's page cache, but a mapped file has its pages there, and
//! nothing checks whether they are up to date. So when this client's lease on a file goes, the
//! pages of a file that is open here are invalidated; the next access to a mapping reads them anew,
//! under a new lease.
//!
//! The lease does not wait for that: dropping a page waits for its readers, and a read may wait for
//! the lease. So a mapping is up to date a moment later. A thread that holds no lock does it.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use weft_ringer::RnodeId;
use weft_vfs::Ino;

use super::client_fs::ClientFs;
use super::engine::{Engine, TICK};
use super::mutex::locked;

pub(super) fn run(engine: &Arc<Engine>, client: &Weak<ClientFs>) {
    while !engine.is_stopped() {
        let lost = engine.lost_leases.wait(TICK);
        if lost.is_empty() {
            continue;
        }
        let Some(client) = client.upgrade() else { return };
        let Some(sink) = client.sink.get() else { continue };
        // A file is open for as long as it is mapped. The cache of a closed file is dropped when it
        // is opened again, if it has changed.
        let open: BTreeSet<RnodeId> =
            locked(&client.handles).values().map(|open| open.id).collect();
        lost.intersection(&open).for_each(|id| sink.inode(Ino(id.0), true));
    }
}
