//! A volume: its MDB, bitmap and trees, and the operations on items and forks.
//!
//! The lower interface: it names an item by its parent's id and its name, and takes byte ranges of
//! either fork. All other interfaces are built on it. All changes go through a [`Store`](crate::store::Store), and each
//! call returns the patch that is durable when its change is.
//!
//! # Order
//!
//! [`btree`](crate::btree) describes the order that keeps a tree whole. Beyond that, without a
//! journal:
//!
//! - **A file's record** with its length and first extents follows the data and the overflow
//!   records. So a file never shows the old content of blocks that belonged to other files.
//! - **Freed blocks** can be allocated again when the change that freed them is durable.
//! - **A move** marks the old record ([`MOVE_MARK`](crate::layout::MOVE_MARK)), writes the new one,
//!   removes the old one: in this order. Of two records of one id recovery removes the marked one.
//!   So the target of a rename is always the old file or the new one. A folder's record is removed
//!   after the old records of the items that were moved out of it: as items in no folder, they
//!   would be removed, too. A folder's new record is written after all changes that make the path
//!   to its new location, so that no two folders lie in each other.
//! - **A folder's record and its thread** are not ordered: each follows from the other.
//! - **Bitmap, MDB and counts** are not ordered: all of them follow from the trees. But the MDB is
//!   written before the part of a tree's file that it adds.
//!
//! A volume that was not unmounted cleanly goes through [`recover_trees`](Volume::recover_trees)
//! and [`recover_rest`](Volume::recover_rest) when it is opened: a pass over the trees, which
//! rebuilds all derived structures.

mod file;
mod fork;
mod grow;
mod header;
mod items;
mod map;
mod moves;
mod passed_over;
mod salvage;
mod space;
mod state;
mod strays;

pub use file::File;
pub(crate) use header::mdb_by_copy;
pub use items::{Item, New};
pub use moves::Moved;
#[cfg(feature = "std")]
pub(crate) use state::Reserved;
pub use state::Volume;
