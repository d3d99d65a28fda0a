//! TLS, with `rustls`: certificates from a directory, and a connection that two threads share.
//!
//! The directory is laid out as `nbdkit`, `libnbd` and QEMU expect it: `ca-cert.pem`,
//! `server-cert.pem` and `server-key.pem`, `client-cert.pem` and `client-key.pem`. Pre-shared keys
//! are not supported: `rustls` has none.
//!
//! Protocols that other programs speak, too, accept TLS 1.2, and let the caller decide which side
//! must present a certificate (`from_directory`). weft's own have one way (`mutual`): TLS 1.3, and
//! both sides present a certificate of one authority.
//!
//! # Invariants
//!
//! - The connection's lock is held for cryptography in memory, never across a system call. So a
//!   reading thread that waits for the socket does not block the writing one, and vice versa, also
//!   when both directions are full.
//! - Only the writing half sends, and sends records in the order in which they were made. Messages
//!   of the protocol itself (the answer to a change of keys) are sent with the next data, before
//!   which they must be sent.

use crate::{Channel, Error, Result, SendHalf, Socket, is_pause};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, DigitallySignedStruct,
    RootCertStore, ServerConfig, ServerConnection, SignatureScheme, SupportedProtocolVersion,
};
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The most bytes that one read from a socket takes: four records.
const CIPHER_BYTES: usize = 64 << 10;
/// The time limit for sending `close_notify`.
const FAREWELL_LIMIT: Duration = Duration::from_secs(1);

/// The certificates of a server.
#[derive(Debug, Clone)]
pub struct ServerTls {
    pub(crate) config: Arc<ServerConfig>,
    /// A key derived from the private key: a restarted server has the same.
    #[cfg(feature = "quic")]
    pub(crate) reset: ring::hmac::Key,
}

/// The authorities that a client trusts, and optionally its own certificate.
#[derive(Debug, Clone)]
pub struct ClientTls {
    pub(crate) config: Arc<ClientConfig>,
}

fn tls_error(e: impl std::fmt::Display) -> Error {
    Error::Tls(e.to_string())
}

/// Describes an error after the handshake, with its cause: with TLS 1.3 a client learns only there
/// that the server does not accept its certificate.
fn said(e: &rustls::Error) -> String {
    use rustls::AlertDescription as Alert;
    match e {
        rustls::Error::AlertReceived(Alert::CertificateRequired) => {
            "TLS: the peer requires a certificate, and none was presented (client-cert.pem and \
             client-key.pem, beside ca-cert.pem)"
                .to_owned()
        }
        rustls::Error::AlertReceived(Alert::UnknownCA | Alert::BadCertificate) => {
            format!("TLS: the peer does not trust the presented certificate: {e}")
        }
        e => format!("TLS: {e}"),
    }
}

fn in_file(path: &Path, e: impl std::fmt::Display) -> Error {
    Error::Tls(format!("{}: {e}", path.display()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let list: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|e| in_file(path, e))?;
    if list.is_empty() {
        return Err(in_file(path, "the file contains no certificate"));
    }
    Ok(list)
}

/// Reads a private key in PEM: PKCS#8, or the older forms of OpenSSL, PKCS#1 for RSA and SEC1 for
/// elliptic curves.
fn key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    use rustls::pki_types::pem;
    let bytes = std::fs::read(path).map_err(|e| in_file(path, e))?;
    let text = String::from_utf8_lossy(&bytes);
    // PKCS#8 marks encryption in its label, the older forms in a header (RFC 1421).
    if text.contains("BEGIN ENCRYPTED PRIVATE KEY") || text.contains("Proc-Type: 4,ENCRYPTED") {
        let why = "the private key is encrypted, and weft does not ask for passwords: decrypt it \
            with openssl pkey -in FILE -out FILE, and keep it readable by its owner only";
        return Err(in_file(path, why));
    }
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|e| match e {
        pem::Error::NoItemsFound => in_file(path, "the file contains no private key"),
        e => in_file(path, e),
    })
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

