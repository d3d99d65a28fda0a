//! The transmission phase: requests, simple replies, chunks of structured replies; requests and
//! chunks with extended headers, whose lengths have 64 bits.

use super::{
    CHUNK_MAGIC, ChunkType, Command, CommandFlags, Cursor, EXTENDED_CHUNK_MAGIC,
    EXTENDED_REQUEST_MAGIC, NbdErrno, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC, STRING_MAX_BYTES,
    WireError,
};

/// Length of a [`Request`] without its payload.
pub const REQUEST_BYTES: usize = 28;
/// Length of a simple reply without its payload.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Length of a chunk without its payload.
pub const CHUNK_HEADER_BYTES: usize = 20;
/// Length of the extended header of a request or a chunk.
pub const EXTENDED_HEADER_BYTES: usize = 32;
/// The longest [`Head`]: an extended header, and the offset and the length of a hole.
const HEAD_MAX_BYTES: usize = EXTENDED_HEADER_BYTES + 12;

/// `NBD_REPLY_FLAG_DONE`.
const DONE: u16 = 1;

/// A header, and optional numbers after it.
#[derive(Debug, Clone, Copy)]
pub struct Head {
    bytes: [u8; HEAD_MAX_BYTES],
    len: usize,
}

impl Head {
    fn new() -> Self {
        Self { bytes: [0; HEAD_MAX_BYTES], len: 0 }
    }

    /// Appends the bytes of a number.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

impl std::ops::Deref for Head {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A request. `len_bytes` of data follow if it is a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The flags of the request.
    pub flags: CommandFlags,
    /// The type of the request.
    pub command: Command,
    /// The client's identifier of the request, which the reply repeats.
    pub handle: u64,
    /// The offset on the export, in bytes.
    pub offset: u64,
    /// The length of the range, in bytes: below 2^32 without an extended header.
    pub len_bytes: u64,
}

impl Request {
    /// Returns the length of a header, in bytes.
    #[must_use]
    pub fn header_bytes(extended: bool) -> usize {
        if extended { EXTENDED_HEADER_BYTES } else { REQUEST_BYTES }
    }

    /// Encodes the header.
    #[must_use]
    pub fn encode(&self, extended: bool) -> Head {
        let mut head = Head::new();
        let magic = if extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC };
        head.push(&magic.to_be_bytes());
        head.push(&self.flags.bits().to_be_bytes());
        head.push(&self.command.0.to_be_bytes());
        head.push(&self.handle.to_be_bytes());
        head.push(&self.offset.to_be_bytes());
        if extended {
            head.push(&self.len_bytes.to_be_bytes());
        } else {
            debug_assert!(self.len_bytes <= u32::MAX.into());
            head.push(&(self.len_bytes as u32).to_be_bytes());
        }
        head
    }

    /// Decodes a whole header.
    ///
    /// # Errors
    /// [`WireError`] for a wrong magic number: the session must end.
    pub fn parse(bytes: &[u8], extended: bool) -> Result<Self, WireError> {
        let mut cursor = Cursor::new("a request", bytes);
        let magic = if extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC };
        if cursor.u32()? != magic {
            return Err(WireError::new("a request does not begin with its magic number"));
        }
        let request = Self {
            flags: CommandFlags::from_bits_retain(cursor.u16()?),
            command: Command(cursor.u16()?),
            handle: cursor.u64()?,
            offset: cursor.u64()?,
            len_bytes: if extended { cursor.u64()? } else { cursor.u32()?.into() },
        };
        cursor.end()?;
        Ok(request)
    }

    /// Returns the number of bytes of data that follow the header.
    #[must_use]
    pub fn payload_bytes(&self, extended: bool) -> u64 {
        let counts = extended && self.flags.contains(CommandFlags::PAYLOAD_LEN);
        if counts || self.command == Command::WRITE { self.len_bytes } else { 0 }
    }
}

