//! What is said of a cell's archives.

use super::{wire_enum, wire_struct};
use crate::rnode::Bytes;
use crate::types::{ArchiveId, BlockHash};

/// An archive of a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveInfo {
    /// Its number.
    pub archive: ArchiveId,
    /// Where it is, as a URL. Never what opens it.
    pub url: Bytes,
}
wire_struct!(ArchiveInfo { archive, url });

/// A step of who removes from an archive what no file is or was made of. How that is safe while files
/// are archived is said in `mds::archives`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SweepStep {
    /// Begins.
    Begin {
        /// In which archive.
        archive: ArchiveId,
    },
    /// These blocks are in the archive.
    Add {
        /// They; so many that they fit a frame of who only looks.
        hashes: Vec<BlockHash>,
    },
    /// Looks through some of the cell for who uses any of them.
    Scan {},
    /// What is left is to go: nobody may count on it, and the cell is looked through once more.
    Condemn {},
    /// What was told to be deleted is; and what is to be deleted next?
    Doom {},
    /// Ends it, with nothing deleted that was not acknowledged.
    End {},
}
wire_enum!(SweepStep {
    1 => Begin { archive },
    2 => Add { hashes },
    3 => Scan {},
    4 => Condemn {},
    5 => Doom {},
    6 => End {},
});

/// How a sweep stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swept {
    /// The sweep's number: each further step names it.
    pub number: u64,
    /// How many blocks are left that nobody was seen to use.
    pub left: u64,
    /// Whether all of the cell was looked through.
    pub scanned: bool,
    /// What is to be deleted now.
    pub doomed: Vec<BlockHash>,
}
wire_struct!(Swept { number, left, scanned, doomed });
