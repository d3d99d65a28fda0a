//! The problems that a volume can have.

use crate::btree::TreeKind;
use crate::layout::{BAD_BLOCKS_ID, CATALOG_ID, EXTENTS_ID, Fork, Name};
use alloc::string::String;
use core::fmt;

/// A problem, with the structure and its location.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages below name the fields
pub enum Problem {
    /// A defect that prevents any check of the volume.
    Unreadable { what: String },
    /// A wrong field of the MDB.
    Mdb { what: String },
    /// The image is truncated: it ends before the volume does.
    Cut { blocks: u64, least: u64 },
    /// Sizes that Apple's checker does not accept. They cannot be changed.
    Geometry { what: String },
    /// A fault of the alternate MDB, the copy near the end of the volume.
    Copy { what: &'static str },
    /// A node that cannot be read; the nodes below it are unreachable.
    Node { tree: TreeKind, node: u32, block: u64, what: String },
    /// Records of a node that the index does not lead to: they belong to other nodes, or were
    /// removed.
    Stale { tree: TreeKind, node: u32, block: u64, count: usize },
    /// An index key that is not the first key below it.
    IndexKey { tree: TreeKind, node: u32, block: u64, index: usize },
    /// A link that leads to another node than the next or previous one of its level.
    Link { tree: TreeKind, node: u32, block: u64 },
    /// A bit of the map that contradicts the tree.
    Map { tree: TreeKind, node: u32, used: bool },
    /// The map has bits for nodes beyond the end of the file, or continues after them.
    MapTail { tree: TreeKind },
    /// A free node that is not zero.
    FreeNode { tree: TreeKind, node: u32, block: u64 },
    /// A wrong field of a tree's header.
    Header { tree: TreeKind, field: &'static str, found: u32, right: u32 },
    /// A record of a tree that cannot be read; in the catalog it belongs to an item of folder
    /// `parent`.
    Record { tree: TreeKind, parent: u32, block: u64, what: String },
    /// Two records of one item; this is the one that a repair removes.
    Duplicate { id: u32, parent: u32, name: Name },
    /// A record marked for removal by a move, and the only one of its item.
    Marked { id: u32, parent: u32, name: Name },
    /// A folder without thread record, or an item whose thread record names another one.
    Thread { id: u32, missing: bool },
    /// A thread without an item.
    LoneThread { id: u32 },
    /// A file whose flags claim a thread that does not exist.
    ThreadFlag { id: u32, parent: u32, name: Name },
    /// A thread and items of a folder that has no record.
    Folder { id: u32, parent: u32, name: Name },
    /// An item in a folder that does not exist.
    Orphan { id: u32, parent: u32, name: Name },
    /// A folder with a wrong count of its items.
    Valence { id: u32, found: u16, right: u16 },
    /// A wrong count in the MDB.
    Count { what: &'static str, found: u32, right: u32 },
    /// A wrong value in a field that is reserved or has only one valid value.
    Field { id: u32, parent: u32, name: Name, field: &'static str },
    /// A name that is not valid for any item.
    BadName { id: u32, parent: u32, name: Name },
    /// A fork whose lengths contradict each other or its extents.
    Lengths { id: u32, fork: Fork, what: &'static str },
    /// A record of the extents file that belongs to no file, or to blocks beyond the end of a fork.
    Extents { id: u32, fork: Fork, block: u32, lone: bool },
    /// An unused slot of extents that is not zero, or a used one after it.
    Slot { id: u32, fork: Fork },
    /// An extent that has the last allocation block, which Apple's checker reports as damage.
    LastBlock { id: u32, fork: Fork },
    /// An extent beyond the end of the volume.
    Range { id: u32, fork: Fork, start: u16, count: u16 },
    /// Blocks that belong to two forks.
    Overlap { id: u32, fork: Fork, start: u16, count: u16 },
    /// Blocks whose state in the bitmap contradicts the extents.
    Bitmap { first: u32, count: u32, used: bool },
}

struct Tree(TreeKind);

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            TreeKind::Catalog => "catalog",
            TreeKind::Extents => "extents file",
        })
    }
}

fn fork_name(fork: Fork) -> &'static str {
    match fork {
        Fork::Data => "data fork",
        Fork::Resource => "resource fork",
    }
}

