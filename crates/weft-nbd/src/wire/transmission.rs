//! The transmission phase: requests, simple replies, chunks of structured replies.

use super::{
    CHUNK_MAGIC, ChunkType, Command, CommandFlags, Cursor, NbdErrno, REQUEST_MAGIC,
    SIMPLE_REPLY_MAGIC, STRING_MAX_BYTES, WireError,
};

/// Length of a [`Request`] without its payload.
pub const REQUEST_BYTES: usize = 28;
/// Length of a simple reply without its payload.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Length of a chunk without its payload.
pub const CHUNK_HEADER_BYTES: usize = 20;

/// `NBD_REPLY_FLAG_DONE`.
const DONE: u16 = 1;

/// A request. `len_bytes` of data follow if it is a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// How.
    pub flags: CommandFlags,
    /// What.
    pub command: Command,
    /// The client's name for it, which comes back with the reply.
    pub handle: u64,
    /// Where, in bytes.
    pub offset: u64,
    /// How much, in bytes.
    pub len_bytes: u32,
}

impl Request {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut out = [0; REQUEST_BYTES];
        out[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        out[4..6].copy_from_slice(&self.flags.bits().to_be_bytes());
        out[6..8].copy_from_slice(&self.command.0.to_be_bytes());
        out[8..16].copy_from_slice(&self.handle.to_be_bytes());
        out[16..24].copy_from_slice(&self.offset.to_be_bytes());
        out[24..].copy_from_slice(&self.len_bytes.to_be_bytes());
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// [`WireError`] for a wrong magic number: the session must end.
    pub fn parse(bytes: &[u8; REQUEST_BYTES]) -> Result<Self, WireError> {
        let mut cursor = Cursor::new("a request", bytes);
        if cursor.u32()? != REQUEST_MAGIC {
            return Err(WireError::new("a request does not begin with its magic number"));
        }
        Ok(Self {
            flags: CommandFlags::from_bits_retain(cursor.u16()?),
            command: Command(cursor.u16()?),
            handle: cursor.u64()?,
            offset: cursor.u64()?,
            len_bytes: cursor.u32()?,
        })
    }
}

/// A simple reply as bytes. The data of a read follows it.
#[must_use]
pub fn simple_reply(handle: u64, error: NbdErrno) -> [u8; SIMPLE_REPLY_BYTES] {
    let mut out = [0; SIMPLE_REPLY_BYTES];
    out[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    out[4..8].copy_from_slice(&error.0.to_be_bytes());
    out[8..].copy_from_slice(&handle.to_be_bytes());
    out
}

/// The header of a chunk as bytes. `len_bytes` of payload follow it.
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

/// Appends the final chunk of a request that failed.
pub fn put_error_chunk(out: &mut Vec<u8>, handle: u64, error: NbdErrno, message: &str) {
    let message = super::option::cut(message);
    let len_bytes = 6 + message.len() as u32;
    out.extend_from_slice(&chunk_header(handle, ChunkType::ERROR, true, len_bytes));
    out.extend_from_slice(&error.0.to_be_bytes());
    out.extend_from_slice(&(message.len() as u16).to_be_bytes());
    out.extend_from_slice(message.as_bytes());
}

/// A run of bytes and what is known of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// Length in bytes, not 0.
    pub len_bytes: u32,
    /// Flags, whose meaning is the context's.
    pub flags: u32,
}

/// Appends a final chunk of extents in one context.
pub fn put_block_status(out: &mut Vec<u8>, handle: u64, context: u32, extents: &[Descriptor]) {
    let len_bytes = 4 + 8 * extents.len() as u32;
    out.extend_from_slice(&chunk_header(handle, ChunkType::BLOCK_STATUS, true, len_bytes));
    out.extend_from_slice(&context.to_be_bytes());
    for extent in extents {
        out.extend_from_slice(&extent.len_bytes.to_be_bytes());
        out.extend_from_slice(&extent.flags.to_be_bytes());
    }
}

/// The header of a reply, of either kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyHeader {
    /// A simple reply. The data of a read that worked follows.
    Simple {
        /// Which request.
        handle: u64,
        /// How it went.
        error: NbdErrno,
    },
    /// A chunk, with `len_bytes` of payload behind it.
    Chunk {
        /// Which request.
        handle: u64,
        /// What the payload is.
        kind: ChunkType,
        /// Whether it is the last of this request.
        done: bool,
        /// Bytes of payload.
        len_bytes: u32,
    },
}

