//! NBD URIs: the address of an export as text. Source: NetworkBlockDevice/nbd, `doc/uri.md`.
//!
//! | URI | export |
//! |---|---|
//! | `nbd://host[:port]/name` | over TCP |
//! | `nbd+unix:///name?socket=/path` | over a Unix socket |
//! | `nbds://...`, `nbds+unix://...` | the same, always encrypted |
//!
//! Parameters: `socket`; `tls-certificates=DIR` (as in libnbd); `tls-hostname`; `connections=N` and
//! `timeout=SECONDS` (ours). An unknown parameter is an error.

use crate::client::{Encryption, Options};
use crate::wire::{PORT, STRING_MAX_BYTES};
use crate::{Error, Result};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use weft_net::Address;

/// A parsed NBD URI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uri {
    /// The address of the server.
    pub address: Address,
    /// The name of the export.
    pub export: String,
    /// The connection must be encrypted.
    pub encrypted: bool,
    /// The directory of the certificates.
    pub tls_certificates: Option<PathBuf>,
    /// The name in the server's certificate, if it is not the host's.
    pub tls_hostname: Option<String>,
    /// The number of connections.
    pub connections: Option<usize>,
    /// The time to wait for a server that has disconnected.
    pub timeout: Option<Duration>,
}

impl Uri {
    /// Returns true if `text` begins like an NBD URI.
    #[must_use]
    pub fn is_one(text: &str) -> bool {
        ["nbd://", "nbds://", "nbd+unix://", "nbds+unix://"].iter().any(|s| text.starts_with(s))
    }

    /// Returns the URI of the same export without what only says how it is reached: encryption, time
    /// limits, the number of connections.
    #[must_use]
    pub fn export_only(&self) -> Self {
        let address = match &self.address {
            Address::Tcp(host, port) => Address::Tcp(host.to_ascii_lowercase(), *port),
            other => other.clone(),
        };
        Self {
            address,
            export: self.export.clone(),
            encrypted: false,
            tls_certificates: None,
            tls_hostname: None,
            connections: None,
            timeout: None,
        }
    }

    /// Makes the paths in the URI absolute.
    ///
    /// # Errors
    /// [`Error::Net`] if there is no working directory.
    pub fn make_absolute(&mut self) -> Result<()> {
        self.address = self.address.clone().absolute()?;
        if let Some(directory) = &mut self.tls_certificates {
            *directory = std::path::absolute(&*directory)
                .map_err(|e| Error::io(directory.display().to_string(), e))?;
        }
        Ok(())
    }

    /// Returns the options with which a client connects.
    ///
    /// # Errors
    /// [`Error::Net`] if the certificates cannot be read, or there are none and TLS is required.
    pub fn options(&self) -> Result<Options> {
        let mut options = Options::new(self.address.clone(), self.export.clone());
        if let Some(connections) = self.connections {
            options.connections = connections;
        }
        if let Some(timeout) = self.timeout {
            options.reconnect_limit = timeout;
        }
        options.tls_hostname.clone_from(&self.tls_hostname);
        if self.encrypted {
            options.encryption = Encryption::Required;
        } else if self.tls_certificates.is_some() {
            options.encryption = Encryption::Opportunistic;
        }
        self.set_tls(&mut options)?;
        Ok(options)
    }

    #[cfg(feature = "tls")]
    fn set_tls(&self, options: &mut Options) -> Result<()> {
        if let Some(directory) = &self.tls_certificates {
            options.tls = Some(weft_net::ClientTls::from_directory(directory)?);
        } else if self.encrypted {
            let what = "give the directory of ca-cert.pem: ?tls-certificates=DIRECTORY";
            return Err(Error::tls(what));
        }
        Ok(())
    }

    #[cfg(not(feature = "tls"))]
    fn set_tls(&self, options: &mut Options) -> Result<()> {
        if options.encryption == Encryption::Off {
            return Ok(());
        }
        Err(Error::tls("this program was built without it"))
    }
}