/// The contradiction of a bitmap about something that is `used` or free.
fn marked(used: bool) -> &'static str {
    if used { "in use, but marked free" } else { "free, but marked in use" }
}

/// A fork, in words: the files of the trees are named without a fork.
struct Of(u32, Fork);

impl fmt::Display for Of {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0, self.1) {
            (EXTENTS_ID, Fork::Data) => f.write_str("extents file"),
            (CATALOG_ID, Fork::Data) => f.write_str("catalog"),
            (BAD_BLOCKS_ID, Fork::Data) => f.write_str("bad block file"),
            (id, fork) => write!(f, "{} of file {id}", fork_name(fork)),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mdb { what } => write!(f, "MDB: {what}"),
            Self::Unreadable { what } => f.write_str(what),
            Self::Cut { blocks, least } => write!(
                f,
                "the image is truncated: it has {blocks} blocks of 512 bytes, the volume at least \
                 {least}"
            ),
            Self::Geometry { what } => write!(f, "MDB: {what}"),
            Self::Copy { what } => write!(f, "alternate MDB: {what}"),
            Self::Node { tree, node, block, what } => {
                write!(f, "{} node {node} (block {block}): {what}", Tree(*tree))
            }
            Self::Stale { tree, node, block, count } => write!(
                f,
                "{} node {node} (block {block}): {count} stale records, which the index assigns \
                 to other nodes",
                Tree(*tree)
            ),
            Self::IndexKey { tree, node, block, index } => write!(
                f,
                "{} node {node} (block {block}): invalid index key {index}: not the first key \
                 below it",
                Tree(*tree)
            ),
            Self::Link { tree, node, block } => {
                write!(f, "{} node {node} (block {block}): invalid sibling link", Tree(*tree))
            }
            Self::Map { tree, node, used } => {
                write!(f, "{} map: node {node} {}", Tree(*tree), marked(*used))
            }
            Self::MapTail { tree } => {
                write!(f, "{} map: it continues past the last node", Tree(*tree))
            }
            Self::FreeNode { tree, node, block } => {
                write!(f, "{} node {node} (block {block}): unused, but not zeroed", Tree(*tree))
            }
            Self::Header { tree, field, found, right } => {
                write!(f, "{} header: {field} is {found}, should be {right}", Tree(*tree))
            }
            Self::Record { tree: TreeKind::Catalog, parent, block, what } => {
                write!(f, "catalog record in folder {parent} (block {block}): {what}")
            }
            Self::Record { tree: TreeKind::Extents, parent, block, what } => {
                write!(f, "extents record of file {parent} (block {block}): {what}")
            }
            Self::Duplicate { id, parent, name } => {
                write!(f, "item {id}: second record, {name} in folder {parent}")
            }
            Self::Marked { id, parent, name } => {
                write!(
                    f,
                    "item {id} ({name} in folder {parent}): marked by a move that was interrupted"
                )
            }
            Self::Thread { id, missing: true } => write!(f, "folder {id}: missing thread record"),
            Self::Thread { id, missing: false } => {
                write!(f, "item {id}: its thread record does not match the item")
            }
            Self::LoneThread { id } => {
                write!(f, "thread record of item {id}, which does not exist")
            }
            Self::ThreadFlag { id, parent, name } => {
                write!(
                    f,
                    "file {id} ({name} in folder {parent}): flagged as having a thread record, \
                     but has none"
                )
            }
            Self::Folder { id, parent, name } => {
                write!(f, "folder {id} ({name} in folder {parent}): missing folder record")
            }
            Self::Orphan { id, parent, name } => {
                write!(f, "item {id} ({name}): its parent, folder {parent}, does not exist")
            }
            Self::Valence { id, found, right } => {
                write!(f, "folder {id}: item count is {found}, should be {right}")
            }
            Self::Count { what, found, right } => {
                write!(f, "MDB: {what} is {found}, should be {right}")
            }
            Self::Field { id, parent, name, field } => {
                write!(f, "item {id} ({name} in folder {parent}): invalid {field}")
            }
            Self::BadName { id, parent, name } => {
                write!(f, "item {id} in folder {parent}: invalid name {name}")
            }
            Self::Lengths { id, fork, what } => write!(f, "{}: {what}", Of(*id, *fork)),
            Self::Slot { id, fork } => {
                write!(f, "{}: unused extent is not zero", Of(*id, *fork))
            }
            Self::LastBlock { id, fork } => write!(
                f,
                "{}: uses the last allocation block, which Macs report as damage",
                Of(*id, *fork)
            ),
            Self::Extents { id, fork, block, lone } => {
                let why = if *lone { "there is no such file" } else { "past the end of the fork" };
                let fork = fork_name(*fork);
                write!(f, "extents record of the {fork} of file {id}, block {block}: {why}")
            }
            Self::Range { id, fork, start, count } => {
                write!(
                    f,
                    "{}: extent of {count} allocation blocks at {start} reaches past the end of \
                     the volume",
                    Of(*id, *fork)
                )
            }
            Self::Overlap { id, fork, start, count } => write!(
                f,
                "{}: extent of {count} allocation blocks at {start} overlaps another",
                Of(*id, *fork)
            ),
            Self::Bitmap { first, count, used } => {
                let marked = marked(*used);
                write!(f, "volume bitmap: {count} allocation blocks from {first} on {marked}")
            }
        }
    }
}

