//! The client side of the handshake. Works on any reader and writer, so that it can be tested and
//! fuzzed without a network.

use crate::wire::{
    BASE_ALLOCATION, BlockSizes, ClientFlags, ClientHello, GoRequest, HandshakeFlags, Info,
    InfoType, MetaQueries, OPTION_REPLY_HEADER_BYTES, OptionHeader, OptionReplyHeader,
    OptionReplyType, OptionType, ReplyStyle, SERVER_HELLO_BYTES, STRING_MAX_BYTES, ServerHello,
    TransmissionFlags, parse_meta_context, parse_server_entry,
};
use crate::{Error, Result};
use std::io::{self, Read, Write};
use std::time::Instant;
use weft_net::read_full;

/// The longest valid reply: two strings and some numbers.
const REPLY_MAX_BYTES: u32 = 2 * STRING_MAX_BYTES as u32 + 64;
/// The most replies to one option; a list of exports is the longest.
const REPLIES_MAX: usize = 10_000;

/// The properties of an export, as the server reports them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Length in bytes.
    pub len_bytes: u64,
    /// The features of the export.
    pub flags: TransmissionFlags,
    /// Block sizes, as the server reports them or with the protocol's defaults.
    pub sizes: BlockSizes,
    /// The export's name as the server has it.
    pub name: String,
    /// A description for people; may be empty.
    pub description: String,
    /// Replies to reads are sent in chunks.
    pub structured: bool,
    /// Headers are extended: lengths have 64 bits.
    pub extended: bool,
    /// The number of the context `base:allocation`, if the server has it.
    pub base_allocation: Option<u32>,
}

impl Facts {
    pub(crate) fn reply_style(&self) -> ReplyStyle {
        match (self.extended, self.structured) {
            (true, _) => ReplyStyle::Extended,
            (false, true) => ReplyStyle::Structured,
            (false, false) => ReplyStyle::Simple,
        }
    }
}

/// A handshake in progress.
pub struct Handshake<'a> {
    reader: &'a mut dyn Read,
    writer: &'a mut dyn Write,
    deadline: Option<Instant>,
    extended: bool,
}

impl std::fmt::Debug for Handshake<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handshake").finish_non_exhaustive()
    }
}

impl<'a> Handshake<'a> {
    /// Begins a handshake over a connection; it ends at `deadline`.
    pub fn new(
        reader: &'a mut dyn Read,
        writer: &'a mut dyn Write,
        deadline: Option<Instant>,
    ) -> Self {
        Self { reader, writer, deadline, extended: true }
    }

    /// Sets whether extended headers are requested; the default is `true`.
    #[must_use]
    pub fn with_extended_headers(mut self, asked: bool) -> Self {
        self.extended = asked;
        self
    }

    /// Exchanges greetings. Returns true if the server answers options.
    ///
    /// # Errors
    /// [`Error::Protocol`] if it is no NBD server.
    pub fn greet(&mut self) -> Result<bool> {
        let mut hello = [0; SERVER_HELLO_BYTES];
        self.receive(&mut hello)?;
        let hello = ServerHello::parse(&hello)?;
        let mut flags = ClientFlags::empty();
        flags
            .set(ClientFlags::FIXED_NEWSTYLE, hello.flags.contains(HandshakeFlags::FIXED_NEWSTYLE));
        flags.set(ClientFlags::NO_ZEROES, hello.flags.contains(HandshakeFlags::NO_ZEROES));
        self.send(&ClientHello { flags }.encode())?;
        Ok(flags.contains(ClientFlags::FIXED_NEWSTYLE))
    }

