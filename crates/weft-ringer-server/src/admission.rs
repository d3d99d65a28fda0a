//! Which peers a server without certificates lets in: on TCP a peer is not asked who it is, so that only those of
//! this machine are served whose user may do with the cell's file what he likes.

use weft_net::Socket;

use super::ServeOptions;

/// Why the peer of a connection is refused, if it is. Looked at before anything that it has sent.
pub(super) fn refusal(options: &ServeOptions, socket: &Socket) -> Option<String> {
    // Only the user of the server and root reach a Unix socket.
    if options.tls.is_some() || options.insecure || !matches!(socket, Socket::Tcp(_)) {
        return None;
    }
    let own = rustix::process::geteuid().as_raw();
    let peer = match socket.peer_user() {
        Some(0) => return None,
        Some(user) if user == own => return None,
        Some(user) => format!("user {user}"),
        None => "a client that is not known as a process of this machine".to_owned(),
    };
    Some(format!(
        "permission denied: without certificates this server lets in user {own} and root of this machine alone, and \
         not {peer}; serve with --tls-certificates for others (or --insecure, to let everybody in)"
    ))
}
