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
        self.0.remove(1);
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
        self.add(request).then_some(AttributeReply(self))
    }

    /// Counts a request if its reply carries attributes, until a call of [`remove`](Self::remove);
    /// returns true if it does.
    pub(crate) fn add(&self, request: &[u8]) -> bool {
        let opcode = Header::split(request).and_then(|(h, _)| Opcode::from_number(h.opcode));
        let carries = opcode.is_some_and(carries_attributes);
        if carries {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
        carries
    }

    /// The kernel has the replies to so many of the requests that were counted.
    pub(crate) fn remove(&self, count: usize) {
        self.0.fetch_sub(count, Ordering::SeqCst);
    }

    /// Returns true if another reply with attributes is under way than that to a request with this
    /// opcode.
    pub(super) fn has_others(&self, opcode: Opcode) -> bool {
        self.0.load(Ordering::SeqCst) > usize::from(carries_attributes(opcode))
    }
}
