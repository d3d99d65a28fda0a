//! The state machine of a metadata server with its store, in one thread: each event goes to the
//! module that handles it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use weft_ringer::mds::{Access, Checked, Mds, MdsEvent, Problem, ToClient, check};
use weft_ringer::store::{CellStore, StoreError};
use weft_ringer::wire::RequestBody;
use weft_ringer::{BlockHash, Bytes, ClientId};
use weft_ringer_net::pki::Authority;
use weft_ringer_net::{Answer, Ask, Denial, Error, Rendezvous, Result, StoreRuns, now, wall};

use super::cell_number::cell_number;
use super::event::{Call, Event};
use super::federation::Federation;
use super::members::Members;
use super::options::ServeOptions;
use super::rollback::Rollback;
use super::sessions::{Observer, Proxied, Session, Sessions};
use super::stores::Stores;
use super::traffic::Traffic;

/// The time limit for telling clients that this server has lost its cell.
const FAREWELL: Duration = Duration::from_millis(200);
const TICK: Duration = Duration::from_millis(50);
/// The maximum bytes of the paths in one answer: they fit a frame.
pub(super) const ANSWER_PATHS_MAX_BYTES: usize = 4 << 20;

pub(super) struct Dispatcher {
    pub(super) store: Box<dyn CellStore>,
    pub(super) mds: Mds,
    pub(super) cell: u64,
    pub(super) rollback: Rollback,
    pub(super) stores: Stores,
    federation: Federation,
    pub(super) epoch_micros: u64,
    pub(super) sessions: Sessions,
    pub(super) traffic: Traffic,
    /// The members of the cell; `None` if every certificate of the authority is admitted.
    pub(super) members: Option<Members>,
    pub(super) authority: Option<Arc<Authority>>,
    /// Whether the store had no room at last.
    was_full: bool,
}

impl Dispatcher {
    /// Begins a new server generation of the cell in `store`.
    pub(super) fn open(mut store: Box<dyn CellStore>, options: &ServeOptions) -> Result<Self> {
        let began = store.revision()?;
        let cell = cell_number(&mut *store)?;
        let members = match &options.authority {
            Some(_) => {
                let loaded = Members::load(&*store, options.admins.clone());
                Some(loaded?)
            }
            None => None,
        };
        let mds = Mds::open(&mut *store, now(), wall(), options.mds.clone());
        let mds = mds?;
        let rollback = Rollback::open(&mut *store, mds.generation(), began)?;
        let stores = Stores::load(&*store)?;
        Ok(Self {
            store,
            mds,
            cell,
            rollback,
            stores,
            was_full: false,
            federation: Federation::new().map_err(|e| Error::io("random numbers", e))?,
            epoch_micros: options.mds.epoch_micros,
            sessions: Sessions::default(),
            traffic: Traffic::default(),
            members,
            authority: options.authority.clone(),
        })
    }