/// Encodes a simple reply. The data of a read follows it.
#[must_use]
pub fn simple_reply(handle: u64, error: NbdErrno) -> [u8; SIMPLE_REPLY_BYTES] {
    let mut out = [0; SIMPLE_REPLY_BYTES];
    out[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    out[4..8].copy_from_slice(&error.0.to_be_bytes());
    out[8..].copy_from_slice(&handle.to_be_bytes());
    out
}

/// Encodes the header of a chunk. `len_bytes` of payload follow it.
#[must_use]
pub fn chunk_header(
    handle: u64,
    kind: ChunkType,
    done: bool,
    len_bytes: u32,
) -> [u8; CHUNK_HEADER_BYTES] {
    let mut out = [0; CHUNK_HEADER_BYTES];
    out[..4].copy_from_slice(&CHUNK_MAGIC.to_be_bytes());
    out[4..6].copy_from_slice(&(if done { DONE } else { 0 }).to_be_bytes());
    out[6..8].copy_from_slice(&kind.0.to_be_bytes());
    out[8..16].copy_from_slice(&handle.to_be_bytes());
    out[16..].copy_from_slice(&len_bytes.to_be_bytes());
    out
}

/// The fields with which the chunks of a reply begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyTo {
    /// The request's handle.
    pub handle: u64,
    /// With extended headers, the request's offset.
    pub extended: Option<u64>,
}

impl ReplyTo {
    /// Makes the fields for a request without an extended header.
    #[must_use]
    pub fn compact(handle: u64) -> Self {
        Self { handle, extended: None }
    }

    /// Encodes the header of a chunk. `len_bytes` of payload follow it.
    #[must_use]
    pub fn chunk(self, kind: ChunkType, done: bool, len_bytes: u32) -> Head {
        let mut head = Head::new();
        let Some(offset) = self.extended else {
            head.push(&chunk_header(self.handle, kind, done, len_bytes));
            return head;
        };
        head.push(&EXTENDED_CHUNK_MAGIC.to_be_bytes());
        head.push(&(if done { DONE } else { 0 }).to_be_bytes());
        head.push(&kind.0.to_be_bytes());
        head.push(&self.handle.to_be_bytes());
        head.push(&offset.to_be_bytes());
        head.push(&u64::from(len_bytes).to_be_bytes());
        head
    }

    /// Encodes the end of a reply without a payload.
    #[must_use]
    pub fn done(self) -> Head {
        if self.extended.is_some() {
            return self.chunk(ChunkType::NONE, true, 0);
        }
        let mut head = Head::new();
        head.push(&simple_reply(self.handle, NbdErrno::OK));
        head
    }
}

/// Appends the final chunk of a request that failed.
pub fn put_error_chunk(out: &mut Vec<u8>, to: ReplyTo, error: NbdErrno, message: &str) {
    let message = super::option::cut(message);
    let len_bytes = 6 + message.len() as u32;
    out.extend_from_slice(&to.chunk(ChunkType::ERROR, true, len_bytes));
    out.extend_from_slice(&error.0.to_be_bytes());
    out.extend_from_slice(&(message.len() as u16).to_be_bytes());
    out.extend_from_slice(message.as_bytes());
}

/// A run of bytes and its flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// Length in bytes, not 0; below 2^32 without extended headers, as the flags.
    pub len_bytes: u64,
    /// Flags, whose meaning depends on the context.
    pub flags: u64,
}

/// Appends a final chunk of extents in one context. There are few enough for a chunk.
pub fn put_block_status(out: &mut Vec<u8>, to: ReplyTo, context: u32, extents: &[Descriptor]) {
    let count = extents.len() as u32;
    if to.extended.is_some() {
        out.extend_from_slice(&to.chunk(ChunkType::BLOCK_STATUS_EXT, true, 8 + 16 * count));
        out.extend_from_slice(&context.to_be_bytes());
        out.extend_from_slice(&count.to_be_bytes());
        for extent in extents {
            out.extend_from_slice(&extent.len_bytes.to_be_bytes());
            out.extend_from_slice(&extent.flags.to_be_bytes());
        }
        return;
    }
    out.extend_from_slice(&to.chunk(ChunkType::BLOCK_STATUS, true, 4 + 8 * count));
    out.extend_from_slice(&context.to_be_bytes());
    for extent in extents {
        debug_assert!(extent.len_bytes.max(extent.flags) <= u32::MAX.into());
        out.extend_from_slice(&(extent.len_bytes as u32).to_be_bytes());
        out.extend_from_slice(&(extent.flags as u32).to_be_bytes());
    }
}