impl Problem {
    /// Returns true if a repair corrects the problem.
    #[must_use]
    pub fn is_repairable(&self) -> bool {
        !matches!(self, Self::Cut { .. } | Self::Geometry { .. })
    }

    /// Returns the action of a repair for the problem.
    #[must_use]
    pub fn fix(&self) -> &'static str {
        match self {
            Self::Mdb { .. } => "correct the MDB",
            Self::Copy { .. } => "rewrite the alternate MDB",
            Self::Unreadable { .. } => "restore the MDB from the alternate MDB, if that is valid",
            Self::Cut { .. } => "leave the image as it is: it can be read up to its end",
            Self::Geometry { .. } => "leave it as it is: only a new volume can have other sizes",
            Self::Node { .. } => "rebuild the tree from its leaves",
            Self::Stale { .. }
            | Self::IndexKey { .. }
            | Self::Link { .. }
            | Self::Map { .. }
            | Self::MapTail { .. }
            | Self::FreeNode { .. }
            | Self::Header { .. } => "rebuild the tree",
            Self::Record { .. } | Self::Duplicate { .. } => "remove the record",
            Self::Marked { .. } => "clear the mark",
            Self::Thread { .. } => "write a thread record",
            Self::LoneThread { .. } => "remove the thread record",
            Self::ThreadFlag { .. } | Self::Field { .. } | Self::Slot { .. } => "correct the field",
            Self::LastBlock { .. } => "move the content to another block",
            Self::Folder { .. } => "rebuild the folder record",
            Self::Orphan { .. } => "move it to the folder \"Recovered items\"",
            Self::Count { .. } | Self::Valence { .. } => "correct the count",
            Self::BadName { .. } => "rename it",
            Self::Lengths { .. } | Self::Range { .. } => "truncate the fork to its valid part",
            Self::Extents { .. } => "remove the extents record",
            Self::Overlap { .. } => "give each fork a copy of the blocks",
            Self::Bitmap { .. } => "rebuild the bitmap",
        }
    }
}