    /// Requests TLS. Returns true if the server agrees; then its TLS handshake comes next, and no
    /// more plain text.
    ///
    /// # Errors
    /// [`Error::Protocol`], [`Error::Net`].
    pub fn start_tls(&mut self) -> Result<bool> {
        match self.ask(OptionType::STARTTLS, &[], |_, _| Ok(())) {
            Ok(()) => Ok(true),
            Err(Error::Refused { .. }) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Enters the transmission phase with an export.
    ///
    /// # Errors
    /// [`Error::Refused`] if there is no such export, or the server requires TLS first.
    pub fn go(&mut self, export: &str) -> Result<Facts> {
        let extended = self.extended && self.agrees(OptionType::EXTENDED_HEADERS, &[])?;
        let structured = extended || self.agrees(OptionType::STRUCTURED_REPLY, &[])?;
        let mut base_allocation = None;
        if structured {
            let queries =
                MetaQueries { name: export.to_owned(), queries: vec![BASE_ALLOCATION.to_owned()] };
            let option = OptionType::SET_META_CONTEXT;
            let asked = self.ask(option, &queries.encode(), |kind, data| {
                if kind == OptionReplyType::META_CONTEXT {
                    let (id, name) = parse_meta_context(data)?;
                    if name == BASE_ALLOCATION {
                        base_allocation = Some(id);
                    }
                }
                Ok(())
            });
            match asked {
                Ok(()) => {}
                // The reply to GO describes the problem with the export better.
                Err(Error::Refused { .. }) => base_allocation = None,
                Err(e) => return Err(e),
            }
        }
        let mut facts = None;
        let mut sizes = BlockSizes::UNSAID;
        let (mut name, mut description) = (export.to_owned(), String::new());
        let wants = vec![InfoType::NAME, InfoType::DESCRIPTION, InfoType::BLOCK_SIZE];
        let request = GoRequest { name: export.to_owned(), wants };
        self.ask(OptionType::GO, &request.encode(), |kind, data| {
            if kind != OptionReplyType::INFO {
                return Ok(());
            }
            match Info::parse(data)? {
                Info::Export { len_bytes, flags } => facts = Some((len_bytes, flags)),
                Info::Name(text) => name = text,
                Info::Description(text) => description = text,
                Info::BlockSize(said) => sizes = said,
                Info::Other(_) => {}
            }
            Ok(())
        })?;
        let Some((len_bytes, flags)) = facts else {
            return Err(Error::protocol("the server did not say how large the export is"));
        };
        if i64::try_from(len_bytes).is_err() {
            return Err(Error::protocol(format!("an export of {len_bytes} bytes")));
        }
        // Bytes past the last whole block cannot be reached.
        let len_bytes = len_bytes - len_bytes % u64::from(sizes.min);
        Ok(Facts {
            len_bytes,
            flags,
            sizes,
            name,
            description,
            structured,
            extended,
            base_allocation,
        })
    }

    /// Returns the names and descriptions of the exports.
    ///
    /// # Errors
    /// [`Error::Refused`] if the server does not list its exports.
    pub fn list(&mut self) -> Result<Vec<(String, String)>> {
        let mut exports = Vec::new();
        self.ask(OptionType::LIST, &[], |kind, data| {
            if kind == OptionReplyType::SERVER {
                exports.push(parse_server_entry(data)?);
            }
            Ok(())
        })?;
        Ok(exports)
    }

    /// Ends a handshake without entering the transmission phase.
    pub fn abort(&mut self) {
        // The server may disconnect before it answers.
        let _ = self.ask(OptionType::ABORT, &[], |_, _| Ok(()));
    }

    /// Returns true if the server agrees to an option.
    fn agrees(&mut self, option: OptionType, data: &[u8]) -> Result<bool> {
        match self.ask(option, data, |_, _| Ok(())) {
            Ok(()) => Ok(true),
            Err(Error::Refused { .. }) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Sends an option and receives its replies; passes each but the last to `take`.
    fn ask(
        &mut self,
        option: OptionType,
        data: &[u8],
        mut take: impl FnMut(OptionReplyType, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let header = OptionHeader { option, len_bytes: data.len() as u32 };
        self.send(&[&header.encode(), data].concat())?;
        for _ in 0..REPLIES_MAX {
            let mut header = [0; OPTION_REPLY_HEADER_BYTES];
            self.receive(&mut header)?;
            let header = OptionReplyHeader::parse(&header)?;
            if header.option != option {
                let other = header.option;
                return Err(Error::protocol(format!("asked {option:?}, answered {other:?}")));
            }
            if header.len_bytes > REPLY_MAX_BYTES {
                let len_bytes = header.len_bytes;
                return Err(Error::protocol(format!("a reply to an option of {len_bytes} bytes")));
            }
            let mut data = vec![0; header.len_bytes as usize];
            self.receive(&mut data)?;
            if header.reply == OptionReplyType::ACK {
                return Ok(());
            }
            if header.reply.is_error() {
                if header.reply == OptionReplyType::ERR_TLS_REQD {
                    let what = "the server wants it: write nbds:// (or nbds+unix://) for nbd://, \
                                and ?tls-certificates=DIRECTORY";
                    return Err(Error::tls(what));
                }
                let message = String::from_utf8_lossy(&data).into_owned();
                return Err(Error::Refused { option, reply: header.reply, message });
            }
            take(header.reply, &data)?;
        }
        Err(Error::protocol(format!("{option:?} has no end of replies")))
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let sent = self.writer.write_all(bytes).and_then(|()| self.writer.flush());
        sent.map_err(|e| match self.reader.read(&mut [0]) {
            // A server that has ended the connection may have sent the reason: with TLS it does, to
            // a client whose certificate it does not accept.
            Err(said) if said.kind() == io::ErrorKind::InvalidData => {
                Error::io("cannot send", said)
            }
            _ => Error::io("cannot send", e),
        })
    }

    fn receive(&mut self, buf: &mut [u8]) -> Result<()> {
        Ok(read_full(self.reader, buf, self.deadline)?)
    }
}
