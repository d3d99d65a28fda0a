//! A cell in a made-up world: a server, clients, their clocks, and a network that loses, repeats,
//! delays and reorders. Everything is drawn from one seed.
//!
//! Faults: any message may be lost, repeated or late; the server and each client may
//! crash at any event and come back (a client with its journal up to some record after the last it
//! made durable); a client may be cut off; a connection may break and come back; clocks that are
//! never set run up to 2.5% fast or slow, and a client's may leap ahead; the time of day jumps at
//! will. In some worlds a *proxy* is between clients and the server, crashes, is cut off, and has a
//! clock of its own; clients choose their server anew after each restart.
//!
//! Checked after every event: no two clients would serve, at that moment, leases that
//! exclude each other, nor have locks that do; the server believes no less than each client does, a
//! proxy no less than its clients, and the server of the proxy no less than both; no two states of
//! an rnode on any machine share a version.

mod checks;
mod weather;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use weft_block::Rng;
use weft_ringer::client::{
    Call, CallId, Client, ClientAction, ClientEvent, ClientOptions, JournalRecord, Outcome, Redo,
    Written, left_open,
};
use weft_ringer::mds::{Mds, MdsEvent, MdsOptions};
use weft_ringer::proxy::{Proxy, ProxyAction, ProxyEvent, ProxyOptions};
use weft_ringer::store::MemoryStore;
use weft_ringer::wire::frame::{Deframer, Frame, frame};
use weft_ringer::wire::{FromServer, ToServer, Wire};
use weft_ringer::{
    Block, BlockHash, Body, ClientId, Epoch, Incarnation, Moment, Rnode, RnodeId, Seq, Version,
};
use weft_vfs::Time;

pub use self::weather::Weather;
use super::block;

pub const MILLI: u64 = 1000;
pub const SECOND: u64 = 1_000_000;

/// A clock that is never set: off by a rate and a start.
#[derive(Debug, Clone)]
struct Clock {
    start: u64,
    /// Millionths of the true rate.
    rate: u64,
}

impl Clock {
    fn new(rng: &mut Rng, drift_ppm: u64) -> Self {
        let rate = 1_000_000 - drift_ppm + rng.below(2 * drift_ppm + 1);
        Self { start: rng.below(1 << 40), rate }
    }

    fn read(&self, now: u64) -> Moment {
        Moment(self.start + now * self.rate / 1_000_000)
    }
}

/// A client's machine.
struct Node {
    client: Option<Client>,
    clock: Clock,
    incarnation: u64,
    journal: Vec<JournalRecord>,
    synced: usize,
    cut_until: u64,
    /// Whether its server is the proxy.
    behind: bool,
    /// The epoch it was seen in last.
    epoch: Epoch,
    /// The values of blocks that are being written, each with its file.
    open: BTreeMap<BlockHash, (RnodeId, u64)>,
    next_open: u64,
    /// Files whose blocks are about to be sealed.
    sealing: BTreeSet<RnodeId>,
    /// Returned calls whose answer depends on changes that the server may not have.
    unsettled: Vec<(u64, Seq)>,
    /// The rnodes that a proxy was shown and has cached, as a kernel has pages.
    cached: BTreeSet<RnodeId>,
}

impl Node {
    /// A file as a reader has it: with what is in blocks that are being written.
    fn close(&self, rnode: &mut Rnode) {
        if let Body::File { blocks, .. } = &mut rnode.body {
            let open = blocks.get(&0).and_then(|b| self.open.get(&b.hash)).map(|(_, value)| *value);
            open.into_iter().for_each(|value| blocks.set(0, Some(block(value))));
        }
    }

    /// The handling of a client's journal before it starts.
    fn seal_what_was_open(&mut self) -> usize {
        let open = left_open(&self.journal).into_iter();
        let sealed: Vec<_> = open
            .map(|(name, left)| {
                let value = value_of(&left.redo.last().expect("a write").data);
                JournalRecord::Sealed { name, hash: block(value).hash }
            })
            .collect();
        let count = sealed.len();
        self.journal.extend(sealed);
        count
    }
}

fn value_of(data: &Written) -> u64 {
    u64::from_le_bytes((*data.0).try_into().expect("eight bytes"))
}