/// The agreed style of replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyStyle {
    /// Simple replies only.
    Simple,
    /// Chunks, and simple replies without data.
    Structured,
    /// Chunks with extended headers only.
    Extended,
}

/// The header of a reply, of either kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyHeader {
    /// A simple reply. The data of a successful read follows.
    Simple {
        /// The handle of the request.
        handle: u64,
        /// The result of the request.
        error: NbdErrno,
    },
    /// A chunk, with `len_bytes` of payload after it.
    Chunk {
        /// The handle of the request.
        handle: u64,
        /// The type of the payload.
        kind: ChunkType,
        /// The chunk is the last of this request.
        done: bool,
        /// Bytes of payload.
        len_bytes: u64,
    },
}

impl ReplyHeader {
    /// Returns the length of a header with this magic number, in bytes.
    ///
    /// # Errors
    /// [`WireError`] for a wrong magic number, or a style that was not agreed on.
    pub fn len_bytes(magic: [u8; 4], style: ReplyStyle) -> Result<usize, WireError> {
        match (u32::from_be_bytes(magic), style) {
            (SIMPLE_REPLY_MAGIC, ReplyStyle::Simple | ReplyStyle::Structured) => {
                Ok(SIMPLE_REPLY_BYTES)
            }
            (CHUNK_MAGIC, ReplyStyle::Structured) => Ok(CHUNK_HEADER_BYTES),
            (EXTENDED_CHUNK_MAGIC, ReplyStyle::Extended) => Ok(EXTENDED_HEADER_BYTES),
            (SIMPLE_REPLY_MAGIC | CHUNK_MAGIC | EXTENDED_CHUNK_MAGIC, _) => {
                Err(WireError::new("a reply of a style that was not agreed on"))
            }
            (other, _) => Err(WireError(format!("a reply begins with {other:#010x}"))),
        }
    }

    /// Decodes a whole header.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let mut cursor = Cursor::new("a reply", bytes);
        let header = match cursor.u32()? {
            SIMPLE_REPLY_MAGIC => {
                let error = NbdErrno(cursor.u32()?);
                Self::Simple { handle: cursor.u64()?, error }
            }
            CHUNK_MAGIC => {
                let done = cursor.u16()? & DONE != 0;
                let kind = ChunkType(cursor.u16()?);
                let (handle, len_bytes) = (cursor.u64()?, cursor.u32()?.into());
                Self::Chunk { handle, kind, done, len_bytes }
            }
            EXTENDED_CHUNK_MAGIC => {
                let done = cursor.u16()? & DONE != 0;
                let kind = ChunkType(cursor.u16()?);
                // The request's offset, which the client knows.
                let (handle, _) = (cursor.u64()?, cursor.u64()?);
                Self::Chunk { handle, kind, done, len_bytes: cursor.u64()? }
            }
            other => return Err(WireError(format!("a reply begins with {other:#010x}"))),
        };
        cursor.end()?;
        Ok(header)
    }
}

/// The payload of a chunk, except for data, which is not copied through here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chunk {
    /// Nothing.
    None,
    /// Zeroes.
    Hole {
        /// The offset on the export, in bytes.
        offset: u64,
        /// The number of bytes, not 0.
        len_bytes: u32,
    },
    /// Extents of one context.
    BlockStatus {
        /// The context's number.
        context: u32,
        /// The extents, at least one, none empty.
        extents: Vec<Descriptor>,
    },
    /// The request failed.
    Error {
        /// The errno of the protocol.
        error: NbdErrno,
        /// A message for people.
        message: String,
        /// The offset of the failure, if the server sends it.
        offset: Option<u64>,
    },
}

impl Chunk {
    /// The longest payload of any chunk but data; a longer one need not be read.
    pub const MAX_BYTES: u32 = 1 << 20;

