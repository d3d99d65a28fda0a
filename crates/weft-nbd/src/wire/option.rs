//! The handshake: greetings, options, replies to options.

use super::{
    ClientFlags, Cursor, HandshakeFlags, INIT_MAGIC, InfoType, OPTION_MAGIC, OPTION_REPLY_MAGIC,
    OptionReplyType, OptionType, STRING_MAX_BYTES, TransmissionFlags, WireError,
};

/// Length of a [`ServerHello`].
pub const SERVER_HELLO_BYTES: usize = 18;
/// Length of an [`OptionHeader`].
pub const OPTION_HEADER_BYTES: usize = 16;
/// Length of an [`OptionReplyHeader`].
pub const OPTION_REPLY_HEADER_BYTES: usize = 20;

/// The first message of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerHello {
    /// The handshake features of the server.
    pub flags: HandshakeFlags,
}

impl ServerHello {
    /// Encodes the message.
    #[must_use]
    pub fn encode(self) -> [u8; SERVER_HELLO_BYTES] {
        let mut out = [0; SERVER_HELLO_BYTES];
        out[..8].copy_from_slice(&INIT_MAGIC.to_be_bytes());
        out[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        out[16..].copy_from_slice(&self.flags.bits().to_be_bytes());
        out
    }

    /// Decodes the message.
    ///
    /// # Errors
    /// [`WireError`] if the peer is no NBD server, or one of the old style.
    pub fn parse(bytes: &[u8; SERVER_HELLO_BYTES]) -> Result<Self, WireError> {
        let mut cursor = Cursor::new("the greeting", bytes);
        if cursor.u64()? != INIT_MAGIC {
            return Err(WireError::new("not an NBD server"));
        }
        if cursor.u64()? != OPTION_MAGIC {
            return Err(WireError::new("the server supports only the old NBD handshake"));
        }
        Ok(Self { flags: HandshakeFlags::from_bits_truncate(cursor.u16()?) })
    }
}

/// The first message of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientHello {
    /// The handshake features of the client.
    pub flags: ClientFlags,
}

impl ClientHello {
    /// Encodes the message.
    #[must_use]
    pub fn encode(self) -> [u8; 4] {
        self.flags.bits().to_be_bytes()
    }

    /// Decodes the message.
    ///
    /// # Errors
    /// [`WireError`] for a flag that does not exist: the session must end.
    pub fn parse(bytes: [u8; 4]) -> Result<Self, WireError> {
        let bits = u32::from_be_bytes(bytes);
        match ClientFlags::from_bits(bits) {
            Some(flags) => Ok(Self { flags }),
            None => Err(WireError(format!("the client set unknown flags: {bits:#x}"))),
        }
    }
}

/// The header of an option; `len_bytes` of data follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionHeader {
    /// The type of the option.
    pub option: OptionType,
    /// Bytes of data that follow.
    pub len_bytes: u32,
}

impl OptionHeader {
    /// Encodes the header.
    #[must_use]
    pub fn encode(self) -> [u8; OPTION_HEADER_BYTES] {
        let mut out = [0; OPTION_HEADER_BYTES];
        out[..8].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        out[8..12].copy_from_slice(&self.option.0.to_be_bytes());
        out[12..].copy_from_slice(&self.len_bytes.to_be_bytes());
        out
    }

    /// Decodes the header.
    ///
    /// # Errors
    /// [`WireError`] for a wrong magic number: the session must end.
    pub fn parse(bytes: &[u8; OPTION_HEADER_BYTES]) -> Result<Self, WireError> {
        let mut cursor = Cursor::new("an option", bytes);
        if cursor.u64()? != OPTION_MAGIC {
            return Err(WireError::new("an option does not begin with its magic number"));
        }
        Ok(Self { option: OptionType(cursor.u32()?), len_bytes: cursor.u32()? })
    }
}

/// The header of a reply to an option; `len_bytes` of data follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionReplyHeader {
    /// The option that is answered.
    pub option: OptionType,
    /// The type of the reply.
    pub reply: OptionReplyType,
    /// Bytes of data that follow.
    pub len_bytes: u32,
}

