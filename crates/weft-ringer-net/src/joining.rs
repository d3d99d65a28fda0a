//! Joining a cell by an invitation.

use std::fs;
use std::path::Path;
use std::time::Instant;

use weft_net::ClientTls;
use weft_ringer::Bytes;
use weft_vfs::host_file;

use super::pki::{NewKey, Token, fingerprint, fingerprint_in, write_new};
use super::{Answer, Ask, Conversation, Error, HANDSHAKE_LIMIT, Result};

/// Joins a cell as `name`: makes a key, has the server sign it, and puts `ca-cert.pem`,
/// `client-cert.pem` and `client-key.pem` into `directory`, which must not have any of them. The
/// key never leaves this machine.
///
/// # Errors
/// [`Error::Denied`] says what is wrong with the token; [`weft_net::Error::Tls`] if the server is
/// not the one that the token is of. Nothing is left in the directory then.
pub fn join(token: &Token, directory: &Path, name: &str) -> Result<()> {
    let files = ["client-key.pem", "client-cert.pem", "ca-cert.pem"];
    let io = |e| Error::io(directory.display().to_string(), e);
    host_file::create_dir_all(directory, 0o777).map_err(io)?;
    // Before the token is used up.
    for file in files {
        if directory.join(file).exists() {
            let why = format!("{} already exists", directory.join(file).display());
            return Err(Error::Refused(why));
        }
    }
    let key = NewKey::generate()?;
    // The key is durable before there is a certificate for it: a token is good once.
    write_new(&directory.join(files[0]), &key.pem()?, true)?;
    let joined = enroll(token, name, &key).and_then(|(chain, authority)| {
        write_new(&directory.join(files[2]), &authority, false)?;
        // The certificate is checked against the token, though TLS has authenticated the server.
        if fingerprint_in(&directory.join(files[2]))? != token.authority {
            return Err(Error::Refused(
                "cannot join: the server's certificate authority is not the one of the invitation"
                    .into(),
            ));
        }
        write_new(&directory.join(files[1]), &chain, false)
    });
    if joined.is_err() {
        for file in files {
            let _ = fs::remove_file(directory.join(file));
        }
    }
    joined
}

/// Asks for a certificate; returns it and the authority's, as PEM.
fn enroll(token: &Token, name: &str, key: &NewKey) -> Result<(String, String)> {
    let authority = token.authority;
    let tls = ClientTls::pinned(move |der| fingerprint(der) == authority)?;
    let tls = Some((&tls, token.server.host()));
    let mut link = Conversation::connect(&token.server, tls, HANDSHAKE_LIMIT)?;
    link.send(&Ask::Enroll {
        secret: Bytes(token.secret.to_vec()),
        public_key: Bytes(key.public().to_vec()),
        name: Bytes(name.as_bytes().to_vec()),
    })?;
    match link.receive(Some(Instant::now() + HANDSHAKE_LIMIT))? {
        Answer::Enrolled { chain, authority } => {
            let text = |bytes: Bytes| {
                let text = String::from_utf8(bytes.0);
                text.map_err(|_| {
                    Error::Refused("cannot join: the server sent no certificate".into())
                })
            };
            Ok((text(chain)?, text(authority)?))
        }
        Answer::Denied { denial } => Err(denial.into()),
        Answer::Standby { owner } => Err(Error::standby(owner)),
        Answer::Refused { why } => {
            Err(Error::Refused(String::from_utf8_lossy(&why.0).into_owned()))
        }
        _ => Err(Error::Refused(
            "protocol error: the peer is not a weft ringer metadata server".into(),
        )),
    }
}
