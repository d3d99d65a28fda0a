//! A proxy between clients and a server, without a network: what goes past it, counted, and what it
//! refuses.

use std::collections::VecDeque;

use weft_ringer::client::{
    Call, CallId, Client, ClientAction, ClientEvent, ClientOptions, Outcome,
};
use weft_ringer::mds::{Mds, MdsEvent, MdsOptions};
use weft_ringer::op::{Change, Logged, Make, Op};
use weft_ringer::proxy::{Proxy, ProxyAction, ProxyEvent, ProxyOptions};
use weft_ringer::store::MemoryStore;
use weft_ringer::wire::{
    Enclosed, FromServer, Refused, Reply, Request, RequestBody, ToServer, Welcome,
};
use weft_ringer::{
    ClientId, Epoch, Generation, Incarnation, Mode, Moment, Name, Refusal, RequestId, RnodeId, Seq,
    Token, Version,
};
use weft_vfs::Time;

const PROXY: ClientId = ClientId(99);
/// A client that is no state machine: a test speaks for it.
const STRANGER: ClientId = ClientId(50);

enum Event {
    Server(ToServer),
    Proxy(ProxyEvent),
    Client(usize, ClientEvent),
}

struct Cell {
    store: MemoryStore,
    server: Mds,
    proxy: Proxy,
    clients: Vec<Client>,
    now: Moment,
    /// Messages between the proxy and the server.
    upstream: usize,
    /// Set if messages of the proxy to the server are lost.
    cut: bool,
    /// Rnodes whose leases the proxy has released.
    lowered: Vec<RnodeId>,
    calls: u64,
    said: Vec<FromServer>,
}

impl Cell {
    fn new(clients: u64) -> Self {
        let (mut store, now) = (MemoryStore::new(), Moment(1_000_000));
        let server = Mds::open(&mut store, now, Time::default(), MdsOptions::default());
        let new = |i| Client::new(ClientId(i), Incarnation(1), [], ClientOptions::default());
        let mut cell = Self {
            store,
            server: server.expect("memory"),
            proxy: Proxy::new(PROXY, Incarnation(1), ProxyOptions::default()),
            clients: (1..=clients).map(new).collect(),
            now,
            upstream: 0,
            cut: false,
            lowered: Vec::new(),
            calls: 0,
            said: Vec::new(),
        };
        cell.run(Event::Proxy(ProxyEvent::Tick));
        for i in 0..cell.clients.len() {
            cell.run(Event::Client(i, ClientEvent::Tick));
        }
        cell
    }

    fn run(&mut self, event: Event) -> Vec<(CallId, Outcome)> {
        let (mut events, mut back) = (VecDeque::from([event]), Vec::new());
        while let Some(event) = events.pop_front() {
            match event {
                Event::Server(message) => {
                    let event = MdsEvent::Message(message);
                    let out = self.server.handle(&mut self.store, self.now, event);
                    for send in out.expect("memory") {
                        assert_eq!(send.client, PROXY, "the proxy is the only client");
                        self.upstream += 1;
                        events.push_back(Event::Proxy(ProxyEvent::FromParent(send.message)));
                    }
                }
                Event::Proxy(event) => {
                    for action in self.proxy.handle(self.now, event) {
                        match action {
                            ProxyAction::ToParent(message) => {
                                self.upstream += 1;
                                assert!(self.upstream < 10_000, "they talk without end");
                                if let RequestBody::Lower { rnode, .. } = message.request.body {
                                    self.lowered.push(rnode);
                                }
                                if !self.cut {
                                    events.push_back(Event::Server(message));
                                }
                            }
                            ProxyAction::ToClient(send) if send.client == STRANGER => {
                                self.said.push(send.message);
                            }
                            ProxyAction::ToClient(send) => {
                                let to = usize::try_from(send.client.0 - 1).expect("small");
                                let event = ClientEvent::Message(send.message);
                                events.push_back(Event::Client(to, event));
                            }
                        }
                    }
                }
                Event::Client(i, event) => {
                    for action in self.clients[i].handle(self.now, Time::default(), event) {
                        match action {
                            ClientAction::Send(message) => {
                                let event = ProxyEvent::FromClient(message);
                                events.push_back(Event::Proxy(event));
                            }
                            ClientAction::Return { call, outcome, .. } => {
                                back.push((call, outcome));
                            }
                            _ => {}
                        }
                    }
                }
            }
        }
        back
    }