impl OptionReplyHeader {
    /// Appends a whole reply.
    pub fn put(out: &mut Vec<u8>, option: OptionType, reply: OptionReplyType, data: &[u8]) {
        out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
        out.extend_from_slice(&option.0.to_be_bytes());
        out.extend_from_slice(&reply.0.to_be_bytes());
        // Replies are made of strings of at most 4 KiB.
        out.extend_from_slice(&(data.len() as u32).to_be_bytes());
        out.extend_from_slice(data);
    }

    /// Decodes the header.
    ///
    /// # Errors
    /// [`WireError`] for a wrong magic number.
    pub fn parse(bytes: &[u8; OPTION_REPLY_HEADER_BYTES]) -> Result<Self, WireError> {
        let mut cursor = Cursor::new("a reply to an option", bytes);
        if cursor.u64()? != OPTION_REPLY_MAGIC {
            return Err(WireError::new("a reply to an option has a wrong magic number"));
        }
        Ok(Self {
            option: OptionType(cursor.u32()?),
            reply: OptionReplyType(cursor.u32()?),
            len_bytes: cursor.u32()?,
        })
    }
}

/// The data of `INFO` and `GO`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoRequest {
    /// The export.
    pub name: String,
    /// The requested information, besides size and flags.
    pub wants: Vec<InfoType>,
}

impl GoRequest {
    /// Encodes the data.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(6 + self.name.len() + 2 * self.wants.len());
        put_string(&mut out, &self.name);
        out.extend_from_slice(&(self.wants.len() as u16).to_be_bytes());
        for want in &self.wants {
            out.extend_from_slice(&want.0.to_be_bytes());
        }
        out
    }

    /// Decodes the data.
    ///
    /// # Errors
    /// [`WireError`]; the option fails with `ERR_INVALID`.
    pub fn parse(data: &[u8]) -> Result<Self, WireError> {
        let mut cursor = Cursor::new("a request for an export", data);
        let name = cursor.counted_string()?.to_owned();
        let count = cursor.u16()?;
        let wants = (0..count).map(|_| cursor.u16().map(InfoType)).collect::<Result<_, _>>()?;
        cursor.end()?;
        Ok(Self { name, wants })
    }
}

/// The data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaQueries {
    /// The export.
    pub name: String,
    /// The requested contexts.
    pub queries: Vec<String>,
}

impl MetaQueries {
    /// Encodes the data.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_string(&mut out, &self.name);
        out.extend_from_slice(&(self.queries.len() as u32).to_be_bytes());
        for query in &self.queries {
            put_string(&mut out, query);
        }
        out
    }

    /// Decodes the data.
    ///
    /// # Errors
    /// [`WireError`]; the option fails with `ERR_INVALID`.
    pub fn parse(data: &[u8]) -> Result<Self, WireError> {
        let mut cursor = Cursor::new("a query for metadata contexts", data);
        let name = cursor.counted_string()?.to_owned();
        let count = cursor.u32()?;
        let mut queries = Vec::new();
        for _ in 0..count {
            // Each query takes at least four bytes of the data, so that the data's length bounds
            // the list.
            queries.push(cursor.counted_string()?.to_owned());
        }
        cursor.end()?;
        Ok(Self { name, queries })
    }
}

/// The block sizes of an export, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSizes {
    /// The unit of offsets and lengths, which must be multiples of it: a power of two of at most 64
    /// KiB.
    pub min: u32,
    /// The preferred unit of offsets and lengths: a power of two of at least 512.
    pub preferred: u32,
    /// The longest request.
    pub max: u32,
}

impl BlockSizes {
    /// The sizes to assume when a server sends none, for a client that works with any server.
    pub const UNSAID: Self = Self { min: 512, preferred: 4096, max: super::PAYLOAD_MAX_BYTES };

