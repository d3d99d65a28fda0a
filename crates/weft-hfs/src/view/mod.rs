//! Forks as files, for programs that know one fork only.
//!
//! [`ForkView`] is a [`Layer`] over a [`MacVolume`]. Beside the files of the volume it shows
//! *companions*, which hold the resource forks and the Finder information of these files:
//!
//! | [`Forks`] | companion of `Game` | its content |
//! |---|---|---|
//! | `AppleDouble` | `._Game` | resource fork, Finder information, dates, lock, as macOS, netatalk and unar write them |
//! | `Suffix` | `Game..rsrc` | the resource fork alone |
//! | | `Game..finf` | the 32 bytes of Finder information |
//!
//! A companion is shown if it says more than the name of the file does: type and creator that
//! follow from the [extension] need none. Writing to a companion, making or removing it changes the
//! file; it moves with the file.
//!
//! Nothing is hidden or dropped:
//!
//! - A file of the volume that has the name of a companion is shown by another spelling of its name:
//!   `․_Game`, with U+2024 in place of the dot, which the volume takes for a dot.
//! - The view applies an AppleDouble to its file as soon as it is whole, whatever the order of its
//!   entries. Bytes that are no whole AppleDouble when the companion is flushed, synced or closed
//!   become a plain file.
//! - The bytes are kept as written while the companion is open, and their layout as long as the
//!   volume is, since the writer's may differ from weft's.
//! - An AppleDouble that is made before its file (as archives of macOS have it) is a plain file
//!   until the file is made. If its name is too long for the volume, it is stored under a shorter
//!   one.
//! - On a mount a file that is removed, or replaced by another, leaves its AppleDouble, as it would
//!   on other file systems.

mod companions;
mod draft;
mod fork_view;
mod forks;
mod held;
mod layout;
mod listing;
mod names;
mod plug;

pub use fork_view::{ForkView, has_more};
pub use forks::Forks;

/// Returns true if the inode number is that of a companion: it has no content of its own, and no
/// other name than the one that follows from its file's.
#[must_use]
pub fn is_companion(ino: weft_vfs::Ino) -> bool {
    names::split(ino).1.is_some()
}

#[cfg(doc)]
use crate::{interchange::extension, streams::MacVolume};
#[cfg(doc)]
use weft_vfs::Layer;
