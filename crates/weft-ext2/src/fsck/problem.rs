//! The problems that a check can find, as types: their position, the fault, and its severity.

use crate::layout::{SLOT_DOUBLE, SLOT_INDIRECT, SLOT_TRIPLE};
use std::fmt;

/// The severity of a problem, rising.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Space that no file can use: blocks or inodes that are marked in use but belong to nothing.
    /// A crash under soft updates leaves these.
    Leak,
    /// A number that is too high or lags behind: link counts too high, free counts, sizes in
    /// blocks; or a directory with one name too many, or with its old `..`. A crash under soft updates
    /// leaves these too.
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
    /// The mode has no valid file type.
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
    /// Content that its kind of inode cannot have.
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
    /// A further `.` or `..`.
    Name,
    /// An entry before it has the same name.
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

/// What a repair does about a faulty journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JournalFix {
    /// It replays what can be replayed.
    Replay,
    /// It restores the journal's inode from the copy in the superblock.
    Restore,
    /// It removes the journal: the volume is ext2 then.
    Remove,
    /// Nothing: it needs the journal that lies beside the volume.
    Give,
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
    /// The list of orphaned inodes is not empty.
    OrphanChain {
        /// The first inode of the list.
        first: u32,
    },
    /// A group's descriptor with invalid positions of bitmaps or inode table.
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
        /// What a repair does about it.
        fix: JournalFix,
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
    /// A block pointer that leads outside the volume.
    Pointer {
        /// The inode that has the pointer.
        ino: u32,
        /// The number.
        block: u32,
        /// The position of the pointer.
        place: Place,
    },
    /// A block that another pointer, or the metadata, claims too.
    CrossLink {
        /// The inode that claims it second.
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
        /// Set if it has a name, in a directory below it.
        looped: bool,
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
        /// Set if they are marked in use but free; otherwise the reverse.
        leaked: bool,
    },
    /// A run of inodes whose bits in the inode bitmap are wrong.
    InodeBitmap {
        /// The first inode.
        first: u32,
        /// The number of inodes.
        len: u32,
        /// Set if they are marked in use but free; otherwise the reverse.
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

impl InodeProblem {
    fn fix(&self) -> &'static str {
        match self {
            Self::Orphan => "mark it as deleted",
            Self::Deleted => "clear the deletion time",
            Self::Mode(_) | Self::Content(_) => "delete the inode",
            Self::Field(_) => "correct the field",
            Self::Size { .. } => "correct i_size",
            Self::BlockCount { .. } => "correct i_blocks",
            Self::Attributes(_) => "remove the attributes",
            Self::HashTree(_) => "clear the flag of the hash tree",
        }
    }
}

impl EntryProblem {
    fn fix(&self) -> &'static str {
        match self {
            Self::Record(_) => "free the block from the record on",
            Self::Dot | Self::DotDot => "rebuild \".\" and \"..\"",
            Self::Parent { .. } => "correct \"..\"",
            Self::Kind { .. } => "correct the file type",
            Self::Name
            | Self::Duplicate
            | Self::NoSuchInode(_)
            | Self::FreeInode(_)
            | Self::SecondName(_) => "clear the entry",
        }
    }
}

impl Problem {
    /// Returns the action of a repair for the problem.
    #[must_use]
    pub fn fix(&self) -> &'static str {
        match self {
            Self::Superblock { .. } => "correct the superblock",
            Self::OrphanChain { .. } => "clear the list",
            Self::GroupDescriptor { .. } => "restore the descriptor from a backup",
            Self::Journal { fix, .. } => match fix {
                JournalFix::Replay => "replay the journal",
                JournalFix::Restore => "restore the journal's inode from the superblock",
                JournalFix::Remove => "remove the journal (tune2fs -j makes a new one)",
                JournalFix::Give => "leave it as it is: give the journal with --journal",
            },
            Self::NoRoot => "make a root directory",
            Self::ResizeInode { .. } => "rebuild the resize inode",
            Self::Inode { problem, .. } => problem.fix(),
            Self::Pointer { .. } => "clear the pointer",
            Self::CrossLink { .. } => "give the inode a copy of the block",
            Self::AttributeRefs { .. } => "correct the reference count",
            Self::Hole { .. } => "allocate empty blocks",
            Self::Entry { problem, .. } => problem.fix(),
            Self::Unattached { empty: true, .. } => "delete the inode",
            Self::Unconnected { .. } | Self::Unattached { .. } => "move it to lost+found",
            Self::LinkCount { .. } => "correct the link count",
            Self::BlockBitmap { .. } | Self::InodeBitmap { .. } | Self::Padding { .. } => {
                "rebuild the bitmap"
            }
            Self::Count { .. } => "correct the count",
        }
    }

    /// Returns the severity.
    #[must_use]
    pub fn severity(&self) -> Severity {
        match self {
            Self::OrphanChain { .. }
            | Self::Unattached { .. }
            | Self::Inode { problem: InodeProblem::Orphan, .. }
            | Self::BlockBitmap { leaked: true, .. }
            | Self::InodeBitmap { leaked: true, .. } => Severity::Leak,
            // A directory that was being made or removed. What was in it may be there still: names in a
            // new directory need not wait for its own, and the last content of a removed one is not
            // written.
            Self::Unconnected { looped, .. } => {
                if *looped {
                    Severity::Corruption
                } else {
                    Severity::Leak
                }
            }
            // The old `..` of a directory whose rename was cut short.
            Self::Entry { problem: EntryProblem::Parent { .. }, .. } => Severity::CountOff,
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
            Self::Slot(SLOT_INDIRECT) => f.write_str("the indirect block pointer"),
            Self::Slot(SLOT_DOUBLE) => f.write_str("the double indirect block pointer"),
            Self::Slot(SLOT_TRIPLE) => f.write_str("the triple indirect block pointer"),
            Self::Slot(slot) => write!(f, "block pointer {slot}"),
            Self::Entry { block, index } => write!(f, "entry {index} of indirect block {block}"),
            Self::Attributes => f.write_str("i_file_acl"),
        }
    }
}

