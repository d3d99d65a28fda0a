//! A proxy as a process: the state machine of [`proxy`](weft_ringer::proxy) in one thread, with the
//! connections of its clients and one to its parent.
//!
//! Invariants:
//! - No message is sent to the parent on behalf of a client before the parent has accepted it as a
//!   client of the proxy, by its own secret and certificate.
//! - A revoked client is disconnected here as well, as soon as the parent says so.
//! - Its clients hear everything that the parent tells a client, in the same order. `parent` names
//!   each message, so that a new one must be decided.
//! - The thread with the state machine waits for no connection and for no parent.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use weft_net::{Address, ClientTls};
use weft_ringer::proxy::{Proxy, ProxyAction, ProxyEvent, ProxyOptions};
use weft_ringer::{BlockHash, Bytes, ClientId, Generation};
use weft_ringer_net::{
    Answer, Ask, CellStatus, ClientStatus, Conversation, Denial, Error, HANDSHAKE_LIMIT, Home,
    KnownCell, Outbox, Peer, Rendezvous, Result, ServerGeneration, ServerList, StoreRuns, ask,
    client_id, now,
};

use super::event::{Call, Event, UpstreamEvent};
use super::rollback::SawLater;
use super::thread::spawn;
use super::traffic::{Counts, Traffic};

const TICK: Duration = Duration::from_millis(50);
/// The pause before the parent is called again.
const RECONNECT: Duration = Duration::from_millis(300);
/// The pause after a refusal by the parent.
const REFUSED: Duration = Duration::from_secs(10);
/// The silence of one of several parents after which the next is tried.
const SILENCE: Duration = Duration::from_secs(3);
/// The time limit for telling the parent of the leases given back at the end.
const LEAVING: Duration = Duration::from_secs(1);
/// The maximum number of requests passed on in parallel.
const QUESTIONS_MAX: usize = 16;

/// The options of a proxy.
#[derive(Debug, Clone)]
pub struct ProxyServeOptions {
    /// The servers of the cell; several if it is in etcd.
    pub parents: Vec<Address>,
    /// The certificate that the proxy presents to them.
    pub tls: Option<ClientTls>,
    /// The store directory with its identity: made if it is not there. Of one proxy of one cell.
    pub directory: PathBuf,
}

/// A client's connection.
#[derive(Debug)]
struct Guest {
    number: u64,
    outbox: Arc<Outbox>,
    secret: Bytes,
    listens: Option<Bytes>,
    certificate: Option<BlockHash>,
    cell: u64,
    runs: StoreRuns,
    /// Whether the parent has accepted it.
    joined: bool,
}

#[derive(Debug)]
struct Observer {
    outbox: Arc<Outbox>,
    certificate: Option<BlockHash>,
}

pub(super) struct ProxyCore {
    traffic: Traffic,
    proxy: Proxy,
    options: ProxyServeOptions,
    home: Arc<Home>,
    link: Option<Arc<Outbox>>,
    cell: u64,
    guests: BTreeMap<ClientId, Guest>,
    observers: BTreeMap<u64, Observer>,
    peers: BTreeMap<ClientId, Bytes>,
    revoked: Vec<BlockHash>,
    questions: Arc<AtomicUsize>,
    /// The parent's history, and the last revision that it has announced.
    generations: Vec<ServerGeneration>,
    reached: u64,
    known: KnownCell,
    /// Why the cell is older than the state of it that this proxy gave to clients, if it is.
    is_older: Option<String>,
}

impl ProxyCore {
    pub(super) fn new(options: ProxyServeOptions) -> Result<Self> {
        let home = Home::open(&options.directory)?;
        let id = client_id(&home.secret);
        let cell = home.cell()?;
        let proxy = Proxy::new(id, home.incarnation, ProxyOptions::default());
        // Configuration errors are better reported now.
        let mut servers = ServerList::new(&options.parents);
        loop {
            let again = match join(&servers.server(), options.tls.as_ref(), &home) {
                Err(e @ (Error::Refused(_) | Error::Denied(_))) => return Err(e),
                Err(Error::Standby { owner }) => servers.advance(owner.as_deref()),
                Err(e) => {
                    tracing::warn!("{}: {e}", servers.server());
                    servers.advance(None)
                }
                Ok(_) => false,
            };
            if !again {
                break;
            }
        }
        Ok(Self {
            traffic: Traffic::default(),
            proxy,
            options,
            home: Arc::new(home),
            link: None,
            cell,
            guests: BTreeMap::new(),
            observers: BTreeMap::new(),
            peers: BTreeMap::new(),
            revoked: Vec::new(),
            questions: Arc::default(),
            generations: Vec::new(),
            reached: 0,
            known: KnownCell::in_memory(),
            is_older: None,
        })
    }