/// The certificate of a directory that is presented.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// `server-cert.pem` and `server-key.pem`.
    Server,
    /// `client-cert.pem` and `client-key.pem`: of a client that accepts connections.
    Client,
}

impl Role {
    fn show(
        self,
        directory: &Path,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
        let name = match self {
            Self::Server => "server",
            Self::Client => "client",
        };
        let chain = certificates(&directory.join(format!("{name}-cert.pem")))?;
        Ok((chain, key(&directory.join(format!("{name}-key.pem")))?))
    }

    /// Returns the error for a certificate and a key of a directory that do not fit, with the names
    /// of their files.
    fn unfit(self, directory: &Path, e: &rustls::Error) -> Error {
        let name = match self {
            Self::Server => "server",
            Self::Client => "client",
        };
        let certificate = directory.join(format!("{name}-cert.pem"));
        let key = directory.join(format!("{name}-key.pem"));
        match e {
            rustls::Error::InconsistentKeys(_) => {
                in_file(&key, format!("not the key of the certificate {}", certificate.display()))
            }
            rustls::Error::General(text) if text.contains("private key") => in_file(
                &key,
                "unsupported kind of key: RSA of 2048 bits or more, P-256, P-384 and Ed25519 are \
                supported",
            ),
            e if e.to_string().contains("UnsupportedCertVersion") => in_file(
                &certificate,
                "a certificate of X.509 version 1, which no TLS client should take: give openssl \
                 x509 -req an -extfile with subjectAltName=DNS:..., which makes one of version 3",
            ),
            e => in_file(&certificate, e),
        }
    }
}

/// The requirement for a certificate of the connecting side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shows {
    None,
    May,
    Must,
}

const ONLY_1_3: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];

impl ServerTls {
    /// TLS 1.2 or later, with the server's certificate of a directory. With `verify_clients` each
    /// client must present a certificate that an authority in `ca-cert.pem` has signed.
    ///
    /// # Errors
    /// [`Error::Tls`] with the name of the file.
    pub fn from_directory(directory: &Path, verify_clients: bool) -> Result<Self> {
        let shows = if verify_clients { Shows::Must } else { Shows::None };
        Self::load(directory, Role::Server, shows, rustls::DEFAULT_VERSIONS)
    }

    /// TLS 1.3, with a certificate of a directory; the connecting side must present one that an
    /// authority in `ca-cert.pem` has signed.
    ///
    /// # Errors
    /// [`Error::Tls`] with the name of the file.
    pub fn mutual(directory: &Path, role: Role) -> Result<Self> {
        Self::load(directory, role, Shows::Must, ONLY_1_3)
    }

    /// As [`mutual`](Self::mutual) for a server, but clients may connect without a certificate: see
    /// [`Channel::certificate`]. The server must restrict the requests of such a client.
    ///
    /// # Errors
    /// [`Error::Tls`] with the name of the file.
    pub fn joining(directory: &Path) -> Result<Self> {
        Self::load(directory, Role::Server, Shows::May, ONLY_1_3)
    }

    fn load(
        directory: &Path,
        role: Role,
        shows: Shows,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Result<Self> {
        let (chain, key) = role.show(directory)?;
        #[cfg(feature = "quic")]
        let reset = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key.secret_der());
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(versions)
            .map_err(tls_error)?;
        let builder = if shows == Shows::None {
            builder.with_no_client_auth()
        } else {
            let roots = authorities(directory)?;
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
            let verifier = match shows {
                Shows::May => verifier.allow_unauthenticated(),
                _ => verifier,
            };
            builder.with_client_cert_verifier(verifier.build().map_err(tls_error)?)
        };
        let config = builder.with_single_cert(chain, key).map_err(|e| role.unfit(directory, &e))?;
        Ok(Self {
            config: Arc::new(config),
            #[cfg(feature = "quic")]
            reset,
        })
    }