    /// Decodes the payload.
    ///
    /// # Errors
    /// [`WireError`], also for [`ChunkType::OFFSET_DATA`]; the session must end.
    pub fn parse(kind: ChunkType, done: bool, payload: &[u8]) -> Result<Self, WireError> {
        let mut cursor = Cursor::new("a chunk", payload);
        let chunk = match kind {
            ChunkType::NONE if done => Self::None,
            ChunkType::OFFSET_HOLE => {
                let (offset, len_bytes) = (cursor.u64()?, cursor.u32()?);
                if len_bytes == 0 {
                    return Err(WireError::new("a hole of no length"));
                }
                Self::Hole { offset, len_bytes }
            }
            ChunkType::BLOCK_STATUS => {
                let context = cursor.u32()?;
                let mut extents = Vec::with_capacity(cursor.rest.len() / 8);
                while !cursor.rest.is_empty() {
                    let (len_bytes, flags) = (cursor.u32()?.into(), cursor.u32()?.into());
                    extents.push(Descriptor { len_bytes, flags });
                }
                Self::BlockStatus { context, extents: sound(extents)? }
            }
            ChunkType::BLOCK_STATUS_EXT => {
                let (context, count) = (cursor.u32()?, cursor.u32()?);
                let mut extents = Vec::with_capacity(cursor.rest.len() / 16);
                while !cursor.rest.is_empty() {
                    extents.push(Descriptor { len_bytes: cursor.u64()?, flags: cursor.u64()? });
                }
                if extents.len() as u64 != u64::from(count) {
                    let there = extents.len();
                    return Err(WireError(format!("{count} extents announced, {there} there")));
                }
                Self::BlockStatus { context, extents: sound(extents)? }
            }
            kind if kind.is_error() => {
                let error = NbdErrno(cursor.u32()?);
                let len_bytes = usize::from(cursor.u16()?);
                let text = cursor.take(len_bytes)?;
                let text = &text[..text.len().min(STRING_MAX_BYTES)];
                let message = String::from_utf8_lossy(text).into_owned();
                if error == NbdErrno::OK {
                    return Err(WireError::new("an error chunk without an error"));
                }
                let offset = match kind {
                    ChunkType::ERROR_OFFSET => Some(cursor.u64()?),
                    _ => None,
                };
                // An error of an unknown type may have further fields.
                return Ok(Self::Error { error, message, offset });
            }
            other => return Err(WireError(format!("an unexpected chunk of type {other:?}"))),
        };
        cursor.end()?;
        Ok(chunk)
    }
}