    /// Checks that the sizes obey the protocol.
    ///
    /// # Errors
    /// [`WireError`] with the three sizes if one is invalid.
    pub fn check(self) -> Result<Self, WireError> {
        let Self { min, preferred, max } = self;
        let sound = min.is_power_of_two()
            && min <= 1 << 16
            && preferred.is_power_of_two()
            && preferred >= min.max(512)
            && max >= min
            && (max == u32::MAX || max % min == 0);
        if sound {
            return Ok(self);
        }
        Err(WireError(format!("impossible block sizes: {min}, {preferred}, {max}")))
    }
}

/// One piece of information about an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Info {
    /// Size and features.
    Export {
        /// Length in bytes.
        len_bytes: u64,
        /// The features of the export.
        flags: TransmissionFlags,
    },
    /// The export's name as the server has it.
    Name(String),
    /// A description for people.
    Description(String),
    /// Block sizes.
    BlockSize(BlockSizes),
    /// Another kind, which is ignored.
    Other(InfoType),
}

impl Info {
    /// Encodes the information.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let kind = match self {
            Self::Export { .. } => InfoType::EXPORT,
            Self::Name(_) => InfoType::NAME,
            Self::Description(_) => InfoType::DESCRIPTION,
            Self::BlockSize(_) => InfoType::BLOCK_SIZE,
            Self::Other(kind) => *kind,
        };
        out.extend_from_slice(&kind.0.to_be_bytes());
        match self {
            Self::Export { len_bytes, flags } => {
                out.extend_from_slice(&len_bytes.to_be_bytes());
                out.extend_from_slice(&flags.bits().to_be_bytes());
            }
            Self::Name(text) | Self::Description(text) => out.extend_from_slice(text.as_bytes()),
            Self::BlockSize(BlockSizes { min, preferred, max }) => {
                for size in [min, preferred, max] {
                    out.extend_from_slice(&size.to_be_bytes());
                }
            }
            Self::Other(_) => {}
        }
        out
    }

    /// Decodes the information.
    ///
    /// # Errors
    /// [`WireError`]; the session must end.
    pub fn parse(data: &[u8]) -> Result<Self, WireError> {
        let mut cursor = Cursor::new("an information on an export", data);
        let info = match InfoType(cursor.u16()?) {
            InfoType::EXPORT => Self::Export {
                len_bytes: cursor.u64()?,
                flags: TransmissionFlags::from_bits_retain(cursor.u16()?),
            },
            InfoType::NAME => Self::Name(cursor.string(cursor.rest.len())?.to_owned()),
            InfoType::DESCRIPTION => {
                Self::Description(cursor.string(cursor.rest.len())?.to_owned())
            }
            InfoType::BLOCK_SIZE => {
                let [min, preferred, max] = [cursor.u32()?, cursor.u32()?, cursor.u32()?];
                Self::BlockSize(BlockSizes { min, preferred, max }.check()?)
            }
            other => return Ok(Self::Other(other)),
        };
        cursor.end()?;
        Ok(info)
    }
}

/// Returns the answer to `EXPORT_NAME`: size, flags, and 124 zeroes unless both sides agreed to
/// leave them out.
#[must_use]
pub fn export_name_reply(len_bytes: u64, flags: TransmissionFlags, zeroes: bool) -> Vec<u8> {
    let mut out = len_bytes.to_be_bytes().to_vec();
    out.extend_from_slice(&flags.bits().to_be_bytes());
    if zeroes {
        out.resize(10 + 124, 0);
    }
    out
}

/// Decodes the data of a reply `SERVER`: name and description of an export.
///
/// # Errors
/// [`WireError`].
pub fn parse_server_entry(data: &[u8]) -> Result<(String, String), WireError> {
    let mut cursor = Cursor::new("an entry of the list of exports", data);
    let name = cursor.counted_string()?.to_owned();
    let description = cursor.string(cursor.rest.len())?.to_owned();
    Ok((name, description))
}

/// Decodes the data of a reply `META_CONTEXT`: number and name of a context.
///
/// # Errors
/// [`WireError`].
pub fn parse_meta_context(data: &[u8]) -> Result<(u32, String), WireError> {
    let mut cursor = Cursor::new("a metadata context", data);
    let id = cursor.u32()?;
    Ok((id, cursor.string(cursor.rest.len())?.to_owned()))
}

