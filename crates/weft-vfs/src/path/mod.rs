//! Walking paths in process, for the command and for users of the library.
//!
//! A [`Node`] is an inode with its reference: dropping it releases the reference, so that each
//! reference taken is forgotten exactly once, also on the way out of an error. A [`Walker`]
//! resolves paths to nodes as the kernel does: symbolic links are followed, at most
//! [`SYMLINKS_MAX`] on one path; `..` of the root is the root; a trailing slash demands a
//! directory. Paths are bytes; absolute and relative ones both start at the root.

mod node;
mod tree;
mod walker;

pub use node::{Listed, Node};
pub use tree::{Found, Tree};
pub use walker::{PATH_MAX_BYTES, Place, SYMLINKS_MAX, Walker};
