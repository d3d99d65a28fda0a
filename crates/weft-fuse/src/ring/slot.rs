//! The memory of one request and its reply, which the kernel and this process use in turns.
//!
//! The layout is that of `struct fuse_uring_req_header` and its payload buffer in
//! `include/uapi/linux/fuse.h`, protocol 7.42: the header of the request, and later of the reply; the
//! fixed part of an opcode's arguments; what the ring says of them; and, in a buffer of its own, all
//! that follows in a request or a reply.
//!
//! Memory that the kernel writes by its address is `unsafe`: here it is mapped, and made a slice for
//! whoever owns the slot.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::front::Outcome;
use crate::wire::{REPLY_HEADER_BYTES, REQUEST_HEADER_BYTES, Reply, errno};

/// `fuse_uring_req_header::in_out`
const HEADER_AT: usize = 0;
/// `fuse_uring_req_header::op_in`
const ARGUMENTS_AT: usize = 128;
const ARGUMENTS_MAX_BYTES: usize = 128;
/// `fuse_uring_ent_in_out::commit_id`, and `payload_sz` behind it
const COMMIT_ID_AT: usize = 256 + 8;
const PAYLOAD_LEN_AT: usize = COMMIT_ID_AT + 8;
/// `sizeof(struct fuse_uring_req_header)`
const HEADERS_BYTES: usize = 288;

/// The payload begins on a page, with a page in front of it: there a request's header and arguments
/// are put together with its payload, and a reply's header with its body.
const PAYLOAD_AT: usize = 2 * 4096;
const REPLY_AT: usize = PAYLOAD_AT - REPLY_HEADER_BYTES;

/// Requests up to this length are copied, so that the reply can be built in the kernel's buffer. A
/// longer one is a write, whose reply is short.
const COPIED_MAX_BYTES: usize = 8192;

/// The memory of one request, see the module page. Whoever owns the `Slot` has it: the kernel has no
/// right to it until [`Queue`](super::queue::Queue) gives it away.
pub(super) struct Slot {
    memory: NonNull<u8>,
    len_bytes: usize,
    /// The reply carries attributes, and is counted as under way.
    pub(super) counted: bool,
}

// SAFETY: the memory belongs to the slot alone, wherever it is.
unsafe impl Send for Slot {}

/// `struct iovec`
#[repr(C)]
pub(super) struct Area {
    at: *mut u8,
    len_bytes: usize,
}

/// Buffers of a thread that serves slots.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) request: Vec<u8>,
    pub(super) reply: Reply<'static>,
}

