//! The scaling of a cell with the number of clients: the real state machines of server and clients,
//! in virtual time, with the real store, and the workload of teams.
//!
//! Each client has its own directory, shares one with its team, and reads one common to all. A
//! message takes a millisecond. The server's work is measured: messages, recalls, time of its
//! thread, transactions, leases. So is the size of a large cell: bytes in the store.

use crate::report::Section;
use crate::stats::thousands;
use crate::{Bench, machine};
use anyhow::{Context, Result, bail};
use rustix::time::{ClockId, clock_gettime};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use weft::block::Rng;
use weft::ringer::client::{
    Call, CallId, Client, ClientAction, ClientEvent, ClientOptions, Outcome,
};
use weft::ringer::mds::{Mds, MdsEvent, MdsOptions};
use weft::ringer::op::{Make, Op};
use weft::ringer::store::Store;
use weft::ringer::wire::{FromServer, ToServer};
use weft::ringer::{Block, BlockHash, ClientId, Incarnation, Moment, Name, RnodeId};
use weft::ringer_server::store::SqliteStore;
use weft::vfs::Time;

const SECOND: u64 = 1_000_000;
/// The one-way delay, in microseconds.
const DELAY: u64 = 1000;
const TICK: u64 = SECOND / 4;
/// The interval of ticks of the server's thread.
const SERVER_TICK: u64 = SECOND / 20;
/// The number of files of each client, of each team, and common to all.
const OWN: usize = 100;
const TEAMS: usize = 100;
const COMMON: usize = 1000;
const TEAM_CLIENTS: usize = 10;
/// Calls of one client per second.
const RATE: u64 = 10;
/// The duration of the measurement, in virtual seconds, after as long a warm-up.
const MEASURED: u64 = 60;
const QUICK_MEASURED: u64 = 5;
const CLIENTS: [usize; 4] = [10, 100, 300, 1000];
const QUICK_CLIENTS: [usize; 2] = [10, 30];
/// Directories of the large cell, and files in each.
const DIRECTORIES: usize = 100;
const QUICK_DIRECTORIES: usize = 10;
const FILES: usize = 1000;
/// The number of answers without a waiting call at which they are dropped.
const ANSWERS_MAX: usize = 64;

enum What {
    ToServer(Box<ToServer>),
    ToClient(usize, Box<FromServer>),
    ServerTick,
    ClientTick(usize),
    Work(usize),
}

struct Node {
    client: Client,
    /// The directory and files of its own, and those of its team.
    own: (RnodeId, Vec<RnodeId>),
}

/// The counts since the work began.
#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    calls: u64,
    /// Messages from clients to the server, and back.
    messages: u64,
    /// Messages that recall a lease.
    recalls: u64,
    server_cpu_nanos: u64,
}

struct World {
    rng: Rng,
    now: u64,
    store: SqliteStore,
    server: Mds,
    nodes: Vec<Node>,
    teams: Vec<Vec<RnodeId>>,
    common: Vec<RnodeId>,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: std::collections::HashMap<u64, What>,
    next: u64,
    next_call: u64,
    /// The answers to the calls, until they are read.
    answers: std::collections::HashMap<u64, Outcome>,
    counts: Counts,
}

/// CPU time of this thread, in nanoseconds.
fn cpu_nanos() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000
        + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// The size of a closed store, in bytes.
fn store_bytes(dir: &std::path::Path) -> Result<u64> {
    let files = std::fs::read_dir(dir)?.map(|entry| Ok(entry?.metadata()?.len()));
    files.sum()
}

/// The number of records of a kind, and the bytes of their keys and values.
fn records(store: &dyn Store, kind: u8) -> Result<(u64, u64)> {
    let (mut from, mut count, mut bytes) = (vec![kind], 0, 0);
    loop {
        let page = store.range(&from, &[kind + 1], 1000)?;
        for (key, record) in &page {
            count += 1;
            bytes += (key.len() + record.value.len()) as u64;
        }
        match page.last() {
            Some((last, _)) => from = [&last[..], &[0]].concat(),
            None => return Ok((count, bytes)),
        }
    }
}

