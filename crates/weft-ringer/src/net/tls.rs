//! TLS 1.3 with `rustls`, both sides with a certificate of the cell's authority.
//!
//! A directory of certificates is laid out as for `weft serve nbd`: `ca-cert.pem`;
//! `server-cert.pem` and `server-key.pem` for a metadata server, which is called by a name;
//! `client-cert.pem` and `client-key.pem` for a client. Clients also call each other. There a
//! certificate says that somebody belongs to the cell, not who: it is for the name
//! [`MEMBER_NAME`]. What a peer sends is checked by its hash.
//!
//! Invariant: the connection's lock is held for cryptography in memory, never across a system call.
//! So the reading thread waits for the socket without keeping the writing one from writing.

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection,
};

use super::socket::{Channel, Socket, is_pause};
use super::{Error, Result};

/// The name in the certificate of every client of a cell.
pub const MEMBER_NAME: &str = "member.weft-ringer";
/// What is read from a socket at once, in bytes: four records.
const CIPHER_BYTES: usize = 64 << 10;

/// What a side that is called shows, and whom it lets in.
#[derive(Debug, Clone)]
pub struct ServerTls {
    config: Arc<ServerConfig>,
}

/// What a side that calls shows, and whom it trusts.
#[derive(Debug, Clone)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
}

fn tls_error(e: impl std::fmt::Display) -> Error {
    Error::Tls(e.to_string())
}

fn in_file(path: &Path, e: impl std::fmt::Display) -> Error {
    Error::Tls(format!("{}: {e}", path.display()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let list: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|e| in_file(path, e))?;
    if list.is_empty() {
        return Err(in_file(path, "there is no certificate in it"));
    }
    Ok(list)
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_file(path).map_err(|e| in_file(path, e))
}

fn authorities(directory: &Path) -> Result<Arc<RootCertStore>> {
    let path = directory.join("ca-cert.pem");
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&path)? {
        roots.add(certificate).map_err(|e| in_file(&path, e))?;
    }
    Ok(Arc::new(roots))
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

impl ServerTls {
    /// From `ca-cert.pem`, `server-cert.pem` and `server-key.pem` in a directory.
    ///
    /// # Errors
    /// [`Error::Tls`] names the file.
    pub fn server(directory: &Path) -> Result<Self> {
        Self::load(directory, "server")
    }

    /// From `ca-cert.pem`, `client-cert.pem` and `client-key.pem` in a directory: for a client that
    /// is called by another.
    ///
    /// # Errors
    /// [`Error::Tls`] names the file.
    pub fn member(directory: &Path) -> Result<Self> {
        Self::load(directory, "client")
    }

    fn load(directory: &Path, role: &str) -> Result<Self> {
        let verifier =
            WebPkiClientVerifier::builder_with_provider(authorities(directory)?, provider())
                .build()
                .map_err(tls_error)?;
        let config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(tls_error)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(
                certificates(&directory.join(format!("{role}-cert.pem")))?,
                key(&directory.join(format!("{role}-key.pem")))?,
            )
            .map_err(tls_error)?;
        Ok(Self { config: Arc::new(config) })
    }

    pub(super) fn accept(&self, channel: Channel, deadline: Instant) -> Result<Channel> {
        let tls = ServerConnection::new(Arc::clone(&self.config)).map_err(tls_error)?;
        secure(channel, tls.into(), deadline)
    }
}

impl ClientTls {
    /// From `ca-cert.pem`, `client-cert.pem` and `client-key.pem` in a directory.
    ///
    /// # Errors
    /// [`Error::Tls`] names the file.
    pub fn from_directory(directory: &Path) -> Result<Self> {
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(tls_error)?
            .with_root_certificates(authorities(directory)?)
            .with_client_auth_cert(
                certificates(&directory.join("client-cert.pem"))?,
                key(&directory.join("client-key.pem"))?,
            )
            .map_err(tls_error)?;
        Ok(Self { config: Arc::new(config) })
    }

    pub(super) fn connect(
        &self,
        channel: Channel,
        name: &str,
        deadline: Instant,
    ) -> Result<Channel> {
        let server = ServerName::try_from(name.to_owned()).map_err(tls_error)?;
        let tls = ClientConnection::new(Arc::clone(&self.config), server).map_err(tls_error)?;
        secure(channel, tls.into(), deadline)
    }
}

/// Runs the handshake, and splits the connection.
fn secure(channel: Channel, mut tls: Connection, deadline: Instant) -> Result<Channel> {
    let socket = channel.socket;
    while tls.is_handshaking() || tls.wants_write() {
        while tls.wants_write() {
            tls.write_tls(&mut &*socket).map_err(|e| Error::io("the TLS handshake", e))?;
        }
        if !tls.is_handshaking() {
            break;
        }
        if Instant::now() >= deadline {
            return Err(Error::TimedOut("the TLS handshake took too long".into()));
        }
        match tls.read_tls(&mut &*socket) {
            Ok(0) => return Err(Error::Tls("the other side ended the handshake".into())),
            Ok(_) => {}
            Err(e) if is_pause(&e) => continue,
            Err(e) => return Err(Error::io("the TLS handshake", e)),
        }
        if let Err(e) = tls.process_new_packets() {
            // The other side is told why, if it still listens.
            let _ = tls.write_tls(&mut &*socket);
            return Err(tls_error(e));
        }
    }
    let tls = Arc::new(Mutex::new(tls));
    let reader = TlsReader {
        tls: Arc::clone(&tls),
        socket: Arc::clone(&socket),
        cipher: vec![0; CIPHER_BYTES].into_boxed_slice(),
        unread: 0..0,
    };
    let writer = TlsWriter { tls, socket: Arc::clone(&socket), cipher: Vec::new() };
    Ok(Channel { socket, reader: Box::new(reader), writer: Box::new(writer) })
}

fn lock(tls: &Mutex<Connection>) -> MutexGuard<'_, Connection> {
    tls.lock().unwrap_or_else(PoisonError::into_inner)
}

struct TlsReader {
    tls: Arc<Mutex<Connection>>,
    socket: Arc<Socket>,
    cipher: Box<[u8]>,
    /// The part of `cipher` that was received and not yet taken.
    unread: std::ops::Range<usize>,
}

impl Read for TlsReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            {
                let mut tls = lock(&self.tls);
                match tls.reader().read(buf) {
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    // Without a farewell; messages say for themselves where they end.
                    Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                    done => return done,
                }
                if !self.unread.is_empty() {
                    let n = tls.read_tls(&mut &self.cipher[self.unread.clone()])?;
                    self.unread.start += n;
                    let bad = |e| io::Error::new(io::ErrorKind::InvalidData, e);
                    tls.process_new_packets().map_err(bad)?;
                    if n > 0 {
                        continue;
                    }
                }
            }
            // No lock is held while this waits.
            let n = (&*self.socket).read(&mut self.cipher)?;
            if n == 0 {
                return Ok(0);
            }
            self.unread = 0..n;
        }
    }
}

struct TlsWriter {
    tls: Arc<Mutex<Connection>>,
    socket: Arc<Socket>,
    cipher: Vec<u8>,
}

impl Write for TlsWriter {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = {
            let mut tls = lock(&self.tls);
            // Takes as much as its buffer holds.
            let n = tls.writer().write(buf)?;
            while tls.wants_write() {
                tls.write_tls(&mut self.cipher)?;
            }
            n
        };
        let sent = (&*self.socket).write_all(&self.cipher);
        self.cipher.clear();
        sent.map(|()| n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
