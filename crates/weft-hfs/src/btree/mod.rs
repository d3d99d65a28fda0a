//! B*-trees on ordered blocks: the catalog and the extents file.
//!
//! # What a power cut leaves
//!
//! A node is one 512-byte block, which a device writes whole or not at all. So each change of one
//! node is atomic, and only changes of several nodes must be ordered. The rule is that of soft
//! updates: *the index is the truth*. A record counts if the search for its key from the root ends
//! in the node that holds it; all other content of a node is stale.
//!
//! - **Split** of *L*. The new right node *R* is written first, with the upper half, and waits for
//!   all that this half was waiting for. Then its entry is put into the parent (or the new root is
//!   written, and then the header). Only then does *L* lose its upper half. In between, *L* ends
//!   with a stale copy: the search does not find it, as *R*'s entry leads past it.
//! - **Merge** of *L* and *R*. *L* with all records is written first; until *R*'s entry is gone a
//!   search finds the same records as before. Then *R*'s entry is removed, then *R* is zeroed.
//! - **An empty node** is removed with its entry; then it is zeroed. Its range falls to its right
//!   neighbour (which takes the empty node's place under the old key), so that stale copies in its
//!   left neighbour stay unreachable. If there is no right neighbour under the same parent, the
//!   range falls to the left, after the stale copies there are gone.
//! - **Before a node is removed**, in a merge or empty, all records that have left it must be where
//!   the search finds them: the records it lost in a split may be reachable only by a new root that
//!   is not written yet. The changes that made its own keys lead to it carry over to its heir. But
//!   no entry of *L*'s old half comes to lead to a node of *R*'s before *R* itself is out of the
//!   tree, or that node would have two entries.
//! - **Depth.** Root and depth are in the header, one block.
//! - **Links, map, counts** are not ordered: all of them follow from the index.
//!
//! Two rules follow for users of the tree.
//!
//! - A change is durable only when the node is written *and* the search leads to it on the disk: a
//!   change's patch is joined with those that made the nodes of its path reachable. Every operation
//!   that must follow the change (reusing blocks that a removed record had) waits for both; the
//!   node itself need not wait, as older versions of records agree with each other.
//! - An index key may be smaller than the first key below it, when the first record was removed.
//!   That changes no search; the key is raised by `Tree::raise_keys` at the next sync. (Raising it
//!   at once would make each removal wait for the next, as neighbouring nodes alternate.)
//!
//! Under a journal an operation is atomic, and no order is kept inside it.
//!
//! After a cut, a [recovery](crate::volume::Volume::recover_trees) cuts off stale copies, frees and zeroes
//! unreferenced nodes, and corrects links, map and counts.

pub(crate) mod bulk;
mod grow;
mod insert;
mod keys;
mod kind;
pub(crate) mod node;
mod open;
mod remove;
mod scan;
mod tree;

pub(crate) use insert::leaf_record;
pub use kind::TreeKind;
pub(crate) use tree::{Befores, Path};
pub use tree::{MAX_DEPTH, Place, Tree};
