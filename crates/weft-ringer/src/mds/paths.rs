//! Paths of directories and files, from the root of the cell, and the policies on them.

use super::records;
use crate::policy::Policy;
use crate::rnode::{Body, Rnode};
use crate::store::{Store, StoreResult};
use crate::types::RnodeId;

/// The deepest directory whose path or policy is looked up, in steps to the root.
const DEPTH_MAX: usize = 4096;

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
    for dir in above(store, &rnode)? {
        if dir.id != below {
            names.push(records::name_of(store, dir.id, below)?);
            below = dir.id;
        }
    }
    if names.is_empty() {
        return Ok(Some(b"/".to_vec()));
    }
    Ok(Some(names.iter().rev().flat_map(|name| [b"/", &name[..]].concat()).collect()))
}

/// Returns the directories above an rnode, nearest first; of a file with several names, above one
/// of them.
pub(super) fn above(store: &dyn Store, rnode: &Rnode) -> StoreResult<Vec<Rnode>> {
    let mut dirs: Vec<Rnode> = Vec::new();
    let mut at = match rnode.body {
        Body::Directory { .. } => Some(rnode.id),
        _ => records::a_directory_of(store, rnode.id)?,
    };
    while let Some(id) = at.filter(|_| dirs.len() < DEPTH_MAX) {
        let Some(dir) = records::load_rnode(store, id)? else { break };
        at = match dir.body {
            Body::Directory { parent, .. } if parent != id => Some(parent),
            _ => None,
        };
        dirs.push(dir);
    }
    Ok(dirs)
}

/// Returns the policy of an rnode.
pub(super) fn policy(store: &dyn Store, rnode: &Rnode) -> StoreResult<Policy> {
    Ok(above(store, rnode)?.iter().find_map(Policy::of).unwrap_or_default())
}