impl World {
    fn new(store: SqliteStore, clients: usize) -> Result<Self> {
        let mut store = store;
        let server = Mds::open(&mut store, Moment(0), Time::default(), MdsOptions::default())?;
        let client = |i: usize| {
            let id = ClientId(i as u64 + 1);
            let client = Client::new(id, Incarnation(1), [], ClientOptions::default());
            Node { client, own: (RnodeId::ROOT, Vec::new()) }
        };
        let mut world = Self {
            rng: Rng::new(1),
            now: 0,
            store,
            server,
            nodes: (0..clients).map(client).collect(),
            teams: Vec::new(),
            common: Vec::new(),
            queue: BinaryHeap::new(),
            events: std::collections::HashMap::new(),
            next: 0,
            next_call: 0,
            answers: std::collections::HashMap::new(),
            counts: Counts::default(),
        };
        world.at(0, What::ServerTick);
        for i in 0..clients {
            world.at(i as u64 * 37 % TICK, What::ClientTick(i));
        }
        Ok(world)
    }

    fn at(&mut self, time: u64, what: What) {
        self.queue.push(Reverse((time, self.next)));
        self.events.insert(self.next, what);
        self.next += 1;
    }

    fn step(&mut self) -> Result<()> {
        let Some(Reverse((time, id))) = self.queue.pop() else { bail!("nothing happens any more") };
        self.now = time;
        match self.events.remove(&id).context("an event")? {
            What::ToServer(message) => self.server(MdsEvent::Message(*message))?,
            What::ToClient(i, message) => self.client(i, ClientEvent::Message(*message)),
            What::ServerTick => {
                self.at(time + SERVER_TICK, What::ServerTick);
                self.server(MdsEvent::Tick)?;
            }
            What::ClientTick(i) => {
                self.at(time + TICK, What::ClientTick(i));
                self.client(i, ClientEvent::Tick);
            }
            What::Work(i) => {
                let pause = SECOND / RATE / 2 + self.rng.below(SECOND / RATE);
                self.at(time + pause, What::Work(i));
                let call = self.draw(i);
                self.begin(i, call);
            }
        }
        Ok(())
    }

    fn server(&mut self, event: MdsEvent) -> Result<()> {
        let began = cpu_nanos();
        let out = self.server.handle(&mut self.store, Moment(self.now), event)?;
        self.counts.server_cpu_nanos += cpu_nanos() - began;
        for send in out {
            self.counts.messages += 1;
            self.counts.recalls += u64::from(matches!(send.message, FromServer::Recall { .. }));
            let to = send.client.0 as usize - 1;
            self.at(self.now + DELAY, What::ToClient(to, Box::new(send.message)));
        }
        Ok(())
    }

    fn client(&mut self, i: usize, event: ClientEvent) {
        let wall = Time { secs: (self.now / SECOND).cast_signed(), nanos: 0 };
        for action in self.nodes[i].client.handle(Moment(self.now), wall, event) {
            match action {
                ClientAction::Send(message) => {
                    self.counts.messages += 1;
                    self.at(self.now + DELAY, What::ToServer(Box::new(message)));
                }
                ClientAction::Return { call, outcome, .. } => {
                    self.answers.insert(call.0, outcome);
                }
                ClientAction::Journal(_)
                | ClientAction::SyncJournal
                | ClientAction::Seal { .. }
                | ClientAction::Lost { .. }
                | ClientAction::Conflict(_) => {}
            }
        }
    }

    fn begin(&mut self, i: usize, call: Call) -> u64 {
        let id = self.next_call;
        self.next_call += 1;
        self.counts.calls += 1;
        self.client(i, ClientEvent::Call(CallId(id), call));
        id
    }

