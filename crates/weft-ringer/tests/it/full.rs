//! A server whose store has no room: it goes on, gives leases to read, and makes up for it later.

use std::cell::Cell;
use std::rc::Rc;

use weft_ringer::mds::{Mds, MdsEvent, MdsOptions};
use weft_ringer::op::{Logged, Make, Op};
use weft_ringer::store::{
    Change, MemoryStore, Record, Revision, Store, StoreError, StoreResult, Transaction,
};
use weft_ringer::wire::{Claim, FromServer, Reply, Request, RequestBody, ToServer, Welcome};
use weft_ringer::{
    ClientId, Epoch, Incarnation, Mode, Moment, Name, Refusal, RequestId, RnodeId, Seq, Token,
    Version,
};
use weft_vfs::Time;

const ROOT: RnodeId = RnodeId::ROOT;
const NO_SPACE: Reply = Reply::No { why: Refusal::NoSpace };

/// A store that can be full.
struct Limited {
    inner: MemoryStore,
    is_full: Rc<Cell<bool>>,
}

impl Store for Limited {
    fn get(&self, key: &[u8]) -> StoreResult<Option<Record>> {
        self.inner.get(key)
    }

    fn range(&self, from: &[u8], to: &[u8], limit: usize) -> StoreResult<Vec<(Vec<u8>, Record)>> {
        self.inner.range(from, to, limit)
    }

    fn commit(&mut self, transaction: &Transaction) -> StoreResult<Revision> {
        if self.is_full.get() && !transaction.changes.is_empty() {
            return Err(StoreError::Full);
        }
        self.inner.commit(transaction)
    }

    fn revision(&self) -> StoreResult<Revision> {
        self.inner.revision()
    }

    fn changes(&self, after: Revision, limit: usize) -> StoreResult<Vec<Change>> {
        self.inner.changes(after, limit)
    }

    fn forget_before(&mut self, revision: Revision) -> StoreResult<()> {
        self.inner.forget_before(revision)
    }
}

struct World {
    store: Limited,
    mds: Mds,
    now: Moment,
    requests: u64,
}

impl World {
    fn new() -> Self {
        let is_full = Rc::default();
        let mut store = Limited { inner: MemoryStore::new(), is_full };
        let now = Moment(1_000_000);
        let mds = Mds::open(&mut store, now, Time::default(), MdsOptions::default());
        Self { store, mds: mds.expect("memory"), now, requests: 0 }
    }

    fn reopen(&mut self) {
        let mds = Mds::open(&mut self.store, self.now, Time::default(), MdsOptions::default());
        self.mds = mds.expect("room");
    }

    fn handle(&mut self, event: MdsEvent) -> Vec<(ClientId, FromServer)> {
        let out = self.mds.handle(&mut self.store, self.now, event);
        out.expect("the server goes on").into_iter().map(|m| (m.client, m.message)).collect()
    }

    /// Lets time pass, and returns the replies that are sent meanwhile.
    fn tick(&mut self, micros: u64) -> Vec<(ClientId, Reply)> {
        self.now = self.now.after(micros);
        let out = self.handle(MdsEvent::Tick).into_iter();
        out.filter_map(|(client, message)| match message {
            FromServer::Reply { reply, .. } => Some((client, reply)),
            _ => None,
        })
        .collect()
    }

    fn say(&mut self, client: u64, epoch: Epoch, body: RequestBody) -> Vec<Reply> {
        self.requests += 1;
        let request = Request { id: RequestId(self.requests), body };
        let (client, generation) = (ClientId(client), self.mds.generation());
        let message = ToServer { client, epoch, generation, request };
        let out = self.handle(MdsEvent::Message(message)).into_iter();
        out.filter_map(|(to, message)| match message {
            FromServer::Reply { reply, .. } if to == client => Some(reply),
            _ => None,
        })
        .collect()
    }

    fn hello(&mut self, client: u64) -> Welcome {
        let body = RequestBody::Hello { incarnation: Incarnation(1) };
        match self.say(client, Epoch(0), body).pop() {
            Some(Reply::Welcome { welcome }) => welcome,
            other => panic!("{other:?}"),
        }
    }

    fn acquire(&mut self, client: u64, epoch: Epoch, mode: Mode) -> Vec<Reply> {
        self.say(client, epoch, RequestBody::Acquire { rnode: ROOT, mode })
    }

    /// A change of the root by its first client.
    fn mkdir(&mut self, client: u64, welcome: &Welcome) -> Vec<Reply> {
        let op = Op::Create {
            parent: ROOT,
            name: Name::new(b"d").expect("a name"),
            id: RnodeId::new(welcome.slot, 1),
            make: Make::Directory {},
            perm: 0o755,
            uid: 0,
            gid: 0,
        };
        let base = vec![(ROOT, Version::FIRST)];
        let epoch = welcome.epoch;
        let ops = vec![Logged { seq: Seq(1), epoch, stamp: Time::default(), op, base }];
        self.say(client, epoch, RequestBody::Commit { prev: Seq(0), ops })
    }
}

