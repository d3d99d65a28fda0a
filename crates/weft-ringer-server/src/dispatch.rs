//! The state machine of a metadata server with its store, in one thread.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use weft_ringer::mds::{Access, Level, Mds, MdsEvent, Problem, ToClient, check};
use weft_ringer::query::Query;
use weft_ringer::store::{CellStore, Revision, StoreError};
use weft_ringer::wire::{RequestBody, ToServer};
use weft_ringer::{BlockHash, Bytes, ClientId};
use weft_ringer_net::pki::{Authority, PUBLIC_KEY_BYTES, TOKEN_SECRET_BYTES, secret_hash};
use weft_ringer_net::{
    Answer, Ask, CellStatus, ClientStatus, Denial, Error, Hit, Meeting, Outbox, Peer, Result,
    fill_random, now, wall,
};

use super::ServeOptions;
use super::beyond::Beyond;
use super::members::{self, Members};
use super::past::{self, Past, SawLater};
use super::relay::Call;
use super::run::{answer_of, cell_number};
use super::traffic::{Counts, Traffic};

/// How long it may take to tell clients that this server has lost its cell.
const FAREWELL: Duration = Duration::from_millis(200);
const TICK: Duration = Duration::from_millis(50);
/// The most hits of one search, and the most bytes of their paths: they fit a frame.
const HITS_MAX: usize = 10_000;
pub(super) const HITS_MAX_BYTES: usize = 4 << 20;
/// The most leases in one list: their paths are looked for, one by one.
pub(super) const LEASES_MAX: usize = 10_000;

/// What comes from connections.
#[derive(Debug)]
pub(super) enum Event {
    Joined {
        number: u64,
        client: Option<ClientId>,
        /// By which the client has shown who it is.
        secret: Bytes,
        /// The fingerprint of the certificate that was shown.
        certificate: Option<BlockHash>,
        listens: Option<Bytes>,
        /// The cell that the client's local store belongs to; 0 if it is new.
        cell: u64,
        outbox: Arc<Outbox>,
    },
    Left {
        number: u64,
        client: ClientId,
    },
    Message {
        number: u64,
        message: Box<ToServer>,
    },
    /// A front has a client, or has it no more.
    Bring {
        number: u64,
        client: ClientId,
        listens: Option<Bytes>,
        certificate: Option<BlockHash>,
    },
    Gone {
        number: u64,
        client: ClientId,
    },
    /// Somebody wants to talk with a client through this server.
    Call {
        peer: ClientId,
        meeting: Meeting,
        /// What who asks has shown.
        certificate: Option<BlockHash>,
        tell: SyncSender<Call>,
    },
    /// A client has seen what this cell never was.
    SawLater {
        client: ClientId,
        seen: SawLater,
    },
    /// Of a front's connection to its parent.
    Linked {
        cell: u64,
        outbox: Arc<Outbox>,
    },
    Parent {
        answer: Box<Answer>,
    },
    Unlinked,
    /// Somebody without a certificate asks for one.
    Enroll {
        ask: Ask,
        outbox: Arc<Outbox>,
    },
    /// Something that only who runs the cell may ask.
    Run {
        number: u64,
        ask: Ask,
    },
    Status {
        number: u64,
    },
    /// The same, of somebody in this process.
    Describe {
        tell: SyncSender<CellStatus>,
    },
    Search {
        number: u64,
        query: Bytes,
        limit: u32,
    },
    /// Something about what is attached, and what may be found.
    Look {
        number: u64,
        ask: Ask,
    },
    Ping {
        number: u64,
    },
    Check {
        number: u64,
    },
    Stop,
}

#[derive(Debug)]
struct Connection {
    number: u64,
    outbox: Arc<Outbox>,
    listens: Option<Bytes>,
    certificate: Option<BlockHash>,
    access: Access,
    /// Of a front: its clients.
    brought: BTreeMap<ClientId, Brought>,
    /// The revision that it was told.
    reached: u64,
}

/// A client that a front has.
#[derive(Debug)]
struct Brought {
    listens: Option<Bytes>,
    certificate: Option<BlockHash>,
}

