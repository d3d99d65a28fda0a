//! Messages about a cell's archives.

use super::{wire_enum, wire_struct};
use crate::rnode::Bytes;
use crate::types::{ArchiveId, BlockHash};

/// An archive of a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveInfo {
    /// Its number.
    pub archive: ArchiveId,
    /// Its URL, without credentials.
    pub url: Bytes,
}
wire_struct!(ArchiveInfo { archive, url });

/// A step of a sweep, the garbage collection of an archive's blocks that no file has or had. Why
/// this is safe while files are archived is explained in `mds::archives`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SweepStep {
    /// Begins a sweep.
    Begin {
        /// The archive.
        archive: ArchiveId,
    },
    /// Adds blocks that are in the archive.
    Add {
        /// The blocks; so few that they fit a frame of an observer connection.
        hashes: Vec<BlockHash>,
    },
    /// Scans a part of the cell for blocks that are in use.
    Scan {},
    /// Condemns the remaining blocks: no content may count on them, and the cell is scanned once
    /// more.
    Condemn {},
    /// The doomed blocks were deleted; returns the next ones to delete.
    Doom {},
    /// Ends the sweep; every deletion was acknowledged.
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

/// The state of a sweep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swept {
    /// The sweep's number: each further step names it.
    pub number: u64,
    /// The number of blocks left that were not seen in use.
    pub left: u64,
    /// Whether the whole cell was scanned.
    pub scanned: bool,
    /// The blocks to delete now.
    pub doomed: Vec<BlockHash>,
}
wire_struct!(Swept { number, left, scanned, doomed });
