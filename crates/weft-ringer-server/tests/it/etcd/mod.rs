//! Cells on a real etcd: `WEFT_ETCD`, or the one of the path. Without one these are skipped.

mod store;

use std::time::Duration;

use weft_ringer::mds::INDEX;
use weft_ringer_server::store::{EtcdCell, EtcdOptions, EtcdStore, Taken};

/// A cell called `name`. What holds it holds for two seconds.
pub fn cell(endpoints: Vec<String>, name: &str) -> EtcdCell {
    cell_for(endpoints, name, Duration::from_secs(2))
}

pub fn cell_for(endpoints: Vec<String>, name: &str, session: Duration) -> EtcdCell {
    let mut options = EtcdOptions::new(endpoints, name.into());
    options.session = session;
    EtcdCell::new(&options, INDEX).expect("good options")
}

/// Takes the cell, as soon as nobody owns it.
pub fn take(cell: &EtcdCell, who: &str) -> EtcdStore {
    let end = std::time::Instant::now() + Duration::from_secs(300);
    loop {
        match cell.take(who).expect("etcd answers") {
            Taken::Ours(store) => return *store,
            Taken::Theirs(owner) => {
                assert!(std::time::Instant::now() < end, "{owner} owns it for ever");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}