    /// Makes a call and waits for its answer.
    fn call(&mut self, i: usize, call: Call) -> Result<Outcome> {
        let id = self.begin(i, call);
        let limit = self.now + 60 * SECOND;
        loop {
            if let Some(outcome) = self.answers.remove(&id) {
                return Ok(outcome);
            }
            if self.now > limit {
                bail!("a call was not answered in a minute");
            }
            self.step()?;
        }
    }

    fn create(&mut self, i: usize, parent: RnodeId, name: &str, make: Make) -> Result<RnodeId> {
        let name = Name::new(name.as_bytes())?;
        let id = RnodeId::ROOT;
        let op = Op::Create { parent, name, id, make, perm: 0o644, uid: 0, gid: 0 };
        match self.call(i, Call::Apply { op, if_version: None })? {
            Outcome::Done(Some(id)) => Ok(id),
            other => bail!("nothing was made: {other:?}"),
        }
    }

    fn fill(&mut self, i: usize, name: &str, files: usize) -> Result<(RnodeId, Vec<RnodeId>)> {
        let dir = self.create(i, RnodeId::ROOT, name, Make::Directory {})?;
        let make = Make::File { block_bytes: 1 << 18 };
        let files = (0..files).map(|n| self.create(i, dir, &format!("file{n}"), make.clone()));
        Ok((dir, files.collect::<Result<_>>()?))
    }

    /// Makes the directories, and continues until the server has all of them.
    fn settle(&mut self) -> Result<()> {
        self.common = self.fill(0, "common", COMMON)?.1;
        for i in 0..self.nodes.len() {
            self.nodes[i].own = self.fill(i, &format!("own{i}"), OWN)?;
            if i.is_multiple_of(TEAM_CLIENTS) {
                let team = self.fill(i, &format!("team{i}"), TEAMS)?.1;
                self.teams.push(team);
            }
            self.call(i, Call::Sync)?;
        }
        Ok(())
    }

    /// Draws a call: 80 of 100 calls concern the client's own files, 17 those of the team, 3 the
    /// common ones. One in ten of them writes, of those on common files one in a hundred.
    fn draw(&mut self, i: usize) -> Call {
        let whose = self.rng.below(100);
        let files = match whose {
            0..80 => &self.nodes[i].own.1,
            80..97 => &self.teams[i / TEAM_CLIENTS],
            _ => &self.common,
        };
        let id = files[self.rng.index(files.len())];
        let one_in = if whose < 97 { 10 } else { 100 };
        if self.rng.below(one_in) > 0 {
            return Call::Get { id };
        }
        Call::Apply { op: self.write(id), if_version: None }
    }

    /// Makes a write of a new block at the beginning of a file.
    fn write(&mut self, id: RnodeId) -> Op {
        let mut hash = [0; 32];
        self.rng.fill(&mut hash);
        let blocks = vec![(0, Some(Block { hash: BlockHash(hash), len_bytes: 4096 }))];
        Op::Write { id, blocks, end_bytes: 4096, kill_privileges: false }
    }

    fn run(&mut self, micros: u64) -> Result<()> {
        let end = self.now + micros;
        while self.now < end {
            self.step()?;
            if self.answers.len() > ANSWERS_MAX {
                self.answers.clear();
            }
        }
        Ok(())
    }
}

/// Makes a cell with many files, each of one block; returns its store's directory, and the files.
fn large(bench: &Bench, directories: usize) -> Result<(tempfile::TempDir, Vec<RnodeId>)> {
    let dir = tempfile::tempdir_in(&bench.work)?;
    let mut world = World::new(SqliteStore::open(&dir.path().join("cell"))?, 1)?;
    let mut files = Vec::new();
    for n in 0..directories {
        files.extend(world.fill(0, &format!("directory{n}"), FILES)?.1);
        for id in &files[n * FILES..] {
            let op = world.write(*id);
            world.call(0, Call::Apply { op, if_version: None })?;
        }
        world.call(0, Call::Sync)?;
    }
    Ok((dir, files))
}