    fn call(&mut self, i: usize, call: Call) -> Outcome {
        self.calls += 1;
        let id = CallId(self.calls);
        let back = self.run(Event::Client(i, ClientEvent::Call(id, call)));
        let own = back.into_iter().find(|(call, _)| *call == id);
        own.expect("answered").1
    }

    /// The messages past the proxy that a call costs.
    fn cost(&mut self, i: usize, call: Call) -> usize {
        let before = self.upstream;
        self.call(i, call);
        self.upstream - before
    }

    /// Sends a hand-made request to the proxy.
    fn say(
        &mut self,
        epoch: Epoch,
        generation: Generation,
        body: RequestBody,
    ) -> Vec<(CallId, Outcome)> {
        self.calls += 1;
        let request = Request { id: RequestId(self.calls), body };
        let message = ToServer { client: STRANGER, epoch, generation, request };
        self.run(Event::Proxy(ProxyEvent::FromClient(message)))
    }

    /// The stranger begins an epoch, and has the lease to make a file in the root: the first number that
    /// it may give, and the root's version.
    fn stranger(&mut self) -> (Epoch, Generation, RnodeId, Version) {
        let hello = RequestBody::Hello { incarnation: Incarnation(1) };
        let Reply::Welcome { welcome } = self.strange(Epoch(0), Generation(0), hello) else {
            panic!("welcome")
        };
        let (epoch, id) = (welcome.epoch, RnodeId::new(welcome.slot, welcome.last_count + 1));
        let generation = Generation(u32::try_from(self.proxy.epoch().0).expect("small"));
        let asks = RequestBody::Acquire { rnode: RnodeId::ROOT, mode: Mode::Write };
        let Reply::Granted { rnode: root, .. } = self.strange(epoch, generation, asks) else {
            panic!("a lease")
        };
        (epoch, generation, id, root.version)
    }

    /// Says something as the stranger, and returns what the proxy answers.
    fn strange(&mut self, epoch: Epoch, generation: Generation, body: RequestBody) -> Reply {
        self.say(epoch, generation, body);
        match self.said.pop() {
            Some(FromServer::Reply { reply, .. }) => reply,
            other => panic!("{other:?}"),
        }
    }
}

fn name(n: u8) -> Name {
    Name::new(format!("f{n}").as_bytes()).expect("a name")
}

fn create(n: u8) -> Call {
    let (parent, id) = (RnodeId::ROOT, RnodeId::ROOT);
    let make = Make::File { block_bytes: 1 << 16 };
    let op = Op::Create { parent, name: name(n), id, make, perm: 0o644, uid: 0, gid: 0 };
    Call::Apply { op, if_version: None }
}

/// The first change of a hand-made client: a file in the root.
fn creation(epoch: Epoch, id: RnodeId, root: Version) -> Logged {
    let (parent, make) = (RnodeId::ROOT, Make::File { block_bytes: 1 << 16 });
    let op = Op::Create { parent, name: name(1), id, make, perm: 0o644, uid: 0, gid: 0 };
    Logged { seq: Seq(1), epoch, stamp: Time::default(), op, base: vec![(parent, root)] }
}

