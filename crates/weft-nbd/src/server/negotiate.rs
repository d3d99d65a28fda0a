//! The server side of option negotiation, without I/O: takes an option and returns the bytes of its
//! replies and the next step.

use super::Export;
use crate::wire::{
    BASE_ALLOCATION, GoRequest, Info, InfoType, MetaQueries, OptionReplyHeader, OptionReplyType,
    OptionType, PAYLOAD_MAX_BYTES, PAYLOAD_UNTOLD_MAX_BYTES, export_name_reply,
};
use std::sync::Arc;

/// The number of the only metadata context.
pub(crate) const BASE_ALLOCATION_ID: u32 = 1;

/// The encryption of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsMode {
    /// Never.
    Off,
    /// If the client asks for it.
    Optional,
    /// All other options are refused before TLS.
    Required,
}

/// The result of the negotiation, for the transmission phase.
#[derive(Debug, Clone)]
pub struct Agreement {
    /// The chosen export.
    pub export: Arc<Export>,
    /// Replies to reads are sent in chunks.
    pub structured: bool,
    /// Headers are extended.
    pub extended: bool,
    /// The client may ask for block status.
    pub base_allocation: bool,
    /// The longest read or write, in bytes.
    pub payload_max_bytes: u32,
}

/// The next step after an option.
#[derive(Debug)]
pub enum Next {
    /// Another option.
    Option,
    /// The TLS handshake.
    Tls,
    /// Requests.
    Transmission(Agreement),
    /// Nothing: the session ends once the replies are sent.
    End,
}

/// The state of the option negotiation on one connection.
#[derive(Debug)]
pub struct Negotiator {
    exports: Arc<[Arc<Export>]>,
    tls: TlsMode,
    under_tls: bool,
    no_zeroes: bool,
    structured: bool,
    extended: bool,
    /// The export for which `base:allocation` was chosen.
    chosen: Option<String>,
}

impl Negotiator {
    /// Begins a negotiation. `no_zeroes`: the zeroes after `EXPORT_NAME` are left out.
    #[must_use]
    pub fn new(exports: Arc<[Arc<Export>]>, tls: TlsMode, no_zeroes: bool) -> Self {
        Self {
            exports,
            tls,
            under_tls: false,
            no_zeroes,
            structured: false,
            extended: false,
            chosen: None,
        }
    }

    /// Restarts the negotiation after a TLS handshake: earlier agreements are void.
    pub fn now_under_tls(&mut self) {
        self.under_tls = true;
        self.structured = false;
        self.extended = false;
        self.chosen = None;
    }

    /// Answers an option; the replies are appended to `out`.
    pub fn option(&mut self, option: OptionType, data: &[u8], out: &mut Vec<u8>) -> Next {
        let mut reply = Replies { option, out };
        let locked = self.tls == TlsMode::Required && !self.under_tls;
        match option {
            OptionType::ABORT => {
                reply.ack();
                return Next::End;
            }
            OptionType::STARTTLS => return self.start_tls(data, &mut reply),
            OptionType::EXPORT_NAME => {
                // The option has no error reply: a failure ends the session.
                let ends = locked || self.extended;
                return if ends { Next::End } else { self.export_name(data, reply.out) };
            }
            _ if locked => {
                reply.error(OptionReplyType::ERR_TLS_REQD, "this server requires TLS first");
            }
            OptionType::LIST => self.list(data, &mut reply),
            OptionType::INFO | OptionType::GO => {
                if let Some(agreement) = self.info(data, &mut reply)
                    && option == OptionType::GO
                {
                    return Next::Transmission(agreement);
                }
            }
            OptionType::STRUCTURED_REPLY if self.extended => {
                let why = "extended headers were agreed on";
                reply.error(OptionReplyType::ERR_EXT_HEADER_REQD, why);
            }
            OptionType::STRUCTURED_REPLY | OptionType::EXTENDED_HEADERS => {
                if data.is_empty() && !self.extended {
                    self.structured = true;
                    self.extended = option == OptionType::EXTENDED_HEADERS;
                    reply.ack();
                } else {
                    reply.invalid("the option has no data and may be sent only once");
                }
            }
            OptionType::LIST_META_CONTEXT | OptionType::SET_META_CONTEXT => {
                self.meta_context(data, &mut reply);
            }
            _ => reply.error(OptionReplyType::ERR_UNSUP, "unknown option"),
        }
        Next::Option
    }

    /// Answers an option of a client that cannot be served now, with the reason.
    pub fn turn_away(option: OptionType, why: &str, out: &mut Vec<u8>) -> Next {
        let mut reply = Replies { option, out };
        match option {
            OptionType::ABORT => reply.ack(),
            // The option has no error reply: a failure ends the session.
            OptionType::EXPORT_NAME => {}
            _ => {
                reply.error(OptionReplyType::ERR_POLICY, why);
                return Next::Option;
            }
        }
        Next::End
    }

    /// Answers an option whose data is too long to be read.
    pub fn too_big(option: OptionType, out: &mut Vec<u8>) {
        let mut reply = Replies { option, out };
        reply.error(OptionReplyType::ERR_TOO_BIG, "the data of the option are too long");
    }

