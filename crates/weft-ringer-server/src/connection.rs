//! One connection of a metadata server: its authentication, and its messages on their way to the
//! state machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weft_net::{Address, Seat, Socket};
use weft_ringer::{Bytes, ClientId};
use weft_ringer_net::{
    Ask, Conversation, Denial, Error, HANDSHAKE_LIMIT, HELLO_MAX_BYTES, Outbox, PORT, Result,
    SECRET_BYTES, StoreRuns, client_id,
};

use super::admission::{self, deny, refuse};
use super::event::Event;
use super::relay;
use super::rollback::SawLater;
use super::shared::Shared;
use super::thread::spawn;

/// The idle time after which a connection is closed. A client renews its epoch more often.
const IDLE_LIMIT: Duration = Duration::from_secs(300);
/// The longest text of an address, in bytes.
const ADDRESS_MAX_BYTES: usize = 512;

/// Numbers connections, so that the end of an old one is not mistaken for that of a newer.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Returns the number of a client, if its secret and address are valid.
fn identify(
    secret: &Bytes,
    listens: Option<&Bytes>,
) -> std::result::Result<ClientId, &'static str> {
    if secret.0.len() != SECRET_BYTES {
        return Err("protocol error: client secret of wrong length");
    }
    let is_address = |bytes: &Bytes| {
        let text = std::str::from_utf8(&bytes.0);
        text.is_ok_and(|t| Address::parse(t, PORT).is_ok())
    };
    if listens.is_some_and(|b| b.0.len() > ADDRESS_MAX_BYTES || !is_address(b)) {
        return Err("protocol error: invalid listen address");
    }
    Ok(client_id(&secret.0))
}

/// Serves a connection to its end.
pub(super) fn serve_connection(shared: &Shared, socket: Socket, seat: &Seat) -> Result<()> {
    let refusal = admission::refusal(&shared.options, &socket);
    let mut link = Conversation::accept(socket, shared.options.tls.as_ref())?;
    link.limit_frames(HELLO_MAX_BYTES);
    // Also from a peer that is refused: an answer may be lost when a connection is closed with
    // unread data.
    let first = link.receive(Some(Instant::now() + HANDSHAKE_LIMIT)).inspect_err(|e| {
        if matches!(e, Error::UnexpectedTls) {
            link.refuse_tls();
        }
    });
    let first = first?;
    if let Some(why) = refusal {
        return Err(refuse(&mut link, &why));
    }
    let certificate = link.fingerprint();
    let has_authority = shared.options.authority.is_some();
    let enroll = match &first {
        Ask::Enroll { .. } if !has_authority => {
            return Err(deny(&mut link, Denial::NoAuthority));
        }
        Ask::Enroll { .. } => true,
        // A peer without a certificate may do nothing else.
        _ if has_authority && certificate.is_none() => {
            return Err(deny(&mut link, Denial::Stranger));
        }
        _ => false,
    };
    if !enroll {
        seat.settle();
    }
    match first {
        Ask::Meet { peer } => return relay::meet(shared, link, peer),
        Ask::Come { rendezvous } => return relay::come(shared, link, rendezvous),
        _ => {}
    }
    let (client, listens, cell, runs) = match &first {
        Ask::Enroll { .. } | Ask::Observe {} => (None, None, 0, StoreRuns::default()),
        Ask::Join { secret, listens, cell, runs } => match identify(secret, listens.as_ref()) {
            Ok(client) => (Some(client), listens.clone(), *cell, runs.clone()),
            Err(why) => return Err(refuse(&mut link, why)),
        },
        _ => return Err(refuse(&mut link, "protocol error: the first message is not a Hello")),
    };
    // An observer's requests are short.
    link.limit_frames(if client.is_some() { usize::MAX } else { HELLO_MAX_BYTES });
    let (mut receiver, writer, socket) = link.into_parts();
    let outbox = Arc::new(Outbox::new(socket, &*writer));
    let sender = Arc::clone(&outbox);
    let sending = spawn("ringer-send", move || sender.run(writer))?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let outbox_of_it = Arc::clone(&outbox);
    let served = if enroll {
        shared
            .post(Event::Enroll { ask: first, outbox: outbox_of_it })
            // The peer ends the connection when it has the answer.
            .and_then(|()| receiver.next::<Ask>(Some(Instant::now() + HANDSHAKE_LIMIT)))
            .map(|_| ())
    } else {
        let outbox = outbox_of_it;
        let secret = match first {
            Ask::Join { secret, .. } => secret,
            _ => Bytes::default(),
        };
        let joined =
            Event::Joined { number, client, secret, certificate, listens, cell, runs, outbox };
        shared.post(joined).and_then(|()| take(shared, &mut receiver, number, client))
    };
    if let Some(client) = client {
        let _ = shared.post(Event::Left { number, client });
    }
    outbox.drain(Duration::from_secs(1));
    outbox.close();
    let _ = sending.join();
    served
}