impl FromStr for Uri {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = |what: &str| Error::Invalid(format!("invalid NBD URI {text:?}: {what}"));
        let (scheme, rest) = text.split_once("://").ok_or_else(|| bad("no scheme"))?;
        let (encrypted, unix) = match scheme {
            "nbd" => (false, false),
            "nbds" => (true, false),
            "nbd+unix" => (false, true),
            "nbds+unix" => (true, true),
            _ => return Err(bad("its scheme is unknown")),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let decode = |part: &str| decode(part).map_err(|what| bad(&what));
        let export = decode(path)?;
        if export.len() > STRING_MAX_BYTES || export.contains('\0') {
            return Err(bad("its export has a name that the protocol cannot carry"));
        }
        let mut uri = Self {
            address: Address::Unix(PathBuf::new()),
            export,
            encrypted,
            tls_certificates: None,
            tls_hostname: None,
            connections: None,
            timeout: None,
        };
        let mut socket = None;
        for option in query.split('&').filter(|o| !o.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let value = decode(value)?;
            match name {
                "socket" => socket = Some(value),
                "tls-certificates" => uri.tls_certificates = Some(value.into()),
                "tls-hostname" => uri.tls_hostname = Some(value),
                "tls-type" if value == "x509" => {}
                "tls-type" => return Err(bad("only TLS with certificates (x509) is supported")),
                "tls-verify-peer" if value == "1" => {}
                "tls-verify-peer" => return Err(bad("a server is always verified")),
                "connections" => {
                    let number = value.parse().ok().filter(|n| (1..=64).contains(n));
                    uri.connections = Some(number.ok_or_else(|| bad("1 to 64 connections"))?);
                }
                "timeout" => {
                    let seconds = value.parse().map_err(|_| bad("a timeout is in seconds"))?;
                    uri.timeout = Some(Duration::from_secs(seconds));
                }
                _ => return Err(bad(&format!("{name:?} is not understood"))),
            }
        }
        uri.address = match (unix, socket) {
            (true, Some(path)) if !path.is_empty() => Address::Unix(path.into()),
            (true, _) => return Err(bad("it has no ?socket=PATH")),
            (false, Some(_)) => return Err(bad("a socket is for nbd+unix")),
            (false, None) => tcp(authority).ok_or_else(|| bad("it names no host and port"))?,
        };
        Ok(uri)
    }
}

/// Parses `host`, `host:port` or `[address]:port`; an empty host is the local one.
fn tcp(authority: &str) -> Option<Address> {
    // A user name is for other kinds of authentication than certificates.
    let place = authority.rsplit_once('@').map_or(authority, |(_, place)| place);
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
        }
        None => match place.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (place, None),
        },
    };
    let port = match port {
        None | Some("") => PORT,
        Some(port) => port.parse().ok()?,
    };
    let host = if host.is_empty() { "localhost" } else { host };
    Some(Address::Tcp(decode(host).ok()?, port))
}

/// Decodes percent-encoding.
fn decode(text: &str) -> Result<String, String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        if *first == b'%' {
            let hex = tail.get(..2).and_then(|h| std::str::from_utf8(h).ok());
            let byte = hex.and_then(|h| u8::from_str_radix(h, 16).ok());
            out.push(byte.ok_or("a % without two hexadecimal digits")?);
            rest = &tail[2..];
        } else {
            out.push(*first);
            rest = tail;
        }
    }
    String::from_utf8(out).map_err(|_| "it is not UTF-8".to_owned())
}