/// The machine of a proxy.
struct ProxyNode {
    proxy: Option<Proxy>,
    clock: Clock,
    incarnation: u64,
    cut_until: u64,
}

/// The proxy's number.
const PROXY: ClientId = ClientId(1000);

#[derive(Debug)]
enum What {
    /// From a client of the proxy.
    ToProxy(Vec<u8>),
    /// From the server to the proxy.
    ToProxyDown(Vec<u8>),
    StartProxy,
    ToServer(Vec<u8>),
    ToClient(usize, Vec<u8>),
    Tick,
    StartClient(usize),
    StartServer,
    /// In this life of the client.
    Seal(usize, u64, RnodeId),
}

/// A call as its caller saw it.
#[derive(Debug, Clone)]
pub struct Called {
    pub client: usize,
    /// Which life of the client.
    pub life: u64,
    pub call: Call,
    pub called: u64,
    pub returned: Option<(u64, Outcome)>,
    /// The answer was taken back: the epoch ended before the server had what it depends on.
    pub void: bool,
}

/// A block that is being written, of a client.
type OpenBlock = (usize, BlockHash);

pub struct World {
    pub seed: u64,
    pub weather: Weather,
    pub rng: Rng,
    pub now: u64,
    pub store: MemoryStore,
    server: Option<Mds>,
    server_clock: Clock,
    nodes: Vec<Node>,
    proxy: ProxyNode,
    /// Draws what has to do with the proxy.
    proxy_rng: Rng,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, What>,
    next_event: u64,
    /// No more faults.
    pub calm: bool,
    pub calls: BTreeMap<u64, Called>,
    pub next_call: u64,
    /// Calls that came back since the driver looked.
    pub back: Vec<u64>,
    pub conflicts: usize,
    pub written_open: usize,
    pub sealed_at_start: usize,
    pub messages: u64,
    /// Those of them to and from the server.
    pub upstream: u64,
    pub epochs_lost: usize,
    /// Every state of an rnode that a client had, with the block that was being written then.
    states: BTreeMap<(RnodeId, Version), (Rnode, Option<OpenBlock>)>,
    /// All content that was ever written into each of those.
    written: BTreeMap<OpenBlock, BTreeSet<u64>>,
    wall_jump: i64,
    /// `WEFT_SIM_TRACE`: what the proxy hears and says is printed.
    trace: bool,
}

impl World {
    pub fn new(seed: u64, weather: Weather) -> Self {
        let mut rng = Rng::new(seed);
        let server_clock = Clock::new(&mut rng, weather.drift_ppm);
        let nodes = (0..weather.clients).map(|_| Node {
            client: None,
            clock: Clock::new(&mut rng, weather.drift_ppm),
            incarnation: 0,
            journal: Vec::new(),
            synced: 0,
            cut_until: 0,
            behind: false,
            epoch: Epoch(0),
            open: BTreeMap::new(),
            next_open: 0,
            sealing: BTreeSet::new(),
            unsettled: Vec::new(),
            cached: BTreeSet::new(),
        });
        let nodes = nodes.collect();
        let mut proxy_rng = Rng::stream(seed, 7);
        let clock = Clock::new(&mut proxy_rng, weather.drift_ppm);
        let proxy = ProxyNode { proxy: None, clock, incarnation: 0, cut_until: 0 };
        let mut world = Self {
            seed,
            rng,
            now: 0,
            store: MemoryStore::new(),
            server: None,
            server_clock,
            nodes,
            proxy,
            proxy_rng,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            next_event: 0,
            calm: false,
            calls: BTreeMap::new(),
            next_call: 0,
            back: Vec::new(),
            conflicts: 0,
            written_open: 0,
            sealed_at_start: 0,
            messages: 0,
            upstream: 0,
            epochs_lost: 0,
            states: BTreeMap::new(),
            written: BTreeMap::new(),
            wall_jump: 0,
            trace: std::env::var_os("WEFT_SIM_TRACE").is_some(),
            weather,
        };
        world.at(0, What::StartServer);
        if world.weather.proxy {
            world.at(0, What::StartProxy);
        }
        for i in 0..world.nodes.len() {
            world.at(0, What::StartClient(i));
        }
        world.at(0, What::Tick);
        world
    }