    /// Handles events until told to stop.
    pub(super) fn run(mut self, events: &Receiver<Event>) -> Result<()> {
        let ended = self.serve(events);
        let outboxes: Vec<_> = self.sessions.outboxes().collect();
        if ended.is_err() {
            // The clients look for another server, if there is one.
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
            tracing::error!("the server stops: its store failed: {e}");
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
                return Err(StoreError::Fenced.into());
            }
            if let Some(event) = event {
                self.event(event)?;
            }
            if tick.elapsed() >= TICK {
                tick = Instant::now();
                self.mds(MdsEvent::Tick)?;
                self.store.idle()?;
            }
        }
    }

    fn mds(&mut self, event: MdsEvent) -> Result<()> {
        let out = self.mds.handle(&mut *self.store, now(), event)?;
        // A server that is not the owner must not grant a renewal or a lease, even if that changes
        // nothing in the store.
        if !self.store.is_owned() {
            return Err(StoreError::Fenced.into());
        }
        if self.mds.is_full() != self.was_full {
            self.was_full = self.mds.is_full();
            if self.was_full {
                tracing::error!(
                    "the disk of the cell is full: changes of all clients wait, and their calls \
                    fail with ENOSPC, until there is room"
                );
            } else {
                tracing::warn!("the disk of the cell has room again");
            }
        }
        let reached = self.store.revision()?.0;
        for ToClient { client, message } in out {
            self.traffic.sent(client, &message);
            self.sessions.send(client, message, reached);
        }
        Ok(())
    }

    fn event(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Joined { number, client, certificate, listens, cell, runs, outbox, .. } => {
                let access = match self.admit(certificate) {
                    Ok(access) => access,
                    Err(denial) => {
                        outbox.post(&Answer::Denied { denial });
                        return Ok(());
                    }
                };
                let Some(client) = client else {
                    outbox.post(&Answer::Welcome {});
                    self.sessions.observe(number, Observer { outbox, certificate, access });
                    return Ok(());
                };
                if cell != 0 && cell != self.cell {
                    let why = "the client's local store belongs to another cell";
                    outbox.post(&Answer::refused(why));
                    return Ok(());
                }
                outbox.post(&Answer::Joined { client, cell: self.cell });
                let revision = self.store.revision()?;
                outbox.post(&self.rollback.generations(revision));
                // After that: a cell that was restored from a backup has seen fewer runs as well.
                let admitted = self.stores.admit(&mut *self.store, client, &runs, certificate);
                if let Err(denial) = admitted? {
                    outbox.post(&Answer::Denied { denial });
                    return Ok(());
                }
                let (proxied, reached) = (BTreeMap::new(), revision.0);
                let session =
                    Session { number, outbox, listens, certificate, access, proxied, reached };
                self.sessions.begin(client, session);
                self.sessions.introduce(client);
                self.tell_revoked();
            }
            Event::Introduce { number, client, listens, certificate, runs } => {
                self.introduce(number, client, Proxied { listens, certificate }, &runs)?;
            }
            Event::Gone { number, client } => {
                if let Some(proxy) = self.sessions.of_connection(number) {
                    proxy.proxied.remove(&client);
                }
            }
            // A requester that no longer waits needs no answer.
            Event::Call { peer, rendezvous, certificate, tell } => {
                let _ = tell.try_send(self.call(peer, rendezvous, certificate));
            }
            Event::Enroll { ask, outbox } => {
                let answer = unless_full(self.enroll(&ask))?;
                outbox.post(&answer);
            }
            Event::Run { number, ask } => {
                let answer = unless_full(self.administrate(number, &ask))?;
                self.sessions.answer(number, &answer);
            }
            Event::Left { number, client } => {
                self.sessions.end(number, client);
            }
            Event::Message { number, message } => {
                let Some(current) = self.sessions.current(number, message.client) else {
                    return Ok(());
                };
                self.traffic.received(message.client);
                let allowed = current.access.allows(&*self.store, &message.request.body);
                let speaks_for = match &message.request.body {
                    RequestBody::Enter { client, .. } | RequestBody::Relay { client, .. } => {
                        current.proxied.contains_key(client)
                    }
                    _ => true,
                };
                if speaks_for && allowed? {
                    let of = match &message.request.body {
                        RequestBody::Enter { client, .. } => *client,
                        _ => message.client,
                    };
                    let forgotten = self.rollback.forget_client(&mut *self.store, of);
                    // While there is no room, it is forgotten with a later message.
                    match forgotten {
                        Err(StoreError::Full) => {}
                        forgotten => drop(forgotten?),
                    }
                    self.mds(MdsEvent::Message(*message))?;
                } else {
                    tracing::info!(
                        "permission denied: a request of client {:016x}",
                        message.client.0
                    );
                    let ToClient { message, .. } = self.mds.deny(&message);
                    current.outbox.post(&Answer::Mds { message: Box::new(message) });
                }
            }
            Event::Status { number } => {
                self.sessions.answer(number, &Answer::Status { status: self.status() });
            }
            // A requester that has gone meanwhile needs no answer.
            Event::Describe { tell } => drop(tell.try_send(self.status())),
            Event::Search { number, query, limit } => {
                let answer = self.search(number, &query, limit)?;
                self.sessions.answer(number, &answer);
            }
            Event::Look { number, ask } => {
                let access = self.sessions.access_of(number);
                let (store, cell) = (&*self.store, self.cell);
                let answer = match ask {
                    Ask::Summary {} => self.federation.summary(store, &access),
                    _ => self.federation.cell_mounts(store, cell, &access),
                };
                self.sessions.answer(number, &answer?);
            }
            // The problems contain names.
            Event::Check { number } if self.sessions.access_of(number).everywhere().is_none() => {
                self.sessions.answer(number, &Answer::Denied { denial: Denial::NotAdmin });
            }
            Event::Check { number } => {
                let answer = unless_full(self.check())?;
                self.sessions.answer(number, &answer);
            }
            Event::SawLater { client, seen, .. } => {
                let noted = self.rollback.saw_later(&mut *self.store, client, seen);
                noted?;
            }
            Event::Ping { number } => self.sessions.answer(number, &Answer::Pong {}),
            Event::Upstream(_) | Event::Stop => {}
        }
        Ok(())
    }

    /// Checks all records of the cell, and repairs the index of texts.
    fn check(&mut self) -> Result<Answer> {
        let mut checked = check(&*self.store)?;
        let mended = self.mds.check_texts(&mut *self.store, &mut checked);
        mended?;
        let damage = self.store.damage()?.into_iter();
        let damage = damage.map(|text| Problem { code: "store-damaged", text });
        self.rollback.problems().chain(damage).for_each(|problem| checked.add(problem));
        Ok(answer_of(checked))
    }

    /// Adds a client to a proxy. The client must have at least the proxy's permissions, because it
    /// can read whatever the proxy has read.
    fn introduce(
        &mut self,
        number: u64,
        client: ClientId,
        proxied: Proxied,
        runs: &StoreRuns,
    ) -> Result<()> {
        let full = match proxied.certificate {
            Some(_) => Some(self.admit(proxied.certificate)),
            // The proxy's own user.
            None => None,
        };
        let Some(proxy) = self.sessions.of_connection(number) else { return Ok(()) };
        let denial = match full {
            None => None,
            Some(Ok(access)) if access.includes(&proxy.access) => None,
            Some(Ok(_)) => Some(Denial::FewerPermissions),
            Some(Err(denial)) => Some(denial),
        };
        let denial = match denial {
            None => {
                let (store, certificate) = (&mut *self.store, proxied.certificate);
                self.stores.admit(store, client, runs, certificate)?.err()
            }
            denial => denial,
        };
        if let Some(denial) = denial {
            proxy.outbox.post(&Answer::NotIntroduced { client, denial });
            return Ok(());
        }
        proxy.outbox.post(&Answer::Introduced { client });
        proxy.proxied.insert(client, proxied);
        self.sessions.introduce(client);
        Ok(())
    }

    /// Notifies a client, or its proxy, of a call.
    fn call(&self, peer: ClientId, rendezvous: Rendezvous, certificate: Option<BlockHash>) -> Call {
        match self.admit(certificate) {
            Err(denial) => Call::Denied(denial),
            Ok(_) if self.sessions.call(peer, rendezvous) => Call::Called,
            Ok(_) => Call::Absent,
        }
    }

    /// Returns the permissions of the owner of a certificate.
    fn admit(&self, certificate: Option<BlockHash>) -> std::result::Result<Access, Denial> {
        let Some(members) = &self.members else { return Ok(Access::full()) };
        let certificate = certificate.ok_or(Denial::Stranger)?;
        members.admit(&certificate).map(|(_, access)| access).inspect_err(|denial| {
            tracing::warn!("refused certificate {certificate:?}: {denial}");
        })
    }

    /// Sends every client the revoked certificates, which get no blocks any more.
    pub(super) fn tell_revoked(&self) {
        if let Some(members) = &self.members {
            self.sessions.tell_revoked(members.revoked());
        }
    }
}

/// Answers with the reason where a request could not be carried out because there was no room.
fn unless_full(answer: Result<Answer>) -> Result<Answer> {
    match answer {
        Err(e @ Error::Full) => Ok(Answer::refused(&e.to_string())),
        answer => answer,
    }
}

fn answer_of(checked: Checked) -> Answer {
    let Checked { rnodes, names, problem_count, problems, .. } = checked;
    let bytes = |text: &str| Bytes(text.as_bytes().to_vec());
    let problems = problems.iter().map(|p| (bytes(p.code), bytes(&p.text))).collect();
    Answer::Checked { rnodes, names, problem_count, problems }
}