    /// Performs the handshake as the accepting side.
    ///
    /// # Errors
    /// [`Error::Tls`], [`Error::TimedOut`], [`Error::Io`].
    pub fn accept(&self, channel: Channel, deadline: Instant) -> Result<Channel> {
        let tls = ServerConnection::new(Arc::clone(&self.config)).map_err(tls_error)?;
        secure(channel, tls.into(), deadline)
    }
}

impl ClientTls {
    /// TLS 1.2 or later, with the authorities in `ca-cert.pem` of a directory, and the client's
    /// certificate if it exists.
    ///
    /// # Errors
    /// [`Error::Tls`] with the name of the file.
    pub fn from_directory(directory: &Path) -> Result<Self> {
        let own = directory.join("client-cert.pem").exists();
        Self::load(directory, own, rustls::DEFAULT_VERSIONS)
    }

    /// TLS 1.3, with the authorities in `ca-cert.pem`, and the client's certificate, which must
    /// exist.
    ///
    /// # Errors
    /// [`Error::Tls`] with the name of the file.
    pub fn mutual(directory: &Path) -> Result<Self> {
        Self::load(directory, true, ONLY_1_3)
    }

    /// TLS 1.3, without a certificate of its own, to a server whose authority is identified by
    /// other means than its certificate: `is_authority` is called for each certificate, in DER,
    /// that the server presents beside its own.
    ///
    /// # Errors
    /// [`Error::Tls`].
    pub fn pinned(is_authority: impl Fn(&[u8]) -> bool + Send + Sync + 'static) -> Result<Self> {
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(ONLY_1_3)
            .map_err(tls_error)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Pinned { is_authority }))
            .with_no_client_auth();
        Ok(Self { config: Arc::new(config) })
    }

    fn load(
        directory: &Path,
        own: bool,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Result<Self> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(versions)
            .map_err(tls_error)?
            .with_root_certificates(authorities(directory)?);
        let config = if own {
            let (chain, key) = Role::Client.show(directory)?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|e| Role::Client.unfit(directory, &e))?
        } else {
            builder.with_no_client_auth()
        };
        Ok(Self { config: Arc::new(config) })
    }

    /// Performs the handshake as the connecting side; the server must present a certificate for
    /// `name`.
    ///
    /// # Errors
    /// [`Error::Tls`], [`Error::TimedOut`], [`Error::Io`].
    pub fn connect(&self, channel: Channel, name: &str, deadline: Instant) -> Result<Channel> {
        let server =
            ServerName::try_from(name.to_owned()).map_err(|e| in_file(name.as_ref(), e))?;
        let tls = ClientConnection::new(Arc::clone(&self.config), server).map_err(tls_error)?;
        secure(channel, tls.into(), deadline)
    }
}

/// Trusts the authority that `is_authority` accepts among the certificates of a server, and checks
/// the server's certificate against it as usual.
struct Pinned<F> {
    is_authority: F,
}

impl<F> std::fmt::Debug for Pinned<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pinned")
    }
}

impl<F: Fn(&[u8]) -> bool + Send + Sync> ServerCertVerifier for Pinned<F> {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let authority = intermediates.iter().find(|c| (self.is_authority)(c));
        let unknown = || rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let mut roots = RootCertStore::empty();
        roots.add(authority.ok_or_else(unknown)?.clone().into_owned())?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider());
        let verifier = verifier.build().map_err(|_| unknown())?;
        verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = provider().signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, &algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Returns the first certificate in a file, in DER.
///
/// # Errors
/// [`Error::Tls`] with the name of the file.
pub fn certificate_in(path: &Path) -> Result<Vec<u8>> {
    Ok(certificates(path)?.first().map(|c| c.to_vec()).unwrap_or_default())
}

