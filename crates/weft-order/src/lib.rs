//! Patchgroups for programs on a mount: a program says which of its changes must reach the disk
//! before which others, and goes on without waiting; or its fsyncs become barriers, without a change
//! of the program.
//!
//! [`OrderedFs`] is a layer over a volume's file system. A program controls it by `ioctl(2)` on any
//! file or directory of the mount, with [`MountedGroup`] or the numbers in [`commands`]. A group
//! belongs to the process that made it, and to processes that descend from it; it ends with that
//! process, and the order of its changes stays. See [`weft_patch::patchgroup`] for what a group is.
//!
//! # What belongs to a group
//!
//! All changes that the [engaged](Scope) threads and processes make by system calls: of data, lengths,
//! names, attributes, extended attributes, flags.
//!
//! Or all changes that are made by one [open file](MountedGroup::engage_file), whoever makes them: data,
//! length (`ftruncate(2)`), allocation, flags. These belong to the groups of the file, and not to those
//! of the thread and the process. The kernel writes pages that were changed through a mapping at
//! `msync(2)`, `fsync(2)`, `munmap(2)` and whenever it likes, and names no open file that is sure to be
//! the right one: they belong to the groups of all open files of the inode that are engaged then.
//!
//! Not in any group:
//!
//! - pages written through a mapping of a file that is not engaged itself: the kernel writes them for no
//!   process in particular;
//! - what the file system does later on its own account, such as freeing the blocks of a file whose
//!   last name was removed before.
//!
//! # fsync as a barrier
//!
//! Engaged with [`Fsync::Barrier`], a process does not wait in `fsync(2)`, `fdatasync(2)` and writes
//! with `O_SYNC`: what it changes afterwards is never durable before what it had changed until then.
//! **After a power cut some of the last changes may be lost that fsync had confirmed, but never an
//! earlier one without all later ones.** An fsync of a file with pages written through a mapping waits
//! for the disk as ever, as do `sync(2)` and `syncfs(2)`.
//!
//! | module | contents |
//! |---|---|
//! | [`commands`] | the numbers of the commands, and their argument |
//! | `layer` | the layer, which puts calls into groups |
//! | `table` | groups and engagements of a mount, with their owners |
//! | `listing` | groups as they are listed, and labels |
//! | `open_file` | the open files of a mount, and the engagements of single ones |
//! | `engagement` | what fsync means to those who are engaged |
//! | `atomic_file` | atomic writes of one file, by the commands of F2FS, which SQLite uses |
//! | `abort` | atomic groups that can be aborted, and what others change of what they changed |
//! | `recording` | the layer that keeps what such a group replaces |
//! | `undo` | what was replaced, and how it comes back |
//! | `in_process` | groups that can be aborted, of a volume that this process has opened itself |
//! | `background` | the thread that keeps promises |
//! | `pipe` | the pipes by which programs are told that a group is durable |
//! | `process` | the processes from which a process descends |
//! | `client` | the same groups for a program on the mount |
#![warn(missing_docs)]

mod abort;
mod atomic_file;
mod background;
mod client;
pub mod commands;
mod engagement;
mod in_process;
mod layer;
mod listing;
mod open_file;
mod pipe;
mod process;
mod recording;
mod table;
mod undo;

pub use client::{Error, MountedGroup, Result, list};
pub use commands::{Fsync, Kind, Scope};
pub use in_process::{UndoableGroup, UndoableGroups};
pub use layer::OrderedFs;
pub use listing::{BEFORES_LISTED_MAX, LABEL_BYTES_MAX, ListedGroup};