/// A connection of somebody who only looks.
#[derive(Debug)]
struct Observer {
    outbox: Arc<Outbox>,
    certificate: Option<BlockHash>,
    access: Access,
}

pub(super) struct Core {
    pub(super) store: Box<dyn CellStore>,
    pub(super) mds: Mds,
    cell: u64,
    past: Past,
    beyond: Beyond,
    epoch_micros: u64,
    clients: BTreeMap<ClientId, Connection>,
    observers: BTreeMap<u64, Observer>,
    traffic: Traffic,
    /// Who may come in; `None` if whoever has a certificate may.
    members: Option<Members>,
    authority: Option<Arc<Authority>>,
}

pub(super) fn store_error(e: &StoreError) -> Error {
    Error::Store(e.to_string())
}

impl Core {
    /// Begins a life of the server of the cell in `store`.
    pub(super) fn open(mut store: Box<dyn CellStore>, options: &ServeOptions) -> Result<Self> {
        let began = store.revision().map_err(|e| store_error(&e))?;
        let cell = cell_number(&mut *store)?;
        let members = match &options.authority {
            Some(_) => {
                let loaded = Members::load(&*store, options.admins.clone());
                Some(loaded.map_err(|e| store_error(&e))?)
            }
            None => None,
        };
        let mds = Mds::open(&mut *store, now(), wall(), options.mds.clone());
        let mds = mds.map_err(|e| store_error(&e))?;
        let past = Past::open(&mut *store, mds.generation(), began)?;
        Ok(Self {
            store,
            mds,
            cell,
            past,
            beyond: Beyond::new().map_err(|e| Error::io("random numbers", e))?,
            epoch_micros: options.mds.epoch_micros,
            clients: BTreeMap::new(),
            observers: BTreeMap::new(),
            traffic: Traffic::default(),
            members,
            authority: options.authority.clone(),
        })
    }

    /// Takes events until told to stop.
    pub(super) fn run(mut self, events: &Receiver<Event>) -> Result<()> {
        let ended = self.serve(events);
        let observers = self.observers.values().map(|o| &o.outbox);
        let outboxes: Vec<_> = self.clients.values().map(|c| &c.outbox).chain(observers).collect();
        if ended.is_err() {
            // They look for another server, if there is one.
            let told = Instant::now() + FAREWELL;
            for outbox in &outboxes {
                outbox.post(&Answer::Standby { owner: None });
            }
            for outbox in &outboxes {
                outbox.drain(told.saturating_duration_since(Instant::now()));
            }
        }
        for outbox in outboxes {
            outbox.close();
        }
        if let Err(e) = &ended {
            tracing::error!("the server has lost its store: {e}");
        }
        ended
    }

    fn serve(&mut self, events: &Receiver<Event>) -> Result<()> {
        let mut tick = Instant::now();
        loop {
            let event = match events.recv_timeout(TICK) {
                Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Ok(event) => Some(event),
                Err(RecvTimeoutError::Timeout) => None,
            };
            if !self.store.is_owned() {
                return Err(store_error(&StoreError::Fenced));
            }
            if let Some(event) = event {
                self.event(event)?;
            }
            if tick.elapsed() >= TICK {
                tick = Instant::now();
                self.mds(MdsEvent::Tick)?;
                self.store.idle().map_err(|e| store_error(&e))?;
            }
        }
    }

    fn mds(&mut self, event: MdsEvent) -> Result<()> {
        let out = self.mds.handle(&mut *self.store, now(), event).map_err(|e| store_error(&e))?;
        // A renewal or a lease is not to be had from who is not the owner, though it changes nothing
        // of the store.
        if !self.store.is_owned() {
            return Err(store_error(&StoreError::Fenced));
        }
        let reached = self.store.revision().map_err(|e| store_error(&e))?.0;
        for ToClient { client, message } in out {
            self.traffic.sent(client, &message);
            // Who is not there asks again when it is.
            if let Some(connection) = self.clients.get_mut(&client) {
                if connection.reached < reached {
                    connection.reached = reached;
                    connection.outbox.post(&Answer::Reached { revision: reached });
                }
                connection.outbox.post(&Answer::Mds { message: Box::new(message) });
            }
        }
        Ok(())
    }

