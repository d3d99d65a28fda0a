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
    /// The image ends before the volume does.
    Cut { blocks: u64, least: u64 },
    /// Sizes that Apple's checker does not accept. They cannot be changed.
    Geometry { what: String },
    /// A wrong copy of the MDB.
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
    /// A folder without thread, or with one that leads elsewhere.
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
                "the image is cut: it has {blocks} blocks of 512 bytes, the volume {least} at least"
            ),
            Self::Geometry { what } => write!(f, "MDB: {what}"),
            Self::Copy { what } => write!(f, "copy of the MDB: {what}"),
            Self::Node { tree, node, block, what } => {
                write!(f, "{} node {node} (block {block}): {what}", Tree(*tree))
            }
            Self::Stale { tree, node, block, count } => write!(
                f,
                "{} node {node} (block {block}): {count} of its records are other nodes'",
                Tree(*tree)
            ),
            Self::IndexKey { tree, node, block, index } => write!(
                f,
                "{} node {node} (block {block}): index key {index} is not the first key below it",
                Tree(*tree)
            ),
            Self::Link { tree, node, block } => {
                write!(f, "{} node {node} (block {block}): a link leads elsewhere", Tree(*tree))
            }
            Self::Map { tree, node, used } => {
                let is = if *used { "in use" } else { "free" };
                write!(f, "{} map: node {node} is {is}", Tree(*tree))
            }
            Self::MapTail { tree } => {
                write!(f, "{} map: it goes on behind the last node", Tree(*tree))
            }
            Self::FreeNode { tree, node, block } => {
                write!(f, "{} node {node} (block {block}) is free and not zero", Tree(*tree))
            }
            Self::Header { tree, field, found, right } => {
                write!(f, "{} header: {field} is {found}, not {right}", Tree(*tree))
            }
            Self::Record { tree: TreeKind::Catalog, parent, block, what } => {
                write!(f, "catalog record in folder {parent} (block {block}): {what}")
            }
            Self::Record { tree: TreeKind::Extents, parent, block, what } => {
                write!(f, "extents record of file {parent} (block {block}): {what}")
            }
            Self::Duplicate { id, parent, name } => {
                write!(f, "item {id} has a second record, {name} in folder {parent}")
            }
            Self::Marked { id, parent, name } => {
                write!(f, "item {id}, {name} in folder {parent}, is marked as moved")
            }
            Self::Thread { id, missing: true } => write!(f, "folder {id} has no thread"),
            Self::Thread { id, missing: false } => {
                write!(f, "the thread of item {id} leads elsewhere")
            }
            Self::LoneThread { id } => write!(f, "a thread of {id}, which does not exist"),
            Self::ThreadFlag { id, parent, name } => {
                write!(f, "file {id}, {name} in folder {parent}, has no thread but says so")
            }
            Self::Folder { id, parent, name } => {
                write!(f, "folder {id}, {name} in folder {parent}, has a thread and no record")
            }
            Self::Orphan { id, parent, name } => {
                write!(f, "item {id}, {name}, is in folder {parent}, which does not exist")
            }
            Self::Valence { id, found, right } => {
                write!(f, "folder {id} counts {found} items and has {right}")
            }
            Self::Count { what, found, right } => write!(f, "MDB: {what} is {found}, not {right}"),
            Self::Field { id, parent, name, field } => {
                write!(f, "item {id}, {name} in folder {parent}: {field} is not what it must be")
            }
            Self::BadName { id, parent, name } => {
                write!(f, "item {id} in folder {parent} has the impossible name {name}")
            }
            Self::Lengths { id, fork, what } => write!(f, "{}: {what}", Of(*id, *fork)),
            Self::Slot { id, fork } => {
                write!(f, "{}: an unused extent is not zero", Of(*id, *fork))
            }
            Self::LastBlock { id, fork } => write!(
                f,
                "{}: it has the last allocation block, which Macs take for damage",
                Of(*id, *fork)
            ),
            Self::Extents { id, fork, block, lone: true } => {
                write!(
                    f,
                    "extents of the {} of {id} from {block} on are no file's",
                    fork_name(*fork)
                )
            }
            Self::Extents { id, fork, block, lone: false } => {
                write!(
                    f,
                    "extents of the {} of {id} from {block} on are behind its end",
                    fork_name(*fork)
                )
            }
            Self::Range { id, fork, start, count } => {
                write!(f, "{}: {count} blocks from {start} on reach beyond the end", Of(*id, *fork))
            }
            Self::Overlap { id, fork, start, count } => write!(
                f,
                "{}: some of {count} blocks from {start} on are another's too",
                Of(*id, *fork)
            ),
            Self::Bitmap { first, count, used } => {
                let is = if *used { "in use" } else { "free" };
                write!(f, "bitmap: {count} allocation blocks from {first} on are {is}")
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
            Self::Mdb { .. } | Self::Copy { .. } | Self::Count { .. } => "write what is right",
            Self::Unreadable { .. } => "open the volume by the copy of its MDB, if that is sound",
            Self::Cut { .. } => "leave it as it is: it can be read as far as it goes",
            Self::Geometry { .. } => "leave it as it is: only a new volume has other sizes",
            Self::Node { .. } => "make the tree anew from its leaves",
            Self::Stale { .. }
            | Self::IndexKey { .. }
            | Self::Link { .. }
            | Self::Map { .. }
            | Self::MapTail { .. }
            | Self::FreeNode { .. }
            | Self::Header { .. } => "make the tree anew",
            Self::Record { .. } | Self::Duplicate { .. } => "remove the record",
            Self::Marked { .. } => "clear the mark",
            Self::Thread { .. } => "write a thread",
            Self::LoneThread { .. } => "remove the thread",
            Self::ThreadFlag { .. } | Self::Field { .. } | Self::Slot { .. } => "set the field",
            Self::LastBlock { .. } => "move the block elsewhere",
            Self::Folder { .. } => "make the folder's record",
            Self::Orphan { .. } => "move it to a folder of its own",
            Self::Valence { .. } => "count again",
            Self::BadName { .. } => "give it another name",
            Self::Lengths { .. } | Self::Range { .. } => "cut the fork where it is sound",
            Self::Extents { .. } => "remove the extents",
            Self::Overlap { .. } => "copy the blocks, so that each fork has its own",
            Self::Bitmap { .. } => "make the bitmap anew",
        }
    }
}
