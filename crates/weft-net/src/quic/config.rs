//! How `quinn` is set up.

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

/// What a way there and back is taken to be before it is known: a first datagram that is lost is sent
/// again after three times as long.
const INITIAL_RTT: Duration = Duration::from_millis(100);
/// Callers that wait to be looked at.
const INCOMING_MAX: usize = 256;
/// What one of those may have said already, in bytes, and all of them.
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

/// Of who calls.
pub(super) fn client(tls: &ClientTls) -> Result<ClientConfig> {
    let mut tls = (*tls.config).clone();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    // What one session was allowed is no other's.
    tls.resumption = Resumption::disabled();
    let crypto = QuicClientConfig::try_from(tls).map_err(unfit)?;
    let mut config = ClientConfig::new(Arc::new(crypto));
    config.transport_config(transport(0, WINDOW_BYTES));
    Ok(config)
}

/// Of who is called. The window grows when it is known who calls.
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

/// A server that is started again at the same address can say credibly of the connections of the one
/// before that they are no more (stateless resets, RFC 9000 section 10.3), as it has the same key. At
/// another address it has another: else one of two that are there at once would end the other's
/// connections (section 21.11).
pub(super) fn endpoint(tls: &ServerTls, at: SocketAddr) -> EndpointConfig {
    let derived = hmac::sign(&tls.reset, format!("weft quic reset {at}").as_bytes());
    let key = hmac::Key::new(hmac::HMAC_SHA256, derived.as_ref());
    let mut config = EndpointConfig::new(Arc::new(key));
    config.cid_generator(|| Box::new(Numbers));
    config
}

/// Numbers of connections that are random altogether. Those that `quinn` makes itself show whose they
/// are, and a server does not answer to those of the one before.
#[derive(Debug)]
struct Numbers;

impl ConnectionIdGenerator for Numbers {
    fn generate_cid(&mut self) -> ConnectionId {
        // Each has keys of its own, which nobody can guess.
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
