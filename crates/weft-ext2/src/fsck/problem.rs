//! The problems that a check can find, as types: their position, the fault, and its severity.

use std::fmt;

/// The severity of a problem, rising.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Space that no file can use: blocks or inodes that are marked as taken but belong to nothing.
    /// A crash under soft updates leaves these.
    Leak,
    /// A number that is too high or lags behind: link counts too high, free counts, sizes in
    /// blocks; or a directory with one name too many. A crash under soft updates leaves these too.
    CountOff,
    /// Anything else: data is lost or at risk.
    Corruption,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Leak => "leak",
            Self::CountOff => "count off",
            Self::Corruption => "corruption",
        })
    }
}

/// The position of a block pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// In this slot of the inode.
    Slot(usize),
    /// In this indirect block, at this index.
    Entry {
        /// The indirect block.
        block: u64,
        /// Index of the pointer in it.
        index: usize,
    },
    /// In the inode's field for the attribute block.
    Attributes,
}

/// A fault of an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum InodeProblem {
    /// No links, but it was never marked as deleted: unlinked while open, or half created.
    Orphan,
    /// It has links and yet a time of deletion.
    Deleted,
    /// The mode names no kind of file.
    Mode(u16),
    /// A field that must be zero (or some other fixed value) is not.
    Field(&'static str),
    /// Size and mapped blocks do not fit.
    Size {
        /// Size in bytes as stored.
        found: u64,
        /// The size in bytes that the blocks allow.
        expected: u64,
        /// Set if the size only lags behind the blocks.
        lags: bool,
    },
    /// The count of 512-byte units is wrong.
    BlockCount {
        /// The value stored.
        found: u32,
        /// The value counted.
        expected: u64,
    },
    /// A symbolic link, device, or reserved inode that cannot be one.
    Content(&'static str),
    /// Extended attributes that cannot be read.
    Attributes(String),
    /// A directory's hash tree.
    HashTree(&'static str),
}

/// A fault of a record of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum EntryProblem {
    /// The record does not parse; the rest of its block cannot be read.
    Record(&'static str),
    /// `.` is missing or is not the directory itself.
    Dot,
    /// `..` is missing.
    DotDot,
    /// `..` is not the parent.
    Parent {
        /// The inode it names.
        found: u32,
        /// The parent.
        expected: u32,
    },
    /// `.` or `..` once more, or a name that may not be.
    Name,
    /// The name is there twice.
    Duplicate,
    /// It names an inode that does not exist or is reserved.
    NoSuchInode(u32),
    /// It names an inode that is free.
    FreeInode(u32),
    /// A second name of a directory.
    SecondName(u32),
    /// The kind in the record is not the inode's.
    Kind {
        /// The value stored.
        found: u8,
        /// The inode's.
        expected: u8,
    },
}

/// A problem that a check found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// A field of the superblock.
    Superblock {
        /// The field.
        field: &'static str,
        /// The fault.
        problem: String,
    },
    /// The chain of orphan inodes is not empty.
    OrphanChain {
        /// The first inode of the chain.
        first: u32,
    },
    /// A group's descriptor points at impossible places.
    GroupDescriptor {
        /// The group.
        group: u32,
        /// The fault.
        problem: String,
    },
    /// The journal.
    Journal {
        /// The fault.
        problem: String,
    },
    /// The resize inode does not list the reserved blocks.
    ResizeInode {
        /// The fault.
        problem: &'static str,
    },
    /// An inode.
    Inode {
        /// Its number.
        ino: u32,
        /// The fault.
        problem: InodeProblem,
    },
    /// A block pointer out of the volume.
    Pointer {
        /// The inode that has the pointer.
        ino: u32,
        /// The number.
        block: u32,
        /// The position of the pointer.
        place: Place,
    },
    /// A block that belongs to something else already.
    CrossLink {
        /// The second to claim it.
        ino: u32,
        /// The block.
        block: u32,
        /// The position of the second pointer.
        place: Place,
    },
    /// An attribute block's count of inodes that share it.
    AttributeRefs {
        /// The block.
        block: u32,
        /// The value stored.
        found: u32,
        /// The value counted.
        expected: u32,
    },
    /// A directory with unallocated blocks.
    Hole {
        /// The directory.
        ino: u32,
        /// The first block of the file that is missing.
        first: u32,
        /// The number of missing blocks.
        count: u32,
    },
    /// A record of a directory.
    Entry {
        /// The directory.
        ino: u32,
        /// The block the record lies in.
        block: u32,
        /// Its offset there.
        offset: u16,
        /// The fault.
        problem: EntryProblem,
    },
    /// The root directory is missing.
    NoRoot,
    /// A directory that no path leads to.
    Unconnected {
        /// The directory.
        ino: u32,
        /// Set if it holds nothing.
        empty: bool,
    },
    /// A file that has no name.
    Unattached {
        /// The inode.
        ino: u32,
        /// Set if it has no content.
        empty: bool,
    },
    /// An inode's link count.
    LinkCount {
        /// The inode.
        ino: u32,
        /// The value stored.
        found: u16,
        /// The value counted.
        expected: u32,
    },
    /// A run of blocks whose bits in the block bitmap are wrong.
    BlockBitmap {
        /// The first block.
        first: u32,
        /// The number of blocks.
        len: u32,
        /// Set if they are marked as taken but free; otherwise the reverse.
        leaked: bool,
    },
    /// A run of inodes whose bits in the inode bitmap are wrong.
    InodeBitmap {
        /// The first inode.
        first: u32,
        /// The number of inodes.
        len: u32,
        /// Set if they are marked as taken but free; otherwise the reverse.
        leaked: bool,
    },
    /// The bits past the end of a bitmap are not set.
    Padding {
        /// The group.
        group: u32,
        /// `"block bitmap"` or `"inode bitmap"`.
        which: &'static str,
    },
    /// A count in a group's descriptor, or in the superblock.
    Count {
        /// The group, or the superblock.
        group: Option<u32>,
        /// `"free blocks"`, `"free inodes"` or `"directories"`.
        which: &'static str,
        /// The value stored.
        found: u32,
        /// The value counted.
        expected: u32,
    },
}

impl Problem {
    /// Returns the severity.
    #[must_use]
    pub fn severity(&self) -> Severity {
        match self {
            Self::OrphanChain { .. }
            | Self::Unattached { .. }
            | Self::Inode { problem: InodeProblem::Orphan, .. }
            | Self::BlockBitmap { leaked: true, .. }
            | Self::InodeBitmap { leaked: true, .. } => Severity::Leak,
            // A removed directory is empty; anything else was torn from its place.
            Self::Unconnected { empty, .. } => {
                if *empty {
                    Severity::Leak
                } else {
                    Severity::Corruption
                }
            }
            // A rename of a directory that was cut short: a name too many keeps it from having
            // none. (The root has no name at all.)
            Self::Entry { problem: EntryProblem::SecondName(ino), .. }
                if *ino != crate::layout::ROOT_INO =>
            {
                Severity::CountOff
            }
            Self::Count { .. }
            | Self::Padding { .. }
            | Self::Inode {
                problem:
                    InodeProblem::BlockCount { .. }
                    | InodeProblem::Deleted
                    | InodeProblem::Size { lags: true, .. },
                ..
            } => Severity::CountOff,
            Self::LinkCount { found, expected, .. } => {
                if u32::from(*found) > *expected {
                    Severity::CountOff
                } else {
                    Severity::Corruption
                }
            }
            Self::AttributeRefs { found, expected, .. } => {
                if found > expected {
                    Severity::CountOff
                } else {
                    Severity::Corruption
                }
            }
            _ => Severity::Corruption,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slot(slot) => write!(f, "slot {slot} of the inode"),
            Self::Entry { block, index } => write!(f, "entry {index} of indirect block {block}"),
            Self::Attributes => f.write_str("the attribute block"),
        }
    }
}

impl fmt::Display for InodeProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Orphan => f.write_str("has no links but was never deleted"),
            Self::Deleted => f.write_str("has links and a time of deletion"),
            Self::Mode(mode) => write!(f, "has the impossible mode {mode:#o}"),
            Self::Field(field) => write!(f, "has an impossible {field}"),
            Self::Size { found, expected, .. } => {
                write!(f, "has a size of {found} bytes, should be {expected}")
            }
            Self::BlockCount { found, expected } => {
                write!(f, "says it has {found} sectors, should be {expected}")
            }
            Self::Content(what) | Self::HashTree(what) => f.write_str(what),
            Self::Attributes(what) => write!(f, "has bad attributes: {what}"),
        }
    }
}

