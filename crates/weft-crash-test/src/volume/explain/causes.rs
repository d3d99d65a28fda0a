//! The call of a program that the write of a block comes from.

use crate::calls::{Action, Call, CallNr, NodeNr};

/// A part of a file that the write of a block changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Touched {
    /// Bytes of a file: the first, and the one behind the last.
    Bytes(NodeNr, u64, u64),
    /// An inode.
    Inode(NodeNr),
    /// A name in a directory.
    Name(NodeNr, Vec<u8>),
}

/// The latest call that changed something of this, of those before a block was written. If there is
/// none, the one during which it was written: that stands behind what it made the volume write.
pub(super) fn latest(calls: &[Call], written: CallNr, touched: &[Touched]) -> Option<CallNr> {
    let changes = |nr: &usize| touched.iter().any(|touched| touched.by(&calls[*nr].action));
    let during = calls[written.index()..].iter().position(|call| !call.action.is_block());
    let during = during.map(|next| written.index() + next);
    let found = (0..written.index()).rev().find(changes).or(during.filter(changes));
    found.map(|nr| CallNr(nr as u32))
}

impl Touched {
    fn by(&self, action: &Action) -> bool {
        match self {
            Self::Bytes(of, from, to) => match action {
                Action::Write(span) | Action::Zero(span) => {
                    span.node == *of && span.offset < *to && *from < span.offset + span.len_bytes
                }
                Action::Resize(span) => span.node == *of,
                Action::Create { new, .. } => new.node == *of,
                _ => false,
            },
            Self::Inode(of) => match action {
                Action::Create { new, at } => {
                    new.node == *of || at.as_ref().is_some_and(|at| at.dir == *of)
                }
                Action::Link { node, at } | Action::Remove { at, node, .. } => {
                    node == of || at.dir == *of
                }
                Action::Rename { from, to, node, replaced, .. } => {
                    node == of || *replaced == Some(*of) || from.dir == *of || to.dir == *of
                }
                Action::Write(span) | Action::Zero(span) | Action::Resize(span) => span.node == *of,
                Action::Attributes { node, .. } | Action::Xattr { node, .. } => node == of,
                _ => false,
            },
            Self::Name(dir, name) => {
                let is_it = |at: &crate::Place| at.dir == *dir && at.name == *name;
                match action {
                    Action::Create { at: Some(at), .. }
                    | Action::Link { at, .. }
                    | Action::Remove { at, .. } => is_it(at),
                    Action::Rename { from, to, .. } => is_it(from) || is_it(to),
                    _ => false,
                }
            }
        }
    }
}
