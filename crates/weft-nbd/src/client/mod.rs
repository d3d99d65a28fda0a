//! The client: an export of an NBD server as a device.

mod device;
mod handshake;
mod link;
mod lock;
mod pool;
mod unflushed;

pub use device::{Counters, NbdDevice};
pub use handshake::{Facts, Handshake};

use crate::{Error, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft_net::{Address, Channel};

/// The most time that one attempt to connect may take.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(10);

/// Whether connections are encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Encryption {
    /// Never.
    #[default]
    Off,
    /// If the server agrees. Whoever sits in between can see to it that it does not.
    Opportunistic,
    /// Always: a server that does not agree is refused.
    Required,
}

/// How a device is reached.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the server is.
    pub address: Address,
    /// The export; an empty name means the server's default.
    pub export: String,
    /// Changes are refused, whatever the server allows.
    pub read_only: bool,
    /// Keeps other processes of this host from writing to the same: the name of the part of the
    /// export that is locked, empty for all of it. `None`: no lock.
    pub lock: Option<String>,
    /// Connections, if the server can serve one client on several.
    pub connections: usize,
    /// How long a request waits for a server that has gone away. Zero: not at all.
    pub reconnect_limit: Duration,
    /// A server that says nothing for this long while a request waits has gone away.
    pub reply_limit: Duration,
    /// Memory for writes that are acknowledged and not yet durable, in bytes; when it is full the
    /// device flushes.
    pub unflushed_max_bytes: u64,
    /// Whether extended headers are asked for, which allow requests without a payload of any
    /// length.
    pub extended_headers: bool,
    /// Whether connections are encrypted.
    pub encryption: Encryption,
    /// What is trusted, and perhaps an own certificate.
    #[cfg(feature = "tls")]
    pub tls: Option<weft_net::ClientTls>,
    /// The name in the server's certificate, if it is not the host's.
    pub tls_hostname: Option<String>,
}

impl Options {
    /// The export of a server, with defaults for everything else.
    #[must_use]
    pub fn new(address: Address, export: impl Into<String>) -> Self {
        Self {
            address,
            export: export.into(),
            read_only: false,
            lock: None,
            connections: 4,
            reconnect_limit: Duration::from_secs(30),
            reply_limit: Duration::from_secs(120),
            unflushed_max_bytes: 64 << 20,
            extended_headers: true,
            encryption: Encryption::Off,
            #[cfg(feature = "tls")]
            tls: None,
            tls_hostname: None,
        }
    }

    /// Connects and enters the transmission phase.
    pub(crate) fn dial(&self, limit: Duration) -> Result<(Channel, Facts)> {
        let limit = limit.clamp(Duration::from_millis(100), ATTEMPT_LIMIT);
        let (mut channel, deadline) = self.greeted(limit)?;
        let facts = Handshake::new(&mut *channel.reader, &mut *channel.writer, Some(deadline))
            .with_extended_headers(self.extended_headers)
            .go(&self.export)?;
        Ok((channel, facts))
    }

    /// The names and descriptions of the server's exports.
    ///
    /// # Errors
    /// Those of connecting; [`Error::Refused`] if the server does not tell.
    pub fn list_exports(&self) -> Result<Vec<(String, String)>> {
        let (mut channel, deadline) = self.greeted(ATTEMPT_LIMIT)?;
        let mut handshake =
            Handshake::new(&mut *channel.reader, &mut *channel.writer, Some(deadline));
        let exports = handshake.list();
        handshake.abort();
        exports
    }

    /// Connects, greets, and starts TLS if that is wanted.
    fn greeted(&self, limit: Duration) -> Result<(Channel, Instant)> {
        let deadline = Instant::now() + limit;
        let socket = self.address.connect(limit)?;
        socket.set_read_timeout(Duration::from_millis(250))?;
        socket.set_write_timeout(limit.max(Duration::from_secs(1)))?;
        let mut channel = Channel::plain(Arc::new(socket));
        let mut handshake =
            Handshake::new(&mut *channel.reader, &mut *channel.writer, Some(deadline));
        let fixed = handshake.greet()?;
        if !fixed {
            return Err(Error::protocol("the server is too old: it does not answer options"));
        }
        let secure = self.encryption != Encryption::Off && handshake.start_tls()?;
        if secure {
            channel = self.secure(channel, deadline)?;
        } else if self.encryption == Encryption::Required {
            return Err(Error::tls("the server has none; without encryption it is nbd://"));
        }
        // From here on only a server that takes nothing is too slow.
        channel.socket.set_write_timeout(self.reply_limit)?;
        Ok((channel, deadline))
    }

    #[cfg(feature = "tls")]
    fn secure(&self, channel: Channel, deadline: Instant) -> Result<Channel> {
        let Some(tls) = &self.tls else {
            return Err(Error::tls("no certificates were given"));
        };
        let name = self.tls_hostname.as_deref().unwrap_or(self.address.host());
        Ok(tls.connect(channel, name, deadline)?)
    }

    #[cfg(not(feature = "tls"))]
    fn secure(&self, _channel: Channel, _deadline: Instant) -> Result<Channel> {
        Err(Error::tls("this program was built without it"))
    }
}

/// Replies of a server to requests that were never made, for fuzzing: takes replies off `data`
/// until one makes no sense.
#[doc(hidden)]
pub fn fuzz_replies(data: &[u8]) {
    link::fuzz(data);
}