impl fmt::Display for EntryProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Record(what) => f.write_str(what),
            Self::Dot => f.write_str("\".\" is missing or wrong"),
            Self::DotDot => f.write_str("\"..\" is missing"),
            Self::Parent { found, expected } => {
                write!(f, "\"..\" is inode {found}, should be {expected}")
            }
            Self::Name => f.write_str("a name that may not be there"),
            Self::Duplicate => f.write_str("a name that is there already"),
            Self::NoSuchInode(ino) => write!(f, "names inode {ino}, which cannot have a name"),
            Self::FreeInode(ino) => write!(f, "names inode {ino}, which is free"),
            Self::SecondName(ino) => write!(f, "is a second name of directory {ino}"),
            Self::Kind { found, expected } => write!(f, "kind {found}, should be {expected}"),
        }
    }
}

/// `"blocks 5 to 9"`, or `"block 5"`.
struct Run(&'static str, u32, u32);

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(what, first, len) = self;
        if *len == 1 {
            write!(f, "{what} {first}")
        } else {
            write!(f, "{what}s {first} to {}", first.saturating_add(len.saturating_sub(1)))
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let marked = |leaked: bool| {
            if leaked { "marked as taken but free" } else { "marked as free but taken" }
        };
        match self {
            Self::Superblock { field, problem } => write!(f, "superblock: {field} {problem}"),
            Self::OrphanChain { first } => {
                write!(f, "superblock: a chain of orphans starts at inode {first}")
            }
            Self::GroupDescriptor { group, problem } => write!(f, "group {group}: {problem}"),
            Self::Journal { problem } => write!(f, "journal: {problem}"),
            Self::ResizeInode { problem } => write!(f, "resize inode: {problem}"),
            Self::Inode { ino, problem } => write!(f, "inode {ino}: {problem}"),
            Self::Pointer { ino, block, place } => {
                write!(f, "inode {ino}: {place} points to block {block}, out of the volume")
            }
            Self::CrossLink { ino, block, place } => {
                write!(f, "inode {ino}: {place} points to block {block}, which is taken")
            }
            Self::AttributeRefs { block, found, expected } => {
                write!(f, "attribute block {block}: reference count {found}, should be {expected}")
            }
            Self::Hole { ino, first, count } => {
                write!(f, "directory {ino}: {} missing", Run("block", *first, *count))
            }
            Self::Entry { ino, block, offset, problem } => {
                write!(f, "directory {ino}, block {block}, offset {offset}: {problem}")
            }
            Self::NoRoot => f.write_str("there is no root directory"),
            Self::Unconnected { ino, .. } => write!(f, "directory {ino}: no path leads to it"),
            Self::Unattached { ino, .. } => write!(f, "inode {ino}: it has no name"),
            Self::LinkCount { ino, found, expected } => {
                write!(f, "inode {ino}: link count {found}, should be {expected}")
            }
            Self::BlockBitmap { first, len, leaked } => {
                write!(f, "{}: {}", Run("block", *first, *len), marked(*leaked))
            }
            Self::InodeBitmap { first, len, leaked } => {
                write!(f, "{}: {}", Run("inode", *first, *len), marked(*leaked))
            }
            Self::Padding { group, which } => {
                write!(f, "group {group}: bits past the end of the {which} are not set")
            }
            Self::Count { group: Some(group), which, found, expected } => {
                write!(f, "group {group}: {found} {which}, should be {expected}")
            }
            Self::Count { group: None, which, found, expected } => {
                write!(f, "superblock: {found} {which}, should be {expected}")
            }
        }
    }
}
