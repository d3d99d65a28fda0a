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

/// The encryption of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Encryption {
    /// Never.
    #[default]
    Off,
    /// If the server agrees. An attacker between client and server can prevent it.
    Opportunistic,
    /// Always: a server that does not agree is refused.
    Required,
}

/// The options of a connection to an export.
#[derive(Debug, Clone)]
pub struct Options {
    /// The address of the server.
    pub address: Address,
    /// The export; an empty name means the server's default.
    pub export: String,
    /// Changes are refused, even if the server allows them.
    pub read_only: bool,
    /// Keeps other processes of this host from writing to the same data: the name of the part of
    /// the export that is locked, empty for all of it. `None`: no lock.
    pub lock: Option<String>,
    /// The number of connections, if the server can serve one client on several.
    pub connections: usize,
    /// The time that a request waits for a server that has disconnected. Zero: not at all.
    pub reconnect_limit: Duration,
    /// The time without any bytes from the server, while a request waits, after which the
    /// connection counts as lost.
    pub reply_limit: Duration,
    /// Memory for writes that are acknowledged and not yet durable, in bytes; when it is full the
    /// device flushes.
    pub unflushed_max_bytes: u64,
    /// Request extended headers, which allow requests without a payload of any length.
    pub extended_headers: bool,
    /// The encryption of connections.
    pub encryption: Encryption,
    /// The trusted certificates, and optionally the client's own.
    #[cfg(feature = "tls")]
    pub tls: Option<weft_net::ClientTls>,
    /// The name in the server's certificate, if it is not the host's.
    pub tls_hostname: Option<String>,
}

impl Options {
    /// Returns the options for an export of a server, with defaults for all other fields.
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

    /// Returns the names and descriptions of the server's exports.
    ///
    /// # Errors
    /// Those of connecting; [`Error::Refused`] if the server does not list its exports.
    pub fn list_exports(&self) -> Result<Vec<(String, String)>> {
        let (mut channel, deadline) = self.greeted(ATTEMPT_LIMIT)?;
        let mut handshake =
            Handshake::new(&mut *channel.reader, &mut *channel.writer, Some(deadline));
        let exports = handshake.list();
        handshake.abort();
        exports
    }

    /// Connects, greets, and starts TLS if it is requested.
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
        // From here on only a server that reads nothing runs into the time limit.
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

/// Receives replies from `data`, to requests that were never sent, until one is invalid. For
/// fuzzing.
#[doc(hidden)]
pub fn fuzz_replies(data: &[u8]) {
    link::fuzz(data);
}
