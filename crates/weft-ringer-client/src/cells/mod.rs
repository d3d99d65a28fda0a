//! Cells in cells: a file system of several clients, each of one cell, in which a
//! [cell mount](weft_ringer::CellMount) shows the root of another cell.
//!
//! - **One client for each cell**, whatever paths lead there: with its own session and epoch,
//!   journal and blocks (below `cells/NUMBER` of the outermost local store). It is opened on the
//!   first entry, and ends with the mount.
//! - **Looking does not enter.** To look a mount point up, to `stat` or list the directory that it
//!   is in sends nothing to the cell inside, or little while it is connected
//!   ([`Place::root_attr`]). So a cell that cannot be reached blocks only those processes that
//!   enter it; and no lock is held meanwhile.
//! - **Numbers** of inodes are the outermost cell's for its own, and others for those of the rest
//!   ([`nodes`]). `rename` and `link` between two cells' locations fail with `EXDEV`, as between
//!   file systems.
//! - **No privileges from another cell**: setuid and setgid bits, device nodes and file
//!   capabilities of a cell inside do nothing, whatever the mount's options are
//!   ([`Place::without_power`]).
//! - **No cycles**: a cell that is seen above itself is refused with `ELOOP`, so that every path
//!   has an end.

mod calls;
mod inner;
mod nodes;
mod place;
mod search;
mod tree;
mod upward;

pub use self::tree::CellTree;