#[test]
fn metadata_fetched_for_one_client_costs_others_no_message() {
    let mut cell = Cell::new(3);
    for n in 0..10 {
        cell.call(0, create(n));
    }
    cell.call(0, Call::Sync);
    let Outcome::Names(entries) = cell.call(1, Call::List { dir: RnodeId::ROOT }) else {
        panic!("names")
    };
    assert_eq!(entries.len(), 10);
    // The proxy has followed what its clients made: not even the first reader costs a message.
    for i in [1, 2] {
        for entry in &entries {
            let lookup = Call::Lookup { dir: RnodeId::ROOT, name: entry.name.clone() };
            assert_eq!(cell.cost(i, lookup), 0);
            assert_eq!(cell.cost(i, Call::Get { id: entry.dirent.id }), 0);
        }
        assert_eq!(cell.cost(i, Call::List { dir: RnodeId::ROOT }), 0);
    }
    // A change passes between two clients for its own two messages.
    let id = entries[0].dirent.id;
    let change = Change { perm: Some(0o600), ..Change::default() };
    let op = Op::SetAttr { id, change };
    assert_eq!(cell.cost(2, Call::Apply { op, if_version: None }), 0);
    assert_eq!(cell.cost(1, Call::Get { id }), 2);
    let Outcome::Rnode(rnode) = cell.call(1, Call::Get { id }) else { panic!("an rnode") };
    assert_eq!(rnode.perm, 0o600);
}

/// A release could reach the server late: after the client has created the rnode in its next epoch,
/// and the proxy has a lease on it.
#[test]
fn rnode_that_is_not_created_yet_is_not_released() {
    let mut cell = Cell::new(1);
    let (epoch, generation, id, root) = cell.stranger();
    cell.cut = true;
    let made = creation(epoch, id, root);
    cell.say(epoch, generation, RequestBody::Commit { prev: Seq(0), ops: vec![made] });
    assert_eq!(cell.proxy.covers(id), Some(Mode::Write));
    // The client restarts.
    cell.cut = false;
    let hello = RequestBody::Hello { incarnation: Incarnation(2) };
    cell.say(Epoch(0), Generation(0), hello);
    assert_eq!(cell.proxy.covers(id), None);
    assert!(!cell.lowered.contains(&id), "{:?}", cell.lowered);
}

#[test]
fn lease_of_a_created_rnode_ends_with_its_creator() {
    let mut cell = Cell::new(0);
    let (epoch, generation, id, root) = cell.stranger();
    cell.cut = true;
    // A request for it is pending when its creator, a client of this proxy, restarts.
    cell.say(epoch, generation, RequestBody::Acquire { rnode: id, mode: Mode::Read });
    let made = creation(epoch, id, root);
    cell.say(epoch, generation, RequestBody::Commit { prev: Seq(0), ops: vec![made] });
    assert_eq!(cell.proxy.covers(id), Some(Mode::Write));
    cell.cut = false;
    cell.say(Epoch(0), Generation(0), RequestBody::Hello { incarnation: Incarnation(2) });
    assert_eq!(cell.proxy.covers(id), None);
}

#[test]
fn waiting_for_a_file_that_is_never_created_is_refused() {
    let mut cell = Cell::new(1);
    let (epoch, generation, id, root) = cell.stranger();
    cell.cut = true;
    let made = creation(epoch, id, root);
    cell.say(epoch, generation, RequestBody::Commit { prev: Seq(0), ops: vec![made] });
    let waits = cell.run(Event::Client(0, ClientEvent::Call(CallId(1000), Call::Get { id })));
    assert_eq!(waits, [], "it is the maker's");
    // Its creator restarts, and the change is never sent.
    cell.cut = false;
    let hello = RequestBody::Hello { incarnation: Incarnation(2) };
    let mut told = cell.say(Epoch(0), Generation(0), hello);
    for _ in 0..20 {
        cell.now = cell.now.after(600_000);
        told.extend(cell.run(Event::Proxy(ProxyEvent::Tick)));
        told.extend(cell.run(Event::Client(0, ClientEvent::Tick)));
    }
    assert_eq!(told, [(CallId(1000), Outcome::Refused(Refusal::Stale))]);
    assert_eq!(cell.proxy.covers(id), None);
}