fn is_granted(reply: Option<&Reply>, wanted: Mode) -> bool {
    matches!(reply, Some(Reply::Granted { mode, .. }) if *mode == wanted)
}

/// Client 1 has the root's write lease and is cut off until its epoch has ended, while the store is
/// full. Client 2 is there all the time. Returns the epochs.
fn cut_off_while_full() -> (World, Welcome, Welcome) {
    let mut world = World::new();
    let (one, two) = (world.hello(1), world.hello(2));
    assert!(is_granted(world.acquire(1, one.epoch, Mode::Write).first(), Mode::Write));
    world.store.is_full.set(true);
    for _ in 0..6 {
        world.tick(4_000_000);
        let renewed = world.say(2, two.epoch, RequestBody::Renew {});
        assert_eq!(renewed, [Reply::Renewed {}]);
    }
    assert!(world.mds.is_full());
    let renewed = world.say(1, one.epoch, RequestBody::Renew {});
    assert_eq!(renewed, [Reply::NoSession {}], "the epoch has ended");
    (world, one, two)
}

#[test]
fn an_epoch_ends_in_a_full_store_and_is_recorded_when_there_is_room() {
    let (mut world, _, two) = cut_off_while_full();
    assert!(is_granted(world.acquire(2, two.epoch, Mode::Read).first(), Mode::Read));
    assert_eq!(world.acquire(2, two.epoch, Mode::Write), [NO_SPACE]);
    // A client that reads is not held up by one that waits to write.
    let hello = RequestBody::Hello { incarnation: Incarnation(1) };
    assert_eq!(world.say(3, Epoch(0), hello), [NO_SPACE], "no epoch begins");
    assert_eq!(world.tick(1_000_000), []);
    assert!(world.mds.is_full());

    world.store.is_full.set(false);
    // Without a change by any client.
    let mut replies = world.tick(1_000_000);
    replies.extend(world.tick(50_000));
    assert!(!world.mds.is_full());
    let granted = replies.iter().find(|(client, _)| *client == ClientId(2)).map(|(_, r)| r);
    assert!(is_granted(granted, Mode::Write), "{replies:?}");
    world.hello(3);
    assert!(matches!(world.mkdir(2, &two)[..], [Reply::Committed { applied: Seq(1), .. }]));
    // The end was recorded: the cut-off client begins anew.
    world.reopen();
    assert!(!world.hello(1).reclaim);
    assert!(world.hello(2).reclaim);
}

/// The server dies before the end of the epoch is recorded. The client that had the lease may go on
/// with it, so no other may have changed anything under it.
#[test]
fn a_lease_of_an_unrecorded_end_can_be_reclaimed_and_was_given_to_no_writer() {
    let (mut world, one, two) = cut_off_while_full();
    assert!(is_granted(world.acquire(2, two.epoch, Mode::Read).first(), Mode::Read));
    assert_eq!(world.acquire(2, two.epoch, Mode::Write), [NO_SPACE]);
    assert!(matches!(world.mkdir(2, &two)[..], [Reply::Broken { .. }]), "it has no lease");
    world.store.is_full.set(false);
    world.reopen();
    assert!(world.hello(1).reclaim);
    let claim = Claim { rnode: ROOT, mode: Mode::Write, token: Token::BORN };
    let body = RequestBody::Reclaim { claims: vec![claim], last: true };
    assert_eq!(world.say(1, one.epoch, body), [Reply::Reclaimed {}]);
    assert!(matches!(world.mkdir(1, &one)[..], [Reply::Committed { applied: Seq(1), .. }]));
}

/// The last lease on a file without names goes while there is no room to remove the file.
#[test]
fn a_file_that_is_gone_is_removed_when_there_is_room() {
    let mut world = World::new();
    let one = world.hello(1);
    world.acquire(1, one.epoch, Mode::Write);
    assert!(matches!(world.mkdir(1, &one)[..], [Reply::Committed { .. }]));
    let id = RnodeId::new(one.slot, 1);
    let op = Op::Rmdir { parent: ROOT, name: Name::new(b"d").expect("a name") };
    let after = |version: Version| version.next(one.epoch, Seq(1));
    let base = vec![(ROOT, after(Version::FIRST)), (id, after(Version::default()))];
    let ops = vec![Logged { seq: Seq(2), epoch: one.epoch, stamp: Time::default(), op, base }];
    let said = world.say(1, one.epoch, RequestBody::Commit { prev: Seq(1), ops });
    assert!(matches!(said[..], [Reply::Committed { applied: Seq(2), .. }]), "{said:?}");
    let key = [&b"o"[..], &id.0.to_be_bytes()].concat();
    assert!(world.store.get(&key).expect("memory").is_some(), "it has a lease, and no name");
    world.store.is_full.set(true);
    world.say(1, one.epoch, RequestBody::Lower { rnode: id, token: Token::BORN, to: None });
    assert!(world.store.get(&key).expect("memory").is_some());
    world.store.is_full.set(false);
    world.tick(1_000_000);
    assert!(world.store.get(&key).expect("memory").is_none());
}