/// Percent-encodes all bytes that are not plain characters.
fn encode(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/:@!$,".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tls = if self.encrypted { "s" } else { "" };
        let export = encode(&self.export);
        let mut query = Vec::new();
        match &self.address {
            // No URI yields a QUIC address, and no NBD server listens on one.
            Address::Tcp(host, port) | Address::Quic(host, port) => {
                let host = if host.contains(':') { format!("[{host}]") } else { encode(host) };
                write!(f, "nbd{tls}://{host}")?;
                if *port != PORT {
                    write!(f, ":{port}")?;
                }
                write!(f, "/{export}")?;
            }
            Address::Unix(path) => {
                write!(f, "nbd{tls}+unix:///{export}")?;
                query.push(format!("socket={}", encode(&path.to_string_lossy())));
            }
        }
        if let Some(directory) = &self.tls_certificates {
            query.push(format!("tls-certificates={}", encode(&directory.to_string_lossy())));
        }
        if let Some(name) = &self.tls_hostname {
            query.push(format!("tls-hostname={}", encode(name)));
        }
        query.extend(self.connections.map(|n| format!("connections={n}")));
        query.extend(self.timeout.map(|t| format!("timeout={}", t.as_secs())));
        if !query.is_empty() {
            write!(f, "?{}", query.join("&"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::Path;

    fn uri(text: &str) -> Uri {
        text.parse().unwrap_or_else(|e| panic!("{e}"))
    }

    #[test]
    fn the_examples_of_the_document_are_understood() {
        let tcp = |host: &str, port| Address::Tcp(host.into(), port);
        for (text, address, export) in [
            ("nbd://example.com/disk", tcp("example.com", 10809), "disk"),
            ("nbd://example.com:10810/export", tcp("example.com", 10810), "export"),
            ("nbd+unix:///disk?socket=sock", Address::Unix("sock".into()), "disk"),
            ("nbd://example.com/", tcp("example.com", 10809), ""),
            ("nbd://example.com", tcp("example.com", 10809), ""),
            ("nbd://example.com//disk", tcp("example.com", 10809), "/disk"),
            ("nbd://example.com/hello%20world", tcp("example.com", 10809), "hello world"),
            ("nbd://[::1]:1234/x", tcp("::1", 1234), "x"),
            ("nbd://", tcp("localhost", 10809), ""),
            ("nbd+unix:///?socket=%00/abstract", Address::Unix("\0/abstract".into()), ""),
        ] {
            let got = uri(text);
            assert_eq!((got.address, got.export.as_str()), (address, export), "{text}");
        }
        let tls =
            uri("nbds://h/x?tls-certificates=/etc/pki&tls-hostname=n&tls-type=x509&timeout=5");
        assert!(tls.encrypted);
        assert_eq!(tls.tls_certificates.as_deref(), Some(Path::new("/etc/pki")));
        assert_eq!(tls.timeout, Some(Duration::from_secs(5)));
    }

    #[test]
    fn nonsense_is_diagnosed() {
        for (text, why) in [
            ("http://x/", "scheme"),
            ("nbd+unix:///x", "socket"),
            ("nbd://x/?socket=/y", "nbd+unix"),
            ("nbd://x:99999/", "port"),
            ("nbd://x/%zz", "hexadecimal"),
            ("nbd://x/%ff", "UTF-8"),
            ("nbd://x/?colour=red", "colour"),
            ("nbd://x/?tls-verify-peer=0", "verified"),
            ("nbd://x/?tls-type=psk", "x509"),
            ("nbd://x/?connections=0", "connections"),
            ("nbd://x/a%00b", "carry"),
        ] {
            let e = text.parse::<Uri>().expect_err(text).to_string();
            assert!(e.contains(why), "{text}: {e}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            export in "[^\0]{0,40}", path in "[^\0]{1,40}", port in 1..u16::MAX, unix: bool, encrypted: bool
        ) {
            let address = if unix {
                Address::Unix(path.into())
            } else {
                Address::Tcp("host.example".into(), port)
            };
            let written = Uri {
                address, export, encrypted,
                tls_certificates: Some("/a b/c".into()), tls_hostname: Some("n".into()),
                connections: Some(3), timeout: Some(Duration::from_secs(9)),
            };
            prop_assert_eq!(uri(&written.to_string()), written);
        }

        #[test]
        fn anything_is_parsed_or_refused(text: String) {
            let _ = text.parse::<Uri>();
            let _ = format!("nbd://{text}").parse::<Uri>();
            let _ = format!("nbd+unix:///?{text}").parse::<Uri>();
        }
    }
}
