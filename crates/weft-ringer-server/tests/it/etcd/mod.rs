//! Cells on a real etcd: `WEFT_ETCD`, or the one of the path. Without one these are skipped.

mod store;

use std::time::Duration;

use weft_ringer::mds::INDEX;
use weft_ringer_server::store::{EtcdCell, EtcdOptions, EtcdStore, Taken};
use weft_testing::{LIMIT, wait_for};

/// A cell called `name`, whose owner has it until it stops or its session is revoked.
pub fn cell(endpoints: Vec<String>, name: &str) -> EtcdCell {
    cell_for(endpoints, name, LIMIT)
}

pub fn cell_for(endpoints: Vec<String>, name: &str, session: Duration) -> EtcdCell {
    let mut options = EtcdOptions::new(endpoints, name.into());
    options.session = session;
    EtcdCell::new(&options, INDEX).expect("good options")
}

/// Takes the cell as soon as it has no owner.
pub fn take(cell: &EtcdCell, name: &str) -> EtcdStore {
    wait_for("the cell has no owner", || match cell.take(name).expect("etcd answers") {
        Taken::Ours(store) => Ok(*store),
        Taken::Theirs(owner) => Err(owner),
    })
}