    /// Handles events until told to stop.
    pub(super) fn run(mut self, events: &Receiver<Event>, post: &SyncSender<Event>) -> Result<()> {
        let stop = Arc::new(AtomicBool::new(false));
        let link = Link {
            options: self.options.clone(),
            home: Arc::clone(&self.home),
            events: post.clone(),
            stop: Arc::clone(&stop),
        };
        let linking = spawn("ringer-link", move || link.keep())?;
        self.serve(events);
        let last = self.proxy.leave();
        self.act(last);
        if let Some(link) = &self.link {
            link.drain(LEAVING);
        }
        stop.store(true, Ordering::Release);
        for outbox in self.link.iter().chain(self.guests.values().map(|g| &g.outbox)) {
            outbox.close();
        }
        for observer in self.observers.values() {
            observer.outbox.close();
        }
        // The link thread may still post events: they are discarded until it ends.
        while !linking.is_finished() {
            let _ = events.recv_timeout(Duration::from_millis(10));
        }
        let _ = linking.join();
        self.is_older.map_or(Ok(()), |why| Err(Error::OlderCell(why)))
    }

    fn serve(&mut self, events: &Receiver<Event>) {
        let mut tick = Instant::now();
        loop {
            match events.recv_timeout(TICK) {
                Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(event) => self.event(event),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if tick.elapsed() >= TICK {
                tick = Instant::now();
                self.proxy(ProxyEvent::Tick);
            }
            if self.is_older.is_some() {
                // Its state is of another history: the next run begins without it.
                return;
            }
        }
    }

    fn proxy(&mut self, event: ProxyEvent) {
        let actions = self.proxy.handle(now(), event);
        self.act(actions);
    }

    fn act(&mut self, actions: Vec<ProxyAction>) {
        for action in actions {
            match action {
                ProxyAction::ToParent(message) => {
                    self.say(&Ask::Mds { message: Box::new(message) });
                }
                ProxyAction::ToClient(send) => {
                    self.traffic.sent(send.client, &send.message);
                    // A client that is not connected asks again when it is.
                    if let Some(guest) = self.guests.get(&send.client).filter(|g| g.joined) {
                        guest.outbox.post(&Answer::Mds { message: Box::new(send.message) });
                    }
                }
            }
        }
    }

    /// Sends a request to the parent; a lost one is sent again.
    fn say(&self, ask: &Ask) {
        if let Some(link) = &self.link {
            link.post(ask);
        }
    }

    fn introduce(&self, guest: &Guest) {
        self.say(&Ask::Introduce {
            secret: guest.secret.clone(),
            listens: guest.listens.clone(),
            certificate: guest.certificate,
            runs: guest.runs.clone(),
        });
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Joined { number, client, secret, certificate, listens, cell, runs, outbox } => {
                if certificate.is_some_and(|c| self.revoked.contains(&c)) {
                    outbox.post(&Answer::Denied { denial: Denial::Revoked });
                    return;
                }
                let Some(client) = client else {
                    outbox.post(&Answer::Welcome {});
                    self.observers.retain(|_, o| !o.outbox.is_closed());
                    self.observers.insert(number, Observer { outbox, certificate });
                    return;
                };
                let joined = false;
                let guest =
                    Guest { number, outbox, secret, listens, certificate, cell, runs, joined };
                self.introduce(&guest);
                if let Some(old) = self.guests.insert(client, guest) {
                    // A client has one connection: the old one is dead, or a duplicate's.
                    old.outbox.close();
                }
            }
            Event::Left { number, client } => {
                if self.guests.get(&client).is_some_and(|g| g.number == number) {
                    self.guests.remove(&client);
                    self.say(&Ask::Gone { client });
                }
            }
            Event::Message { number, message } => {
                let guest = self.guests.get(&message.client);
                if guest.is_some_and(|g| g.number == number && g.joined) {
                    self.traffic.received(message.client);
                    self.proxy(ProxyEvent::FromClient(*message));
                }
            }
            Event::Upstream(event) => self.upstream(event),
            Event::Ping { number } => self.answer(number, &Answer::Pong {}),
            Event::Status { number } => self.pass_on(number, Ask::Status {}),
            Event::Search { number, query, limit } => {
                self.pass_on(number, Ask::Search { query, limit });
            }
            Event::Check { number } => self.pass_on(number, Ask::Check {}),
            Event::Run { number, ask } | Event::Look { number, ask } => self.pass_on(number, ask),
            Event::Call { peer, rendezvous, certificate, tell } => {
                // A requester that no longer waits needs no answer.
                let _ = tell.try_send(self.call(peer, rendezvous, certificate));
            }
            Event::Enroll { outbox, .. } => {
                outbox.post(&Answer::Denied { denial: Denial::NoAuthority });
            }
            Event::Introduce { number, client, .. } => {
                tracing::warn!(
                    "refused a proxy: it must connect to the cell's own server, not to this proxy"
                );
                self.answer(
                    number,
                    &Answer::NotIntroduced { client, denial: Denial::FewerPermissions },
                );
            }
            // A requester that has gone meanwhile needs no answer.
            Event::Describe { tell } => drop(tell.try_send(self.status())),
            Event::SawLater { number, client, seen } => {
                // Perhaps of one that was denied.
                if self.guests.get(&client).is_some_and(|g| g.number == number) {
                    let SawLater { generation, instance, revision } = seen;
                    self.say(&Ask::ProxiedSawLater { client, generation, instance, revision });
                }
            }
            // A proxy has no proxies.
            Event::Gone { .. } | Event::Stop => {}
        }
    }