    fn at(&mut self, time: u64, what: What) {
        self.queue.push(Reverse((time, self.next_event)));
        self.events.insert(self.next_event, what);
        self.next_event += 1;
    }

    fn wall(&self) -> Time {
        let micros = 1_700_000_000_000_000 + self.now.cast_signed() + self.wall_jump;
        let nanos = u32::try_from(micros.rem_euclid(1_000_000) * 1000).expect("below a second");
        Time { secs: micros.div_euclid(1_000_000), nanos }
    }

    fn options(&self) -> (MdsOptions, ClientOptions) {
        let recall_retry_micros = 200 * MILLI;
        let epoch_micros = self.weather.epoch_micros;
        let client =
            ClientOptions { retry_micros: 200 * MILLI, flush_micros: 700 * MILLI, batch: 8 };
        (MdsOptions { epoch_micros, recall_retry_micros, ..MdsOptions::default() }, client)
    }

    /// Sends bytes over the network between a client, or the proxy if there is none, and its
    /// server, with its faults.
    fn post(&mut self, client: Option<usize>, bytes: &[u8], make: impl Fn(Vec<u8>) -> What) {
        self.messages += 1;
        self.upstream += u64::from(client.is_none_or(|i| !self.nodes[i].behind));
        let cut_until = client.map_or(self.proxy.cut_until, |i| self.nodes[i].cut_until);
        let cut = self.now < cut_until;
        let copies = match self.rng.below(1000) {
            _ if self.calm => 1,
            _ if cut => 0,
            n if n < self.weather.loss => 0,
            n if n < self.weather.loss + self.weather.repeat => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let late = !self.calm && self.rng.below(50) == 0;
            let most = if late { self.weather.late_micros } else { self.weather.delay_micros };
            let time = self.now + 1 + self.weather.steady_micros + self.rng.below(most);
            self.at(time, make(bytes.to_vec()));
        }
    }

    /// Goes on to the next event. `false` if none is due before `until`.
    pub fn step(&mut self, until: u64) -> bool {
        let Some(&Reverse((time, id))) = self.queue.peek() else { return false };
        if time > until {
            self.now = until;
            return false;
        }
        self.queue.pop();
        self.now = time;
        match self.events.remove(&id).expect("an event") {
            What::ToServer(bytes) => {
                let message = open::<ToServer>(&bytes);
                self.server(MdsEvent::Message(message));
            }
            What::ToClient(i, bytes) => {
                if self.now >= self.nodes[i].cut_until {
                    let message = open::<FromServer>(&bytes);
                    self.client(i, ClientEvent::Message(message));
                }
            }
            What::ToProxy(bytes) => {
                let message = open::<ToServer>(&bytes);
                self.proxy(ProxyEvent::FromClient(message));
            }
            What::ToProxyDown(bytes) => {
                if self.now >= self.proxy.cut_until {
                    let message = open::<FromServer>(&bytes);
                    self.proxy(ProxyEvent::FromParent(message));
                }
            }
            What::StartProxy => {
                let clock = Clock::new(&mut self.proxy_rng, self.weather.drift_ppm);
                let node = &mut self.proxy;
                node.clock = clock;
                node.incarnation += 1;
                let incarnation = Incarnation(node.incarnation);
                let options = ProxyOptions {
                    retry_micros: 200 * MILLI,
                    recall_retry_micros: 200 * MILLI,
                    kept_max: 6,
                };
                node.proxy = Some(Proxy::new(PROXY, incarnation, options));
                self.proxy(ProxyEvent::Tick);
            }
            What::Tick => self.tick(),
            What::StartServer => {
                let (options, _) = self.options();
                // Another boot: its clock begins anew.
                self.server_clock = Clock::new(&mut self.rng, self.weather.drift_ppm);
                let now = self.server_clock.read(self.now);
                let wall = self.wall();
                let server = Mds::open(&mut self.store, now, wall, options);
                self.server = Some(server.expect("memory does not fail"));
            }
            What::StartClient(i) => {
                let (_, options) = self.options();
                let clock = Clock::new(&mut self.rng, self.weather.drift_ppm);
                let behind = self.weather.proxy && self.proxy_rng.below(3) > 0;
                let node = &mut self.nodes[i];
                node.clock = clock;
                node.behind = behind;
                node.incarnation += 1;
                let incarnation = Incarnation(node.incarnation);
                self.sealed_at_start += node.seal_what_was_open();
                let node = &mut self.nodes[i];
                let id = ClientId(i as u64 + 1);
                node.client = Some(Client::new(id, incarnation, node.journal.clone(), options));
                node.epoch = Epoch(0);
                self.client(i, ClientEvent::Tick);
            }
            What::Seal(i, life, id) => {
                let node = &mut self.nodes[i];
                if node.incarnation == life && node.client.is_some() {
                    node.sealing.remove(&id);
                    let of = node.open.iter().filter(|(_, (of, _))| *of == id);
                    let sealed: Vec<_> = of.map(|(name, (_, value))| (*name, *value)).collect();
                    for (name, value) in sealed {
                        self.seal(i, id, name, value);
                    }
                }
            }
        }
        self.check_exclusion();
        true
    }

