//! Reading HFS Plus volumes, embedded in an HFS wrapper or on their own.
//!
//! Source: Apple Technical Note TN1150, "HFS Plus Volume Format". Names come out in UTF-8, composed
//! (NFC), with `:` and `/` swapped as on HFS; a look-up needs the name as it is listed, in its
//! exact case. Both forks, Finder information and extended attributes are there, as on HFS.
//! Symbolic links and hard links to files are followed as macOS keeps them. A journal is not
//! replayed: changes that are only in the journal are not seen.
//!
//! Everything is checked as it is read: an invalid node, extent or length is an error that names
//! it, no walk is longer than the tree has nodes, and no fork has more extents than the volume
//! blocks.

mod fs;
mod layout;
mod place;
mod streams;
mod volume;

pub use fs::{HfsPlus, OpenOptions};
pub use place::{Place, find};