    fn upstream(&mut self, event: UpstreamEvent) {
        match event {
            UpstreamEvent::Linked { cell, outbox } => {
                (self.cell, self.link) = (cell, Some(outbox));
                for guest in self.guests.values() {
                    self.introduce(guest);
                }
                self.proxy(ProxyEvent::Connected);
            }
            UpstreamEvent::Said { answer } => self.parent(*answer),
            UpstreamEvent::Unlinked => self.link = None,
        }
    }

    fn parent(&mut self, answer: Answer) {
        match answer {
            Answer::Mds { message } => self.proxy(ProxyEvent::FromParent(*message)),
            Answer::Introduced { client } => {
                let Some(guest) = self.guests.get_mut(&client).filter(|g| !g.joined) else {
                    return;
                };
                if guest.cell != 0 && guest.cell != self.cell {
                    guest
                        .outbox
                        .post(&Answer::refused("the client's local store belongs to another cell"));
                    self.guests.remove(&client);
                    return self.say(&Ask::Gone { client });
                }
                guest.joined = true;
                guest.outbox.post(&Answer::Joined { client, cell: self.cell });
                let generations = self.generations.clone();
                guest.outbox.post(&Answer::Generations { generations, revision: self.reached });
                let peers = self.peers.iter();
                let peer = |(client, listens): (&ClientId, &Bytes)| Peer {
                    client: *client,
                    listens: listens.clone(),
                };
                guest.outbox.post(&Answer::Peers { peers: peers.map(peer).collect() });
                let certificates = self.revoked.clone();
                guest.outbox.post(&Answer::RevokedMembers { certificates });
            }
            Answer::NotIntroduced { client, denial } => {
                if denial == Denial::Copied
                    && let Some(guest) = self.guests.get(&client).filter(|g| !g.joined)
                {
                    // As the cell's own server: the cell may be an older copy.
                    guest.outbox.post(&Answer::Joined { client, cell: self.cell });
                    let (generations, revision) = (self.generations.clone(), self.reached);
                    guest.outbox.post(&Answer::Generations { generations, revision });
                    guest.outbox.post(&Answer::Denied { denial });
                    return;
                }
                if let Some(guest) = self.guests.remove(&client) {
                    guest.outbox.post(&Answer::Denied { denial });
                    if guest.joined {
                        guest.outbox.end();
                    }
                }
            }
            Answer::Called { client, rendezvous } => {
                if let Some(guest) = self.guests.get(&client).filter(|g| g.joined) {
                    guest.outbox.post(&Answer::Called { client, rendezvous });
                }
            }
            Answer::Peers { peers } => {
                self.tell_all(&Answer::Peers { peers: peers.clone() });
                self.peers.extend(peers.into_iter().map(|peer| (peer.client, peer.listens)));
            }
            Answer::RevokedMembers { certificates } => {
                self.tell_all(&Answer::RevokedMembers { certificates: certificates.clone() });
                self.observers.retain(|_, o| {
                    let out = o.certificate.is_some_and(|c| certificates.contains(&c));
                    if out {
                        o.outbox.close();
                    }
                    !out
                });
                self.revoked = certificates;
            }
            Answer::Generations { generations, revision } => {
                self.is_older = self.known.meet(&generations, revision).err();
                // The parent may be another generation of the server than before. To a client that
                // does not know, its revisions would be of the one that it knows.
                self.tell_all(&Answer::Generations { generations: generations.clone(), revision });
                (self.generations, self.reached) = (generations, revision);
            }
            Answer::Reached { revision } => {
                self.known.reached(revision);
                self.reached = revision;
                self.tell_all(&Answer::Reached { revision });
            }
            // About the connection to the parent alone: its thread handles them.
            answer @ (Answer::Joined { .. }
            | Answer::Standby { .. }
            | Answer::Denied { .. }
            | Answer::Pong {}
            // Answers to requests that a proxy makes on connections of their own (`pass_on`,
            // `relay`), and passes on from there.
            | Answer::Welcome {}
            | Answer::Refused { .. }
            | Answer::Status { .. }
            | Answer::Found { .. }
            | Answer::Checked { .. }
            | Answer::Enrolled { .. }
            | Answer::Invited { .. }
            | Answer::Revoked { .. }
            | Answer::Members { .. }
            | Answer::Forgotten { .. }
            | Answer::Archives { .. }
            | Answer::Leases { .. }
            | Answer::CellMounts { .. }
            | Answer::Summary { .. }
            | Answer::Swept { .. }
            | Answer::Met {}
            | Answer::Copied { .. }
            | Answer::Changed { .. }) => {
                tracing::debug!("unexpected message from the upstream server: {answer:?}");
            }
        }
    }