impl Slot {
    /// Allocates a slot for payloads of up to `payload_bytes`. Memory is used page by page as
    /// requests need it.
    pub(super) fn new(payload_bytes: usize) -> io::Result<Self> {
        let len_bytes = PAYLOAD_AT + payload_bytes;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses, overlaps nothing.
        let memory = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len_bytes, protection, MapFlags::PRIVATE)?
        };
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { memory, len_bytes, counted: false })
    }

    /// Returns the areas of the headers and of the payload's buffer, for the kernel.
    pub(super) fn areas(&self) -> [Area; 2] {
        let at = self.memory.as_ptr();
        let payload_bytes = self.len_bytes - PAYLOAD_AT;
        [
            Area { at, len_bytes: HEADERS_BYTES },
            Area { at: at.wrapping_add(PAYLOAD_AT), len_bytes: payload_bytes },
        ]
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has this length and was zeroed; the slot is the only way to it.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.len_bytes) }
    }

    fn word(&mut self, at: usize) -> u32 {
        u32::from_ne_bytes(self.bytes()[at..at + 4].try_into().expect("four bytes"))
    }

    /// Returns the number under which the kernel expects the reply; 0 before the first request.
    pub(super) fn commit_id(&mut self) -> u64 {
        let bytes = &self.bytes()[COMMIT_ID_AT..COMMIT_ID_AT + 8];
        u64::from_ne_bytes(bytes.try_into().expect("eight bytes"))
    }

    /// Puts the parts of the request together, as they come over `/dev/fuse`, and returns where they
    /// are; `None` if they contradict each other. Can be repeated until the reply is complete.
    fn assemble(&mut self) -> Option<Range<usize>> {
        let len = self.word(HEADER_AT) as usize;
        let payload = self.word(PAYLOAD_LEN_AT) as usize;
        let arguments = len.checked_sub(REQUEST_HEADER_BYTES)?.checked_sub(payload)?;
        let end = PAYLOAD_AT + payload;
        if arguments > ARGUMENTS_MAX_BYTES || end > self.len_bytes {
            return None;
        }
        let start = PAYLOAD_AT - arguments - REQUEST_HEADER_BYTES;
        let memory = self.bytes();
        memory.copy_within(HEADER_AT..HEADER_AT + REQUEST_HEADER_BYTES, start);
        memory.copy_within(ARGUMENTS_AT..ARGUMENTS_AT + arguments, start + REQUEST_HEADER_BYTES);
        Some(start..end)
    }

    /// Returns the request, for a look at it; empty if it is malformed.
    pub(super) fn request(&mut self) -> &[u8] {
        match self.assemble() {
            Some(request) => &self.bytes()[request],
            None => &[],
        }
    }

    /// Answers the request: unless `answer` returns [`Outcome::WouldWait`], the reply is complete
    /// after that, and can be committed. Then the request is as it was.
    pub(super) fn serve(
        &mut self,
        scratch: &mut Scratch,
        answer: impl FnOnce(&[u8], &mut Reply<'_>) -> Outcome,
    ) -> Outcome {
        let Some(request) = self.assemble() else {
            tracing::error!("the kernel sent a request whose lengths contradict each other");
            self.fail(errno::EIO);
            return Outcome::Answer;
        };
        let Scratch { request: copy, reply: own } = scratch;
        let is_answered = |outcome| matches!(outcome, Outcome::Answer | Outcome::Goodbye);
        let (outcome, len) = if request.len() <= COPIED_MAX_BYTES {
            copy.clear();
            copy.extend_from_slice(&self.bytes()[request.clone()]);
            let mut reply = Reply::within(&mut self.bytes()[REPLY_AT..]);
            let outcome = answer(copy, &mut reply);
            let len = if is_answered(outcome) { reply.finish().len() } else { 0 };
            if outcome == Outcome::WouldWait {
                self.bytes()[request].copy_from_slice(copy);
            }
            (outcome, len)
        } else {
            let outcome = answer(&self.bytes()[request], own);
            let bytes = if is_answered(outcome) { own.finish() } else { &[] };
            self.bytes()[REPLY_AT..REPLY_AT + bytes.len()].copy_from_slice(bytes);
            (outcome, bytes.len())
        };
        match outcome {
            Outcome::WouldWait => {}
            Outcome::Answer | Outcome::Goodbye => self.complete(len),
            // The kernel waits for a reply to everything that comes by a ring.
            Outcome::Silent => self.fail(errno::EIO),
        }
        outcome
    }

    /// Replies with a reply that was built elsewhere.
    pub(super) fn reply(&mut self, reply: &[u8]) {
        match self.bytes()[REPLY_AT..].get_mut(..reply.len()) {
            Some(room) => {
                room.copy_from_slice(reply);
                self.complete(reply.len());
            }
            None => {
                tracing::error!(len = reply.len(), "a reply is longer than the kernel's buffer");
                self.fail(errno::EIO);
            }
        }
    }

    /// Replies with an error.
    pub(super) fn fail(&mut self, errno: i32) {
        let unique = self.bytes()[HEADER_AT + 8..HEADER_AT + 16].try_into().expect("eight bytes");
        let mut reply = Reply::within(&mut self.bytes()[REPLY_AT..]);
        reply.begin(u64::from_ne_bytes(unique));
        reply.fail(errno);
        let len = reply.finish().len();
        self.complete(len);
    }

    /// Sets the headers for the reply of `len` bytes, header included, that was built at its place.
    fn complete(&mut self, len: usize) {
        let body = (len - REPLY_HEADER_BYTES) as u32;
        let memory = self.bytes();
        memory.copy_within(REPLY_AT..PAYLOAD_AT, HEADER_AT);
        memory[PAYLOAD_LEN_AT..PAYLOAD_LEN_AT + 4].copy_from_slice(&body.to_ne_bytes());
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and the slot was the only way to it.
        if let Err(e) = unsafe { munmap(self.memory.as_ptr().cast(), self.len_bytes) } {
            tracing::error!("cannot unmap a request's memory: {e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Header;

    const PAYLOAD_MAX: usize = 64 << 10;

    /// A slot with a request as the kernel puts it there.
    fn slot(arguments: &[u8], payload: &[u8]) -> Slot {
        let mut slot = Slot::new(PAYLOAD_MAX).expect("memory");
        let len = (REQUEST_HEADER_BYTES + arguments.len() + payload.len()) as u32;
        let memory = slot.bytes();
        memory[..4].copy_from_slice(&len.to_ne_bytes());
        memory[8..16].copy_from_slice(&77_u64.to_ne_bytes());
        memory[ARGUMENTS_AT..][..arguments.len()].copy_from_slice(arguments);
        memory[PAYLOAD_LEN_AT..][..4].copy_from_slice(&(payload.len() as u32).to_ne_bytes());
        memory[PAYLOAD_AT..][..payload.len()].copy_from_slice(payload);
        slot
    }

    fn reply_of(slot: &mut Slot) -> (i32, u64, Vec<u8>) {
        let len = slot.word(PAYLOAD_LEN_AT) as usize;
        let memory = slot.bytes();
        let error = i32::from_ne_bytes(memory[4..8].try_into().expect("four"));
        let unique = u64::from_ne_bytes(memory[8..16].try_into().expect("eight"));
        (error, unique, memory[PAYLOAD_AT..PAYLOAD_AT + len].to_vec())
    }

    #[test]
    fn short_and_long_requests_are_whole_and_their_replies_in_place() {
        for payload_bytes in [0, 5, COPIED_MAX_BYTES, PAYLOAD_MAX] {
            let payload: Vec<u8> = (0..payload_bytes).map(|n| n as u8).collect();
            let mut slot = slot(b"arguments", &payload);
            let outcome = slot.serve(&mut Scratch::default(), |request, reply| {
                let (header, mut body) = Header::split(request).expect("whole");
                assert_eq!(header.unique, 77);
                assert_eq!(body.bytes(9), Ok(&b"arguments"[..]));
                assert_eq!(body.bytes(payload_bytes), Ok(&payload[..]));
                reply.begin(header.unique);
                reply.put(b"the reply");
                Outcome::Answer
            });
            assert_eq!(outcome, Outcome::Answer);
            assert_eq!(reply_of(&mut slot), (0, 77, b"the reply".to_vec()));
        }
    }

    #[test]
    fn a_request_that_would_wait_can_be_served_again() {
        for payload_bytes in [5, PAYLOAD_MAX] {
            let payload = vec![7; payload_bytes];
            let mut slot = slot(b"arguments", &payload);
            let mut scratch = Scratch::default();
            for round in 0..2 {
                slot.serve(&mut scratch, |request, reply| {
                    let (_, mut body) = Header::split(request).expect("whole");
                    assert_eq!(body.bytes(9), Ok(&b"arguments"[..]), "round {round}");
                    assert_eq!(body.bytes(payload_bytes), Ok(&payload[..]), "round {round}");
                    reply.begin(77);
                    reply.put(&[9; 4096]);
                    if round == 0 { Outcome::WouldWait } else { Outcome::Answer }
                });
            }
            assert_eq!(reply_of(&mut slot), (0, 77, vec![9; 4096]));
        }
    }

    #[test]
    fn a_reply_that_was_built_elsewhere_must_fit() {
        let built = |body: &[u8]| {
            let mut reply = Reply::default();
            reply.begin(77);
            reply.put(body);
            reply.finish().to_vec()
        };
        for len in [0, 5, PAYLOAD_MAX] {
            let mut slot = slot(b"arguments", b"");
            slot.reply(&built(&vec![3; len]));
            assert_eq!(reply_of(&mut slot), (0, 77, vec![3; len]));
        }
        let mut slot = slot(b"arguments", b"");
        slot.reply(&built(&vec![3; PAYLOAD_MAX + 1]));
        assert_eq!(reply_of(&mut slot), (-errno::EIO, 77, vec![]));
    }

    #[test]
    fn lengths_that_contradict_each_other_are_refused() {
        for (len, payload) in [(0, 0), (39, 0), (40, 1), (40 + 129, 0), (u32::MAX, u32::MAX - 40)] {
            let mut slot = slot(b"", b"");
            slot.bytes()[..4].copy_from_slice(&len.to_ne_bytes());
            slot.bytes()[PAYLOAD_LEN_AT..][..4].copy_from_slice(&payload.to_ne_bytes());
            assert!(slot.request().is_empty(), "{len} {payload}");
            slot.serve(&mut Scratch::default(), |_, _| unreachable!("{len} {payload}"));
            assert_eq!(reply_of(&mut slot), (-errno::EIO, 77, vec![]));
        }
    }

    #[test]
    fn without_a_reply_the_caller_gets_an_error() {
        let mut slot = slot(b"", b"name\0");
        slot.serve(&mut Scratch::default(), |_, _| Outcome::Silent);
        assert_eq!(reply_of(&mut slot), (-errno::EIO, 77, vec![]));
    }
}