/// Checks that there are extents, and none of them is empty.
fn sound(extents: Vec<Descriptor>) -> Result<Vec<Descriptor>, WireError> {
    if extents.is_empty() {
        return Err(WireError::new("a block status without extents"));
    }
    if extents.iter().any(|extent| extent.len_bytes == 0) {
        return Err(WireError::new("an extent of no length"));
    }
    Ok(extents)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn requests_survive_the_wire(
            flags: u16, command: u16, handle: u64, offset: u64, len_bytes: u64, extended: bool,
        ) {
            let flags = CommandFlags::from_bits_retain(flags);
            let len_bytes = if extended { len_bytes } else { len_bytes >> 32 };
            let request = Request { flags, command: Command(command), handle, offset, len_bytes };
            let bytes = request.encode(extended);
            prop_assert_eq!(bytes.len(), Request::header_bytes(extended));
            prop_assert_eq!(Request::parse(&bytes, extended).unwrap(), request);
            prop_assert!(Request::parse(&bytes, !extended).is_err());
        }

        #[test]
        fn replies_survive_the_wire(
            handle: u64, error in 1..200_u32, message in "[^\0]{0,60}",
            context: u32, extents in prop::collection::vec((1..u32::MAX, any::<u32>()), 1..20),
            extended in proptest::option::of(any::<u64>()),
        ) {
            let simple = simple_reply(handle, NbdErrno(error));
            prop_assert_eq!(
                ReplyHeader::parse(&simple).unwrap(),
                ReplyHeader::Simple { handle, error: NbdErrno(error) }
            );
            let mut bytes = Vec::new();
            let to = ReplyTo { handle, extended };
            let (style, head_bytes) = match extended {
                Some(_) => (ReplyStyle::Extended, EXTENDED_HEADER_BYTES),
                None => (ReplyStyle::Structured, CHUNK_HEADER_BYTES),
            };
            put_error_chunk(&mut bytes, to, NbdErrno(error), &message);
            let magic = [bytes[0], bytes[1], bytes[2], bytes[3]];
            prop_assert_eq!(ReplyHeader::len_bytes(magic, style).unwrap(), head_bytes);
            let (header, payload) = bytes.split_at(head_bytes);
            let kind = ChunkType::ERROR;
            let len_bytes = payload.len() as u64;
            prop_assert_eq!(
                ReplyHeader::parse(header).unwrap(),
                ReplyHeader::Chunk { handle, kind, done: true, len_bytes }
            );
            let want = Chunk::Error { error: NbdErrno(error), message, offset: None };
            prop_assert_eq!(Chunk::parse(kind, true, payload).unwrap(), want);

            let extents: Vec<Descriptor> = extents
                .into_iter()
                .map(|(len_bytes, flags)| {
                    // Lengths beyond 32 bits if the headers are extended.
                    let (len_bytes, flags) = (u64::from(len_bytes), u64::from(flags));
                    let shift = if extended.is_some() { 31 } else { 0 };
                    Descriptor { len_bytes: len_bytes << shift, flags: flags << shift }
                })
                .collect();
            let mut bytes = Vec::new();
            put_block_status(&mut bytes, to, context, &extents);
            let Ok(ReplyHeader::Chunk { kind, len_bytes, .. }) =
                ReplyHeader::parse(&bytes[..head_bytes]) else { panic!("a chunk") };
            prop_assert_eq!(len_bytes, (bytes.len() - head_bytes) as u64);
            let got = Chunk::parse(kind, true, &bytes[head_bytes..]);
            prop_assert_eq!(got.unwrap(), Chunk::BlockStatus { context, extents });
        }

        #[test]
        fn any_payload_is_parsed_or_refused(kind: u16, done: bool, payload: Vec<u8>) {
            let _ = Chunk::parse(ChunkType(kind), done, &payload);
            let _ = ReplyHeader::parse(&payload);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(Chunk::parse(ChunkType::NONE, false, &[]).is_err(), "it must be the last");
        assert!(Chunk::parse(ChunkType::OFFSET_HOLE, true, &[0; 12]).is_err(), "an empty hole");
        assert!(Chunk::parse(ChunkType::BLOCK_STATUS, true, &[0; 4]).is_err(), "no extent");
        assert!(Chunk::parse(ChunkType::ERROR, true, &[0, 0, 0, 5, 0, 9]).is_err(), "cut short");
        assert!(Chunk::parse(ChunkType(9), true, &[]).is_err(), "an unknown type");
        assert!(Chunk::parse(ChunkType(0x8009), true, &[0, 0, 0, 5, 0, 0, 1]).is_ok());
        let status = [0, 0, 0, 1, 0, 0, 0, 2].into_iter().chain([1; 16]);
        let status: Vec<u8> = status.collect();
        assert!(Chunk::parse(ChunkType::BLOCK_STATUS_EXT, true, &status).is_err(), "one of two");
        let len_bytes = |magic: u32, style| ReplyHeader::len_bytes(magic.to_be_bytes(), style);
        use ReplyStyle::{Extended, Simple, Structured};
        assert!(len_bytes(CHUNK_MAGIC, Simple).is_err());
        assert!(len_bytes(CHUNK_MAGIC, Extended).is_err());
        assert!(len_bytes(SIMPLE_REPLY_MAGIC, Extended).is_err());
        assert!(len_bytes(EXTENDED_CHUNK_MAGIC, Structured).is_err());
        assert_eq!(len_bytes(CHUNK_MAGIC, Structured), Ok(CHUNK_HEADER_BYTES));
    }
}
