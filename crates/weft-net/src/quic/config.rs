//! The configuration of `quinn`.

use super::{ALPN, IDLE_LIMIT, KEEPALIVE, STRANGER_WINDOW_BYTES, WINDOW_BYTES};
use crate::{ClientTls, Error, Result, ServerTls};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    ClientConfig, ConnectionId, ConnectionIdGenerator, EndpointConfig, IdleTimeout, ServerConfig,
    TransportConfig,
};
use ring::hmac;
use rustls::client::Resumption;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The assumed round-trip time before it is measured: a first datagram that is lost is sent again
/// after three times as long.
const INITIAL_RTT: Duration = Duration::from_millis(100);
/// The most clients that wait for the handshake.
const INCOMING_MAX: usize = 256;
/// The most data buffered for one of those, in bytes, and for all of them.
const INCOMING_BYTES: u64 = 16 << 10;
const INCOMING_TOTAL_BYTES: u64 = 2 << 20;

fn transport(streams: u32, window_bytes: u32) -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    let idle = u32::try_from(IDLE_LIMIT.as_millis()).unwrap_or(u32::MAX);
    config
        .max_concurrent_bidi_streams(streams.into())
        .max_concurrent_uni_streams(0_u32.into())
        .max_idle_timeout(Some(IdleTimeout::from(quinn::VarInt::from(idle))))
        .keep_alive_interval(Some(KEEPALIVE))
        .stream_receive_window(WINDOW_BYTES.into())
        .receive_window(window_bytes.into())
        .send_window(WINDOW_BYTES.into())
        .initial_rtt(INITIAL_RTT)
        .datagram_receive_buffer_size(None);
    Arc::new(config)
}

fn unfit(e: impl std::fmt::Display) -> Error {
    Error::Tls(e.to_string())
}

/// Returns the client's configuration.
pub(super) fn client(tls: &ClientTls) -> Result<ClientConfig> {
    let mut tls = (*tls.config).clone();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    // Permissions of one session must not carry over to another.
    tls.resumption = Resumption::disabled();
    let crypto = QuicClientConfig::try_from(tls).map_err(unfit)?;
    let mut config = ClientConfig::new(Arc::new(crypto));
    config.transport_config(transport(0, WINDOW_BYTES));
    Ok(config)
}

/// Returns the server's configuration. The window grows when the client has presented a
/// certificate.
pub(super) fn server(tls: &ServerTls) -> Result<ServerConfig> {
    let mut tls = (*tls.config).clone();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let crypto = QuicServerConfig::try_from(tls).map_err(unfit)?;
    let mut config = ServerConfig::with_crypto(Arc::new(crypto));
    config
        .transport_config(transport(1, STRANGER_WINDOW_BYTES))
        .max_incoming(INCOMING_MAX)
        .incoming_buffer_size(INCOMING_BYTES)
        .incoming_buffer_size_total(INCOMING_TOTAL_BYTES);
    Ok(config)
}

/// Returns the endpoint's configuration. A server that is restarted at the same address can end the
/// connections of its predecessor credibly (stateless resets, RFC 9000 section 10.3), as it has the
/// same key. At another address it has another key: else one of two servers at the same time would
/// end the other's connections (section 21.11).
pub(super) fn endpoint(tls: &ServerTls, at: SocketAddr) -> EndpointConfig {
    let derived = hmac::sign(&tls.reset, format!("weft quic reset {at}").as_bytes());
    let key = hmac::Key::new(hmac::HMAC_SHA256, derived.as_ref());
    let mut config = EndpointConfig::new(Arc::new(key));
    config.cid_generator(|| Box::new(Numbers));
    config
}

/// A generator of random connection ids. The ids of `quinn`'s own generator identify their maker,
/// and a server sends no resets for those of its predecessor.
#[derive(Debug)]
struct Numbers;

impl ConnectionIdGenerator for Numbers {
    fn generate_cid(&mut self) -> ConnectionId {
        // Each hasher has random keys of its own, which no peer can guess.
        let number = RandomState::new().build_hasher().finish();
        ConnectionId::new(&number.to_le_bytes())
    }

    fn cid_len(&self) -> usize {
        size_of::<u64>()
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}
