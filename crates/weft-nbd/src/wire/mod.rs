//! The wire format, apart from any I/O: numbers, and functions between bytes and values.
//!
//! Source: NetworkBlockDevice/nbd, `doc/proto.md`. Every number is big-endian. No length is
//! trusted: parsing takes a slice, and bytes that do not fit it are a [`WireError`].

mod option;
mod transmission;

pub(crate) use option::put_string;
pub use option::{
    BlockSizes, ClientHello, GoRequest, Info, MetaQueries, OPTION_HEADER_BYTES,
    OPTION_REPLY_HEADER_BYTES, OptionHeader, OptionReplyHeader, SERVER_HELLO_BYTES, ServerHello,
    export_name_reply, parse_meta_context, parse_server_entry,
};
pub use transmission::{
    CHUNK_HEADER_BYTES, Chunk, Descriptor, EXTENDED_HEADER_BYTES, Head, REQUEST_BYTES, ReplyHeader,
    ReplyStyle, ReplyTo, Request, SIMPLE_REPLY_BYTES, chunk_header, put_block_status,
    put_error_chunk, simple_reply,
};

use bitflags::bitflags;

/// The port assigned to NBD by IANA.
pub const PORT: u16 = 10809;
/// The longest string the protocol allows, in bytes.
pub const STRING_MAX_BYTES: usize = 4096;
/// The payload that every client may send and every server must accept in one request, in bytes.
pub const PAYLOAD_MAX_BYTES: u32 = 32 << 20;

/// The longest payload that a server accepts from a client that does not know its block sizes. The
/// protocol limits such a client to [`PAYLOAD_MAX_BYTES`]; old ones exceed it, and the reference
/// server accepts their requests.
pub const PAYLOAD_UNTOLD_MAX_BYTES: u32 = 2 * PAYLOAD_MAX_BYTES;
/// The name of the metadata context that distinguishes holes from data.
pub const BASE_ALLOCATION: &str = "base:allocation";