#[test]
fn creating_a_requested_rnode_grants_its_write_lease() {
    for mode in [Mode::Read, Mode::Write] {
        let mut cell = Cell::new(0);
        let (epoch, generation, id, root) = cell.stranger();
        // It does not exist yet, which the server has not replied when it is created.
        cell.cut = true;
        cell.say(epoch, generation, RequestBody::Acquire { rnode: id, mode });
        let made = creation(epoch, id, root);
        cell.say(epoch, generation, RequestBody::Commit { prev: Seq(0), ops: vec![made] });
        let held = cell.proxy.held(id, STRANGER).map(|(mode, _)| mode);
        assert_eq!((held, cell.proxy.covers(id)), (Some(Mode::Write), Some(Mode::Write)));
    }
}

/// A server that ended between beginning an epoch and announcing it waits after its restart for the
/// leases of that epoch.
#[test]
fn proxy_without_leases_reports_that() {
    let mut proxy = Proxy::new(PROXY, Incarnation(1), ProxyOptions::default());
    let now = Moment(1_000_000);
    let [ProxyAction::ToParent(hello)] = &proxy.handle(now, ProxyEvent::Tick)[..] else {
        panic!("a hello")
    };
    let welcome = Welcome {
        epoch: Epoch(4),
        lasts_micros: 15_000_000,
        slot: 1,
        last_count: 0,
        applied: Seq(0),
        refused: None,
        reclaim: true,
    };
    let (generation, id, reply) = (Generation(2), hello.request.id, Reply::Welcome { welcome });
    let event = ProxyEvent::FromParent(FromServer::Reply { generation, id, reply });
    let said = proxy.handle(now, event);
    let [ProxyAction::ToParent(message)] = &said[..] else { panic!("{said:?}") };
    let nothing = RequestBody::Reclaim { claims: Vec::new(), last: true };
    assert_eq!((message.epoch, &message.request.body), (Epoch(4), &nothing));
}

/// So that other clients need not wait for the end of its epoch.
#[test]
fn ending_proxy_releases_unused_leases() {
    let mut cell = Cell::new(0);
    let (epoch, generation, id, root) = cell.stranger();
    let made = creation(epoch, id, root);
    cell.say(epoch, generation, RequestBody::Commit { prev: Seq(0), ops: vec![made] });
    // After a lease was requested the proxy knows the rnode, and keeps it.
    let asks = RequestBody::Acquire { rnode: id, mode: Mode::Write };
    let Reply::Granted { token, .. } = cell.strange(epoch, generation, asks) else {
        panic!("a lease")
    };
    cell.say(epoch, generation, RequestBody::Lower { rnode: id, token, to: None });
    let both = [id, RnodeId::ROOT];
    assert!(both.iter().all(|id| cell.server.held(*id, PROXY).is_some()));
    for action in cell.proxy.leave() {
        if let ProxyAction::ToParent(message) = action {
            cell.run(Event::Server(message));
        }
    }
    assert_eq!(cell.server.held(id, PROXY), None);
    assert!(cell.server.held(RnodeId::ROOT, PROXY).is_some(), "its client may be at work");
}

