//! The count of replies with attributes that are under way.
//!
//! A reply is counted from before its attributes are read until the kernel has it.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::wire::{Header, Opcode};

/// The number of requests in progress whose replies carry attributes.
#[derive(Debug, Default)]
pub(crate) struct AttributeReplies(AtomicUsize);

/// A request whose reply carries attributes, from before it is processed until it is answered.
pub(crate) struct AttributeReply<'a>(&'a AttributeReplies);

impl Drop for AttributeReply<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns true if the reply to a request carries attributes of an inode.
fn carries_attributes(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::Lookup
            | Opcode::GetAttr
            | Opcode::StatX
            | Opcode::SetAttr
            | Opcode::ReadDirPlus
            | Opcode::MkNod
            | Opcode::MkDir
            | Opcode::Symlink
            | Opcode::Link
            | Opcode::Create
            | Opcode::TmpFile
    )
}

impl AttributeReplies {
    /// Counts a request whose reply carries attributes, until the returned guard is dropped.
    pub(crate) fn begin(&self, request: &[u8]) -> Option<AttributeReply<'_>> {
        let (header, _) = Header::split(request)?;
        if !carries_attributes(Opcode::from_number(header.opcode)?) {
            return None;
        }
        self.0.fetch_add(1, Ordering::SeqCst);
        Some(AttributeReply(self))
    }

    /// Returns true if another reply with attributes is under way than that to a request with this
    /// opcode.
    pub(super) fn has_others(&self, opcode: Opcode) -> bool {
        self.0.load(Ordering::SeqCst) > usize::from(carries_attributes(opcode))
    }
}