fn measure_large(bench: &Bench, section: &mut Section) -> Result<()> {
    let directories = if bench.quick { QUICK_DIRECTORIES } else { DIRECTORIES };
    let (dir, files) = large(bench, directories)?;
    let stored = store_bytes(dir.path())?;
    let path = dir.path().join("cell");
    let store = SqliteStore::open(&path)?;
    let count = files.len() as u64;
    let kinds = [
        (b'r', "rnode: attributes, block map"),
        (b'h', "who has its blocks"),
        (b'd', "name to rnode"),
        (b'l', "name by place in the listing"),
        (b'u', "rnode to name"),
    ];
    let mut rows = Vec::new();
    let mut all = 0;
    for (kind, what) in kinds {
        let (records, bytes) = records(&store, kind)?;
        all += bytes;
        let each = format!("{:.1}", bytes as f64 / records.max(1) as f64);
        rows.push(vec![what.to_owned(), thousands(records), each]);
    }
    section.line(&format!(
        "A cell of {} files of one block in {directories} directories. Keys and values: {} bytes a \
         file; the SQLite file, with the index of names and words: {} bytes a file.",
        thousands(count),
        all / count,
        stored / count,
    ));
    section.table(&["record", "how many", "bytes each, with its key"], &rows);
    Ok(())
}

pub fn scale(bench: &Bench) -> Result<()> {
    let seconds = if bench.quick { QUICK_MEASURED } else { MEASURED };
    let mut section = Section::new("ringer-scale", "The shared file service: many clients");
    section.line(&format!(
        "The state machines of one server and of all clients, in virtual time, {seconds} s of work \
         after as much to warm up: each client makes {RATE} calls a second, four fifths of them on \
         {OWN} files of its own, most others on {TEAMS} of its team of {TEAM_CLIENTS}, the rest on \
         {COMMON} that all share; one in ten writes (of the last, one in a hundred). *Busy*: the \
         CPU time of the server's thread, with its transactions in SQLite, without sockets and TLS.",
    ));
    let mut rows = Vec::new();
    let all = if bench.quick { &QUICK_CLIENTS[..] } else { &CLIENTS };
    for &clients in all {
        let dir = tempfile::tempdir_in(&bench.work)?;
        let mut world = World::new(SqliteStore::open(&dir.path().join("cell"))?, clients)?;
        world.settle()?;
        for i in 0..clients {
            let begin = world.now + world.rng.below(SECOND);
            world.at(begin, What::Work(i));
        }
        world.run(seconds * SECOND)?;
        world.counts = Counts::default();
        let revision = world.store.revision()?.0;
        world.run(seconds * SECOND)?;
        let Counts { calls, messages, recalls, server_cpu_nanos } = world.counts;
        let leases: u64 = world.server.clients().map(|c| c.reads + c.writes).sum();
        let transactions = world.store.revision()?.0 - revision;
        let a_second = |n: u64| n as f64 / seconds as f64;
        rows.push(vec![
            thousands(clients as u64),
            thousands(a_second(calls) as u64),
            format!("{:.3}", messages as f64 / calls as f64),
            format!("{:.2}", a_second(messages) / clients as f64),
            thousands(a_second(recalls) as u64),
            thousands(a_second(transactions) as u64),
            format!("{:.1}%", a_second(server_cpu_nanos) / 1e9 * 100.0),
            format!("{:.1}", server_cpu_nanos as f64 / 1e3 / messages as f64),
            thousands(leases),
        ]);
    }
    let head = [
        "clients",
        "calls a second",
        "messages a call",
        "messages a client and second",
        "recalls a second",
        "transactions a second",
        "busy",
        "us a message",
        "leases",
    ];
    section.table(&head, &rows);
    measure_large(bench, &mut section)?;
    section.signed(&machine::describe(), "weft-bench ringer-scale").save(&bench.report)
}