    fn start_tls(&mut self, data: &[u8], reply: &mut Replies<'_>) -> Next {
        if self.tls == TlsMode::Off {
            reply.error(OptionReplyType::ERR_POLICY, "this server is not set up for TLS");
        } else if !data.is_empty() || self.under_tls {
            reply.invalid("the option has no data and may be sent only once");
        } else {
            reply.ack();
            return Next::Tls;
        }
        Next::Option
    }

    fn export_name(&mut self, data: &[u8], out: &mut Vec<u8>) -> Next {
        let export = std::str::from_utf8(data).ok().and_then(|name| self.find(name));
        let Some(export) = export else { return Next::End };
        let flags = export.flags(self.structured);
        out.extend(export_name_reply(export.len_bytes(), flags, !self.no_zeroes));
        Next::Transmission(self.agreement(export, PAYLOAD_UNTOLD_MAX_BYTES))
    }

    fn list(&self, data: &[u8], reply: &mut Replies<'_>) {
        if !data.is_empty() {
            return reply.invalid("the option has no data");
        }
        for export in self.exports.iter() {
            let mut entry = Vec::new();
            crate::wire::put_string(&mut entry, &export.name);
            entry.extend_from_slice(export.description.as_bytes());
            reply.put(OptionReplyType::SERVER, &entry);
        }
        reply.ack();
    }

    fn info(&self, data: &[u8], reply: &mut Replies<'_>) -> Option<Agreement> {
        let request = match GoRequest::parse(data) {
            Ok(request) => request,
            Err(e) => {
                reply.invalid(&e.0);
                return None;
            }
        };
        let Some(export) = self.find(&request.name) else {
            reply.error(OptionReplyType::ERR_UNKNOWN, "no such export");
            return None;
        };
        let flags = export.flags(self.structured);
        reply.info(&Info::Export { len_bytes: export.len_bytes(), flags });
        let wants = |kind| request.wants.contains(&kind);
        if wants(InfoType::NAME) {
            reply.info(&Info::Name(export.name.clone()));
        }
        if wants(InfoType::DESCRIPTION) && !export.description.is_empty() {
            reply.info(&Info::Description(export.description.clone()));
        }
        if wants(InfoType::BLOCK_SIZE) {
            reply.info(&Info::BlockSize(export.block_sizes()));
        } else if export.block_bytes_min > 512 {
            reply.info(&Info::BlockSize(export.block_sizes()));
            let text = "this export has larger blocks than a client expects; ask for their size";
            reply.error(OptionReplyType::ERR_BLOCK_SIZE_REQD, text);
            return None;
        }
        reply.ack();
        let told = wants(InfoType::BLOCK_SIZE);
        Some(
            self.agreement(export, if told { PAYLOAD_MAX_BYTES } else { PAYLOAD_UNTOLD_MAX_BYTES }),
        )
    }

    fn meta_context(&mut self, data: &[u8], reply: &mut Replies<'_>) {
        let set = reply.option == OptionType::SET_META_CONTEXT;
        if set {
            self.chosen = None;
        }
        let queries = match MetaQueries::parse(data) {
            Ok(queries) => queries,
            Err(e) => return reply.invalid(&e.0),
        };
        if !self.structured {
            return reply.invalid("structured replies must be negotiated first");
        }
        if self.find(&queries.name).is_none() {
            return reply.error(OptionReplyType::ERR_UNKNOWN, "no such export");
        }
        let asked = |text: &str| queries.queries.iter().any(|q| q == text);
        let found =
            asked(BASE_ALLOCATION) || (!set && (queries.queries.is_empty() || asked("base:")));
        if found {
            let mut context = if set { BASE_ALLOCATION_ID } else { 0 }.to_be_bytes().to_vec();
            context.extend_from_slice(BASE_ALLOCATION.as_bytes());
            reply.put(OptionReplyType::META_CONTEXT, &context);
            if set {
                self.chosen = Some(queries.name);
            }
        }
        reply.ack();
    }

    fn agreement(&self, export: &Arc<Export>, payload_max_bytes: u32) -> Agreement {
        let of_this = |name: &String| self.find(name).is_some_and(|e| Arc::ptr_eq(e, export));
        Agreement {
            export: Arc::clone(export),
            structured: self.structured,
            extended: self.extended,
            base_allocation: self.structured && self.chosen.as_ref().is_some_and(of_this),
            payload_max_bytes,
        }
    }

    /// Returns the export of that name; for an empty name, the first.
    fn find(&self, name: &str) -> Option<&Arc<Export>> {
        let named = self.exports.iter().find(|e| e.name == name);
        named.or_else(|| if name.is_empty() { self.exports.first() } else { None })
    }
}

/// Replies to one option.
struct Replies<'a> {
    option: OptionType,
    out: &'a mut Vec<u8>,
}

impl Replies<'_> {
    fn put(&mut self, reply: OptionReplyType, data: &[u8]) {
        OptionReplyHeader::put(self.out, self.option, reply, data);
    }

    fn ack(&mut self) {
        self.put(OptionReplyType::ACK, &[]);
    }

    fn error(&mut self, reply: OptionReplyType, message: &str) {
        self.put(reply, message.as_bytes());
    }

    fn invalid(&mut self, message: &str) {
        self.error(OptionReplyType::ERR_INVALID, message);
    }

    fn info(&mut self, info: &Info) {
        self.put(OptionReplyType::INFO, &info.encode());
    }
}
