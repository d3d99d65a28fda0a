//! Counts of messages: repeated operations under a lease cost none.

use std::collections::VecDeque;

use weft_ringer::client::{
    Call, CallId, Client, ClientAction, ClientEvent, ClientOptions, Conflict, Outcome,
};
use weft_ringer::locks::{Lock, LockStyle};
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
    /// How often each client has sent something.
    exchanges: Vec<usize>,
    /// The client that is cut off from the server.
    cut: Option<usize>,
    conflicts: Vec<Conflict>,
    /// Results of other calls than the present one.
    later: Vec<(CallId, Outcome)>,
}

/// An upper bound of the messages for a few calls.
const MESSAGES_MAX: usize = 10_000;

const START: Moment = Moment(1_000_000);

impl Cell {
    fn new(clients: u64) -> Self {
        let mut store = MemoryStore::new();
        let server = Mds::open(&mut store, START, Time::default(), MdsOptions::default());
        let new = |i| Client::new(ClientId(i), Incarnation(1), [], ClientOptions::default());
        let clients: Vec<Client> = (1..=clients).map(new).collect();
        let server = server.expect("memory");
        let mut cell = Self {
            store,
            server,
            exchanges: vec![0; clients.len()],
            clients,
            messages: 0,
            calls: 0,
            now: START,
            cut: None,
            conflicts: Vec::new(),
            later: Vec::new(),
        };
        for i in 0..cell.clients.len() {
            cell.run(i, ClientEvent::Tick);
        }
        cell
    }

    /// Carries messages until there are none. Returns what came back.
    fn run(&mut self, i: usize, event: ClientEvent) -> Vec<(CallId, Outcome)> {
        self.run_all(VecDeque::from([(i, event)]))
    }

    /// The same for events that happen at once.
    fn run_all(&mut self, mut events: VecDeque<(usize, ClientEvent)>) -> Vec<(CallId, Outcome)> {
        let (mut back, begin) = (Vec::new(), self.messages);
        while let Some((i, event)) = events.pop_front() {
            assert!(self.messages - begin < MESSAGES_MAX, "there is no end of messages");
            if self.cut == Some(i) && matches!(event, ClientEvent::Message(_)) {
                continue;
            }
            let actions = self.clients[i].handle(self.now, Time::default(), event);
            let sends = actions.iter().any(|a| matches!(a, ClientAction::Send(_)));
            self.exchanges[i] += usize::from(sends);
            for action in actions {
                match action {
                    ClientAction::Send(_) if self.cut == Some(i) => {}
                    ClientAction::Send(message) => {
                        self.messages += 1;
                        let event = MdsEvent::Message(message);
                        let out = self.server.handle(&mut self.store, self.now, event);
                        for send in out.expect("memory") {
                            self.messages += 1;
                            let to = usize::try_from(send.client.0 - 1).expect("small");
                            events.push_back((to, ClientEvent::Message(send.message)));
                        }
                    }
                    ClientAction::Return { call, outcome, .. } => back.push((call, outcome)),
                    ClientAction::Conflict(conflict) => self.conflicts.push(conflict),
                    ClientAction::Journal(_)
                    | ClientAction::SyncJournal
                    | ClientAction::Seal { .. }
                    | ClientAction::Lost { .. } => {}
                }
            }
        }
        back
    }

    fn call(&mut self, i: usize, call: Call) -> Outcome {
        self.calls += 1;
        let id = CallId(self.calls);
        let back = self.run(i, ClientEvent::Call(id, call));
        let (mut own, others): (Vec<_>, Vec<_>) = back.into_iter().partition(|(c, _)| *c == id);
        self.later.extend(others);
        own.pop().expect("answered").1
    }

    /// Calls of several clients at once, each message on its way as long as any other.
    fn call_at_once(&mut self, calls: Vec<(usize, Call)>) -> Vec<Outcome> {
        let first = self.calls + 1;
        self.calls += calls.len() as u64;
        let numbered = calls.into_iter().zip(first..);
        let events = numbered.map(|((i, call), id)| (i, ClientEvent::Call(CallId(id), call)));
        let mut back = self.run_all(events.collect());
        back.sort_by_key(|(id, _)| *id);
        assert!(back.iter().map(|(id, _)| id.0).eq(first..=self.calls), "all: {back:?}");
        back.into_iter().map(|(_, outcome)| outcome).collect()
    }