    /// Stores an open block, as the local store does.
    fn seal(&mut self, i: usize, rnode: RnodeId, name: BlockHash, value: u64) {
        let hash = block(value).hash;
        self.client(i, ClientEvent::Sealed { rnode, name, hash });
        self.nodes[i].open.remove(&name);
    }

    /// A write of a value into a file's block that is being written. `None` if the client has no
    /// lease for that at hand.
    pub fn write_open(&mut self, i: usize, id: RnodeId, value: u64) -> Option<u64> {
        let node = &mut self.nodes[i];
        let client = node.client.as_ref()?;
        let rnode = client.cached(id)?;
        let Body::File { blocks, .. } = &rnode.body else { return None };
        let (version, old) = (rnode.version, blocks.get(&0).map(|b| b.hash));
        let name = old.filter(|hash| node.open.contains_key(hash)).unwrap_or_else(|| {
            node.next_open += 1;
            BlockHash::open(Incarnation(node.incarnation), node.next_open)
        });
        let data = Written(value.to_le_bytes().into());
        let (base, kept_bytes, within) = (None, if old.is_some() { 8 } else { 0 }, 0);
        let redo = vec![Redo { name, base, kept_bytes, within, data }];
        let blocks = vec![(0, Some(Block { hash: name, len_bytes: 8 }))];
        let (end_bytes, encryption) = (8, None);
        let write = Call::Write { id, version, blocks, end_bytes, redo, encryption };
        let call = self.call(i, write)?;
        if self.calls[&call].returned.is_none() {
            self.client(i, ClientEvent::Cancel(CallId(call)));
            self.calls.remove(&call);
            return None;
        }
        Some(call)
    }

    fn tick(&mut self) {
        self.at(self.now + 50 * MILLI, What::Tick);
        let fault = |rng: &mut Rng, n: u64| rng.below(1000) < n;
        if !self.calm {
            if self.server.is_some() && fault(&mut self.rng, self.weather.server_crashes) {
                self.server = None;
                let back = self.now + self.rng.below(2 * self.weather.epoch_micros);
                self.at(back, What::StartServer);
            }
            if self.rng.below(40) == 0 {
                self.wall_jump = self.rng.below(1 << 45).cast_signed() - (1 << 44);
            }
        }
        self.server(MdsEvent::Tick);
        self.proxy_tick();
        for i in 0..self.nodes.len() {
            if !self.calm {
                if self.nodes[i].client.is_some()
                    && fault(&mut self.rng, self.weather.client_crashes)
                {
                    self.crash(i);
                }
                if fault(&mut self.rng, self.weather.cuts) {
                    let long = self.rng.below(2 * self.weather.epoch_micros);
                    self.nodes[i].cut_until = self.now + long;
                }
                if fault(&mut self.rng, self.weather.reconnects) {
                    self.client(i, ClientEvent::Connected);
                }
                if fault(&mut self.rng, self.weather.leaps) {
                    self.nodes[i].clock.start += self.rng.below(2 * self.weather.epoch_micros);
                }
            }
            self.client(i, ClientEvent::Tick);
        }
    }