/// Runs the handshake, and splits the connection. The channel below may itself be under TLS, with a
/// proxy that forwards the data.
fn secure(channel: Channel, mut tls: Connection, deadline: Instant) -> Result<Channel> {
    let Channel { socket, mut reader, mut writer, .. } = channel;
    while tls.is_handshaking() || tls.wants_write() {
        while tls.wants_write() {
            tls.write_tls(&mut writer).map_err(|e| Error::io("the TLS handshake", e))?;
        }
        if !tls.is_handshaking() {
            break;
        }
        if Instant::now() >= deadline {
            return Err(Error::TimedOut("the TLS handshake timed out".into()));
        }
        match tls.read_tls(&mut reader) {
            Ok(0) => {
                return Err(Error::Tls(
                    "the peer closed the connection during the handshake".into(),
                ));
            }
            Ok(_) => {}
            Err(e) if is_pause(&e) => continue,
            Err(e) => return Err(Error::io("the TLS handshake", e)),
        }
        if let Err(e) = tls.process_new_packets() {
            // Sends the peer an alert with the reason, if it still listens.
            let _ = tls.write_tls(&mut writer);
            return Err(tls_error(e));
        }
    }
    let certificate = tls.peer_certificates().and_then(|c| c.first()).map(|c| c.to_vec());
    let tls = Arc::new(Mutex::new(tls));
    let reader = TlsReader {
        tls: Arc::clone(&tls),
        below: reader,
        cipher: vec![0; CIPHER_BYTES].into_boxed_slice(),
        unread: 0..0,
    };
    let writer = TlsWriter { tls, below: writer, socket: Arc::clone(&socket), cipher: Vec::new() };
    Ok(Channel { socket, reader: Box::new(reader), writer: Box::new(writer), certificate })
}

fn lock(tls: &Mutex<Connection>) -> MutexGuard<'_, Connection> {
    tls.lock().unwrap_or_else(PoisonError::into_inner)
}

struct TlsReader {
    tls: Arc<Mutex<Connection>>,
    below: Box<dyn Read + Send>,
    cipher: Box<[u8]>,
    /// The part of `cipher` that has been received but not processed.
    unread: std::ops::Range<usize>,
}

impl Read for TlsReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            {
                let mut tls = lock(&self.tls);
                match tls.reader().read(buf) {
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    // An end without `close_notify` is accepted: messages have their own lengths.
                    Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                    done => return done,
                }
                if !self.unread.is_empty() {
                    let n = tls.read_tls(&mut &self.cipher[self.unread.clone()])?;
                    self.unread.start += n;
                    let bad = |e| io::Error::new(io::ErrorKind::InvalidData, said(&e));
                    tls.process_new_packets().map_err(bad)?;
                    if n > 0 {
                        continue;
                    }
                }
            }
            // No lock is held while this read waits.
            let n = self.below.read(&mut self.cipher)?;
            if n == 0 {
                return Ok(0);
            }
            self.unread = 0..n;
        }
    }
}

struct TlsWriter {
    tls: Arc<Mutex<Connection>>,
    below: Box<dyn SendHalf>,
    socket: Arc<Socket>,
    cipher: Vec<u8>,
}

impl TlsWriter {
    /// Sends the pending records.
    fn send(&mut self) -> io::Result<()> {
        let sent = self.below.write_all(&self.cipher);
        self.cipher.clear();
        sent
    }
}

impl Write for TlsWriter {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = {
            let mut tls = lock(&self.tls);
            // The writer takes as much as its buffer holds.
            let n = tls.writer().write(buf)?;
            while tls.wants_write() {
                tls.write_tls(&mut self.cipher)?;
            }
            n
        };
        self.send()?;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SendHalf for TlsWriter {
    fn finish(&mut self) {
        {
            let mut tls = lock(&self.tls);
            tls.send_close_notify();
            while tls.wants_write() {
                if tls.write_tls(&mut self.cipher).is_err() {
                    return;
                }
            }
        }
        let _ = self.socket.set_write_timeout(FAREWELL_LIMIT);
        let _ = self.send();
    }
}