impl fmt::Display for InodeProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Orphan => {
                f.write_str("is orphaned: it has no links and was not marked as deleted")
            }
            Self::Deleted => f.write_str("is in use, but has a deletion time"),
            Self::Mode(mode) => write!(f, "has the invalid mode {mode:#o}"),
            Self::Field(field) => write!(f, "has an invalid {field}"),
            Self::Size { found, expected, .. } => {
                write!(f, "i_size is {found}, should be {expected}")
            }
            Self::BlockCount { found, expected } => {
                write!(f, "i_blocks is {found}, should be {expected}")
            }
            Self::Content(problem) => f.write_str(problem),
            Self::HashTree(problem) => write!(f, "has an invalid hash tree: {problem}"),
            Self::Attributes(problem) => write!(f, "has invalid extended attributes: {problem}"),
        }
    }
}

impl fmt::Display for EntryProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Record(problem) => write!(f, "corrupt record: {problem}"),
            Self::Dot => f.write_str("\".\" is missing, or is not this directory"),
            Self::DotDot => f.write_str("\"..\" is missing"),
            Self::Parent { found, expected } => {
                write!(f, "\"..\" names inode {found}, should name {expected}")
            }
            Self::Name => f.write_str("duplicate \".\" or \"..\""),
            Self::Duplicate => f.write_str("duplicate name"),
            Self::NoSuchInode(ino) => {
                write!(f, "names inode {ino}, which is reserved or does not exist")
            }
            Self::FreeInode(ino) => write!(f, "names inode {ino}, which is not in use"),
            Self::SecondName(ino) => write!(f, "is a second link to directory {ino}"),
            Self::Kind { found, expected } => {
                write!(f, "file type is {found}, should be {expected}")
            }
        }
    }
}

/// `"blocks 5 to 9"`, or `"block 5"`.
struct Run(&'static str, u32, u32);

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(unit, first, len) = self;
        if *len == 1 {
            write!(f, "{unit} {first}")
        } else {
            write!(f, "{unit}s {first} to {}", first.saturating_add(len.saturating_sub(1)))
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let marked = |leaked: bool| {
            if leaked { "marked in use, but free" } else { "marked free, but in use" }
        };
        match self {
            Self::Superblock { field, problem } => write!(f, "superblock: {field} {problem}"),
            Self::OrphanChain { first } => {
                write!(
                    f,
                    "superblock: the list of orphaned inodes is not empty: it begins at inode \
                     {first}"
                )
            }
            Self::GroupDescriptor { group, problem } => {
                write!(f, "descriptor of group {group}: {problem}")
            }
            Self::Journal { problem, .. } => write!(f, "journal: {problem}"),
            Self::ResizeInode { problem } => write!(f, "inode 7 (resize): {problem}"),
            Self::Inode { ino, problem } => write!(f, "inode {ino}: {problem}"),
            Self::Pointer { ino, block, place } => {
                write!(f, "inode {ino}: {place} points to block {block}, outside the volume")
            }
            Self::CrossLink { ino, block, place } => {
                write!(f, "inode {ino}: {place} points to block {block}, which is multiply claimed")
            }
            Self::AttributeRefs { block, found, expected } => {
                write!(
                    f,
                    "attribute block {block}: reference count is {found}, should be {expected}"
                )
            }
            Self::Hole { ino, first, count } => {
                write!(f, "directory {ino}: {} not allocated", Run("logical block", *first, *count))
            }
            Self::Entry { ino, block, offset, problem } => {
                write!(f, "directory {ino}, block {block}, offset {offset}: {problem}")
            }
            Self::NoRoot => f.write_str("inode 2: the root directory is not allocated"),
            Self::Unconnected { ino, looped: false, .. } => {
                write!(f, "directory {ino}: unconnected, no path from the root leads to it")
            }
            Self::Unconnected { ino, .. } => {
                write!(f, "directory {ino}: unconnected, its path leads back to it")
            }
            Self::Unattached { ino, .. } => {
                write!(f, "inode {ino}: unattached, no directory names it")
            }
            Self::LinkCount { ino, found, expected } => {
                write!(f, "inode {ino}: link count is {found}, should be {expected}")
            }
            Self::BlockBitmap { first, len, leaked } => {
                write!(f, "block bitmap: {} {}", Run("block", *first, *len), marked(*leaked))
            }
            Self::InodeBitmap { first, len, leaked } => {
                write!(f, "inode bitmap: {} {}", Run("inode", *first, *len), marked(*leaked))
            }
            Self::Padding { group, which } => {
                write!(f, "group {group}: padding at the end of the {which} is not set")
            }
            Self::Count { group: Some(group), which, found, expected } => {
                write!(f, "group {group}: {which} count is {found}, should be {expected}")
            }
            Self::Count { group: None, which, found, expected } => {
                write!(f, "superblock: {which} count is {found}, should be {expected}")
            }
        }
    }
}