    fn event(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Joined { number, client, certificate, listens, cell, outbox, .. } => {
                let access = match self.admit(certificate) {
                    Ok(access) => access,
                    Err(denial) => {
                        outbox.post(&Answer::Denied { denial });
                        return Ok(());
                    }
                };
                let Some(client) = client else {
                    outbox.post(&Answer::Welcome {});
                    self.observers.retain(|_, o| !o.outbox.is_closed());
                    self.observers.insert(number, Observer { outbox, certificate, access });
                    return Ok(());
                };
                if cell != 0 && cell != self.cell {
                    let why = "its local store belongs to another cell";
                    outbox.post(&refused(why));
                    return Ok(());
                }
                outbox.post(&Answer::Joined { client, cell: self.cell });
                let revision = self.store.revision().map_err(|e| store_error(&e))?;
                outbox.post(&self.past.lives(revision));
                let (brought, reached) = (BTreeMap::new(), revision.0);
                let new =
                    Connection { number, outbox, listens, certificate, access, brought, reached };
                if let Some(old) = self.clients.insert(client, new) {
                    // A client has one connection: this one is dead, or its twin's.
                    old.outbox.close();
                }
                self.introduce(client);
                self.tell_outcasts();
            }
            Event::Bring { number, client, listens, certificate } => {
                self.bring(number, client, Brought { listens, certificate });
            }
            Event::Gone { number, client } => {
                if let Some(front) = self.clients.values_mut().find(|c| c.number == number) {
                    front.brought.remove(&client);
                }
            }
            // Who has given up waiting needs no answer.
            Event::Call { peer, meeting, certificate, tell } => {
                let _ = tell.try_send(self.call(peer, meeting, certificate));
            }
            Event::Linked { .. } | Event::Parent { .. } | Event::Unlinked => {}
            Event::Enroll { ask, outbox } => {
                let answer = self.enroll(&ask)?;
                outbox.post(&answer);
            }
            Event::Run { number, ask } => {
                let answer = self.run_cell(number, &ask)?;
                self.answer(number, &answer);
            }
            Event::Left { number, client } => {
                if self.clients.get(&client).is_some_and(|c| c.number == number) {
                    self.clients.remove(&client);
                }
            }
            Event::Message { number, message } => {
                let current = self.clients.get(&message.client);
                let Some(current) = current.filter(|c| c.number == number) else { return Ok(()) };
                self.traffic.received(message.client);
                let allowed = current.access.allows(&*self.store, &message.request.body);
                let speaks_for = match &message.request.body {
                    RequestBody::Enter { client, .. } | RequestBody::Relay { client, .. } => {
                        current.brought.contains_key(client)
                    }
                    _ => true,
                };
                if speaks_for && allowed.map_err(|e| store_error(&e))? {
                    let goes_on = self.past.goes_on(&mut *self.store, message.client);
                    goes_on.map_err(|e| store_error(&e))?;
                    self.mds(MdsEvent::Message(*message))?;
                } else {
                    tracing::info!("client {:016x} may not do what it asked", message.client.0);
                    let ToClient { message, .. } = self.mds.deny(&message);
                    current.outbox.post(&Answer::Mds { message: Box::new(message) });
                }
            }
            Event::Status { number } => {
                self.answer(number, &Answer::Status { status: self.status() });
            }
            // Who has gone meanwhile needs no answer.
            Event::Describe { tell } => drop(tell.try_send(self.status())),
            Event::Search { number, query, limit } => {
                let answer = self.search(number, &query, limit)?;
                self.answer(number, &answer);
            }
            Event::Look { number, ask } => {
                let access = self.access_of(number);
                let (store, cell) = (&*self.store, self.cell);
                let answer = match ask {
                    Ask::Summary {} => self.beyond.summary(store, &access),
                    _ => self.beyond.junctions(store, cell, &access),
                };
                self.answer(number, &answer.map_err(|e| store_error(&e))?);
            }
            // What is wrong is told by names.
            Event::Check { number } if self.access_of(number).everywhere().is_none() => {
                self.answer(number, &Answer::Denied { denial: Denial::NotAdmin });
            }
            Event::Check { number } => {
                let mut checked = check(&*self.store).map_err(|e| store_error(&e))?;
                let mended = self.mds.check_texts(&mut *self.store, &mut checked);
                mended.map_err(|e| store_error(&e))?;
                let damage = self.store.damage().map_err(|e| store_error(&e))?.into_iter();
                let damage = damage.map(|text| Problem { code: "store-damaged", text });
                self.past.problems().chain(damage).for_each(|problem| checked.add(problem));
                self.answer(number, &answer_of(checked));
            }
            Event::SawLater { client, seen } => {
                let noted = self.past.saw_later(&mut *self.store, client, seen);
                noted.map_err(|e| store_error(&e))?;
            }
            Event::Ping { number } => self.answer(number, &Answer::Pong {}),
            Event::Stop => {}
        }
        Ok(())
    }

    /// A front has a client, who shall do no less than the front does: what the front has read, it has.
    fn bring(&mut self, number: u64, client: ClientId, brought: Brought) {
        let Some(front) = self.clients.values().find(|c| c.number == number) else { return };
        let access = match brought.certificate {
            Some(_) => self.admit(brought.certificate),
            // The front's own user.
            None => Ok(front.access.clone()),
        };
        let denial = match access {
            Ok(access) if access.includes(&front.access) => None,
            Ok(_) => Some(Denial::Less),
            Err(denial) => Some(denial),
        };
        if let Some(denial) = denial {
            front.outbox.post(&Answer::NotBrought { client, denial });
            return;
        }
        front.outbox.post(&Answer::Brought { client });
        let front = self.clients.values_mut().find(|c| c.number == number);
        drop(front.and_then(|c| c.brought.insert(client, brought)));
        self.introduce(client);
    }

    /// Tells a client, or the front that has it, that it is called.
    fn call(&self, peer: ClientId, meeting: Meeting, certificate: Option<BlockHash>) -> Call {
        if let Err(denial) = self.admit(certificate) {
            return Call::Denied(denial);
        }
        let front = || self.clients.values().find(|c| c.brought.contains_key(&peer));
        let Some(connection) = self.clients.get(&peer).or_else(front) else { return Call::Absent };
        connection.outbox.post(&Answer::Called { client: peer, meeting });
        Call::Called
    }

    fn answer(&self, number: u64, answer: &Answer) {
        let client = self.clients.values().find(|c| c.number == number).map(|c| &c.outbox);
        if let Some(outbox) = client.or(self.observers.get(&number).map(|o| &o.outbox)) {
            outbox.post(answer);
        }
    }

    /// What the owner of a certificate may do.
    fn admit(&self, certificate: Option<BlockHash>) -> std::result::Result<Access, Denial> {
        let Some(members) = &self.members else { return Ok(Access::full()) };
        let certificate = certificate.ok_or(Denial::Stranger)?;
        members.admit(&certificate).map(|(_, access)| access).inspect_err(|denial| {
            tracing::warn!("certificate {certificate:?} is not let in: {denial}");
        })
    }

    /// What may be done on a connection.
    fn access_of(&self, number: u64) -> Access {
        let client = self.clients.values().find(|c| c.number == number).map(|c| &c.access);
        let access = client.or(self.observers.get(&number).map(|o| &o.access));
        access.cloned().unwrap_or(Access { grants: Vec::new() })
    }

    /// Makes a member by an invitation.
    fn enroll(&mut self, ask: &Ask) -> Result<Answer> {
        let Ask::Enroll { secret, public_key, name } = ask else {
            return Ok(refused("that is not how one joins"));
        };
        let (Some(authority), Some(members)) = (&self.authority, &mut self.members) else {
            return Ok(Answer::Denied { denial: Denial::NoAuthority });
        };
        if secret.0.len() != TOKEN_SECRET_BYTES || public_key.0.len() != PUBLIC_KEY_BYTES {
            return Ok(refused("a secret or a key has another length"));
        }
        let (secret, name) = (secret_hash(&secret.0), String::from_utf8_lossy(&name.0));
        let looked = members.look(&*self.store, &secret, &name, wall().secs);
        let invitation = match looked.map_err(|e| store_error(&e))? {
            Ok(invitation) => invitation,
            Err(denial) => {
                tracing::warn!("nobody joins as {name:?}: {denial}");
                return Ok(Answer::Denied { denial });
            }
        };
        let (chain, certificate) = authority.admit(&name, &public_key.0)?;
        let enrolled = members.enroll(&mut *self.store, &secret, &name, invitation, certificate);
        enrolled.map_err(|e| store_error(&e))?;
        tracing::info!("{name} has joined");
        Ok(Answer::Enrolled {
            chain: Bytes(chain.into_bytes()),
            authority: Bytes(authority.certificate().as_bytes().to_vec()),
        })
    }

    /// Does what only who runs the cell may ask.
    fn run_cell(&mut self, number: u64, ask: &Ask) -> Result<Answer> {
        if self.access_of(number).everywhere() != Some(Level::Admin) {
            return Ok(Answer::Denied { denial: Denial::NotAdmin });
        }
        if let Ask::Forget { client } = ask {
            let forgotten = self.mds.forget_client(&mut *self.store, *client);
            let knew_better = self.past.goes_on(&mut *self.store, *client);
            let knew_better = knew_better.map_err(|e| store_error(&e))?;
            return Ok(match forgotten.map_err(|e| store_error(&e))? {
                Some(files) => Answer::Forgotten { files },
                None if knew_better => Answer::Forgotten { files: 0 },
                None => refused("that client is here, or its epoch has not ended"),
            });
        }
        if let Ask::Leases { limit } = ask {
            return self.list_leases(*limit).map_err(|e| store_error(&e));
        }
        let copied = match ask {
            Ask::Copy { after } => Some(past::copy(&*self.store, &after.0)),
            Ask::ChangedSince { after } => Some(past::changed(&*self.store, Revision(*after))),
            _ => None,
        };
        if let Some(answer) = copied {
            return answer.map_err(|e| store_error(&e));
        }
        if let Some(answer) = self.about_archives(ask)? {
            return Ok(answer);
        }
        let Some(members) = &mut self.members else {
            return Ok(Answer::Denied { denial: Denial::NoAuthority });
        };
        match ask {
            Ask::Invite { grants, lasts_secs } => {
                let access = match members::access(&*self.store, grants) {
                    Ok(Ok(access)) => access,
                    Ok(Err(why)) => return Ok(refused(&why)),
                    Err(e) => return Err(store_error(&e)),
                };
                let mut secret = vec![0; TOKEN_SECRET_BYTES];
                fill_random(&mut secret).map_err(|e| Error::io("random numbers", e))?;
                let lasts = i64::try_from(*lasts_secs).unwrap_or(i64::MAX);
                let until = wall().secs.saturating_add(lasts);
                let hash = secret_hash(&secret);
                let kept = Members::invite(&mut *self.store, &hash, access, until);
                kept.map_err(|e| store_error(&e))?;
                Ok(Answer::Invited { secret: Bytes(secret) })
            }
            Ask::Revoke { name } => {
                let name = String::from_utf8_lossy(&name.0);
                let revoked = members.revoke(&mut *self.store, &name);
                let Some(certificate) = revoked.map_err(|e| store_error(&e))? else {
                    return Ok(refused("there is no such member"));
                };
                tracing::info!("{name} was sent away");
                self.hang_up_on(certificate);
                self.tell_outcasts();
                Ok(Answer::Revoked {})
            }
            Ask::Members {} => Ok(Answer::Members { members: members.list() }),
            _ => Ok(refused("that is not for who runs the cell")),
        }
    }

    /// Ends every connection of a certificate. Its epochs end by themselves: what it changed under
    /// leases before, and did not tell, is lost to the cell.
    fn hang_up_on(&mut self, certificate: BlockHash) {
        let gone = |shown: &Option<BlockHash>| *shown == Some(certificate);
        for front in self.clients.values_mut() {
            let theirs = front.brought.extract_if(.., |_, b| gone(&b.certificate));
            for (client, _) in theirs {
                let denial = Denial::Revoked;
                front.outbox.post(&Answer::NotBrought { client, denial });
            }
        }
        let denied = Answer::Denied { denial: Denial::Revoked };
        self.clients.retain(|_, c| {
            if gone(&c.certificate) {
                c.outbox.post(&denied);
                c.outbox.close();
            }
            !gone(&c.certificate)
        });
        self.observers.retain(|_, o| {
            if gone(&o.certificate) {
                o.outbox.close();
            }
            !gone(&o.certificate)
        });
    }

    /// Tells every client whom not to give blocks to.
    fn tell_outcasts(&self) {
        let Some(members) = &self.members else { return };
        let outcasts = Answer::Outcasts { certificates: members.revoked() };
        for connection in self.clients.values() {
            connection.outbox.post(&outcasts);
        }
    }

    /// Tells a client that has come how the others are reached, and those how it is. Who has gone may
    /// still answer, and is not told of. Of the clients of a front each hears what their front does.
    fn introduce(&self, new: ClientId) {
        let direct = self.clients.iter().map(|(client, c)| (*client, &c.listens));
        let brought = self.clients.values().flat_map(|c| &c.brought);
        let brought = brought.map(|(client, b)| (*client, &b.listens));
        let reached = direct
            .chain(brought)
            .filter_map(|(client, listens)| Some(Peer { client, listens: listens.clone()? }));
        let (one, others) = reached.partition(|peer: &Peer| peer.client == new);
        let (one, others) = (Answer::Peers { peers: one }, Answer::Peers { peers: others });
        for (client, connection) in &self.clients {
            connection.outbox.post(if *client == new { &others } else { &one });
        }
    }

    fn search(&self, number: u64, query: &Bytes, limit: u32) -> Result<Answer> {
        let parsed = String::from_utf8_lossy(&query.0).parse::<Query>();
        let query = match parsed {
            Ok(query) => query,
            Err(e) => return Ok(refused(&e.to_string())),
        };
        let limit = usize::try_from(limit).unwrap_or(HITS_MAX).min(HITS_MAX);
        let found = self.store.search(&query, limit + 1).map_err(|e| store_error(&e))?;
        let Some(mut found) = found else {
            return Ok(refused(
                "the index is being made, after a change of servers: ask again soon",
            ));
        };
        let is_cut = found.len() > limit;
        let access = self.access_of(number);
        let mut hidden = None;
        found.retain(|(rnode, _)| match access.level(&*self.store, *rnode) {
            Ok(level) => level.is_some(),
            Err(e) => {
                hidden = Some(e);
                false
            }
        });
        if let Some(e) = hidden {
            return Err(store_error(&e));
        }
        let mut bytes = 0;
        let fits = found.iter().take(limit).take_while(|(_, path)| {
            bytes += path.len();
            bytes <= HITS_MAX_BYTES
        });
        let fits = fits.count();
        let complete = fits == found.len() && !is_cut;
        found.truncate(fits);
        let hits = found.into_iter().map(|(rnode, path)| Hit { rnode, path: Bytes(path) });
        Ok(Answer::Found { hits: hits.collect(), complete })
    }

    fn status(&self) -> CellStatus {
        let clients = self.mds.clients().map(|known| {
            let connection = self.clients.get(&known.client);
            let brought = self.clients.values().find_map(|c| c.brought.get(&known.client));
            let Counts { received, sent, recalls } = self.traffic.of(known.client);
            ClientStatus {
                client: known.client,
                epoch: known.epoch,
                live: known.live,
                connected: connection.is_some() || brought.is_some(),
                listens: connection
                    .map(|c| &c.listens)
                    .or(brought.map(|b| &b.listens))
                    .cloned()
                    .flatten(),
                reads: known.reads,
                writes: known.writes,
                received,
                sent,
                recalls,
            }
        });
        CellStatus {
            cell: self.cell,
            generation: self.mds.generation(),
            revision: self.store.revision().map_or(0, |r| r.0),
            in_grace: self.mds.in_grace(),
            epoch_micros: self.epoch_micros,
            clients: clients.collect(),
        }
    }
}

pub(super) fn refused(why: &str) -> Answer {
    Answer::Refused { why: Bytes(why.as_bytes().to_vec()) }
}
