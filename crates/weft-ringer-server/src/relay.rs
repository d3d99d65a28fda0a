//! Relayed connections of clients that cannot reach each other, as both are behind NAT, through the
//! server, which both reach. It relays their bytes, and cannot read them: under TLS they
//! authenticate each other by certificates, as on a direct connection.
//!
//! A client sends [`Ask::Meet`] on a new connection. The server notifies the other on its existing
//! connection ([`Answer::Called`]), and that one sends [`Ask::Come`] on a new connection as well.
//! Both are sent [`Answer::Met`]; every byte after it is relayed. A proxy passes requests that it
//! cannot serve to its parent, and relays in turn.
//!
//! NAT hole punching would save this traffic. It is not used, as the cell has a server that all
//! clients reach already, and a library for it (`iroh`) brings relays and a directory that a third
//! party runs, and some 300 crates.
//!
//! Invariants:
//! - A client that joins a rendezvous was called by its client number; the server tells the
//!   rendezvous to no other client.
//! - At most [`ServeOptions::relays_max`](super::ServeOptions::relays_max) rendezvous exist at a
//!   time; an idle one ends.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use weft_net::{Channel, SendHalf, is_pause};
use weft_ringer::ClientId;
use weft_ringer_net::{Answer, Ask, Conversation, Error, Rendezvous, Result};

use super::admission::{deny, refuse};
use super::event::{Call, Event};
use super::shared::Shared;
use super::thread::spawn;

/// The time for a called client to come.
const COME_LIMIT: Duration = Duration::from_secs(5);
/// The idle time after which a relayed connection ends. Clients disconnect from each other before.
const IDLE_LIMIT: Duration = Duration::from_secs(300);
/// The size of one relay step, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// Serves a connection whose first message was [`Ask::Meet`].
pub(super) fn meet(shared: &Shared, mut link: Conversation, peer: ClientId) -> Result<()> {
    let Some(held) = shared.relays.hold(shared.options.relays_max)? else {
        return Err(refuse(
            &mut link,
            "no relayed connection: the server has the most it allows (--relays-max)",
        ));
    };
    let (tell, told) = sync_channel(1);
    let certificate = link.fingerprint();
    shared.post(Event::Call { peer, rendezvous: held.rendezvous, certificate, tell })?;
    match told.recv_timeout(COME_LIMIT) {
        Ok(Call::Called) => {}
        Ok(Call::Denied(denial)) => return Err(deny(&mut link, denial)),
        Ok(Call::Absent) if !shared.parents.servers.is_empty() => {
            return upstream(shared, link, &Ask::Meet { peer });
        }
        Ok(Call::Absent) => {
            return Err(refuse(
                &mut link,
                "no relayed connection: the client is not connected to the server",
            ));
        }
        Err(_) => {
            return Err(refuse(
                &mut link,
                "no relayed connection: the server is overloaded or a standby",
            ));
        }
    }
    match held.come.recv_timeout(COME_LIMIT) {
        Ok(mut other) => {
            other.send(&Answer::Met {})?;
            pass_on(shared, link, other)
        }
        Err(_) => {
            // A client that comes from now on is refused as well.
            drop(held);
            Err(refuse(&mut link, "no relayed connection: the client did not answer the call"))
        }
    }
}

/// Serves a connection whose first message was [`Ask::Come`].
pub(super) fn come(shared: &Shared, link: Conversation, rendezvous: Rendezvous) -> Result<()> {
    let Some(mut link) = shared.relays.come(&rendezvous, link) else { return Ok(()) };
    if shared.parents.servers.is_empty() {
        return Err(refuse(&mut link, "no relayed connection: unknown or expired rendezvous"));
    }
    // It counts as a rendezvous begun here.
    let Some(_held) = shared.relays.hold(shared.options.relays_max)? else {
        return Err(refuse(
            &mut link,
            "no relayed connection: the server has the most it allows (--relays-max)",
        ));
    };
    upstream(shared, link, &Ask::Come { rendezvous })
}

/// Passes the request to a parent.
fn upstream(shared: &Shared, mut link: Conversation, ask: &Ask) -> Result<()> {
    let mut why = String::new();
    for parent in &shared.parents.servers {
        let tls = shared.parents.tls.as_ref().map(|tls| (tls, parent.host()));
        let deadline = Instant::now() + 2 * COME_LIMIT;
        let upstream = Conversation::connect(parent, tls, COME_LIMIT);
        match upstream.and_then(|upstream| upstream.meet(ask, deadline)) {
            Ok(other) => return pass_on(shared, link, other),
            Err(e) => why = format!("{parent}: {e}"),
        }
    }
    Err(refuse(&mut link, &why))
}

/// Tells `one` that it is connected to `other`, which knows, and relays between them until one
/// ends.
fn pass_on(shared: &Shared, mut one: Conversation, other: Conversation) -> Result<()> {
    one.send(&Answer::Met {})?;
    let (one, other) = (one.into_channel(), other.into_channel());
    let sockets = [Arc::clone(&one.socket), Arc::clone(&other.socket)];
    let heard = Arc::new(Mutex::new(Instant::now()));
    let Channel { reader: from_one, writer: to_one, .. } = one;
    let Channel { reader: from_other, writer: to_other, .. } = other;
    let end = move || sockets.iter().for_each(|socket| socket.shutdown(Shutdown::Both));
    let back = {
        let (heard, end) = (Arc::clone(&heard), end.clone());
        spawn("ringer-relay", move || {
            let _ = copy(from_other, to_one, &heard, &|| false);
            end();
        })
    };
    let copied = back.and_then(|back| {
        let copied = copy(from_one, to_other, &heard, &|| shared.is_stopped());
        end();
        let _ = back.join();
        copied
    });
    end();
    copied
}

/// Relays one direction until it ends, both are idle for too long, or `is_over`.
fn copy(
    mut from: Box<dyn Read + Send>,
    mut to: Box<dyn SendHalf>,
    heard: &Mutex<Instant>,
    is_over: &dyn Fn() -> bool,
) -> Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let lock = || heard.lock().unwrap_or_else(PoisonError::into_inner);
    while !is_over() && lock().elapsed() < IDLE_LIMIT {
        match from.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(n) => {
                *lock() = Instant::now();
                to.write_all(&chunk[..n]).map_err(|e| Error::io("cannot pass on", e))?;
            }
            Err(e) if is_pause(&e) => {}
            Err(e) => return Err(Error::io("cannot receive", e)),
        }
    }
    Ok(())
}