    /// Notifies a client of a call. For clients elsewhere the parent decides.
    fn call(&self, peer: ClientId, rendezvous: Rendezvous, certificate: Option<BlockHash>) -> Call {
        if certificate.is_some_and(|c| self.revoked.contains(&c)) {
            return Call::Denied(Denial::Revoked);
        }
        let guest = self.guests.get(&peer).filter(|g| g.joined);
        let Some(guest) = guest else { return Call::Absent };
        guest.outbox.post(&Answer::Called { client: peer, rendezvous });
        Call::Called
    }

    fn tell_all(&self, answer: &Answer) {
        for guest in self.guests.values().filter(|g| g.joined) {
            guest.outbox.post(answer);
        }
    }

    /// Returns the outbox of a requester, and whether it has the proxy's permissions: an accepted
    /// client has, and an observer that needed no certificate.
    fn asker(&self, number: u64) -> Option<(&Arc<Outbox>, bool)> {
        let guest = self.guests.values().find(|g| g.number == number);
        let observer = self.observers.get(&number);
        guest
            .map(|g| (&g.outbox, g.joined))
            .or(observer.map(|o| (&o.outbox, o.certificate.is_none())))
    }

    fn answer(&self, number: u64, answer: &Answer) {
        if let Some((outbox, _)) = self.asker(number) {
            outbox.post(answer);
        }
    }

    /// Passes a request to the parent, while other clients are served.
    fn pass_on(&self, number: u64, question: Ask) {
        let Some((outbox, may_ask)) = self.asker(number) else { return };
        if !may_ask {
            outbox.post(&Answer::refused(
                "a proxy does not answer this request: ask the cell's own server",
            ));
            return;
        }
        if self.questions.fetch_add(1, Ordering::AcqRel) >= QUESTIONS_MAX {
            self.questions.fetch_sub(1, Ordering::AcqRel);
            outbox.post(&Answer::refused("too many requests are in progress: try again soon"));
            return;
        }
        let (outbox, questions) = (Arc::clone(outbox), Arc::clone(&self.questions));
        let (parents, tls) = (self.options.parents.clone(), self.options.tls.clone());
        let asking = spawn("ringer-ask", move || {
            let mut why = String::from("the proxy has no upstream server");
            let answer = parents.iter().find_map(|parent| {
                let asked = ask(parent, tls.as_ref(), &question);
                asked.inspect_err(|e| why = format!("{parent}: {e}")).ok()
            });
            outbox.post(&answer.unwrap_or_else(|| Answer::refused(&why)));
            questions.fetch_sub(1, Ordering::AcqRel);
        });
        if let Err(e) = asking {
            self.questions.fetch_sub(1, Ordering::AcqRel);
            self.answer(number, &Answer::refused(&e.to_string()));
        }
    }