    fn proxy_tick(&mut self) {
        if !self.weather.proxy {
            return;
        }
        let long = 2 * self.weather.epoch_micros;
        if !self.calm {
            if self.proxy.proxy.is_some() && self.proxy_rng.below(1000) < self.weather.proxy_crashes
            {
                self.proxy.proxy = None;
                let back = self.now + self.proxy_rng.below(long);
                self.at(back, What::StartProxy);
            }
            if self.proxy_rng.below(1000) < self.weather.proxy_cuts {
                self.proxy.cut_until = self.now + self.proxy_rng.below(long);
            }
            if self.proxy_rng.below(1000) < self.weather.reconnects {
                self.proxy(ProxyEvent::Connected);
            }
        }
        self.proxy(ProxyEvent::Tick);
    }

    fn proxy(&mut self, event: ProxyEvent) {
        let now = self.proxy.clock.read(self.now);
        let Some(proxy) = &mut self.proxy.proxy else { return };
        if self.trace && event != ProxyEvent::Tick {
            println!("{} the proxy hears {event:?}", self.now);
        }
        for action in proxy.handle(now, event) {
            if self.trace {
                println!("{} the proxy says {action:?}", self.now);
            }
            match action {
                ProxyAction::ToParent(message) => {
                    let bytes = frame(&message).expect("short enough");
                    self.post(None, &bytes, What::ToServer);
                }
                ProxyAction::ToClient(send) => {
                    let to = usize::try_from(send.client.0 - 1).expect("a client");
                    // A connection ends with the life of the client that made it.
                    if self.nodes[to].behind {
                        let bytes = frame(&send.message).expect("short enough");
                        self.post(Some(to), &bytes, |bytes| What::ToClient(to, bytes));
                    }
                }
            }
        }
    }

    fn crash(&mut self, i: usize) {
        let node = &mut self.nodes[i];
        node.client = None;
        node.cached.clear();
        node.open.clear();
        node.sealing.clear();
        // A prefix of the records that were not durable is left.
        let kept = node.synced + self.rng.index(node.journal.len() - node.synced + 1);
        node.journal.truncate(kept);
        node.synced = kept;
        let back = self.now + self.rng.below(2 * self.weather.epoch_micros);
        self.at(back, What::StartClient(i));
    }

    fn server(&mut self, event: MdsEvent) {
        let now = self.server_clock.read(self.now);
        let Some(server) = &mut self.server else { return };
        let out = server.handle(&mut self.store, now, event).expect("memory does not fail");
        // A crash after the transaction and before the messages.
        if !self.calm
            && !out.is_empty()
            && self.weather.server_crashes > 0
            && self.rng.below(400) == 0
        {
            self.server = None;
            let back = self.now + self.rng.below(self.weather.epoch_micros);
            self.at(back, What::StartServer);
            return;
        }
        for send in out {
            let bytes = frame(&send.message).expect("short enough");
            if send.client == PROXY {
                self.post(None, &bytes, What::ToProxyDown);
                continue;
            }
            let to = usize::try_from(send.client.0 - 1).expect("a client");
            if !self.nodes[to].behind {
                self.post(Some(to), &bytes, |bytes| What::ToClient(to, bytes));
            }
        }
    }