/// `NBDMAGIC`, the first bytes of a server.
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`: newstyle, and the beginning of each option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// The beginning of each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// The beginning of each request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// The beginning of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// The beginning of a chunk of a structured reply.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;
/// The beginning of each request with an extended header.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// The beginning of a chunk with an extended header.
pub const EXTENDED_CHUNK_MAGIC: u32 = 0x6e8a_278c;

/// Bytes that are not valid NBD.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WireError(pub String);

impl WireError {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

bitflags! {
    /// Handshake flags, of the server.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct HandshakeFlags: u16 {
        /// Options get replies.
        const FIXED_NEWSTYLE = 1 << 0;
        /// The 124 zeroes after `EXPORT_NAME` can be left out.
        const NO_ZEROES = 1 << 1;
    }

    /// Handshake flags, of the client.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ClientFlags: u32 {
        /// Options get replies.
        const FIXED_NEWSTYLE = 1 << 0;
        /// The 124 zeroes after `EXPORT_NAME` are left out.
        const NO_ZEROES = 1 << 1;
    }

    /// The features of an export.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct TransmissionFlags: u16 {
        /// Always set.
        const HAS_FLAGS = 1 << 0;
        /// Writes are refused.
        const READ_ONLY = 1 << 1;
        /// `FLUSH` is supported.
        const SEND_FLUSH = 1 << 2;
        /// The command flag `FUA` is supported.
        const SEND_FUA = 1 << 3;
        /// The device is slow to seek.
        const ROTATIONAL = 1 << 4;
        /// `TRIM` is supported.
        const SEND_TRIM = 1 << 5;
        /// `WRITE_ZEROES` and its flag `NO_HOLE` are supported.
        const SEND_WRITE_ZEROES = 1 << 6;
        /// The command flag `DF` is supported.
        const SEND_DF = 1 << 7;
        /// A flush on one connection covers the writes on all.
        const CAN_MULTI_CONN = 1 << 8;
        /// `CACHE` is supported.
        const SEND_CACHE = 1 << 10;
        /// The command flag `FAST_ZERO` is supported.
        const SEND_FAST_ZERO = 1 << 11;
        const _ = !0;
    }

    /// Flags of a request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct CommandFlags: u16 {
        /// The written data is durable before the reply.
        const FUA = 1 << 0;
        /// `WRITE_ZEROES` keeps the space.
        const NO_HOLE = 1 << 1;
        /// `READ` is answered in one piece.
        const DF = 1 << 2;
        /// `BLOCK_STATUS` is answered with one extent.
        const REQ_ONE = 1 << 3;
        /// `WRITE_ZEROES` fails rather than being as slow as a write.
        const FAST_ZERO = 1 << 4;
        /// The length of an extended header is that of a payload.
        const PAYLOAD_LEN = 1 << 5;
        const _ = !0;
    }

    /// Flags of an extent in the context `base:allocation`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct StateFlags: u64 {
        /// No space is allocated.
        const HOLE = 1 << 0;
        /// The extent reads as zeroes.
        const ZERO = 1 << 1;
        const _ = !0;
    }
}

/// A number on the wire, with names for the values that the protocol defines.
macro_rules! wire_numbers {
    ($(#[$doc:meta])* $name:ident: $repr:ty { $($(#[$vdoc:meta])* $value:ident = $number:expr,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $repr);

        impl $name {
            $($(#[$vdoc])* pub const $value: Self = Self($number);)*
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match *self {
                    $(Self::$value => f.write_str(stringify!($value)),)*
                    Self(other) => write!(f, "{other:#x}"),
                }
            }
        }
    };
}

wire_numbers! {
    /// The type of an option.
    OptionType: u32 {
        /// Use an export, without a reply if that fails.
        EXPORT_NAME = 1,
        /// End the session.
        ABORT = 2,
        /// List the exports.
        LIST = 3,
        /// Continue under TLS.
        STARTTLS = 5,
        /// Describe an export.
        INFO = 6,
        /// Use an export.
        GO = 7,
        /// Answer reads in chunks.
        STRUCTURED_REPLY = 8,
        /// List metadata contexts.
        LIST_META_CONTEXT = 9,
        /// Choose metadata contexts.
        SET_META_CONTEXT = 10,
        /// Lengths of 64 bits, in requests and replies.
        EXTENDED_HEADERS = 11,
    }
}

wire_numbers! {
    /// The type of a reply to an option.
    OptionReplyType: u32 {
        /// Done.
        ACK = 1,
        /// An export.
        SERVER = 2,
        /// An [`Info`] about an export.
        INFO = 3,
        /// A metadata context.
        META_CONTEXT = 4,
        /// The option is unknown.
        ERR_UNSUP = 0x8000_0001,
        /// The option is forbidden.
        ERR_POLICY = 0x8000_0002,
        /// The option is invalid.
        ERR_INVALID = 0x8000_0003,
        /// The option is not supported here.
        ERR_PLATFORM = 0x8000_0004,
        /// TLS must be started first.
        ERR_TLS_REQD = 0x8000_0005,
        /// There is no such export.
        ERR_UNKNOWN = 0x8000_0006,
        /// The server is going down.
        ERR_SHUTDOWN = 0x8000_0007,
        /// Block sizes must be requested.
        ERR_BLOCK_SIZE_REQD = 0x8000_0008,
        /// The request or its reply is too large.
        ERR_TOO_BIG = 0x8000_0009,
        /// Extended headers were agreed on, and the option is not allowed with them.
        ERR_EXT_HEADER_REQD = 0x8000_000a,
    }
}

impl OptionReplyType {
    /// Returns true if the option failed.
    #[must_use]
    pub fn is_error(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }
}

wire_numbers! {
    /// The kind of an [`Info`].
    InfoType: u16 {
        /// Size and transmission flags.
        EXPORT = 0,
        /// The export's name as the server has it.
        NAME = 1,
        /// A description for people.
        DESCRIPTION = 2,
        /// Block sizes.
        BLOCK_SIZE = 3,
    }
}

wire_numbers! {
    /// The type of a request.
    Command: u16 {
        /// Read.
        READ = 0,
        /// Write.
        WRITE = 1,
        /// End the session.
        DISC = 2,
        /// Make all completed writes durable.
        FLUSH = 3,
        /// Content is no longer needed.
        TRIM = 4,
        /// Content will soon be read.
        CACHE = 5,
        /// Write zeroes.
        WRITE_ZEROES = 6,
        /// Distinguish holes from data.
        BLOCK_STATUS = 7,
    }
}

wire_numbers! {
    /// The kind of a chunk.
    ChunkType: u16 {
        /// Nothing; the end.
        NONE = 0,
        /// Data.
        OFFSET_DATA = 1,
        /// Zeroes.
        OFFSET_HOLE = 2,
        /// Extents.
        BLOCK_STATUS = 5,
        /// Extents whose lengths have 64 bits.
        BLOCK_STATUS_EXT = 6,
        /// An error.
        ERROR = 0x8001,
        /// An error at an offset.
        ERROR_OFFSET = 0x8002,
    }
}

impl ChunkType {
    /// Returns true if the request failed.
    #[must_use]
    pub fn is_error(self) -> bool {
        self.0 & 0x8000 != 0
    }
}

wire_numbers! {
    /// The reason why a request failed.
    NbdErrno: u32 {
        /// Success.
        OK = 0,
        /// A change to a read-only export.
        EPERM = 1,
        /// The medium failed.
        EIO = 5,
        /// No memory.
        ENOMEM = 12,
        /// The request is invalid.
        EINVAL = 22,
        /// No space, or an offset past the end.
        ENOSPC = 28,
        /// The reply does not fit in one piece.
        EOVERFLOW = 75,
        /// Zeroing would not be faster than a write.
        ENOTSUP = 95,
        /// The server is going down.
        ESHUTDOWN = 108,
    }
}

/// Reads big-endian numbers and strings off the front of a slice.
struct Cursor<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Cursor<'a> {
    fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { rest: bytes, what }
    }

    fn take(&mut self, len_bytes: usize) -> Result<&'a [u8], WireError> {
        match self.rest.split_at_checked(len_bytes) {
            Some((head, rest)) => {
                self.rest = rest;
                Ok(head)
            }
            None => Err(WireError(format!(
                "{} is cut short: {len_bytes} more bytes expected, {} are there",
                self.what,
                self.rest.len()
            ))),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_be_bytes)
    }

    /// Reads a string of `len_bytes` bytes: no more than the protocol allows, UTF-8, no NUL.
    fn string(&mut self, len_bytes: usize) -> Result<&'a str, WireError> {
        if len_bytes > STRING_MAX_BYTES {
            return Err(WireError(format!("{} has a string of {len_bytes} bytes", self.what)));
        }
        let bytes = self.take(len_bytes)?;
        match std::str::from_utf8(bytes) {
            Ok(text) if !text.contains('\0') => Ok(text),
            _ => Err(WireError(format!("{} has a string that is not UTF-8 text", self.what))),
        }
    }

    /// Reads a string with its length before it.
    fn counted_string(&mut self) -> Result<&'a str, WireError> {
        let len_bytes = self.u32()?;
        self.string(usize::try_from(len_bytes).unwrap_or(usize::MAX))
    }

    fn end(self) -> Result<(), WireError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(WireError(format!("{} is {} bytes too long", self.what, self.rest.len())))
    }
}