/// Receives the messages of a connection.
fn take(
    shared: &Shared,
    receiver: &mut weft_ringer_net::Receiver,
    number: u64,
    client: Option<ClientId>,
) -> Result<()> {
    let mut last = Instant::now();
    while !shared.is_stopped() {
        let soon = Some(Instant::now() + Duration::from_secs(1));
        let ask = match receiver.next::<Ask>(soon) {
            Ok(ask) => ask,
            Err(e) if e.is_timeout() && last.elapsed() < IDLE_LIMIT => continue,
            Err(Error::Closed) => return Ok(()),
            Err(e) => return Err(e),
        };
        last = Instant::now();
        let event = match (ask, client) {
            (Ask::Mds { message }, Some(client)) if message.client == client => {
                Event::Message { number, message }
            }
            (Ask::Mds { .. }, _) => {
                let why =
                    "protocol error: message for another client on this connection".to_owned();
                return Err(Error::Refused(why));
            }
            (Ask::Introduce { secret, listens, certificate, runs }, Some(_)) => {
                let client = identify(&secret, listens.as_ref());
                let client = client.map_err(|why| Error::Refused(why.to_owned()))?;
                Event::Introduce { number, client, listens, certificate, runs }
            }
            (Ask::Gone { client }, Some(_)) => Event::Gone { number, client },
            (Ask::SawLater { generation, instance, revision }, Some(client)) => Event::SawLater {
                number,
                client,
                seen: SawLater { generation, instance, revision },
            },
            (Ask::ProxiedSawLater { client, generation, instance, revision }, Some(_)) => {
                Event::SawLater {
                    number,
                    client,
                    seen: SawLater { generation, instance, revision },
                }
            }
            (Ask::SawLater { .. } | Ask::ProxiedSawLater { .. }, None) => {
                return Err(Error::Refused(
                    "protocol error: an observer connection has no cell state".into(),
                ));
            }
            (Ask::Introduce { .. } | Ask::Gone { .. }, None) => {
                return Err(Error::Refused(
                    "protocol error: an observer connection cannot introduce clients".into(),
                ));
            }
            (Ask::Status {}, _) => Event::Status { number },
            (Ask::Search { query, limit }, _) => Event::Search { number, query, limit },
            (ask @ (Ask::CellMounts {} | Ask::Summary {}), _) => Event::Look { number, ask },
            (Ask::Check {}, _) => Event::Check { number },
            (Ask::Ping {}, _) => Event::Ping { number },
            (
                ask @ (Ask::Invite { .. }
                | Ask::Revoke { .. }
                | Ask::Members {}
                | Ask::Forget { .. }
                | Ask::AddArchive { .. }
                | Ask::RemoveArchive { .. }
                | Ask::Archives {}
                | Ask::Sweep { .. }
                | Ask::Leases { .. }
                | Ask::Copy { .. }
                | Ask::ChangedSince { .. }),
                _,
            ) => Event::Run { number, ask },
            (
                Ask::Join { .. }
                | Ask::Observe {}
                | Ask::Enroll { .. }
                | Ask::Meet { .. }
                | Ask::Come { .. },
                _,
            ) => {
                return Err(Error::Refused(
                    "protocol error: second Hello on one connection".into(),
                ));
            }
        };
        shared.post(event)?;
    }
    Ok(())
}