#[test]
fn proxy_rejects_unauthorized_requests() {
    let mut cell = Cell::new(1);
    cell.call(0, create(0));
    cell.call(0, Call::Sync);
    let hello = RequestBody::Hello { incarnation: Incarnation(1) };
    let Reply::Welcome { welcome } = cell.strange(Epoch(0), Generation(0), hello) else {
        panic!("welcome")
    };
    let generation = Generation(u32::try_from(cell.proxy.epoch().0).expect("small"));
    let before = cell.upstream;
    // A change without a lease does not leave the proxy.
    let (seq, epoch, stamp) = (Seq(1), welcome.epoch, Time::default());
    let change = Change { perm: Some(0o777), ..Change::default() };
    let op = Op::SetAttr { id: RnodeId::ROOT, change };
    let logged = Logged { seq, epoch, stamp, op, base: vec![(RnodeId::ROOT, Version::FIRST)] };
    let body = RequestBody::Commit { prev: Seq(0), ops: vec![logged.clone()] };
    let refused = Some(Refused { seq, why: Refusal::Fenced });
    let broken = Reply::Broken { applied: Seq(0), refused };
    assert_eq!(cell.strange(epoch, generation, body.clone()), broken);
    // Nor do requests that only proxies may send.
    for body in [
        RequestBody::Enter { client: ClientId(1), incarnation: Incarnation(2) },
        RequestBody::Relay {
            client: ClientId(1),
            epoch,
            id: RequestId(1),
            body: Enclosed::new(&RequestBody::Renew {}),
        },
    ] {
        let no = Reply::No { why: Refusal::Invalid };
        assert_eq!(cell.strange(epoch, generation, body), no);
    }
    assert_eq!(cell.upstream, before);
    // A change without a base is refused.
    let body =
        RequestBody::Commit { prev: Seq(0), ops: vec![Logged { base: Vec::new(), ..logged }] };
    let reply = cell.strange(epoch, generation, body);
    assert!(matches!(reply, Reply::Broken { refused: Some(_), .. }), "{reply:?}");
    // With a lease, but in another epoch, or for another incarnation of the proxy.
    let asks = RequestBody::Acquire { rnode: RnodeId::ROOT, mode: Mode::Read };
    let granted = cell.strange(epoch, generation, asks.clone());
    assert!(matches!(granted, Reply::Granted { .. }), "{granted:?}");
    assert_eq!(cell.strange(Epoch(epoch.0 + 1), generation, asks.clone()), Reply::NoSession {});
    assert_eq!(cell.strange(epoch, Generation(77), asks), Reply::NoSession {});
}

#[test]
fn client_epochs_end_with_the_epoch_of_their_proxy() {
    let mut cell = Cell::new(1);
    let epoch_micros = MdsOptions::default().epoch_micros;
    let hello = RequestBody::Hello { incarnation: Incarnation(1) };
    let Reply::Welcome { welcome } = cell.strange(Epoch(0), Generation(0), hello) else {
        panic!("welcome")
    };
    assert!(welcome.lasts_micros + welcome.lasts_micros / 16 <= epoch_micros);
    let generation = Generation(u32::try_from(cell.proxy.epoch().0).expect("small"));
    let renew = |cell: &mut Cell| {
        cell.calls += 1;
        let request = Request { id: RequestId(cell.calls), body: RequestBody::Renew {} };
        let message = ToServer { client: STRANGER, epoch: welcome.epoch, generation, request };
        // The parent is away.
        let said = cell.proxy.handle(cell.now, ProxyEvent::FromClient(message));
        said.iter().any(|action| {
            let renewed =
                |m: &FromServer| matches!(m, FromServer::Reply { reply: Reply::Renewed {}, .. });
            matches!(action, ProxyAction::ToClient(send) if renewed(&send.message))
        })
    };
    let began = cell.now;
    let mut renewed_at = began;
    for step in 0..20 {
        cell.now = began.after(epoch_micros * step / 16);
        if renew(&mut cell) {
            renewed_at = cell.now;
        }
    }
    // The client has renewed its epoch several times, and it ends before that of the proxy.
    assert!(renewed_at > began);
    let ends = renewed_at.after(welcome.lasts_micros + welcome.lasts_micros / 16);
    assert!(ends <= began.after(epoch_micros), "{ends:?}");
    assert!(!cell.proxy.is_serving(cell.now));
    assert_eq!(cell.proxy.held(RnodeId::ROOT, STRANGER), None::<(Mode, Token)>);
}
