//! The state machine of a metadata server with its store, in one thread.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::ServeOptions;
use crate::live::{fill_random, now, wall};
use crate::mds::{Checked, Mds, MdsEvent, ToClient, check};
use crate::net::{Answer, CellStatus, ClientStatus, Error, Hit, Outbox, Peer, Result};
use crate::query::Query;
use crate::rnode::Bytes;
use crate::store::{CellStore, StoreError, Transaction};
use crate::types::ClientId;
use crate::wire::ToServer;

/// How long it may take to tell clients that this server has lost its cell.
const FAREWELL: Duration = Duration::from_millis(200);
const TICK: Duration = Duration::from_millis(50);
/// The most hits of one search, and the most bytes of their paths: they fit a frame.
const HITS_MAX: usize = 10_000;
const HITS_MAX_BYTES: usize = 4 << 20;
/// The number of the cell, 8 bytes.
const CELL_KEY: &[u8] = b"x";

/// What comes from connections.
#[derive(Debug)]
pub(super) enum Event {
    Joined {
        number: u64,
        client: Option<ClientId>,
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
    Status {
        number: u64,
    },
    Search {
        number: u64,
        query: Bytes,
        limit: u32,
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
}

pub(super) struct Core {
    store: Box<dyn CellStore>,
    mds: Mds,
    cell: u64,
    epoch_micros: u64,
    clients: BTreeMap<ClientId, Connection>,
    observers: BTreeMap<u64, Arc<Outbox>>,
}

fn store_error(e: &StoreError) -> Error {
    Error::Store(e.to_string())
}

/// The number of the cell, drawn when it was made.
fn cell_number(store: &mut dyn CellStore) -> Result<u64> {
    if let Some(record) = store.get(CELL_KEY).map_err(|e| store_error(&e))? {
        let number = record.value.try_into().map(u64::from_be_bytes);
        return number.map_err(|_| Error::Store("the cell's number is damaged".into()));
    }
    let mut number = [0; 8];
    fill_random(&mut number).map_err(|e| Error::io("random numbers", e))?;
    // 0 stands for none.
    number[0] |= 1;
    let mut transaction = Transaction::default();
    transaction.put(CELL_KEY.to_vec(), number.to_vec());
    store.commit(&transaction).map_err(|e| store_error(&e))?;
    Ok(u64::from_be_bytes(number))
}

impl Core {
    /// Begins a life of the server of the cell in `store`.
    pub(super) fn open(mut store: Box<dyn CellStore>, options: &ServeOptions) -> Result<Self> {
        let cell = cell_number(&mut *store)?;
        let mds = Mds::open(&mut *store, now(), wall(), options.mds.clone());
        let mds = mds.map_err(|e| store_error(&e))?;
        Ok(Self {
            store,
            mds,
            cell,
            epoch_micros: options.mds.epoch_micros,
            clients: BTreeMap::new(),
            observers: BTreeMap::new(),
        })
    }

    /// Takes events until told to stop.
    pub(super) fn run(mut self, events: &Receiver<Event>) -> Result<()> {
        let ended = self.serve(events);
        let outboxes: Vec<_> =
            self.clients.values().map(|c| &c.outbox).chain(self.observers.values()).collect();
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
        for ToClient { client, message } in out {
            // Who is not there asks again when it is.
            if let Some(connection) = self.clients.get(&client) {
                connection.outbox.post(&Answer::Mds { message: Box::new(message) });
            }
        }
        Ok(())
    }

    fn event(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Joined { number, client: None, outbox, .. } => {
                outbox.post(&Answer::Welcome {});
                self.observers.retain(|_, o| !o.is_closed());
                self.observers.insert(number, outbox);
            }
            Event::Joined { number, client: Some(client), listens, cell, outbox } => {
                if cell != 0 && cell != self.cell {
                    let why = "its local store belongs to another cell";
                    outbox.post(&refused(why));
                    return Ok(());
                }
                outbox.post(&Answer::Joined { client, cell: self.cell });
                let new = Connection { number, outbox, listens };
                if let Some(old) = self.clients.insert(client, new) {
                    // A client has one connection: this one is dead, or its twin's.
                    old.outbox.close();
                }
                self.tell_peers();
            }
            Event::Left { number, client } => {
                if self.clients.get(&client).is_some_and(|c| c.number == number) {
                    self.clients.remove(&client);
                }
            }
            Event::Message { number, message } => {
                let current = self.clients.get(&message.client);
                if current.is_some_and(|c| c.number == number) {
                    self.mds(MdsEvent::Message(*message))?;
                }
            }
            Event::Status { number } => self.answer(number, &self.status()),
            Event::Search { number, query, limit } => {
                let answer = self.search(&query, limit)?;
                self.answer(number, &answer);
            }
            Event::Check { number } => {
                let checked = check(&*self.store).map_err(|e| store_error(&e))?;
                self.answer(number, &answer_of(checked));
            }
            Event::Ping { number } => self.answer(number, &Answer::Pong {}),
            Event::Stop => {}
        }
        Ok(())
    }

    fn answer(&self, number: u64, answer: &Answer) {
        let client = self.clients.values().find(|c| c.number == number).map(|c| &c.outbox);
        if let Some(outbox) = client.or(self.observers.get(&number)) {
            outbox.post(answer);
        }
    }

    /// Tells every client how the others are reached.
    fn tell_peers(&self) {
        let reached = self.clients.iter().filter_map(|(client, connection)| {
            Some(Peer { client: *client, listens: connection.listens.clone()? })
        });
        let peers = Answer::Peers { peers: reached.collect() };
        for connection in self.clients.values() {
            connection.outbox.post(&peers);
        }
    }

    fn search(&self, query: &Bytes, limit: u32) -> Result<Answer> {
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
        let mut bytes = 0;
        let fits = found.iter().take(limit).take_while(|(_, path)| {
            bytes += path.len();
            bytes <= HITS_MAX_BYTES
        });
        let fits = fits.count();
        let complete = fits == found.len();
        found.truncate(fits);
        let hits = found.into_iter().map(|(rnode, path)| Hit { rnode, path: Bytes(path) });
        Ok(Answer::Found { hits: hits.collect(), complete })
    }

    fn status(&self) -> Answer {
        let clients = self.mds.clients().map(|known| {
            let connection = self.clients.get(&known.client);
            ClientStatus {
                client: known.client,
                epoch: known.epoch,
                live: known.live,
                connected: connection.is_some(),
                listens: connection.and_then(|c| c.listens.clone()),
                reads: known.reads,
                writes: known.writes,
            }
        });
        Answer::Status {
            status: CellStatus {
                cell: self.cell,
                generation: self.mds.generation(),
                revision: self.store.revision().map_or(0, |r| r.0),
                in_grace: self.mds.in_grace(),
                epoch_micros: self.epoch_micros,
                clients: clients.collect(),
            },
        }
    }
}

fn answer_of(checked: Checked) -> Answer {
    let Checked { rnodes, names, problem_count, problems, .. } = checked;
    let bytes = |text: &str| Bytes(text.as_bytes().to_vec());
    let problems = problems.iter().map(|p| (bytes(p.code), bytes(&p.text))).collect();
    Answer::Checked { rnodes, names, problem_count, problems }
}

fn refused(why: &str) -> Answer {
    Answer::Refused { why: Bytes(why.as_bytes().to_vec()) }
}