impl ReplyHeader {
    /// How long a header with this magic number is, in bytes.
    ///
    /// # Errors
    /// [`WireError`] for a wrong magic number, or a chunk where none was agreed on.
    pub fn len_bytes(magic: [u8; 4], structured: bool) -> Result<usize, WireError> {
        match u32::from_be_bytes(magic) {
            SIMPLE_REPLY_MAGIC => Ok(SIMPLE_REPLY_BYTES),
            CHUNK_MAGIC if structured => Ok(CHUNK_HEADER_BYTES),
            CHUNK_MAGIC => Err(WireError::new("a structured reply, which was not agreed on")),
            other => Err(WireError(format!("a reply begins with {other:#010x}"))),
        }
    }

    /// From the bytes of a whole header.
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
                Self::Chunk { handle: cursor.u64()?, kind, done, len_bytes: cursor.u32()? }
            }
            other => return Err(WireError(format!("a reply begins with {other:#010x}"))),
        };
        cursor.end()?;
        Ok(header)
    }
}

/// The payload of a chunk other than data, which is not copied through here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chunk {
    /// Nothing.
    None,
    /// Zeroes.
    Hole {
        /// Where on the export, in bytes.
        offset: u64,
        /// How many, not 0.
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
        /// Why.
        error: NbdErrno,
        /// Why, for people.
        message: String,
        /// Where, if the server says.
        offset: Option<u64>,
    },
}

impl Chunk {
    /// The longest payload that any chunk but data can have; a longer one need not be read.
    pub const MAX_BYTES: u32 = 1 << 20;

    /// From the payload.
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
                    let extent = Descriptor { len_bytes: cursor.u32()?, flags: cursor.u32()? };
                    if extent.len_bytes == 0 {
                        return Err(WireError::new("an extent of no length"));
                    }
                    extents.push(extent);
                }
                if extents.is_empty() {
                    return Err(WireError::new("a block status without extents"));
                }
                Self::BlockStatus { context, extents }
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
                // An error of a kind that is not known may say more.
                return Ok(Self::Error { error, message, offset });
            }
            other => return Err(WireError(format!("an unexpected chunk of type {other:?}"))),
        };
        cursor.end()?;
        Ok(chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn requests_survive_the_wire(
            flags: u16, command: u16, handle: u64, offset: u64, len_bytes: u32
        ) {
            let flags = CommandFlags::from_bits_retain(flags);
            let request = Request { flags, command: Command(command), handle, offset, len_bytes };
            prop_assert_eq!(Request::parse(&request.encode()).unwrap(), request);
        }

        #[test]
        fn replies_survive_the_wire(
            handle: u64, error in 1..200_u32, message in "[^\0]{0,60}",
            context: u32, extents in prop::collection::vec((1..u32::MAX, any::<u32>()), 1..20),
        ) {
            let simple = simple_reply(handle, NbdErrno(error));
            prop_assert_eq!(
                ReplyHeader::parse(&simple).unwrap(),
                ReplyHeader::Simple { handle, error: NbdErrno(error) }
            );
            let mut bytes = Vec::new();
            put_error_chunk(&mut bytes, handle, NbdErrno(error), &message);
            let (header, payload) = bytes.split_at(CHUNK_HEADER_BYTES);
            let kind = ChunkType::ERROR;
            let len_bytes = payload.len() as u32;
            prop_assert_eq!(
                ReplyHeader::parse(header).unwrap(),
                ReplyHeader::Chunk { handle, kind, done: true, len_bytes }
            );
            let want = Chunk::Error { error: NbdErrno(error), message, offset: None };
            prop_assert_eq!(Chunk::parse(kind, true, payload).unwrap(), want);

            let extents: Vec<Descriptor> = extents
                .into_iter()
                .map(|(len_bytes, flags)| Descriptor { len_bytes, flags })
                .collect();
            let mut bytes = Vec::new();
            put_block_status(&mut bytes, handle, context, &extents);
            let got = Chunk::parse(ChunkType::BLOCK_STATUS, true, &bytes[CHUNK_HEADER_BYTES..]);
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
        let chunk = CHUNK_MAGIC.to_be_bytes();
        assert!(ReplyHeader::len_bytes(chunk, false).is_err());
        assert_eq!(ReplyHeader::len_bytes(chunk, true), Ok(CHUNK_HEADER_BYTES));
    }
}
