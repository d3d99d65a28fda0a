//! Clients that do not reach each other, as both are behind NAT, talk through the server, which both
//! do. It passes on what they say, and cannot read it: under TLS they show each other their
//! certificates, as on a connection of their own.
//!
//! Who wants to talk says [`Ask::Meet`] on a new connection. The server tells the other on the
//! connection that it has ([`Answer::Called`]), and that comes with [`Ask::Come`] on a new one as well.
//! Both are told [`Answer::Met`]; every byte after it is passed on. What a front cannot bring together
//! it has its parent do, and passes on in turn.
//!
//! Invariants:
//! - Who is met has been called by its number, and nobody else knows of the meeting.
//! - No more than [`ServeOptions::relays_max`](super::ServeOptions::relays_max) meetings at once; one at
//!   which nothing is said ends.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weft_net::{Address, Channel, ClientTls, SendHalf, is_pause};
use weft_ringer::ClientId;
use weft_ringer_net::{Answer, Ask, Conversation, Denial, Error, Meeting, Result, fill_random};

use super::connection::{deny, post, refuse};
use super::event::Event;
use super::{Shared, spawn};

/// How long it may take until who is called has come.
const COME_LIMIT: Duration = Duration::from_secs(5);
/// At what is said so rarely, nobody is there. Clients hang up on each other before.
const IDLE_LIMIT: Duration = Duration::from_secs(300);
/// What is passed on at once, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// Whether a client was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// It was told.
    Called,
    /// It is not there.
    Absent,
    /// Who wants to talk with it may not.
    Denied(Denial),
}

/// The meetings of a server.
#[derive(Debug, Default)]
pub(super) struct Relays {
    /// Those that are waited for, and those that have begun: these have nobody to tell.
    meetings: Mutex<HashMap<Meeting, Option<SyncSender<Conversation>>>>,
}

/// A meeting, until it is over.
struct Held<'a> {
    relays: &'a Relays,
    meeting: Meeting,
    /// Says who has come.
    come: Receiver<Conversation>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.relays.lock().remove(&self.meeting);
    }
}

impl Relays {
    fn lock(&self) -> MutexGuard<'_, HashMap<Meeting, Option<SyncSender<Conversation>>>> {
        self.meetings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to wait for somebody; `None` if there are `max` meetings.
    fn hold(&self, max: usize) -> Result<Option<Held<'_>>> {
        let mut meeting = Meeting([0; 16]);
        fill_random(&mut meeting.0).map_err(|e| Error::io("random numbers", e))?;
        let (tell, come) = sync_channel(1);
        let mut meetings = self.lock();
        if meetings.len() >= max {
            return Ok(None);
        }
        meetings.insert(meeting, Some(tell));
        Ok(Some(Held { relays: self, meeting, come }))
    }

    /// Brings who has come to who waits; gives it back if nobody does.
    fn come(&self, meeting: &Meeting, link: Conversation) -> Option<Conversation> {
        let Some(tell) = self.lock().get_mut(meeting).and_then(Option::take) else {
            return Some(link);
        };
        tell.send(link).err().map(|unsent| unsent.0)
    }
}

/// Serves a connection whose first message was [`Ask::Meet`].
pub(super) fn meet(shared: &Shared, mut link: Conversation, peer: ClientId) -> Result<()> {
    let Some(held) = shared.relays.hold(shared.options.relays_max)? else {
        return Err(refuse(&mut link, "no more clients can talk through this server"));
    };
    let (tell, told) = sync_channel(1);
    let certificate = link.fingerprint();
    post(shared, Event::Call { peer, meeting: held.meeting, certificate, tell })?;
    match told.recv_timeout(COME_LIMIT) {
        Ok(Call::Called) => {}
        Ok(Call::Denied(denial)) => return Err(deny(&mut link, denial)),
        Ok(Call::Absent) if !shared.parents.servers.is_empty() => {
            return beyond(shared, link, &Ask::Meet { peer });
        }
        Ok(Call::Absent) => return Err(refuse(&mut link, "that client is not there")),
        Err(_) => return Err(refuse(&mut link, "the server has too much to do, or stands by")),
    }
    match held.come.recv_timeout(COME_LIMIT) {
        Ok(mut other) => {
            other.send(&Answer::Met {})?;
            pass_on(shared, link, other)
        }
        Err(_) => {
            // Who comes from now on is told so as well.
            drop(held);
            Err(refuse(&mut link, "that client was called and has not come"))
        }
    }
}

/// Serves a connection whose first message was [`Ask::Come`].
pub(super) fn come(shared: &Shared, link: Conversation, meeting: Meeting) -> Result<()> {
    let Some(mut link) = shared.relays.come(&meeting, link) else { return Ok(()) };
    if shared.parents.servers.is_empty() {
        return Err(refuse(&mut link, "there is no such meeting"));
    }
    // It takes a place as one that was begun here.
    let Some(_held) = shared.relays.hold(shared.options.relays_max)? else {
        return Err(refuse(&mut link, "no more clients can talk through this server"));
    };
    beyond(shared, link, &Ask::Come { meeting })
}

/// The servers that a front is in front of.
#[derive(Debug, Default)]
pub(super) struct Parents {
    pub(super) servers: Vec<Address>,
    pub(super) tls: Option<ClientTls>,
}

/// Has a parent do what was asked.
fn beyond(shared: &Shared, mut link: Conversation, ask: &Ask) -> Result<()> {
    let mut why = String::new();
    for parent in &shared.parents.servers {
        let tls = shared.parents.tls.as_ref().map(|tls| (tls, parent.host()));
        let deadline = Instant::now() + 2 * COME_LIMIT;
        let beyond = Conversation::connect(parent, tls, COME_LIMIT);
        match beyond.and_then(|beyond| beyond.meet(ask, deadline)) {
            Ok(other) => return pass_on(shared, link, other),
            Err(e) => why = format!("{parent}: {e}"),
        }
    }
    Err(refuse(&mut link, &why))
}

/// Tells `one` that it has met `other`, who knows, and passes on what either says until one of them
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

/// Passes on one direction until it ends, nothing is heard in either, or `is_over`.
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
