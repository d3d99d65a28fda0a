//! What a call changes on the disk, in the smallest parts that a power cut can separate.
//!
//! A `write` is a part of each page of 4 KiB, and the sizes that the file grows through; a `rename`
//! is the new name and the loss of the old one; a `creat` is an inode and a name. Which of these
//! parts stay together, and in which order they reach the disk, is the matter of a
//! [`Model`](crate::Model).

use bytes::Bytes;
use weft_vfs::FileKind;

use crate::calls::{Action, Call, CallNr, NewNode, NodeNr, Span};

/// The unit in which files are written back, in bytes.
pub const PAGE_BYTES: u64 = 4096;

/// The reason of a change of a file's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resizing {
    /// A write past the end of the file. File systems that allocate late write this late.
    Append,
    /// `truncate` to more.
    Grow,
    /// `truncate` to less: what lay behind the new end is gone.
    Shrink,
}

/// Bytes within one page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageBytes {
    /// The number of the page in its file.
    pub page: u64,
    /// The first byte within the page.
    pub start: usize,
    /// The number of bytes.
    pub len: usize,
    /// The data of the call, and the place in it; `None` for zeroes.
    source: Option<(Bytes, usize)>,
}

impl PageBytes {
    /// The bytes; `None` if all are zero.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        let (data, at) = self.source.as_ref()?;
        data.get(*at..at + self.len)
    }
}

/// The smallest change that is durable or lost as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// An inode comes into being: empty.
    Node(NewNode),
    /// A name in a directory gets another meaning, or none.
    Name {
        /// The directory.
        dir: NodeNr,
        /// The name.
        name: Vec<u8>,
        /// The inode that it names from now on.
        node: Option<NodeNr>,
        /// The inode that it named before.
        before: Option<NodeNr>,
    },
    /// The size of a file.
    Size {
        /// The file.
        node: NodeNr,
        /// Its new size.
        size_bytes: u64,
        /// Why.
        why: Resizing,
    },
    /// Bytes of a page of a file. They do not change its size.
    Page {
        /// The file.
        node: NodeNr,
        /// Where, and which.
        bytes: PageBytes,
    },
    /// Permission bits and owners.
    Attributes {
        /// The inode.
        node: NodeNr,
        /// Permission bits.
        perm: u16,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
    },
    /// An extended attribute.
    Xattr {
        /// The inode.
        node: NodeNr,
        /// Its name.
        name: Vec<u8>,
        /// Its value; `None` if it is removed.
        value: Option<Bytes>,
    },
    /// Bytes of a volume: one block of a write, or a range that is discarded.
    Block {
        /// The first byte.
        offset: u64,
        /// The number of bytes.
        len_bytes: u64,
        /// The data of the call, and the place in it; `None` for zeroes.
        source: Option<(Bytes, usize)>,
    },
}

/// A change, and the call that made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effect {
    /// The call.
    pub call: CallNr,
    /// The change.
    pub change: Change,
}

/// Returns the changes of one call, in an order in which they could be applied.
#[must_use]
pub fn changes_of(call: &Call) -> Vec<Change> {
    let name =
        |dir, name: &[u8], node, before| Change::Name { dir, name: name.to_vec(), node, before };
    match &call.action {
        Action::Create { new, at } => {
            let place = at.as_ref().map(|at| name(at.dir, &at.name, Some(new.node), None));
            [Some(Change::Node(new.clone())), place].into_iter().flatten().collect()
        }
        Action::Link { node, at } => vec![name(at.dir, &at.name, Some(*node), None)],
        Action::Remove { at, node, .. } => vec![name(at.dir, &at.name, None, Some(*node))],
        Action::Rename { from, to, node, replaced, exchange, .. } => vec![
            name(to.dir, &to.name, Some(*node), *replaced),
            name(from.dir, &from.name, replaced.filter(|_| *exchange), Some(*node)),
        ],
        Action::Write(span) => pages(span, Some(&call.data)),
        Action::Zero(span) => pages(&zeroes(span), None),
        Action::Resize(span) => {
            let shrinks = span.size_after < span.size_before;
            let why = if shrinks { Resizing::Shrink } else { Resizing::Grow };
            let size = Change::Size { node: span.node, size_bytes: span.size_after, why };
            tail(span).into_iter().chain([size]).collect()
        }
        Action::Attributes { node, perm, uid, gid } => {
            vec![Change::Attributes { node: *node, perm: *perm, uid: *uid, gid: *gid }]
        }
        Action::Xattr { node, name, removed } => {
            let value = (!removed).then(|| call.data.clone());
            vec![Change::Xattr { node: *node, name: name.clone(), value }]
        }
        Action::BlockWrite { offset, block_bytes, .. } => {
            blocks(*offset, u64::from(*block_bytes).max(512), &call.data)
        }
        Action::BlockDiscard { offset, len_bytes } => {
            vec![Change::Block { offset: *offset, len_bytes: *len_bytes, source: None }]
        }
        Action::BlockFlush { .. }
        | Action::Fsync { .. }
        | Action::FsyncDir { .. }
        | Action::Sync
        | Action::Close { .. }
        | Action::Promise { .. }
        | Action::Mark { .. }
        | Action::Nothing
        | Action::End => Vec::new(),
    }
}

