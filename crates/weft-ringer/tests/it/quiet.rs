//! What is done again under a lease costs no message: counted.

use weft_ringer::client::{
    Call, CallId, Client, ClientAction, ClientEvent, ClientOptions, Conflict, Outcome,
};
use weft_ringer::mds::{Mds, MdsEvent, MdsOptions};
use weft_ringer::op::{Make, Op};
use weft_ringer::store::MemoryStore;
use weft_ringer::{Block, BlockHash, ClientId, Incarnation, Moment, Name, RnodeId};
use weft_vfs::Time;

/// A server and clients without a network between them: messages arrive at once.
struct Cell {
    store: MemoryStore,
    server: Mds,
    clients: Vec<Client>,
    messages: usize,
    calls: u64,
    now: Moment,
    /// Nothing reaches this client, and nothing comes from it.
    cut: Option<usize>,
    conflicts: Vec<Conflict>,
}

const START: Moment = Moment(1_000_000);

impl Cell {
    fn new(clients: u64) -> Self {
        let mut store = MemoryStore::new();
        let server = Mds::open(&mut store, START, Time::default(), MdsOptions::default());
        let new = |i| Client::new(ClientId(i), Incarnation(1), [], ClientOptions::default());
        let clients = (1..=clients).map(new).collect();
        let server = server.expect("memory");
        let mut cell = Self {
            store,
            server,
            clients,
            messages: 0,
            calls: 0,
            now: START,
            cut: None,
            conflicts: Vec::new(),
        };
        for i in 0..cell.clients.len() {
            cell.run(i, ClientEvent::Tick);
        }
        cell
    }

    /// Carries messages until there are none. Returns what came back.
    fn run(&mut self, i: usize, event: ClientEvent) -> Vec<(CallId, Outcome)> {
        let (mut events, mut back) = (vec![(i, event)], Vec::new());
        while let Some((i, event)) = events.pop() {
            if self.cut == Some(i) && matches!(event, ClientEvent::Message(_)) {
                continue;
            }
            for action in self.clients[i].handle(self.now, Time::default(), event) {
                match action {
                    ClientAction::Send(_) if self.cut == Some(i) => {}
                    ClientAction::Send(message) => {
                        self.messages += 1;
                        let event = MdsEvent::Message(message);
                        let out = self.server.handle(&mut self.store, self.now, event);
                        for send in out.expect("memory") {
                            self.messages += 1;
                            let to = usize::try_from(send.client.0 - 1).expect("small");
                            events.push((to, ClientEvent::Message(send.message)));
                        }
                    }
                    ClientAction::Return { call, outcome, .. } => back.push((call, outcome)),
                    ClientAction::Conflict(conflict) => self.conflicts.push(conflict),
                    ClientAction::Journal(_) | ClientAction::SyncJournal => {}
                }
            }
        }
        back
    }

    fn call(&mut self, i: usize, call: Call) -> Outcome {
        self.calls += 1;
        let id = CallId(self.calls);
        let back = self.run(i, ClientEvent::Call(id, call));
        let found = back.into_iter().find(|(call, _)| *call == id);
        found.expect("answered").1
    }

    /// The messages that a call costs.
    fn cost(&mut self, i: usize, call: Call) -> usize {
        let before = self.messages;
        self.call(i, call);
        self.messages - before
    }
}

fn apply(op: Op) -> Call {
    Call::Apply { op, if_version: None }
}

fn create(name: &Name) -> Call {
    let (parent, name, id) = (RnodeId::ROOT, name.clone(), RnodeId::ROOT);
    let make = Make::File { block_bytes: 1 << 16 };
    apply(Op::Create { parent, name, id, make, perm: 0o644, uid: 0, gid: 0 })
}

fn write(id: RnodeId, byte: u8) -> Call {
    let block = Block { hash: BlockHash([byte; 32]), len_bytes: 8 };
    let blocks = vec![(0, Some(block))];
    apply(Op::Write { id, blocks, end_bytes: 8, kill_privileges: false })
}

