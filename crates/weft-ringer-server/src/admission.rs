//! The peers that a server without certificates admits. A peer on TCP does not prove its identity,
//! so only processes of root and of the server's own user on this machine are admitted: both can
//! change the cell's file anyway.

use weft_net::Socket;
use weft_ringer_net::{Answer, Conversation, Denial, Error};

use super::options::ServeOptions;

/// Returns why the peer of a connection is refused, or `None` if it is admitted. Called before any
/// message of the peer is read.
pub(super) fn refusal(options: &ServeOptions, socket: &Socket) -> Option<String> {
    // Only the server's user and root reach a Unix socket.
    if options.tls.is_some() || options.insecure || !matches!(socket, Socket::Tcp(_)) {
        return None;
    }
    let own = rustix::process::geteuid().as_raw();
    let peer = match socket.peer_user() {
        Some(0) => return None,
        Some(user) if user == own => return None,
        Some(user) => format!("user {user}"),
        None => "a client that is not a known process of this machine".to_owned(),
    };
    Some(format!(
        "permission denied: without certificates this server admits only user {own} and root of \
        this machine, not {peer}; serve with --tls-certificates to admit others (or --insecure \
        to admit everyone)"
    ))
}

/// Tells a peer that its request is refused, and returns the error that ends the connection.
pub(super) fn refuse(link: &mut Conversation, why: &str) -> Error {
    let _ = link.send(&Answer::refused(why));
    Error::Refused(why.to_owned())
}

/// Tells a peer that it lacks a permission, and returns the error that ends the connection.
pub(super) fn deny(link: &mut Conversation, denial: Denial) -> Error {
    let _ = link.send(&Answer::Denied { denial });
    denial.into()
}