/// What a file that is made shorter has in its new last page behind its end: zeroes, which are
/// written as data are, so that they may be there before the file is shorter.
fn tail(span: &Span) -> Option<Change> {
    let (page, start) = (span.size_after / PAGE_BYTES, span.size_after % PAGE_BYTES);
    let end = span.size_before.min((page + 1) * PAGE_BYTES);
    if start == 0 || end <= span.size_after {
        return None;
    }
    // Both are at most the size of a page.
    let (start, len) = (start as usize, (end - span.size_after) as usize);
    Some(Change::Page { node: span.node, bytes: PageBytes { page, start, len, source: None } })
}

/// The longest range that is made to read as zeroes in one call, in bytes: its pages are
/// enumerated.
pub(crate) const ZEROES_MAX: u64 = 1 << 30;

/// The part of a range of zeroes that lies within the file: behind its end nothing changes.
pub(crate) fn zeroes(span: &Span) -> Span {
    let end = (span.offset + span.len_bytes).min(span.size_after);
    Span { len_bytes: end.saturating_sub(span.offset), ..span.clone() }
}

/// The blocks of a write to a volume.
fn blocks(offset: u64, block_bytes: u64, data: &Bytes) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut at = 0;
    while at < data.len() as u64 {
        let within = (offset + at) % block_bytes;
        let len_bytes = (block_bytes - within).min(data.len() as u64 - at);
        let source = Some((data.clone(), at as usize));
        changes.push(Change::Block { offset: offset + at, len_bytes, source });
        at += len_bytes;
    }
    changes
}

/// Each page of a span, followed by the size that the file grows to with it.
fn pages(span: &Span, data: Option<&Bytes>) -> Vec<Change> {
    let mut changes = Vec::new();
    let (mut at, end) = (span.offset, span.offset + span.len_bytes);
    let mut size = span.size_before;
    while at < end {
        let (page, start) = (at / PAGE_BYTES, at % PAGE_BYTES);
        let len = (PAGE_BYTES - start).min(end - at);
        // Both are at most the size of a page, and `at - offset` is within the data of a call.
        let (start, len) = (start as usize, len as usize);
        let source = data.map(|data| (data.clone(), (at - span.offset) as usize));
        let bytes = PageBytes { page, start, len, source };
        changes.push(Change::Page { node: span.node, bytes });
        at += len as u64;
        if at > size && span.size_after > size {
            size = at.min(span.size_after);
            changes.push(Change::Size { node: span.node, size_bytes: size, why: Resizing::Append });
        }
    }
    changes
}

impl Change {
    /// Returns true for a change of a page or of the size of a file that is written to.
    #[must_use]
    pub fn is_data(&self) -> bool {
        matches!(self, Self::Page { .. } | Self::Size { why: Resizing::Append, .. })
    }

    /// The inode that is changed; for a name, its directory.
    #[must_use]
    pub fn node(&self) -> NodeNr {
        match self {
            Self::Node(new) => new.node,
            Self::Name { dir: node, .. }
            | Self::Size { node, .. }
            | Self::Page { node, .. }
            | Self::Attributes { node, .. }
            | Self::Xattr { node, .. } => *node,
            // Blocks belong to no inode that is known here.
            Self::Block { .. } => NodeNr(0),
        }
    }

    /// Returns true for the inode of a directory.
    #[must_use]
    pub fn makes_directory(&self) -> bool {
        matches!(self, Self::Node(new) if new.kind == FileKind::Directory)
    }
}