    fn client(&mut self, i: usize, event: ClientEvent) {
        let wall = self.wall();
        let node = &mut self.nodes[i];
        let Some(client) = &mut node.client else { return };
        let actions = client.handle(node.clock.read(self.now), wall, event);
        let (epoch, applied) = (client.epoch(), client.applied());
        for action in actions {
            match action {
                ClientAction::Journal(record) => self.nodes[i].journal.push(record),
                ClientAction::SyncJournal => self.nodes[i].synced = self.nodes[i].journal.len(),
                ClientAction::Send(message) => {
                    let bytes = frame(&message).expect("short enough");
                    let way = if self.nodes[i].behind { What::ToProxy } else { What::ToServer };
                    self.post(Some(i), &bytes, way);
                }
                ClientAction::Return { call, mut outcome, depends } => {
                    if let Outcome::Rnode(rnode) = &mut outcome {
                        self.nodes[i].cached.insert(rnode.id);
                        self.nodes[i].close(rnode);
                    }
                    let called = self.calls.get_mut(&call.0).expect("a call");
                    assert!(called.returned.is_none(), "a call returns once");
                    if let (Call::Write { id, redo, .. }, Outcome::Done(_)) =
                        (&called.call, &outcome)
                    {
                        let value = value_of(&redo[0].data);
                        self.nodes[i].open.insert(redo[0].name, (*id, value));
                        self.written.entry((i, redo[0].name)).or_default().insert(value);
                        self.written_open += 1;
                    }
                    called.returned = Some((self.now, outcome));
                    self.nodes[i].unsettled.push((call.0, depends));
                    self.back.push(call.0);
                }
                ClientAction::Conflict(conflict) => {
                    if let weft_ringer::op::Op::Write { blocks, .. } = &conflict.logged.op {
                        assert!(!blocks[0].1.expect("a block").hash.is_open(), "it is kept sealed");
                    }
                    self.conflicts += 1;
                }
                ClientAction::Lost { rnode } => drop(self.nodes[i].cached.remove(&rnode)),
                ClientAction::Seal { rnode } => {
                    let node = &mut self.nodes[i];
                    if node.sealing.insert(rnode) {
                        let life = node.incarnation;
                        let time = self.now + self.rng.below(30 * MILLI);
                        self.at(time, What::Seal(i, life, rnode));
                    }
                }
            }
        }
        self.check_versions(i);
        let node = &mut self.nodes[i];
        node.unsettled.retain(|(_, depends)| *depends > applied);
        if epoch != node.epoch {
            node.epoch = epoch;
            // Changes that the last epoch did not complete may still take effect, as new changes.
            let lost = std::mem::take(&mut node.unsettled);
            self.epochs_lost += usize::from(epoch > Epoch(0));
            for (call, _) in lost {
                self.calls.get_mut(&call).expect("a call").void = true;
            }
        }
    }

    /// A caller on client `i`. `None` if its machine is down.
    pub fn call(&mut self, i: usize, call: Call) -> Option<u64> {
        self.nodes[i].client.as_ref()?;
        let id = self.next_call;
        self.next_call += 1;
        let called = Called {
            client: i,
            life: self.nodes[i].incarnation,
            call: call.clone(),
            called: self.now,
            returned: None,
            void: false,
        };
        self.calls.insert(id, called);
        self.client(i, ClientEvent::Call(CallId(id), call));
        self.check_exclusion();
        Some(id)
    }

    /// Whether the machine that a call was made on has crashed since.
    pub fn is_lost(&self, call: u64) -> bool {
        let called = &self.calls[&call];
        called.life != self.nodes[called.client].incarnation
            || self.nodes[called.client].client.is_none()
    }

    /// Calls that will not come back are taken for what they are.
    pub fn forget_crashed(&mut self) {
        let lost: Vec<u64> = self.calls.keys().copied().filter(|&id| self.is_lost(id)).collect();
        for id in lost {
            let called = self.calls.get_mut(&id).expect("a call");
            called.void |= called.returned.is_none();
        }
    }

    /// The calls that have not returned, as text.
    pub fn stuck(&self) -> Vec<String> {
        let calls = self.calls.values().filter(|c| c.returned.is_none() && !c.void);
        let calls = calls.map(|c| format!("{c:?}"));
        calls.chain(self.nodes.iter().map(|n| format!("{:#?}", n.client))).collect()
    }

    /// Ends all faults and brings everybody back.
    pub fn calm_down(&mut self) {
        self.calm = true;
        for node in &mut self.nodes {
            node.cut_until = 0;
        }
        self.proxy.cut_until = 0;
    }

    /// Whether nothing is under way. A client that was just started has to be welcomed first: only
    /// then is it known what its last life did not get through.
    pub fn is_quiet(&self) -> bool {
        let at_rest = |c: &Client| c.unflushed() == 0 && c.epoch() > Epoch(0);
        let proxy = self.proxy.proxy.as_ref();
        self.server.as_ref().is_some_and(|s| !s.in_grace())
            && (!self.weather.proxy || proxy.is_some_and(Proxy::is_idle))
            && self.nodes.iter().all(|n| n.client.as_ref().is_some_and(at_rest))
    }
}

/// A message out of its frame: the bytes on the wire are part of what is simulated.
fn open<T: Wire>(bytes: &[u8]) -> T {
    let mut deframer = Deframer::default();
    deframer.push(bytes);
    match deframer.pull().expect("a frame") {
        Some(Frame::Message(message)) => message,
        _ => panic!("a frame holds a message"),
    }
}