/// Appends a string after its length. A string that is longer than the protocol allows is cut.
pub(crate) fn put_string(out: &mut Vec<u8>, text: &str) {
    let text = cut(text);
    out.extend_from_slice(&(text.len() as u32).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// Cuts a text to the length that the protocol allows.
pub(crate) fn cut(text: &str) -> &str {
    let mut end = text.len().min(STRING_MAX_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn requests_for_exports_survive_the_wire(
            name in "[^\0]{0,80}",
            wants in prop::collection::vec(any::<u16>().prop_map(InfoType), 0..9),
            queries in prop::collection::vec("[^\0]{0,40}", 0..5),
        ) {
            let go = GoRequest { name: name.clone(), wants };
            prop_assert_eq!(GoRequest::parse(&go.encode()).unwrap(), go);
            let meta = MetaQueries { name, queries };
            prop_assert_eq!(MetaQueries::parse(&meta.encode()).unwrap(), meta);
        }

        #[test]
        fn a_cut_or_longer_request_is_refused(name in "[a-z]{0,20}", cut in 0..26_usize) {
            let whole = GoRequest { name, wants: vec![InfoType::NAME] }.encode();
            prop_assert!(GoRequest::parse(&whole[..cut.min(whole.len() - 1)]).is_err());
            let longer = [whole, vec![0]].concat();
            prop_assert!(GoRequest::parse(&longer).is_err());
        }

        #[test]
        fn infos_survive_the_wire(len_bytes: u64, bits: u16, text in "[^\0]{0,80}", min in 0..17_u32) {
            let min = 1 << min;
            let sizes = BlockSizes { min, preferred: min.max(4096), max: min * 512 };
            for info in [
                Info::Export { len_bytes, flags: TransmissionFlags::from_bits_retain(bits) },
                Info::Name(text.clone()),
                Info::Description(text),
                Info::BlockSize(sizes),
            ] {
                prop_assert_eq!(Info::parse(&info.encode()).unwrap(), info);
            }
        }
    }

    #[test]
    fn greetings_are_told_apart() {
        let flags = HandshakeFlags::FIXED_NEWSTYLE | HandshakeFlags::NO_ZEROES;
        let hello = ServerHello { flags }.encode();
        assert_eq!(&hello[..16], b"NBDMAGICIHAVEOPT");
        assert_eq!(ServerHello::parse(&hello).unwrap().flags, flags);
        let mut old = hello;
        old[8..16].copy_from_slice(&0x0000_4202_8186_1253_u64.to_be_bytes());
        assert!(ServerHello::parse(&old).unwrap_err().0.contains("old NBD handshake"));
        assert!(ClientHello::parse([0, 0, 0, 3]).is_ok());
        assert!(ClientHello::parse([0, 0, 0, 4]).is_err(), "an unknown flag ends the session");
    }

    #[test]
    fn impossible_block_sizes_are_refused() {
        let sizes = |min, preferred, max| BlockSizes { min, preferred, max }.check();
        assert!(sizes(1, 512, u32::MAX).is_ok());
        assert!(sizes(4096, 4096, 4096).is_ok());
        for (min, preferred, max) in [
            (0, 512, 512),
            (3, 512, 513),
            (1 << 17, 1 << 17, 1 << 17),
            (512, 256, 512),
            (512, 512, 700),
            (512, 512, 0),
        ] {
            assert!(sizes(min, preferred, max).is_err(), "{min} {preferred} {max}");
        }
    }

    #[test]
    fn long_and_odd_strings_are_refused() {
        let mut data = 5000_u32.to_be_bytes().to_vec();
        data.resize(5010, b'a');
        assert!(GoRequest::parse(&data).is_err());
        assert!(GoRequest::parse(b"\0\0\0\x02\xff\xfe\0\0").is_err());
        assert!(GoRequest::parse(b"\0\0\0\x02a\0\0\0").is_err());
        let mut out = Vec::new();
        put_string(&mut out, &"\u{e9}".repeat(3000));
        assert_eq!(out.len(), 4 + 4096);
    }
}