    /// A call that has to wait.
    fn begin(&mut self, i: usize, call: Call) -> CallId {
        self.calls += 1;
        let id = CallId(self.calls);
        let back = self.run(i, ClientEvent::Call(id, call));
        assert!(back.iter().all(|(c, _)| *c != id), "it waits: {back:?}");
        self.later.extend(back);
        id
    }

    /// Whether a call that waited has come back, with what.
    fn ended(&mut self, id: CallId) -> Option<Outcome> {
        let at = self.later.iter().position(|(c, _)| *c == id)?;
        Some(self.later.remove(at).1)
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
    let block = Block { hash: BlockHash([byte + 1; 32]), len_bytes: 8 };
    let blocks = vec![(0, Some(block))];
    apply(Op::Write { id, blocks, end_bytes: 8, kill_privileges: false })
}

#[test]
fn repeated_operations_under_a_lease_cost_no_message() {
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
fn likely_leases_are_prefetched() {
    let mut cell = Cell::new(2);
    let names: Vec<Name> =
        (0..1000).map(|n| Name::new(format!("f{n}").as_bytes()).expect("a name")).collect();
    for name in &names {
        cell.call(0, create(name));
    }
    cell.call(0, Call::Sync);
    // The reply to a lookup and the lease on the rnode arrive together.
    cell.call(1, Call::List { dir: RnodeId::ROOT });
    cell.call(1, Call::Evict { id: RnodeId::ROOT });
    cell.call(0, Call::Evict { id: RnodeId::ROOT });
    let lookup = Call::Lookup { dir: RnodeId::ROOT, name: names[999].clone() };
    let before = cell.exchanges[1];
    let Outcome::Found(Some(file)) = cell.call(1, lookup) else { panic!("made") };
    assert_eq!(cell.exchanges[1] - before, 1);
    cell.call(0, Call::Evict { id: file.id });
    // All of a directory, one after the other.
    let before = cell.exchanges[1];
    let Outcome::Names(entries) = cell.call(1, Call::List { dir: RnodeId::ROOT }) else {
        panic!("a directory")
    };
    assert_eq!(entries.len(), 1000);
    for entry in &entries {
        let got = cell.call(1, Call::Get { id: entry.dirent.id });
        assert!(matches!(got, Outcome::Rnode(_)), "{got:?}");
    }
    let exchanges = cell.exchanges[1] - before;
    assert!(exchanges < 12, "{exchanges} round trips");
}

#[test]
fn open_file_outlives_its_name_and_is_then_reaped() {
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
fn changes_based_on_a_conflict_are_conflicts() {
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
    assert_eq!((rnode.version.count, blocks[&0].hash), (2, BlockHash([10; 32])));
    // A change that no other client interferes with is made again.
    let lookup = Call::Lookup { dir: RnodeId::ROOT, name: other };
    assert!(matches!(cell.call(1, lookup), Outcome::Found(Some(_))));
}

/// A link reads its file first, and needs its directory as well, which has the smaller number: two
/// clients could release one for the other in turns for ever.
#[test]
fn concurrent_links_of_one_file_terminate() {
    for clients in 2..=4 {
        let mut cell = Cell::new(clients);
        let Outcome::Done(Some(file)) = cell.call(0, create(&name("f"))) else { panic!("made") };
        cell.call(0, Call::Sync);
        for round in 0..10 {
            let link = |i| (i, link(file, RnodeId::ROOT, &format!("l{i}-{round}")));
            let back = cell.call_at_once((0..cell.clients.len()).map(link).collect());
            assert!(back.iter().all(|o| *o == Outcome::Done(None)), "{back:?}");
        }
        let Outcome::Rnode(rnode) = cell.call(0, Call::Get { id: file }) else { panic!("there") };
        assert_eq!(u64::from(rnode.nlink), 1 + 10 * clients);
    }
}

/// The reverse order: a removal reads the directory first, and the file has the smaller number.
#[test]
fn concurrent_removals_from_a_newer_directory_terminate() {
    let mut cell = Cell::new(3);
    let Outcome::Done(Some(file)) = cell.call(0, create(&name("f"))) else { panic!("made") };
    let make = Make::Directory {};
    let (parent, id) = (RnodeId::ROOT, RnodeId::ROOT);
    let op = Op::Create { parent, name: name("d"), id, make, perm: 0o755, uid: 0, gid: 0 };
    let Outcome::Done(Some(dir)) = cell.call(0, apply(op)) else { panic!("made") };
    cell.call(0, Call::Sync);
    assert!(file < dir);
    for round in 0..10 {
        let names: Vec<String> = (0..3).map(|i| format!("l{i}-{round}")).collect();
        for name in &names {
            assert_eq!(cell.call(0, link(file, dir, name)), Outcome::Done(None));
        }
        let remove = |i: usize| apply(Op::Unlink { parent: dir, name: name(&names[i]) });
        let back = cell.call_at_once((0..3).map(|i| (i, remove(i))).collect());
        assert!(back.iter().all(|o| *o == Outcome::Done(Some(file))), "{back:?}");
    }
}

fn name(name: &str) -> Name {
    Name::new(name.as_bytes()).expect("a name")
}

fn link(id: RnodeId, parent: RnodeId, to: &str) -> Call {
    apply(Op::Link { id, parent, name: name(to) })
}

fn lock(id: RnodeId, owner: u64, byte: u64, wait: bool) -> Call {
    let style = LockStyle::Posix;
    let lock = Lock { style, owner, exclusive: true, first: byte, last: byte, pid: 1 };
    Call::Lock { id, lock, wait }
}

fn unlock(id: RnodeId, owner: u64) -> Call {
    Call::Unlock { id, style: LockStyle::Posix, owner, first: 0, last: u64::MAX }
}

/// Two clients, and a file that both know.
fn shared_file() -> (Cell, RnodeId) {
    let mut cell = Cell::new(2);
    let name = Name::new(b"f").expect("a name");
    let Outcome::Done(Some(file)) = cell.call(0, create(&name)) else { panic!("made") };
    assert!(matches!(cell.call(1, Call::Get { id: RnodeId::ROOT }), Outcome::Rnode(_)));
    assert!(matches!(cell.call(1, Call::Get { id: file }), Outcome::Rnode(_)));
    (cell, file)
}

#[test]
fn locks_cost_a_message_only_when_others_lock_the_same_file() {
    let (mut cell, file) = shared_file();
    assert_eq!(cell.cost(0, lock(file, 7, 1, false)), 2, "the lock lease and its answer");
    for byte in 2..50 {
        assert_eq!(cell.cost(0, lock(file, 7, byte, byte % 2 == 0)), 0);
        assert_eq!(cell.cost(0, unlock(file, 7)), 0);
    }
    cell.call(0, lock(file, 7, 1, false));
    assert_eq!(
        cell.call(0, lock(file, 8, 1, false)),
        REFUSED,
        "another process of the same client"
    );
    assert_eq!(cell.call(1, lock(file, 7, 1, false)), REFUSED, "another client's owner 7");
    assert_eq!(cell.call(1, lock(file, 7, 2, false)), Outcome::Finished, "another byte");
    let probe =
        Lock { style: LockStyle::Posix, owner: 9, exclusive: false, first: 0, last: 1, pid: 0 };
    let Outcome::InTheWay(Some((found, theirs))) =
        cell.call(1, Call::FindLock { id: file, lock: probe })
    else {
        panic!("there is one")
    };
    assert_eq!((found.first, found.last, found.pid, theirs), (1, 1, 1, true));
    // An unlock wakes the waiting client, though it needs no lease.
    let waits = cell.begin(1, lock(file, 9, 1, true));
    cell.call(0, unlock(file, 7));
    assert_eq!(cell.ended(waits), Some(Outcome::Finished));
    assert_eq!(cell.call(0, lock(file, 7, 1, false)), REFUSED);
    cell.call(1, unlock(file, 9));
    assert_eq!(cell.call(0, lock(file, 7, 1, false)), Outcome::Finished);
}

#[test]
fn relock_after_unlock_while_others_lock() {
    let (mut cell, file) = shared_file();
    cell.call(0, lock(file, 7, 1, false));
    assert_eq!(cell.call(1, lock(file, 8, 1, false)), REFUSED);
    // Its message is lost and repeated.
    cell.cut = Some(0);
    let unlocks = cell.begin(0, unlock(file, 7));
    assert_eq!(cell.call(1, lock(file, 8, 1, false)), REFUSED);
    assert_eq!(cell.ended(unlocks), None);
    cell.cut = None;
    cell.now = Moment(cell.now.0 + 1_100_000);
    let back = cell.run(0, ClientEvent::Tick);
    assert_eq!(back, [(unlocks, Outcome::Finished)]);
    assert_eq!(cell.call(1, lock(file, 8, 1, false)), Outcome::Finished);
    // An unlock does not wait long for a server that does not answer.
    assert_eq!(cell.call(0, lock(file, 7, 1, false)), REFUSED);
    cell.cut = Some(1);
    let unlocks = cell.begin(1, unlock(file, 8));
    cell.now = Moment(cell.now.0 + 1_100_000);
    assert_eq!(cell.run(1, ClientEvent::Tick), []);
    cell.now = Moment(cell.now.0 + 1_100_000);
    assert_eq!(cell.run(1, ClientEvent::Tick), [(unlocks, Outcome::Finished)]);
}

const REFUSED: Outcome = Outcome::Refused(weft_ringer::Refusal::WouldBlock);

#[test]
fn lock_deadlocks_are_detected() {
    let (mut cell, file) = shared_file();
    cell.call(0, lock(file, 1, 1, false));
    cell.call(1, lock(file, 2, 2, false));
    let waits = cell.begin(0, lock(file, 1, 2, true));
    let deadlock = Outcome::Refused(weft_ringer::Refusal::Deadlock);
    assert_eq!(cell.call(1, lock(file, 2, 1, true)), deadlock, "over two clients");
    // A caller without a lock may wait.
    let other = cell.begin(1, lock(file, 3, 1, true));
    cell.call(1, unlock(file, 2));
    assert_eq!(cell.ended(waits), Some(Outcome::Finished));
    cell.call(0, unlock(file, 1));
    assert_eq!(cell.ended(other), Some(Outcome::Finished));
    // Two holders of a shared lock that both request it exclusively.
    let shared = |exclusive| Lock {
        style: LockStyle::Posix,
        owner: 5,
        exclusive,
        first: 100,
        last: 200,
        pid: 0,
    };
    for i in [0, 1] {
        let call = Call::Lock { id: file, lock: shared(false), wait: false };
        assert_eq!(cell.call(i, call), Outcome::Finished);
    }
    let first = cell.begin(0, Call::Lock { id: file, lock: shared(true), wait: true });
    let second = cell.call(1, Call::Lock { id: file, lock: shared(true), wait: true });
    assert_eq!(second, deadlock);
    cell.call(1, unlock(file, 5));
    assert_eq!(cell.ended(first), Some(Outcome::Finished));
}

#[test]
fn locks_end_with_the_epoch_and_survive_a_server_restart() {
    let (mut cell, file) = shared_file();
    cell.call(0, lock(file, 1, 1, false));
    assert_eq!(cell.call(1, lock(file, 2, 1, false)), REFUSED);
    // The server dies, and begins anew; both tell what they have.
    let server = Mds::open(&mut cell.store, cell.now, Time::default(), MdsOptions::default());
    cell.server = server.expect("memory");
    cell.run(0, ClientEvent::Connected);
    cell.run(1, ClientEvent::Connected);
    assert_eq!(cell.call(1, lock(file, 2, 1, false)), REFUSED, "it was told");
    let waits = cell.begin(1, lock(file, 2, 1, true));
    // The holder vanishes.
    cell.cut = Some(0);
    for _ in 0..20 {
        cell.now = Moment(cell.now.0 + 1_000_000);
        let back = cell.run(1, ClientEvent::Tick);
        cell.later.extend(back);
    }
    assert_eq!(cell.ended(waits), Some(Outcome::Finished));
    assert_eq!(cell.clients[0].locks(cell.now).count(), 0, "it does not vouch for its lock");
    cell.cut = None;
    cell.run(0, ClientEvent::Tick);
    assert!(!cell.clients[0].has_locks(file, LockStyle::Posix, 1), "and has lost it");
    assert_eq!(cell.call(0, lock(file, 1, 1, false)), REFUSED);
}