    /// The status of the proxy: its clients, and the leases they hold.
    fn status(&self) -> CellStatus {
        let now = now();
        let clients = self.proxy.clients(now).map(|known| {
            let guest = self.guests.get(&known.client);
            let Counts { received, sent, recalls } = self.traffic.of(known.client);
            ClientStatus {
                client: known.client,
                epoch: known.epoch,
                live: known.live,
                connected: guest.is_some(),
                listens: guest.and_then(|g| g.listens.clone()),
                reads: known.reads,
                writes: known.writes,
                received,
                sent,
                recalls,
            }
        });
        CellStatus {
            cell: self.cell,
            generation: Generation(u32::try_from(self.proxy.epoch().0).unwrap_or(u32::MAX)),
            revision: 0,
            in_grace: !self.proxy.is_serving(now),
            epoch_micros: self.proxy.client_epoch_micros(),
            clients: clients.collect(),
            is_full: false,
        }
    }
}

/// Joins a cell as a proxy.
fn join(parent: &Address, tls: Option<&ClientTls>, home: &Home) -> Result<(Conversation, u64)> {
    let tls = tls.map(|tls| (tls, parent.host()));
    let mut link = Conversation::connect(parent, tls, HANDSHAKE_LIMIT)?;
    let (secret, cell) = (Bytes(home.secret.clone()), home.cell()?);
    link.send(&Ask::Join { secret, listens: None, cell, runs: home.runs.clone() })?;
    match link.receive(Some(Instant::now() + HANDSHAKE_LIMIT))? {
        Answer::Joined { cell, .. } => {
            if home.cell()? == 0 {
                home.set_cell(cell)?;
            }
            home.accepted()?;
            Ok((link, cell))
        }
        Answer::Refused { why } => {
            Err(Error::Refused(String::from_utf8_lossy(&why.0).into_owned()))
        }
        Answer::Standby { owner } => Err(Error::standby(owner)),
        Answer::Denied { denial } => Err(denial.into()),
        _ => Err(Error::Refused(
            "protocol error: the peer is not a weft ringer metadata server".into(),
        )),
    }
}

/// The thread with the connection to the parent.
struct Link {
    options: ProxyServeOptions,
    home: Arc<Home>,
    events: SyncSender<Event>,
    stop: Arc<AtomicBool>,
}

impl Link {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn keep(&self) {
        let mut servers = ServerList::new(&self.options.parents);
        while !self.is_stopped() {
            let (mut owner, mut left) = (None, RECONNECT);
            match self.connect(&servers.server()) {
                Ok(()) => {}
                Err(e @ (Error::Refused(_) | Error::Denied(_))) => {
                    tracing::error!("the upstream server refuses this proxy: {e}");
                    left = REFUSED;
                }
                Err(Error::Standby { owner: at }) => owner = at,
                Err(e) => tracing::info!("upstream server: {e}"),
            }
            if servers.advance(owner.as_deref()) {
                continue;
            }
            while !self.is_stopped() && !left.is_zero() {
                std::thread::sleep(TICK.min(left));
                left = left.saturating_sub(TICK);
            }
        }
    }

    fn post(&self, event: UpstreamEvent) -> Result<()> {
        self.events.send(Event::Upstream(event)).map_err(|_| Error::Closed)
    }

    /// Connects to the parent, and handles its messages until the connection ends.
    fn connect(&self, parent: &Address) -> Result<()> {
        let alone = self.options.parents.len() == 1;
        let (link, cell) = join(parent, self.options.tls.as_ref(), &self.home)?;
        let (mut receiver, writer, socket) = link.into_parts();
        let outbox = Arc::new(Outbox::new(socket, &*writer));
        let sender = Arc::clone(&outbox);
        let sending = spawn("ringer-send", move || sender.run(writer))?;
        let linked = self.post(UpstreamEvent::Linked { cell, outbox: Arc::clone(&outbox) });
        let mut heard = Instant::now();
        let ended = linked.and_then(|()| {
            while !self.is_stopped() {
                let soon = Some(Instant::now() + Duration::from_secs(1));
                match receiver.next::<Answer>(soon) {
                    Ok(Answer::Standby { owner }) => return Err(Error::standby(owner)),
                    Ok(Answer::Denied { denial }) => return Err(denial.into()),
                    Ok(Answer::Pong {}) => heard = Instant::now(),
                    Ok(answer) => {
                        heard = Instant::now();
                        self.post(UpstreamEvent::Said { answer: Box::new(answer) })?;
                    }
                    Err(e) if e.is_timeout() && alone => {}
                    Err(e) if e.is_timeout() && heard.elapsed() < SILENCE => {
                        outbox.post(&Ask::Ping {});
                    }
                    Err(e) => return Err(e),
                }
            }
            Ok(())
        });
        outbox.close();
        let _ = self.post(UpstreamEvent::Unlinked);
        let _ = sending.join();
        ended
    }
}
