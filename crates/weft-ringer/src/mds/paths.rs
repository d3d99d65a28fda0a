//! Paths of directories and files, from the root of the cell.

use super::{copies, history, records};
use crate::store::{Store, StoreResult};
use crate::types::RnodeId;

/// Returns the path of an rnode; of one with several names, one of its paths. `None` if the server
/// does not know the rnode, or it has no name.
///
/// # Errors
/// Those of the store.
pub fn path_of(store: &dyn Store, id: RnodeId) -> StoreResult<Option<Vec<u8>>> {
    let Some(rnode) = records::load_rnode(store, id)?.filter(|rnode| rnode.nlink > 0) else {
        return Ok(None);
    };
    let (mut names, mut below) = (Vec::new(), id);
    for dir in copies::above(store, &rnode)? {
        if dir.id != below {
            names.push(history::name_in_store(store, dir.id, below)?);
            below = dir.id;
        }
    }
    if names.is_empty() {
        return Ok(Some(b"/".to_vec()));
    }
    Ok(Some(names.iter().rev().flat_map(|name| [b"/", &name[..]].concat()).collect()))
}