#[test]
fn what_is_done_again_under_a_lease_costs_no_message() {
    let mut cell = Cell::new(2);
    let names: Vec<Name> =
        (0..100).map(|n| Name::new(format!("f{n}").as_bytes()).expect("a name")).collect();
    // The lease on the directory and, as nothing is known of its names yet, what each is.
    assert_eq!(cell.cost(0, create(&names[0])), 4);
    let Outcome::Found(Some(file)) =
        cell.call(0, Call::Lookup { dir: RnodeId::ROOT, name: names[0].clone() })
    else {
        panic!("made")
    };
    cell.call(0, Call::List { dir: RnodeId::ROOT });
    for (n, name) in names.iter().enumerate().skip(1) {
        assert_eq!(cell.cost(0, create(name)), 0, "create {n}");
    }
    for round in 0..100 {
        assert_eq!(cell.cost(0, write(file.id, round)), 0, "a write to a file made here");
        assert_eq!(cell.cost(0, Call::Get { id: file.id }), 0);
        let lookup = Call::Lookup { dir: RnodeId::ROOT, name: names[usize::from(round)].clone() };
        assert_eq!(cell.cost(0, lookup), 0);
        assert_eq!(cell.cost(0, Call::List { dir: RnodeId::ROOT }), 0);
    }

    // The other client: one lease for the directory, which the first gives up; one answer a name.
    let lookup = Call::Lookup { dir: RnodeId::ROOT, name: names[0].clone() };
    let first = cell.cost(1, lookup.clone());
    assert!(first > 0, "it was asked for");
    assert_eq!(cell.cost(1, lookup), 0, "and is known");
    let Outcome::Rnode(rnode) = cell.call(1, Call::Get { id: file.id }) else { panic!("there") };
    assert_eq!(rnode.version.count, 101, "made, and written a hundred times");
    assert_eq!(cell.cost(1, Call::Get { id: file.id }), 0);
    assert_eq!(cell.cost(0, Call::Get { id: file.id }), 0, "both read");

    // A write: the lease, with a recall and its answer; then nothing.
    assert_eq!(cell.cost(1, write(file.id, 1)), 4);
    assert_eq!(cell.cost(1, write(file.id, 2)), 0);
    let Outcome::Rnode(rnode) = cell.call(0, Call::Get { id: file.id }) else { panic!("there") };
    assert_eq!(rnode.version.count, 103);
}

#[test]
fn an_open_file_outlives_its_name_and_then_goes() {
    let mut cell = Cell::new(2);
    let name = Name::new(b"f").expect("a name");
    let Outcome::Done(Some(file)) = cell.call(0, create(&name)) else { panic!("made") };
    assert!(matches!(cell.call(1, Call::Get { id: RnodeId::ROOT }), Outcome::Rnode(_)));
    assert!(matches!(cell.call(1, Call::Get { id: file }), Outcome::Rnode(_)));
    cell.call(0, apply(Op::Unlink { parent: RnodeId::ROOT, name }));
    cell.call(0, Call::Sync);
    cell.call(0, Call::Evict { id: file });
    let Outcome::Rnode(rnode) = cell.call(1, Call::Get { id: file }) else { panic!("kept") };
    assert_eq!(rnode.nlink, 0);
    cell.call(1, Call::Evict { id: file });
    let gone = cell.call(0, Call::Get { id: file });
    assert_eq!(gone, Outcome::Refused(weft_ringer::Refusal::Stale));
}

#[test]
fn changes_made_on_what_was_given_up_are_given_up() {
    let mut cell = Cell::new(2);
    let name = Name::new(b"f").expect("a name");
    let Outcome::Done(Some(file)) = cell.call(0, create(&name)) else { panic!("made") };
    let other = Name::new(b"g").expect("a name");
    cell.call(0, Call::List { dir: RnodeId::ROOT });
    cell.call(0, Call::Sync);
    // Cut off, it writes twice; the second write is on version 2, which is its own.
    cell.cut = Some(0);
    assert_eq!(cell.cost(0, write(file, 1)), 0);
    assert_eq!(cell.cost(0, write(file, 2)), 0);
    cell.call(0, create(&other));
    // Its epoch ends, and the other's write makes another version 2.
    cell.now = Moment(START.0 + 60_000_000);
    cell.run(1, ClientEvent::Tick);
    cell.call(1, write(file, 9));
    cell.call(1, Call::Sync);

    cell.cut = None;
    cell.now = Moment(cell.now.0 + 2_000_000);
    cell.run(1, ClientEvent::Tick);
    cell.run(0, ClientEvent::Tick);
    assert_eq!(cell.conflicts.len(), 2, "both writes: {:?}", cell.conflicts);
    let Outcome::Rnode(rnode) = cell.call(0, Call::Get { id: file }) else { panic!("there") };
    let weft_ringer::Body::File { blocks, .. } = &rnode.body else { panic!("a file") };
    assert_eq!((rnode.version.count, blocks[&0].hash), (2, BlockHash([9; 32])));
    // What nobody else touched is made again.
    let lookup = Call::Lookup { dir: RnodeId::ROOT, name: other };
    assert!(matches!(cell.call(1, lookup), Outcome::Found(Some(_))));
}
