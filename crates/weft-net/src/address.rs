//! Addresses of servers as text, and connecting to them.

use crate::{Error, Result, Socket};
use std::fmt;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The prefix of a QUIC address.
const QUIC: &str = "quic://";

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// A host (name or address) and a port.
    Tcp(String, u16),
    /// A host and a UDP port, for QUIC.
    Quic(String, u16),
    /// A Unix socket. A path that begins with a NUL is in the abstract namespace.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if matches!(self, Self::Quic(..)) {
            f.write_str(QUIC)?;
        }
        match self {
            Self::Tcp(host, port) | Self::Quic(host, port) if host.contains(':') => {
                write!(f, "[{host}]:{port}")
            }
            Self::Tcp(host, port) | Self::Quic(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Address {
    /// Parses `HOST:PORT` or `[IPV6]:PORT`, each optionally without the port or after `quic://`, or
    /// `unix:/PATH`.
    ///
    /// # Errors
    /// [`Error::NoAddress`].
    pub fn parse(text: &str, default_port: u16) -> Result<Self> {
        let bad = || Error::NoAddress(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(bad()) } else { Ok(Self::Unix(path.into())) };
        }
        let place = text.strip_prefix(QUIC);
        let (host, port) = match place.unwrap_or(text).strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or_else(bad)?;
                let port = if rest.is_empty() {
                    None
                } else {
                    Some(rest.strip_prefix(':').ok_or_else(bad)?)
                };
                (host, port)
            }
            None => match place.unwrap_or(text).rsplit_once(':') {
                Some((host, port)) if !host.contains(':') => (host, Some(port)),
                Some(_) => return Err(bad()),
                None => (place.unwrap_or(text), None),
            },
        };
        if host.is_empty() || host.contains('/') {
            return Err(bad());
        }
        let port = port.map_or(Ok(default_port), |p| p.parse().map_err(|_| bad()))?;
        let host = host.to_owned();
        Ok(if place.is_some() { Self::Quic(host, port) } else { Self::Tcp(host, port) })
    }

    /// Makes a relative path absolute, so that the address does not depend on the working
    /// directory.
    ///
    /// # Errors
    /// [`Error::Io`] if there is no working directory.
    pub fn absolute(self) -> Result<Self> {
        match self {
            Self::Unix(path) if path.as_os_str().as_bytes().first() != Some(&0) => {
                let absolute = std::path::absolute(&path);
                Ok(Self::Unix(absolute.map_err(|e| Error::io(path.display().to_string(), e))?))
            }
            other => Ok(other),
        }
    }

    /// Returns the name for which a certificate of the server must be issued.
    #[must_use]
    pub fn host(&self) -> &str {
        match self {
            Self::Tcp(host, _) | Self::Quic(host, _) => host,
            Self::Unix(_) => "localhost",
        }
    }

    /// Returns true if only programs of this machine can listen there.
    ///
    /// # Errors
    /// [`Error::Io`] if a name cannot be resolved.
    pub fn is_local(&self) -> Result<bool> {
        match self {
            Self::Unix(_) => Ok(true),
            Self::Tcp(host, port) | Self::Quic(host, port) => {
                let mut all = (host.as_str(), *port)
                    .to_socket_addrs()
                    .map_err(|e| Error::io(format!("cannot find {host}"), e))?;
                Ok(all.all(|a| a.ip().is_loopback()))
            }
        }
    }

    /// Connects, within `limit` for each of the addresses that a name has.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Uncertified`] for an address over QUIC.
    pub fn connect(&self, limit: Duration) -> Result<Socket> {
        let failed = |e| Error::io(format!("cannot connect to {self}"), e);
        match self {
            Self::Tcp(host, port) => {
                let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
                for address in (host.as_str(), *port).to_socket_addrs().map_err(failed)? {
                    match TcpStream::connect_timeout(&address, limit) {
                        Ok(stream) => return Ok(Socket::tcp(stream)),
                        Err(e) => last = e,
                    }
                }
                Err(failed(last))
            }
            Self::Quic(..) => Err(Error::Uncertified(self.clone())),
            Self::Unix(path) => connect_unix(path).map(Socket::Unix).map_err(failed),
        }
    }

    /// Connects as [`connect`](Self::connect), and over QUIC as well, where the server must present
    /// a certificate for the name beside `tls`. If the socket is not [secured](Socket::is_secured),
    /// the caller must start TLS.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::TimedOut`]; over QUIC also [`Error::Tls`], and
    /// [`Error::Uncertified`] without `tls`.
    #[cfg(feature = "tls")]
    pub fn call(&self, tls: Option<(&crate::ClientTls, &str)>, limit: Duration) -> Result<Socket> {
        match (self, tls) {
            #[cfg(feature = "quic")]
            (Self::Quic(..), Some((tls, name))) => crate::quic::connect(self, tls, name, limit),
            #[cfg(not(feature = "quic"))]
            (Self::Quic(..), Some(_)) => Err(Error::NoQuic(self.clone())),
            _ => self.connect(limit),
        }
    }
}

fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    match path.as_os_str().as_bytes().strip_prefix(&[0]) {
        Some(name) => {
            let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
            UnixStream::connect_addr(&address)
        }
        None => UnixStream::connect(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart() {
        let ok = |text: &str| Address::parse(text, 7473).ok().map(|a| a.to_string());
        assert_eq!(ok("host"), Some("host:7473".into()));
        assert_eq!(ok("0.0.0.0:7"), Some("0.0.0.0:7".into()));
        assert_eq!(ok("[::1]:9"), Some("[::1]:9".into()));
        assert_eq!(ok("[::1]"), Some("[::1]:7473".into()));
        assert_eq!(ok("unix:/run/x"), Some("unix:/run/x".into()));
        assert_eq!(ok("quic://nas"), Some("quic://nas:7473".into()));
        assert_eq!(ok("quic://[::1]:9"), Some("quic://[::1]:9".into()));
        assert_eq!(Address::parse("quic://nas:1", 7).expect("one").host(), "nas");
        for bad in ["quic://", "quic:nas", "quic://quic://nas", "quic://unix:/x", "quic://a/b:1"] {
            assert_eq!(ok(bad), None, "{bad}");
        }
        for bad in ["", ":1", "x:", "x:y", "[::1", "[::1]x", "x:70000", "::1", "unix:", "a/b:1"] {
            assert_eq!(ok(bad), None, "{bad}");
        }
    }
}
