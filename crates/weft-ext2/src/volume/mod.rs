//! ext2 as a [`Format`](weft_unix::Format): micro-operations on its structures through the engine.
//!
//! [`weft_unix`] knows names, link counts, open files, and the order in which changes must become
//! durable. The modules here each implement one of the traits of a format, with the help of `alloc`,
//! `bits`, `cut`, `node` and `slots`.
//!
//! Invariants kept here: no block or inode is handed out whose old pointer or entry might still
//! be on the disk (see [`Pending`]); no block is handed out, and no pointer followed, that lies in
//! the metadata of a group; free counts of descriptors change in the operation that changes the
//! bitmap.

mod alloc;
mod bits;
mod cut;
mod dir;
mod format;
mod inodes;
mod links;
mod map;
mod node;
mod orphans;
mod slots;
mod state;
mod trim;
mod xattrs;

pub(crate) use node::{Node, split};
pub(crate) use orphans::now_secs;
pub(crate) use state::Volume;
