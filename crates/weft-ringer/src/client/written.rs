//! Writes into open blocks, as the log and the journal have them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::JournalRecord;
use crate::block_map::{Block, STORED_MAX_BYTES};
use crate::encryption::Encryption;
use crate::op::{Logged, Op};
use crate::types::{BlockHash, RnodeId, Seq};
use crate::wire::{Reader, Wire, WireError, wire_struct};

/// Written data.
#[derive(Clone, PartialEq, Eq)]
pub struct Written(pub Arc<[u8]>);

impl std::fmt::Debug for Written {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Wire for Written {
    fn put(&self, out: &mut Vec<u8>) {
        crate::wire::put_bytes(&self.0, out);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        from.bytes(STORED_MAX_BYTES as usize, "what was written").map(|b| Self(b.into()))
    }
}

/// The effect of one write on one open block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redo {
    /// The block.
    pub name: BlockHash,
    /// The block that it was opened on; `None` if there was none, or none of it is left.
    pub base: Option<Block>,
    /// The number of the block's bytes that were valid before the write: the file may have been
    /// truncated.
    pub kept_bytes: u32,
    /// The offset of the write in the block, in bytes.
    pub within: u32,
    /// The data; encrypted, if the file is.
    pub data: Written,
}
wire_struct!(Redo { name, base, kept_bytes, within, data });

impl Redo {
    /// Applies it to the block's bytes.
    pub fn apply(&self, bytes: &mut Vec<u8>) {
        let (begin, data) = (self.within as usize, &self.data.0);
        bytes.truncate(self.kept_bytes as usize);
        let end = begin + data.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[begin..end].copy_from_slice(data);
    }
}

/// A block that was open at the end of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOpen<'a> {
    /// Its file.
    pub rnode: RnodeId,
    /// Its position in the file.
    pub index: u32,
    /// The encryption of the file, if it is encrypted.
    pub encryption: Option<Encryption>,
    /// The writes into it, in order.
    pub redo: Vec<&'a Redo>,
}

/// Returns the blocks that were open at the end of a journal. They must be sealed, with
/// [`JournalRecord::Sealed`] appended to the journal, before a client starts with it.
#[must_use]
pub fn left_open(journal: &[JournalRecord]) -> BTreeMap<BlockHash, LeftOpen<'_>> {
    let mut open: BTreeMap<BlockHash, LeftOpen<'_>> = BTreeMap::new();
    for record in journal {
        match record {
            JournalRecord::Wrote { logged, redo, .. }
            | JournalRecord::WroteEncrypted { logged, redo, .. } => {
                let Op::Write { id, blocks, .. } = &logged.op else { continue };
                let encryption = match record {
                    JournalRecord::WroteEncrypted { encryption, .. } => Some(*encryption),
                    _ => None,
                };
                for part in redo {
                    let is_it = |block: &Option<Block>| block.is_some_and(|b| b.hash == part.name);
                    let Some((index, _)) = blocks.iter().find(|(_, b)| is_it(b)) else { continue };
                    let (rnode, index) = (*id, *index);
                    let new = || LeftOpen { rnode, index, encryption, redo: Vec::new() };
                    open.entry(part.name).or_insert_with(new).redo.push(part);
                }
            }
            JournalRecord::Sealed { name, .. } => drop(open.remove(name)),
            _ => {}
        }
    }
    open
}

/// Returns the blocks that a change writes.
pub(super) fn names(op: &Op) -> impl Iterator<Item = BlockHash> {
    let blocks = match op {
        Op::Write { blocks, .. } => &blocks[..],
        _ => &[],
    };
    blocks.iter().filter_map(|(_, block)| Some((*block)?.hash))
}

/// Returns the file that a change writes an open block of.
pub(super) fn open_in(op: &Op) -> Option<RnodeId> {
    match op {
        Op::Write { id, .. } if names(op).any(|name| name.is_open()) => Some(*id),
        _ => None,
    }
}

/// A write to be logged.
pub(super) struct Wrote {
    pub(super) logged: Logged,
    /// The change that it replaces.
    pub(super) replaces: Option<Seq>,
    pub(super) redo: Vec<Redo>,
    pub(super) encryption: Option<Encryption>,
}

impl Wrote {
    pub(super) fn record(self) -> JournalRecord {
        let Self { logged, replaces, redo, encryption } = self;
        match encryption {
            None => JournalRecord::Wrote { logged, replaces, redo },
            Some(encryption) => {
                JournalRecord::WroteEncrypted { logged, replaces, redo, encryption }
            }
        }
    }
}

/// Replaces the name of a block by its hash.
pub(super) fn seal(op: &mut Op, name: BlockHash, hash: BlockHash) {
    if let Op::Write { blocks, .. } = op {
        for block in blocks.iter_mut().filter_map(|(_, block)| block.as_mut()) {
            if block.hash == name {
                block.hash = hash;
            }
        }
    }
}
